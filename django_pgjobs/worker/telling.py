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


class Teller:
    """Tells receivers of durable writes, in order; its thread is started by the first."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[list[Told] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, items: list[Told]) -> None:
        """Hand over what was written; returns at once."""
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
