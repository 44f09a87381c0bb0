"""Reading what happens to jobs: why one waits, who blocks it, which workers live, how many jobs there are.

Imports ``definition`` and ``store``. Reads only: nothing here may write, lock or wait.
"""
