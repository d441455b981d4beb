"""Stage 5: who notices a failure, and what is loaded from where."""
