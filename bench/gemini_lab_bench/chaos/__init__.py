"""`gemini-lab chaos`: random real faults in real runs, and what must hold after them."""
