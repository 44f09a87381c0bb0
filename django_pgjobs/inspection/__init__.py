"""Reading what happens to jobs: why one waits, who blocks it, which workers live, how many there are."""
