"""Byte form of one rank's part of the model states."""
