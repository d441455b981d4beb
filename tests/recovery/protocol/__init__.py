"""A model of a lab around the real root agent, and an explorer of what can happen in it."""
