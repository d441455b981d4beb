"""What a version has of a job: the large state and the small one, the script's own, its data."""
