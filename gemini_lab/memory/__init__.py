"""The memory tier: CPU memory that outlives a worker and dies with its node."""
