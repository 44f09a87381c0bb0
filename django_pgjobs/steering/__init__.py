"""Actions of operators and callers on registered jobs and cron entries: cancel, retry, move, pause, wait.

Imports ``definition`` and ``store``; gets rows and querysets from ``models`` above and knows no model. Every change
takes the row's lock first, leaves a trail, and never overwrites a job that a worker has claimed.
"""
