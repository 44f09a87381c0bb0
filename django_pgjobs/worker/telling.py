"""Signals of durable writes, sent in a thread of their own in an executor.

A receiver is the project's code: it may be slow, ask the database, or raise anything. The control thread, which
must always read, only hands over what is to be told.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from typing import Any

from django_pgjobs import events
from django_pgjobs.worker import hygiene

log = logging.getLogger("django_pgjobs")

Told = tuple[str, dict[str, Any]]

WAITING = 200
"""Batches of up to some hundred that wait at most for slow receivers; memory is not theirs to fill."""


class Teller:
    """Tells receivers of durable writes, in order; its thread is started by the first."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[list[Told] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def tell(self, items: list[Told]) -> None:
        """Hand over what was written; returns at once. Behind receivers that are too slow for long it is dropped."""
        if self._items.qsize() >= WAITING:
            if not self.dropped:
                log.error("receivers of signals are too slow, signals are dropped")
            self.dropped += len(items)
            return
        if self.dropped:
            log.warning("signals are told again dropped=%d", self.dropped)
            self.dropped = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="pgjobs-signals", daemon=True)
            self._thread.start()
        self._items.put(items)

    def close(self, seconds: float) -> None:
        """Wait until everything was told, at most so long."""
        if self._thread is not None:
            self._items.put(None)
            self._thread.join(seconds)

    def _serve(self) -> None:
        while (items := self._items.get()) is not None:
            for what, fields in items:
                contextvars.Context().run(self._tell, what, fields)

    def _tell(self, what: str, fields: dict[str, Any]) -> None:
        try:
            events.stored(what, fields)
        except BaseException:
            log.exception("receiver failed signal=%s job=%d", what, fields["job_id"])
        finally:
            hygiene.tidy(f"receivers of signal={what} job={fields['job_id']}")
