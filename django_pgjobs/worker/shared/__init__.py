"""What supervisor, threads and executors agree on: frames, the board, runs, ladders, connections.

Imports no other room of the worker.
"""
