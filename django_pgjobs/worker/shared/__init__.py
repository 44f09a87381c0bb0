"""The contract of supervisor, threads and executors: messages and their frames, the board, runs, ladders, connections.

Imports no other room of the worker.
"""
