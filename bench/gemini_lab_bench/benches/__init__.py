"""What `gemini-lab bench` measures, a module a bench."""
