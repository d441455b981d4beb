"""Messages between a lab's processes, over TCP and over socket pairs."""
