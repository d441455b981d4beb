"""A machine slow enough to matter: link rates and accelerator time where there are none."""
