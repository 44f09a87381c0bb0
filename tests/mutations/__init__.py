"""A mutation run: one-line faults, put into a copy of the code at random, that some test should notice.

    python -m tests.mutations --seed 7 --count 120

See ``__main__`` for the options and CONTRIBUTING.md for how to read the report.
"""
