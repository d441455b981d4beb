"""The pipeliner."""
