"""What supervisor, threads and executors agree on: messages and their frames, the board, runs, ladders, connections.

Imports no other room of the worker.
"""
