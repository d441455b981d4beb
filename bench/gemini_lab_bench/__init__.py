"""Benches, other systems, the paper's figures, and campaigns of faults."""
