"""How jobs are run in a process: a worker, one job at a time, behind a reloader, or past the queue."""
