"""How attempts end: the kinds of ends in one table, what a decision comes to, the lines about ends that are stored.

Imports ``definition`` and ``store``. Shared by the worker's finalise thread, ``runjobs --inline`` and ``testing``.
"""
