"""What a worker protects: a DeepSpeed engine's state out and in, and the tie to its agent."""
