"""The `gemini-lab` command and its sub-commands."""
