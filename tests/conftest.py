"""Settings that every test shares."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

# A property is no faster for being true: on a busy machine an example may take any time.
settings.register_profile("any-speed", deadline=None)
settings.load_profile("any-speed")
