"""Iterations that other machines compute again, and a machine that computes wrong."""
