"""The recovery protocol without I/O: the real root agent among modelled agents."""
