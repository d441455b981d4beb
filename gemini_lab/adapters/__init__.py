"""Training libraries with loops of their own: thin hooks, so that none of their state is lost."""
