"""The supervisor's threads, each with a connection of its own."""
