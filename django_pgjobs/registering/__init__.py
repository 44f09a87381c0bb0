"""The way of a registration from the caller's arguments to a stored row."""
