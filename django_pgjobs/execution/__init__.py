"""One attempt of one job, from its start to the fenced statement that writes its outcome.

Imports ``definition``, ``context``, ``middleware`` and ``store``. Knows no process, no pipe and no lease: the worker,
``runjobs --inline``, ``testing`` and bypassed calls all run attempts through this package. Never import ``worker``.
"""
