"""Send events: the payload for jobs that wait for it, now or later; and take them back before a job has read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from django.db import OperationalError

from django_pgjobs.conf import get_conf
from django_pgjobs.durable import known_events
from django_pgjobs.exceptions import InvalidJob, UnstorableResult
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.payload import encode_result
from django_pgjobs.states import BUILT_IN
from django_pgjobs.steering.batching import LOCK_SECONDS, who
from django_pgjobs.steering.trail import Trail, signed, storable
from django_pgjobs.store import memos, waking
from django_pgjobs.store.database import LOCK_NOT_AVAILABLE, at_read_committed, on, set_lock_timeout, sqlstate_of
from django_pgjobs.store.notifying import wake_up
from django_pgjobs.values.call_options import NAME_LIMIT, check_name
from django_pgjobs.values.json_types import described, problem_of

KIND = "event"
"""The kind of an action that sent or withdrew an event; its subject is the event's name."""


def may_be_sent(name: str) -> bool:
    """Tell whether an event of this name can be sent: not if only this package sends it, nor if no event has it."""
    return not name.startswith(BUILT_IN) and name.isprintable() and 0 < len(name) <= NAME_LIMIT


class Sent(StrEnum):
    """Result of sending an operator's event; ``BUSY``: another transaction has locked it, or a job that waits for
    it."""

    SENT = "sent"
    BEFORE = "sent before"
    BUSY = "busy"


class Withdrawn(StrEnum):
    """Result of an operator's request to take an event back.

    ``KEPT``: it was not sent, or a job has read it; ``BUSY``: another transaction has locked it.
    """

    WITHDRAWN = "withdrawn"
    KEPT = "kept"
    BUSY = "busy"


def send_value(using: str, name: str, payload: object, *, by: object) -> bool:
    """Send an event with a value as its payload; see ``send``.

    Raises ``InvalidJob`` for a name that no event can have, and for a payload that cannot be stored as JSON or is not
    of the type that the event's ``Event[…]`` declares in this process.
    """
    return send(using, name, _encoded(name, payload), who(by))


def send_by_operator(using: str, name: str, payload: object, *, by: object) -> Sent:
    """Do the same, and record it as an operator's action. Waits for locks for up to 5 s."""
    text, trail = _encoded(name, payload), Trail("send", who(by), kind=KIND, subject=name)
    sent = _impatiently(using, lambda: send(using, name, text, who(by), trail))
    return Sent.BUSY if sent is None else Sent.SENT if sent else Sent.BEFORE


def withdraw(using: str, name: str, *, by: object, reason: str) -> bool:
    """Take an event back in the caller's transaction; return False if it was not sent, or if a job has read it.

    Jobs that it has made ready find it not sent, and wait on until when they would have waited. Records the action.
    Waits for transactions that read, send or begin to wait for it just now. Raises ``InvalidJob`` for a name that no
    event can have.
    """
    _check_sendable(name)
    with at_read_committed(using):
        db = on(using)
        if not memos.withdraw_event(db, name):
            return False
        Trail("withdraw", who(by), reason, kind=KIND, subject=name).add(db, 1)
    log.info("event withdrawn event=%s %s", name, signed(who(by), reason))
    return True


def withdraw_by_operator(using: str, name: str, *, by: object, reason: str) -> Withdrawn:
    """Do the same, and say why not. Waits for locks for up to 5 s."""
    done = _impatiently(using, lambda: withdraw(using, name, by=by, reason=reason))
    return Withdrawn.BUSY if done is None else Withdrawn.WITHDRAWN if done else Withdrawn.KEPT


def _impatiently(using: str, act: Callable[[], bool]) -> bool | None:
    """Return what ``act`` returns in a transaction; None if a lock that it waits for is held for too long."""
    try:
        with at_read_committed(using):
            before = set_lock_timeout(on(using), f"{LOCK_SECONDS}s")
            done = act()
            set_lock_timeout(on(using), before)
    except OperationalError as error:
        if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
            raise
        return None
    return done


def payload_of(text: str) -> object:
    """Return the payload that an operator typed as JSON; None for nothing. Raises ``ValueError`` that says where."""
    try:
        return json.loads(text, parse_constant=_no_constant) if text.strip() else None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_sendable(name: str) -> None:
    if not may_be_sent(check_name("the name of an event", name)):
        raise InvalidJob(f"event {name!r}: names that begin with {BUILT_IN!r} are for this package alone")


def _encoded(name: str, payload: object) -> str:
    _check_sendable(name)
    if problem := problem_of_payload(name, payload):
        raise InvalidJob(f"event {name!r}: {problem}")
    limit = get_conf().bounds.event_bytes
    try:
        return encode_result(payload, limit, "payload", "BOUNDS['event_bytes']")
    except UnstorableResult as error:
        raise InvalidJob(f"event {name!r}: the payload cannot be sent. {error}") from error


def problem_of_payload(name: str, payload: object) -> str:
    """Return why no event of this name has such a payload; empty where no type is declared."""
    declared = list(known_events.get(name.partition(":")[0], ()))
    kinds = [kind for kind in (event.payload_type() for event in declared) if kind is not Any]
    problems = [problem_of(payload, kind, "payload") for kind in kinds]
    if not problems or "" in problems:
        return ""
    return f"{problems[0]}. Send {described(kinds[0])}."


def send(using: str, name: str, payload: str, by: str, trail: Trail | None = None) -> bool:
    """Send an event in the caller's transaction; return False if it was sent before, as the first one counts.

    ``payload``: as JSON text. ``trail``: records the action, and the jobs that wait for it. Jobs that wait for it
    are made ready by the commit. Waits for transactions that send it or begin to wait for it just now.
    """
    woken = 0
    with at_read_committed(using):
        db = on(using)
        if not memos.send_event(db, name, payload, storable(by)):
            return False
        after: int | None = 0
        while after is not None:
            some = memos.wake_waiters(db, name, after=after)
            woken += sum(waiter.queue is not None for waiter in some)
            waking.notify(using, {wake_up(w.queue, w.priority) for w in some if w.queue is not None})
            if trail is not None:
                trail.add(db, len(some), [waiter.id for waiter in some])
            after = some[-1].id if len(some) == memos.WAITERS_AT_ONCE else None
        if trail is not None and trail.action_id is None:
            trail.add(db, 1)  # no job waits for it: the event itself is what has changed
    log.info("event sent event=%s woken=%d by=%s", name, woken, one_line(by))
    return True
