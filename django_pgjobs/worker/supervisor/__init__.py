"""The supervisor's main thread: it decides which executor runs which job, and when one is stopped."""
