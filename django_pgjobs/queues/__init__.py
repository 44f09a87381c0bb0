"""A queue as a whole: pause and resume it, set its limit, look at its jobs, cancel one of them.

``Queue`` and ``QueueStatus`` are public; ``pauses`` and ``limits`` are internal, and also steer jobs by name.
"""

from __future__ import annotations

from django_pgjobs.queues.queue import Queue, QueueStatus

__all__ = ["Queue", "QueueStatus"]
