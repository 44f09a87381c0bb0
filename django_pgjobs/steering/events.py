"""Send events: the payload for jobs that wait for it, now or later."""

from __future__ import annotations

from django_pgjobs import waking
from django_pgjobs.conf import get_conf
from django_pgjobs.durable import check_name
from django_pgjobs.exceptions import InvalidJob, UnstorableResult
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.payload import encode_result
from django_pgjobs.states import BUILT_IN
from django_pgjobs.steering.jobs import who
from django_pgjobs.steering.trail import Trail, storable
from django_pgjobs.store import statements as store
from django_pgjobs.store.notifying import wake_up
from django_pgjobs.store.transactions import at_read_committed

log = safe_logger("django_pgjobs")

KIND = "event"
"""The kind of an action that sent an event; its subject is the event's name."""


def is_ours(name: str) -> bool:
    """Tell whether only this package sends the event: a job that waits for it would find nothing to go on with."""
    return name.startswith(BUILT_IN)


def send_value(using: str, name: str, payload: object, *, by: object, operated: bool = False) -> bool:
    """Send an event with a value as its payload; see ``send``. ``operated``: record it as an operator's action.

    Raises ``InvalidJob`` for a name that no event can have, and for a payload that cannot be stored as JSON.
    """
    if is_ours(check_name("the name of an event", name)):
        raise InvalidJob(f"event {name!r}: names that begin with {BUILT_IN!r} are for this package alone")
    trail = Trail("send", who(by), kind=KIND, subject=name) if operated else None
    return send(using, name, _encoded(name, payload), who(by), trail)


def _encoded(name: str, payload: object) -> str:
    limit = get_conf().event_limit_bytes
    try:
        return encode_result(payload, limit)
    except UnstorableResult as error:
        words = str(error).replace("RESULT_LIMIT_BYTES", "EVENT_LIMIT_BYTES")
        raise InvalidJob(f"event {name!r}: the payload cannot be sent. {words}") from error


def send(using: str, name: str, payload: str, by: str, trail: Trail | None = None) -> bool:
    """Send an event in the caller's transaction; return False if it was sent before, as the first one counts.

    ``payload``: as JSON text. ``trail``: records the action, and the jobs that wait for it. Jobs that wait for it
    are made ready by the commit. Waits for whoever sends it or begins to wait for it just now.
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
            if trail is not None:
                trail.add(db, len(some), [waiter.id for waiter in some])
            after = some[-1].id if len(some) == store.WAITERS_AT_ONCE else None
        if trail is not None and trail.action_id is None:
            trail.add(db, 1)  # nobody waits for it: the event itself is what has changed
    log.info("event sent event=%s woken=%d by=%s", one_line(name), woken, one_line(by))
    return True
