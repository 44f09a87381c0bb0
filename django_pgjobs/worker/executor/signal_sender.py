"""Signals of durable writes, sent in a thread of their own in an executor.

A receiver is project code: it may be slow, query the database, or raise anything. The control thread must never stop
reading, so it only passes the events to this thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from django_pgjobs.execution import events
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.logs import facts, log
from django_pgjobs.worker.executor import cleanup, entering
from django_pgjobs.worker.shared.channel_messages import SignalEvent


class SignalSender:
    """Calls the receivers of durable writes, in order; the first event starts its thread.

    The thread calls ``confirm`` with the number of each batch whose receivers have all been called; their errors do not
    matter. The supervisor limits how many events are on their way. ``database``: the alias of the jobs' rows, unless an
    event says so.
    """

    def __init__(self, confirm: Callable[[int], None], database: str = DEFAULT_DB_ALIAS) -> None:
        self._confirm = confirm
        self._database = database
        self._batches: queue.SimpleQueue[tuple[int, list[SignalEvent]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def notify(self, number: int, items: list[SignalEvent]) -> None:
        """Pass on the events of durable writes. Returns at once."""
        self._batches.put((number, items))
        self.start()

    def start(self) -> None:
        """Start the thread if there are events; if that fails now, try again later."""
        if self._thread is not None or self._batches.empty():
            return
        thread = threading.Thread(target=self._serve, name="pgjobs-signals", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("thread for signals cannot be started, tried again later: %s", error)
        else:
            self._thread = thread

    def close(self, seconds: float) -> None:
        """Wait until all receivers have been called, at most so long."""
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join(seconds)

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            number, items = batch
            for what, fields in items:
                fresh_context().run(self._send, what, fields)
            self._confirm(number)

    def _send(self, what: str, fields: dict[str, Any]) -> None:
        try:
            cleanup.refresh()
            if schema := fields.pop("schema", None):
                entering.lead(entering.Tenancy(self._database, schema))
            events.stored(what, {"database": self._database, **fields} if what == events.FINISHED else fields)
        except BaseException:
            log.exception("receiver failed signal=%s job=%d", what, fields["job_id"])
        finally:
            cleanup.tidy(facts("receivers of signal=%s job=%s", what, fields["job_id"]))
