"""The supervisor's threads: each owns one connection and survives any trouble with it.

Imports ``worker.shared``, ``execution`` and ``store``. Threads post messages to the main thread; they never touch its
state. No code of the project runs here.
"""
