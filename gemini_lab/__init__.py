"""In-memory checkpoints for distributed training, after GEMINI (SOSP '23)."""
