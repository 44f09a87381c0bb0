"""How a process runs jobs: as a worker, one job at a time, behind a reloader, or past the queue.

The only room that wires settings, ``worker`` and ``maintenance`` together. No rule about jobs belongs here.
"""
