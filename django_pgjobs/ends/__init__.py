"""Ends of attempts: their kinds in one table, the end of each decision, the lines about ends that are stored.

Imports ``definition`` and ``store``. Shared by the worker's finalise thread, ``runjobs --inline`` and ``testing``.
"""
