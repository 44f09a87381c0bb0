"""The app: which names the standard library defines, and where. Indexed by jobs, one job per source file."""
