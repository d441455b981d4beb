"""A run's bars in levels of detail, so that any window of a run of any length opens at once."""
