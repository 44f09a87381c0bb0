"""Queries about jobs: why one waits, what blocks it, which workers live, how many jobs there are.

This room imports ``definition`` and ``store``. It only reads: nothing here may write, lock or wait.
"""
