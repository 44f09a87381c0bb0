"""Ways to run jobs in a process: as a worker, one job at a time, behind a reloader, or past the queue.

The only room that wires settings, ``worker`` and ``maintenance`` together. No rule about jobs belongs here.
"""
