"""Python values as JSON and back, and what is kept of exceptions."""
