"""Versions that peers make themselves, of the gradients that made them."""
