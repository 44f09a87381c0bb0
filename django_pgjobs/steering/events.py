"""Send events: the payload for jobs that wait for it, now or later."""

from __future__ import annotations

from django_pgjobs import waking
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.steering.trail import storable
from django_pgjobs.store import statements as store
from django_pgjobs.store.notifying import wake_up
from django_pgjobs.store.transactions import at_read_committed

log = safe_logger("django_pgjobs")


def send(using: str, name: str, payload: str, by: str) -> bool:
    """Send an event in the caller's transaction; return False if it was sent before, as the first one counts.

    Jobs that wait for it are made ready by the commit. Waits for whoever sends it or begins to wait for it just now.
    """
    woken = 0
    with at_read_committed(using):
        db = store.on(using)
        if not store.send_event(db, name, payload, storable(by)):
            return False
        after: int | None = 0
        while after is not None:
            some = store.wake_waiters(db, name, after=after)
            woken += sum(waiter.queue is not None for waiter in some)
            waking.notify(using, {wake_up(w.queue, w.priority) for w in some if w.queue is not None})
            after = some[-1].id if len(some) == store.WAITERS_AT_ONCE else None
    log.info("event sent event=%s woken=%d by=%s", one_line(name), woken, one_line(by))
    return True
