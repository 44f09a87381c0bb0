"""One attempt of one job, from its start to the fenced statement that writes its outcome.

Imports ``definition``, ``context``, ``middleware`` and ``store``. Knows no process, no pipe and no lease: the worker,
``runjobs --inline``, ``testing`` and a bypassed call all run attempts by this room. ``worker`` must never come in.
"""
