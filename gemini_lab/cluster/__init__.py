"""Nodes: how they are started, how they find one another, and what keeps them in step."""
