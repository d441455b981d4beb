"""A DeepSpeed job worth protecting: a GPT, its text, its script, and the quickstart of it."""
