"""What a person holds: a lab, its runs, and how they are shown and stopped."""
