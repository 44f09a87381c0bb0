"""Limits that operators set in place of the code's numbers, for queues, for jobs by name, and for each key of a job.

Such a limit is a row with its numbers, who, why and until when. Every admission reads the rows, so a change applies
from the next one on, and no deploy touches them. Jobs that were registered where no limit was known are counted when a
worker is about to start them (ADR-0052). Each function joins the caller's transaction.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet

from django_pgjobs.definition.declared_limits import declared
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import facts, listed, log
from django_pgjobs.models import LimitOverride
from django_pgjobs.queues.pauses import names_of
from django_pgjobs.registering.destination import routed
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import Trail, Until, end_of, reason_of, signed
from django_pgjobs.store import limiting, notifying, waking
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.database import at_read_committed, on
from django_pgjobs.store.limiting import Override
from django_pgjobs.values.built_in import is_built_in
from django_pgjobs.values.limit import Limit

RATE_SECONDS = 60.0
"""The period of a rate for which neither the caller nor the code names one."""


def current(database: str | None = None) -> QuerySet[LimitOverride]:
    """Return the limits that operators have set and that are in force: queues first, by name."""
    return LimitOverride.objects.using(database or routed(LimitOverride, read=True)).current()


def override(
    kind: str,
    name: str,
    *,
    concurrency: int | None = None,
    rate: int | None = None,
    per: float | timedelta | None = None,
    by: object = None,
    reason: str = "",
    until: Until = None,
    database: str | None = None,
) -> LimitOverride:
    """Set the limit of a queue, of a job under all its names, or of each key of a job; return it.

    ``kind``: *queue*, *job* or *key*; the rest as of ``Queue.limit``. Repeatable.
    """
    names = names_of("queue" if kind == "queue" else "job", name)
    code = declared(kind, name)
    if not code.applies:
        raise InvalidJob(f"job {name!r} has no limit with a key, so no job of it has one to count.")
    bounds = checked(code.limit, concurrency, rate, per)
    instant, seconds = end_of(until)
    reason = reason_of(who(by), reason)
    using = database or routed(LimitOverride, {"queue" if kind == "queue" else "name": name})
    with at_read_committed(using):
        words = {"by": who(by), "reason": reason, "until": instant, "seconds": seconds}
        written = limiting.override_limit(on(using), kind, names, bounds, **words)  # type: ignore[arg-type]
        if not written:
            raise InvalidJob(f"until={until!r} is in the past by the database's clock: give a later instant.")
        first = next(each for each in written if each.name == names[0])
        trail = Trail("limit", who(by), reason, mode=words_of(first), kind=kind, subject=names[0])
        trail.add(on(using), len(written))
        waking.notify(using, [notifying.PAUSES])
    _log("limit", kind, names, by, words_of(first), reason)
    return LimitOverride.from_db(using, list(first._fields), list(first))


def restore(kind: str, name: str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Let the code's numbers apply again; return whether others were in force. Repeatable."""
    names = [name]
    if kind != "queue" and not is_built_in(name) and registry.resolved(name) is not None:
        names = names_of("job", name)
    using = database or routed(LimitOverride, {"queue" if kind == "queue" else "name": name})
    with at_read_committed(using):
        restored = limiting.restore_limit(on(using), kind, names)
        Trail("restore limit", who(by), reason, kind=kind, subject=names[0]).add(on(using), len(restored))
        if restored:
            waking.notify(using, [notifying.PAUSES])
    if restored:
        _log("restore limit", kind, restored, by, "", reason)
    return bool(restored)


def words_of(limit: LimitOverride | Override) -> str:
    """Return the numbers as the trail has them, in one line."""
    said = [] if limit.concurrency is None else [f"concurrency={limit.concurrency}"]
    if limit.rate is not None:
        said.append(f"rate={limit.rate} per={limit.per:g}")
    if limit.until is not None:
        said.append(f"until={limit.until.isoformat(timespec='seconds')}")
    return " ".join(said)


def checked(code: Limit | None, concurrency: int | None, rate: int | None, per: float | timedelta | None) -> Bounds:
    """Return the numbers to store. Raises ``InvalidJob`` for those that no ``Limit`` may have."""
    if any(type(number) is int and not number for number in (concurrency, rate)):
        raise InvalidJob("A limit of 0 would admit nothing: pause the queue or the job, which says so everywhere.")
    if per is not None and rate is None:
        raise InvalidJob("per is the period of a rate: give rate, too.")
    if per is None:
        per = code.per if code is not None and code.rate is not None else RATE_SECONDS
    try:
        limit = Limit(concurrency, rate, per)
    except ValueError as error:
        raise InvalidJob(str(error)) from None
    return Bounds(limit.concurrency, limit.rate, None if limit.rate is None else limit.per)


def _log(verb: str, kind: str, names: list[str], by: object, words: str, reason: str) -> None:
    which = facts("queue=%s" if kind == "queue" else "name=%s", listed(names))
    log.info("operator's %s %s %s %s", verb, which, words, signed(who(by), reason))
