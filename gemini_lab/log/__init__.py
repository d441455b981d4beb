"""A run's events and the log that keeps them; everything that is shown is made from it."""
