"""The worker: a supervisor that claims, renews, beats and writes ends, and executors that run jobs.

The protocol between them, their threads, states and crash table are in ``docs/contributing/worker.md``. Nothing of
the project's own code runs in the supervisor; nothing that grants a right to a job runs in an executor.
"""
