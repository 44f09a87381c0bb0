"""The kinds of ends: for each all that is known of it, from the statement that writes it to the words for it.

Shared by everything that ends attempts: the worker's finalise thread in batches, ``runjobs --inline`` and
``testing.run_jobs`` one by one. Only the fence of the statement decides whether an end was recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import psycopg

from django_pgjobs.conf import LADDER_SECONDS, get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import Facts, facts, safe_logger
from django_pgjobs.states import CALLBACK_OF, Ended, Outcome
from django_pgjobs.store import finalising, gates, memos, notifying, turns
from django_pgjobs.store.database import LOCKED, Database, Enclosing
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.store.gates import Opened
from django_pgjobs.store.keeping import ExpiredJob
from django_pgjobs.store.notifying import Notification

CALLBACK_STARTS = 3


def has_callback(name: str, outcome: str) -> bool:
    """Return whether the code of this worker defines a callback for this outcome of this job."""
    definition, callback = registry.find(name), CALLBACK_OF[outcome]
    if definition is None:
        return callback in (registry.learned(name) or ())
    return getattr(definition, f"_{callback}_func") is not None


def is_strict(name: str) -> bool:
    """Return whether this job is abandoned if its result cannot be stored; by default its result is dropped."""
    definition = registry.find(name)
    if definition is None:
        return "strict_results" in (registry.learned(name) or ())
    return definition.strict_results


def callback_allowance() -> float:
    """Return how many seconds a callback may take, kill ladder included, before other workers may rescue the job."""
    return get_conf().callback_seconds + LADDER_SECONDS


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndTerms:
    """Terms on which ends are written: in the name of ``author``.

    ``remember``: some jobs have an idempotency key, under which to store the result of a success. ``hurried``: wait
    for what others have locked only for a moment, then raise ``LockNotAvailable`` or ``DeadlockDetected``, having
    written nothing; not for a caller's transaction. ``waits``, if hurried: wait for rows and events at all. ``notify``
    sends word of released jobs.
    """

    author: Author
    remember: bool = False
    hurried: bool = False
    waits: bool = False
    notify: Callable[[Database, Iterable[Notification]], object] = notifying.notify

    @property
    def fast(self) -> bool:
        """True if a statement may be used that waits for locked rows; none stores results under keys."""
        return self.hurried and self.waits and not self.remember


@dataclass(frozen=True, slots=True, eq=False)
class EndKind:
    """A kind of ends, each batch of which is one statement by ``writer``.

    ``verb``: what is written, for "could not …". ``outcome``: how its attempts end, in one word for log lines; ""
    where each end has its own. ``alike``: all count by that word. ``failed``: the word in numbers for an attempt that
    failed. ``final``: it ends the job; ``mixed``: by statements for successes and other ends alike. ``requeues``: the
    job starts again, which one with a cancel request must not. ``fast``: it has a statement which writes without a
    step that locks. ``wakes``: some rows are due at once; ``behind``: all, and behind what a claim has read.
    ``signals``: what the signals of such ends may be, see ``execution.events.interest``.
    """

    name: str
    verb: str
    writer: Callable[[Enclosing, Sequence[End], EndTerms], Iterable[Any]]
    outcome: str = ""
    alike: bool = False
    failed: str = ""
    final: bool = False
    mixed: bool = False
    requeues: bool = False
    fast: bool = False
    wakes: bool = False
    behind: bool = False
    signals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


class RowsLocked(Exception):  # noqa: N818: no error, the caller writes without these rows
    """A fast statement has met a row that stays locked, with this ``error``; nothing of its batch is written."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


def write(db: Enclosing, kind: EndKind, ends: Sequence[End], terms: EndTerms) -> dict[int, object]:
    """Write ends of one kind by one fenced statement; return id → row of those recorded."""
    return {(row if isinstance(row, int) else row.id): row for row in kind.writer(db, ends, terms)}


def _success(db: Enclosing, ends: Sequence[End], terms: EndTerms) -> list[int]:
    if terms.fast:
        return _fast(finalising.finalise_success_fast, db, ends, terms.author)
    return finalising.finalise_success(db, ends, terms.author, remember=terms.remember)


