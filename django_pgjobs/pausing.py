"""Pause a queue, or a job by name: nothing of it starts until it is resumed or the pause ends.

A pause is a row with who, why and until when. It persists, every worker honours it within a second, and the admin
shows it. Running jobs continue; workers release claimed jobs that have not started, uncharged. Callbacks wait as well:
no code of a paused job starts. Each function joins the caller's transaction and is repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from asgiref.sync import sync_to_async
from django.db import router
from django.db.models import Q, QuerySet

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.logs import facts, listed, safe_logger
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import Trail, signed
from django_pgjobs.steering.until import REASON_CHARS as REASON_CHARS
from django_pgjobs.steering.until import Until, check_reason, end_of
from django_pgjobs.store import claiming, notifying, pausing, waking
from django_pgjobs.store.database import on
from django_pgjobs.store.pausing import Pause
from django_pgjobs.store.transactions import at_read_committed
from django_pgjobs.values.built_in import OWN_QUEUE, Act, is_built_in, refusal
from django_pgjobs.values.setting_rules import QUEUE_NAME

if TYPE_CHECKING:
    from django_pgjobs.models import QueueState

log = safe_logger("django_pgjobs")


class Named(Protocol):
    """A job definition."""

    @property
    def name(self) -> str:
        """The name in the rows of its jobs."""
        ...


def pause_queue(
    queue: str, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
) -> QueueState:
    """Stop jobs of this queue from starting; return the pause.

    ``by``: a user or a text. ``until``: an aware instant, or seconds or a ``timedelta`` from now, by the database's
    clock; None until the queue is resumed. Pausing again replaces who, why and until when. Raises ``InvalidJob`` for a
    queue that cannot exist, and for an end in the past.
    """
    return _pause("queue", names_of("queue", queue), by=by, reason=reason, until=until, database=database)


def resume_queue(queue: str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Resume the queue; return whether it was paused."""
    return _resume("queue", [queue], by=by, reason=reason, database=database)


def pause_job(
    job: Named | str, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
) -> QueueState:
    """Stop jobs of this definition or name from starting, in any queue; return the pause.

    Also pauses the definition's former names (its aliases). Takes the arguments of ``pause_queue``. Raises
    ``InvalidJob`` for a name that this process does not know.
    """
    return _pause("job", names_of("job", job), by=by, reason=reason, until=until, database=database)


def resume_job(job: Named | str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Resume the jobs of this definition or name; return whether they were paused."""
    name = job if isinstance(job, str) else job.name
    names = names_of("job", name) if not is_built_in(name) and registry.resolved(name) is not None else [name]
    return _resume("job", names, by=by, reason=reason, database=database)


def paused(database: str | None = None) -> list[QueueState]:
    """Return the current pauses, by the database's clock: queues first, by name."""
    return list(_current(database).order_by("-kind", "name"))


def pauses_of(queue: str, name: str, database: str | None = None) -> list[QueueState]:
    """Return why a job of this queue and name may not start now: the pause of its queue, of its name, or both."""
    asked = Q(kind="queue", name=queue) | Q(kind="job", name=name)
    return list(_current(database).filter(asked).order_by("-kind"))


async def apause_queue(
    queue: str, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
) -> QueueState:
    """Pause a queue, from asynchronous code."""
    return await sync_to_async(pause_queue)(queue, by=by, reason=reason, until=until, database=database)


async def aresume_queue(queue: str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Resume a queue, from asynchronous code."""
    return await sync_to_async(resume_queue)(queue, by=by, reason=reason, database=database)


async def apause_job(
    job: Named | str, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
) -> QueueState:
    """Pause a job, from asynchronous code."""
    return await sync_to_async(pause_job)(job, by=by, reason=reason, until=until, database=database)


async def aresume_job(job: Named | str, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
    """Resume a job, from asynchronous code."""
    return await sync_to_async(resume_job)(job, by=by, reason=reason, database=database)


async def apaused(database: str | None = None) -> list[QueueState]:
    """Return the current pauses, from asynchronous code."""
    return await sync_to_async(paused)(database)


async def apauses_of(queue: str, name: str, database: str | None = None) -> list[QueueState]:
    """Return why a job may not start now, from asynchronous code."""
    return await sync_to_async(pauses_of)(queue, name, database)


def _model() -> type[QueueState]:
    from django_pgjobs.models import QueueState  # here: models wait until Django is ready

    return QueueState


def _current(database: str | None) -> QuerySet[QueueState]:
    return _model().objects.using(database or router.db_for_read(_model())).current()


def known_queues(database: str | None = None) -> set[str]:
    """Return the queues that unfinished jobs, definitions, settings or pauses name."""
    from django_pgjobs.models import Job  # here: models wait until Django is ready

    waiting = claiming.list_pairs(on(database or router.db_for_read(Job)))
    declared = {definition.queue for definition in registry.definitions()}
    named = {state.name for state in paused(database) if state.kind == "queue"}
    return {queue for queue, _priority in waiting} | declared | {*(get_conf().queues or ())} | named


def names_of(kind: str, wanted: Named | str) -> list[str]:
    """Return the names to pause, including a job's former ones. Raises ``InvalidJob`` if none can exist."""
    name = wanted if isinstance(wanted, str) else wanted.name
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


def _pause(kind: str, names: list[str], *, by: object, reason: str, until: Until, database: str | None) -> QueueState:
    instant, seconds = end_of(until)
    check_reason(who(by), reason)
    using = database or router.db_for_write(_model())
    with at_read_committed(using):
        written = pausing.pause(on(using), kind, names, by=who(by), reason=reason, until=instant, seconds=seconds)
        if not written:
            raise InvalidJob(f"until={until!r} is in the past by the database's clock: give a later instant.")
        trail = Trail("pause", who(by), reason, mode=_until_of(written[0]), kind=kind, subject=names[0])
        trail.add(on(using), len(written))
        waking.notify(using, [notifying.PAUSES])
    first = next(pause for pause in written if pause.name == names[0])
    _log("pause", kind, names, by, reason)
    state = _model().from_db(using, list(first._fields), list(first))
    return state


def _resume(kind: str, names: list[str], *, by: object, reason: str, database: str | None) -> bool:
    using = database or router.db_for_write(_model())
    with at_read_committed(using):
        resumed = pausing.resume(on(using), kind, names)
        Trail("resume", who(by), reason, kind=kind, subject=names[0]).add(on(using), len(resumed))
        if resumed:
            waking.notify(using, [notifying.PAUSES])
    if resumed:
        _log("resume", kind, resumed, by, reason)
    return bool(resumed)


def _until_of(pause: Pause) -> str:
    return f"until={pause.until.isoformat(timespec='seconds')}" if pause.until else ""


def _log(verb: str, kind: str, names: Iterable[str], by: object, reason: str = "") -> None:
    which = facts("queue=%s" if kind == "queue" else "name=%s", listed(names))
    log.info("operator's %s %s %s", verb, which, signed(who(by), reason))
