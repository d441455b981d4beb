"""What people look at: views of a run."""
