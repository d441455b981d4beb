"""Real clusters."""
