"""Pure functions on arrays: no I/O, no plotting."""
