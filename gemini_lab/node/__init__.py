"""The processes of one node: agent, warm parent, workers, and the root agent's shell."""
