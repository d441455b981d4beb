"""How versions travel beside training: the acting half of profiler and pipeliner."""
