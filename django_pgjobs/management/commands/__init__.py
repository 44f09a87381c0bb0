"""The entry points that Django finds by their file names; all they do is in the room above."""
