"""DeepSpeed's ZeRO and plain PyTorch, as protection sees them: what is state, how it goes back."""
