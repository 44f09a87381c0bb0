"""The executor: a child process that runs jobs in threads and on an event loop.

Imports ``worker.shared`` and ``execution``. It grants no right to a job and writes no outcome; ``orphan`` alone writes
to our tables, when the supervisor is dead. ``worker.supervisor`` and ``worker.threads`` must never come in.
"""
