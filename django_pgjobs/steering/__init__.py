"""What operators and callers do with registered jobs: cancel, retry, move, wait, and the trail of it."""
