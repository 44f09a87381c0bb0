"""The executor: a child process that runs jobs in threads and on an event loop.

Imports ``worker.shared`` and ``execution``. It grants no right to a job and writes no outcome but the end of an atomic
job, in that job's own transaction; ``orphan`` writes to our tables when the supervisor is dead. Never import
``worker.supervisor`` or ``worker.threads``.
"""
