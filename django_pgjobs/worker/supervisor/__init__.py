"""The supervisor's main thread: it decides which executor runs which job, and when to stop one.

Imports ``worker.threads`` and ``worker.shared``. The main thread runs no query, no code of the project, and never
blocks: code that may block belongs in ``threads``.
"""
