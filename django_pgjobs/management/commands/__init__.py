"""The entry points that Django finds by file name; the code is in ``management``."""
