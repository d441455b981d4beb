"""Stories of the root agent."""
