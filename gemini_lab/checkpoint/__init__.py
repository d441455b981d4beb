"""What a version is and where it lives: engine state, memory tier (slab), persistent tier."""
