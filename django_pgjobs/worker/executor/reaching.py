"""In an executor of a worker for several databases: it asks each of them which it is, until it answers.

The executor is ready with the first. Each other follows when it answers: one that is down or silent costs nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.worker.shared.identity import TableIdentity, identity_of

ANSWER_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0


class Reaching:
    """Asks each database of ``aliases`` in a thread of its own until it answers, and calls ``reached`` with that.

    ``ready`` is set by the caller when ``reached`` may be called.
    """

    def __init__(self, aliases: Sequence[str], role: str, reached: Callable[[str, TableIdentity], object]) -> None:
        self.role = role
        self.reached = reached
        self.ready = threading.Event()
        self.any = threading.Event()
        """Set once one of them has answered."""

        for alias in aliases:
            threading.Thread(target=self._ask, args=(alias,), name=f"pgjobs-reach-{alias}", daemon=True).start()

    def _ask(self, alias: str) -> None:
        pause = FIRST_PAUSE_SECONDS
        identity: TableIdentity | None = None
        while identity is None:
            try:
                identity = identity_of(alias, self.role, ANSWER_SECONDS)
            except Exception as error:
                log.debug("executor cannot reach a database yet alias=%s: %s", alias, one_line(error))
            else:
                break
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self.any.set()
        self.ready.wait()
        self.reached(alias, identity)
