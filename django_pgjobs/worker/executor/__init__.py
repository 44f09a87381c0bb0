"""The executor: a child process that runs jobs."""
