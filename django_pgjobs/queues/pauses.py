"""Pauses of queues, and of jobs by name: nothing of it starts until it is resumed or the pause ends.

A pause is a row with who, why and until when. It persists, every worker honours it within a second, and the admin
shows it. Running jobs continue; workers release claimed jobs that have not started, uncharged. Callbacks wait as well:
no code of a paused job starts. Each function joins the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q, QuerySet

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.logs import facts, listed, log
from django_pgjobs.models import Job, QueueState
from django_pgjobs.registering.destination import routed
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import Trail, Until, end_of, reason_of, signed
from django_pgjobs.store import claiming, notifying, pausing, waking
from django_pgjobs.store.database import at_read_committed, on
from django_pgjobs.store.pausing import Pause
from django_pgjobs.values.built_in import OWN_QUEUE, Act, is_built_in, refusal
from django_pgjobs.values.setting_rules import QUEUE_NAME

HINTS = {"queue": "queue", "job": "name"}
"""Kind of a pause → what routers get its name as."""


def current(database: str | None = None) -> QuerySet[QueueState]:
    """Return the current pauses, by the database's clock: queues first, by name."""
    return QueueState.objects.using(database or routed(QueueState, read=True)).current()


def pauses_of(queue: str, name: str, database: str | None = None) -> list[QueueState]:
    """Return why a job of this queue and name may not start now: the pause of its queue, of its name, or both."""
    return list(current(database).filter(Q(kind="queue", name=queue) | Q(kind="job", name=name)))


def pause(
    kind: str, name: str, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
) -> QueueState:
    """Pause a queue, or the jobs of this name and its former names (aliases); return the pause.

    ``kind``: *queue* or *job*; the rest as of ``Queue.pause``. Raises ``InvalidJob`` for a queue that cannot exist, for
    a job that this process does not know, and for an end in the past. Repeatable.
    """
    names = names_of(kind, name)
    instant, seconds = end_of(until)
    reason = reason_of(who(by), reason)
    using = database or routed(QueueState, {HINTS[kind]: name})
    with at_read_committed(using):
        written = pausing.pause(on(using), kind, names, by=who(by), reason=reason, until=instant, seconds=seconds)
        if not written:
            raise InvalidJob(f"until={until!r} is in the past by the database's clock: give a later instant.")
        trail = Trail("pause", who(by), reason, mode=_until_of(written[0]), kind=kind, subject=names[0])
        trail.add(on(using), len(written))
        waking.notify(using, [notifying.PAUSES])
    first = next(pause for pause in written if pause.name == names[0])
    _log("pause", kind, names, by, reason)
    return QueueState.from_db(using, list(first._fields), list(first))


def resume(kind: str, name: str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Resume a queue, or the jobs of this name; return whether they were paused. Repeatable."""
    names = [name]
    if kind == "job" and not is_built_in(name) and registry.resolved(name) is not None:
        names = names_of(kind, name)
    using = database or routed(QueueState, {HINTS[kind]: name})
    with at_read_committed(using):
        resumed = pausing.resume(on(using), kind, names)
        Trail("resume", who(by), reason, kind=kind, subject=names[0]).add(on(using), len(resumed))
        if resumed:
            waking.notify(using, [notifying.PAUSES])
    if resumed:
        _log("resume", kind, resumed, by, reason)
    return bool(resumed)


def known_queues(database: str | None = None) -> set[str]:
    """Return the queues that unfinished jobs, definitions, settings or pauses name."""
    waiting = claiming.list_pairs(on(database or routed(Job, read=True)))
    declared = {definition.queue for definition in registry.definitions()}
    named = {state.name for state in current(database) if state.kind == "queue"}
    return {queue for queue, _priority in waiting} | declared | {*(get_conf().queues or ())} | named


def names_of(kind: str, name: str) -> list[str]:
    """Return the names to pause, including a job's former ones. Raises ``InvalidJob`` if none can exist."""
    if kind == "queue":
        if name == OWN_QUEUE:
            raise InvalidJob(
                f"Queue {name!r} is this package's own and takes no pause: pause the queue of what its jobs concern."
            )
        allowed = get_conf().queues
        if not QUEUE_NAME.fullmatch(name) or (allowed is not None and name not in allowed):
            raise InvalidJob(f"There is no queue {name!r}.")
        return [name]
    if why := refusal(name, Act.PAUSE):
        raise InvalidJob(f"{why}.")
    try:
        definition = registry.resolve(name)
    except UnknownJob as error:
        raise InvalidJob(str(error)) from None
    return [definition.name, *definition.aliases]


def _until_of(pause: Pause) -> str:
    return f"until={pause.until.isoformat(timespec='seconds')}" if pause.until else ""


def _log(verb: str, kind: str, names: Iterable[str], by: object, reason: str = "") -> None:
    which = facts("queue=%s" if kind == "queue" else "name=%s", listed(names))
    log.info("operator's %s %s %s", verb, which, signed(who(by), reason))
