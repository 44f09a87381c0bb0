"""Work larger than one job: batches, what comes after them, and the jobs of ours that hold them together.

Above ``jobs``, whose calls it registers. No SQL stands here, and nothing that a worker needs to end a job.
"""