def _delete(db: Enclosing, ends: Sequence[End], terms: EndTerms) -> list[int]:
    if terms.fast:
        return _fast(finalising.finalise_delete_fast, db, ends)
    return finalising.finalise_delete(db, ends, remember=terms.remember)


def _fast(statement: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    try:
        return statement(*args, **options)
    except LOCKED as error:
        raise RowsLocked(error) from error


def _end(db: Enclosing, ends: Sequence[End], terms: EndTerms) -> list[int]:
    """End jobs, and stop those that they have gathered."""
    ids = finalising.finalise_end(db, ends, terms.author)
    cancels = memos.cancel_gathered(db, _unsuccessful(ends, ids))
    notifying.notify(db, {notifying.wake_up(one.queue, one.priority) for one in cancels})
    return ids


def _unsuccessful(ends: Sequence[End], recorded: Sequence[int]) -> list[int]:
    return [end.id for end in ends if end.outcome != Outcome.SUCCEEDED and end.id in recorded]


def _await(db: Enclosing, ends: Sequence[End], terms: EndTerms) -> Iterable[object]:
    seconds = (memos.EVENT_SECONDS if terms.waits else memos.NO_SECONDS) if terms.hurried else None
    with db.transaction():
        return write_await(db, ends, terms.author, lock_seconds=seconds).values()


def write_await(
    db: Database, ends: Sequence[End], author: Author, *, lock_seconds: float | None = None
) -> dict[int, object]:
    """Suspend jobs until events are sent, in the open transaction: return id → row of those recorded.

    Raises ``LockNotAvailable`` for an event that stays locked for ``lock_seconds``; then roll back.
    """
    memos.await_events(db, [event for end in ends for event in end.events], lock_seconds=lock_seconds)
    return {row.id: row for row in memos.suspend_jobs(db, ends, author)}


def _counted(db: Enclosing, ends: Sequence[End], terms: EndTerms) -> Iterable[int]:
    seconds = gates.SETTLE_SECONDS if terms.hurried else None
    with db.transaction():
        recorded, opened = write_counted(
            db, ends, terms.author, remember=terms.remember, fast=terms.fast, lock_seconds=seconds
        )
    if opened:
        terms.notify(db, gates.notices_of(opened))
    return recorded


def write_counted(
    db: Database,
    ends: Sequence[End],
    author: Author,
    *,
    remember: bool = False,
    fast: bool = False,
    lock_seconds: float | None = None,
) -> tuple[list[int], list[Opened]]:
    """Write ends that count in gates, in the open transaction: return the ids of those recorded, and released jobs.

    Raises ``LockNotAvailable`` for a gate that stays locked for ``lock_seconds``, and, with ``fast``, ``RowsLocked``;
    then roll back.
    """
    successes = [end for end in ends if not end.outcome]
    others = [end for end in ends if end.outcome]
    fed: dict[int, int | None] = {}
    if successes and fast:
        fed = _fast(finalising.finalise_settled, db, successes, author, fast=True)
    elif successes:
        fed = finalising.finalise_settled(db, successes, author, remember=remember)
    ended = finalising.finalise_end(db, others, author, settled=True) if others else []
    ids = [*fed, *ended]
    members = Counter(batch for batch in fed.values() if batch is not None)
    read = [*(job_id for job_id, batch in fed.items() if batch is None), *ended]
    opened = turns.settle_ends(db, read, members=members, lock_seconds=lock_seconds) if ids else []
    cancels = memos.cancel_gathered(db, _unsuccessful(others, ids))
    return ids, [*opened, *(Opened(*one, old=False) for one in cancels)]


OUTCOMES = tuple(map(str, Outcome))

SUCCESS = EndKind(
    "success", "complete the job", _success,
    outcome=Outcome.SUCCEEDED.value, alike=True, final=True, fast=True, signals=(Outcome.SUCCEEDED.value,),
)  # fmt: skip
NEXT = EndKind(
    "next", "continue with the next step",
    lambda db, ends, terms: finalising.next_step(db, ends, terms.author, hurried=terms.hurried),
    outcome=Ended.STEPPED.value, alike=True, requeues=True, wakes=True,
)  # fmt: skip
RETRY = EndKind(
    "retry", "schedule a retry", lambda db, ends, terms: finalising.finalise_retry(db, ends, terms.author),
    outcome=Ended.RETRIED.value, requeues=True, signals=(Ended.RETRIED.value,),
)  # fmt: skip
SNOOZE = EndKind(
    "snooze", "snooze the job", lambda db, ends, terms: finalising.finalise_snooze(db, ends),
    outcome=Ended.SNOOZED.value, alike=True, requeues=True,
)  # fmt: skip
SUSPEND = EndKind(
    "suspend", "suspend the job", lambda db, ends, terms: memos.suspend_jobs(db, ends, terms.author),
    outcome=Ended.SUSPENDED.value, failed=Ended.RETRIED.value, requeues=True, wakes=True,
)  # fmt: skip
AWAIT = EndKind(
    "await", "suspend the job", _await,
    outcome=Ended.SUSPENDED.value, failed=Ended.RETRIED.value, requeues=True, wakes=True,
)  # fmt: skip
"""A suspension until an event is sent."""

PARK = EndKind(
    "park", "park the job", lambda db, ends, terms: finalising.park_jobs(db, ends, terms.author),
    outcome="parked", requeues=True,
)  # fmt: skip
HOLD = EndKind(
    "hold", "hold the job", lambda db, ends, terms: finalising.hold_jobs(db, ends), outcome="held", requeues=True
)  # fmt: skip
RELEASE = EndKind(
    "release", "release the job", lambda db, ends, terms: finalising.release_jobs(db, ends, terms.author),
    outcome=Ended.RELEASED.value, requeues=True, wakes=True, behind=True,
)  # fmt: skip
MARK = EndKind(
    "mark", "begin its callback",
    lambda db, ends, terms: finalising.mark_ending(db, ends, terms.author, allowance_seconds=callback_allowance()),
)  # fmt: skip
END = EndKind("end", "end the job", _end, final=True, signals=OUTCOMES)
DELETE = EndKind("delete", "end the job", _delete, final=True, mixed=True, fast=True)
"""A success or an end that keeps no row."""

COUNTED = EndKind("counted", "end the job", _counted, final=True, mixed=True)
"""A success or an end that counts in a gate, together with what it releases."""

KINDS = (SUCCESS, NEXT, RETRY, SNOOZE, SUSPEND, AWAIT, PARK, HOLD, RELEASE, MARK, END, DELETE, COUNTED)
"""The order in which a flush writes them."""


def kept_as(end: End) -> EndKind:
    """Return the kind that writes a success or an end and keeps the row."""
    return END if end.outcome else SUCCESS


# The lines about ends that are stored; ``execution.events`` logs what an attempt comes to where it ran

jobs_log = safe_logger("django_pgjobs.jobs")


def lines_are_wanted() -> bool:
    """Return whether a handler reads lines about ends. Ask once for a batch: a worker may end 50,000 jobs a second."""
    return jobs_log.isEnabledFor(logging.DEBUG)


def log_stored(kind: EndKind, end: End, row: object, about: Facts, seconds: float | None) -> None:
    """Log an end of this kind; ``row``: what its statement returned; ``seconds``: what the body took, if known."""
    said = [about, facts("outcome=%s", kind.outcome or end.outcome)]
    if end.failure is not None and end.cause:
        said.append(facts("cause=%s", end.cause))
    if seconds is not None:
        said.append(facts("seconds=%.4f", seconds))
    if isinstance(run_at := getattr(row, "run_at", None), datetime):
        said.append(facts("run_at=%s", run_at.isoformat(timespec="seconds")))
    if end.failure is not None:
        said[-1] = facts("%s: %s", said[-1], end.failure.summary)
    line = Facts(" ".join(said))
    if kind.final:
        jobs_log.debug("job ended %s", line)
    elif kind.requeues:
        jobs_log.debug("attempt ended, the job has not %s", line)
    else:
        jobs_log.debug("attempt ended, a callback follows %s", line)


def log_expired(job: ExpiredJob) -> None:
    """Log the end of a job that expired before it started."""
    jobs_log.debug(
        "job ended name=%s job=%d attempt=%d queue=%s outcome=%s: it expired before it started",
        job.name, job.id, job.attempt, job.queue, Outcome.CANCELLED,
    )  # fmt: skip
