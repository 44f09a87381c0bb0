"""Deaths of the process, played at given points of ``run_jobs``: for a project's own tests of what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from django.db.models.functions import Now

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import JobSuspended
from django_pgjobs.execution.durable import DurableMemory
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.walks import T, Walk
from django_pgjobs.models.attempts import Claim
from django_pgjobs.states import MemoKind
from django_pgjobs.store import keeping
from django_pgjobs.store.database import Database
from django_pgjobs.store.memos import NewMemo, StoredMemo

if TYPE_CHECKING:
    from django_pgjobs.decisions import Decision
    from django_pgjobs.execution.prepared import Transaction

BEFORE_SUSPEND, BEFORE_SETTLE = "before_suspend", "before_settle"
BEFORE_MEMO, AFTER_MEMO = "before_memo:", "after_memo:"


class Crashed(JobSuspended):
    """The process has died, as far as the job can see: it remembers nothing more, and nothing of its end is written."""


@dataclass(slots=True)
class CrashPoint:
    """A point at which the process dies, ``left`` times more; ``jobs``: those that it died with, by their ids."""

    name: str
    left: int
    jobs: list[int] = field(default_factory=list)


_points: list[CrashPoint] = []
"""Those of the open blocks. Jobs of ``run_jobs`` may run in threads of their own, so it is no context variable."""


@contextmanager
def crash_at(point: str, *, times: int = 1) -> Iterator[CrashPoint]:
    """Within the block, let the process die at ``point``, as far as jobs of ``run_jobs`` and ``run_job`` can see.

    ``before_memo:NAME``: the step NAME has done its work, and the job does not remember it. ``after_memo:NAME``: it
    does; also for sleeps and waits that are over. ``before_suspend``: the job is about to sleep or wait.
    ``before_settle``: the function has ended, and its end is not written; of an atomic job nothing is. Names have their
    keys and numbers: ``reserve[7]``, ``charge#2``.

    What the job has committed stays; an atomic step or job is rolled back. The row is rescued as that of a dead
    worker: the attempt counts, and the same ``run_jobs`` runs the job again. ``times``: how often to die. Unlike a
    death, it unwinds the function, so ``finally`` blocks run. Raises ``ValueError`` for another point, and
    ``AssertionError`` at the end of the block if no job came to the point so often.
    """
    if point not in (BEFORE_SUSPEND, BEFORE_SETTLE) and not (
        point.startswith((BEFORE_MEMO, AFTER_MEMO)) and point.partition(":")[2]
    ):
        raise ValueError(
            f"{point!r} is no point to crash at: write 'before_memo:NAME', 'after_memo:NAME', '{BEFORE_SUSPEND}' or "
            f"'{BEFORE_SETTLE}'"
        )
    made = CrashPoint(point, times)
    _points.append(made)
    try:
        yield made
    finally:
        _points.remove(made)
    if made.left:
        raise AssertionError(f"No job came to {point!r}{f', {made.left} times more' if times > 1 else ''}.")


class Mortal:
    """Crashes a running job at these points, if the test has asked for it."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.dead = False

    @classmethod
    def made(cls, prepared: Prepared) -> Mortal | None:
        """Let the job be able to die, if the test wants any to."""
        if not _points or prepared.job.ending is not None:
            return None
        mortal = cls(prepared)
        if prepared.memories is not None:
            prepared.memories = _Memories(mortal, getattr(prepared.memories, "using", ""))
        if prepared.transaction is not None:
            prepared.transaction = _Transaction(mortal, prepared.transaction)
        return mortal

    def passes(self, point: str) -> bool:
        """Return whether the process lives on past this point."""
        due = next((each for each in _points if each.name == point and each.left > 0), None)
        if due is not None and not self.dead:
            due.left -= 1
            due.jobs.append(self.prepared.job.id)
            self.dead = True
        return not self.dead

    def check_alive(self, decision: Decision) -> None:
        """Raise ``Crashed`` if the process has died, or dies before it writes this end."""
        point = BEFORE_SUSPEND if isinstance(decision, decide.Suspended) else BEFORE_SETTLE
        written = isinstance(decision, decide.Committed | decide.Lost)
        if self.dead or not (written or self.passes(point)):
            raise Crashed


@dataclass(frozen=True, slots=True)
class _Memories:
    mortal: Mortal
    using: str

    def of(self, prepared: Prepared) -> DurableMemory:
        if prepared.memory is None:
            prepared.memory = MortalMemory(prepared, self.using, self.mortal)
        found: DurableMemory = prepared.memory
        return found


class MortalMemory(DurableMemory):
    """The memory of a job that may die."""

    def __init__(self, prepared: Prepared, using: str, mortal: Mortal) -> None:
        super().__init__(prepared, using)
        self.mortal = mortal

    def die(self, at: str) -> NoReturn:
        """Unwind the function; nothing is remembered afterwards."""
        self.suspending.leave(decide.Suspended(at, MemoKind.STEP, 0.0))
        self.prepared.memory = self
        raise Crashed

    def _written(self, memo: NewMemo) -> bool:
        if not self.mortal.passes(f"{BEFORE_MEMO}{memo.name}"):
            self.die(memo.name)
        return super()._written(memo)

    def _keep_cursor(self, walk: Walk[T]) -> None:
        if not self.mortal.dead:
            super()._keep_cursor(walk)

    def _keep(self, memo: StoredMemo) -> None:
        super()._keep(memo)
        if not self.mortal.passes(f"{AFTER_MEMO}{memo.name}"):
            self.die(memo.name)


@dataclass(frozen=True, slots=True)
class _Transaction:
    """The transaction of an atomic job that may die before it is committed."""

    mortal: Mortal
    real: Transaction

    def run(self, prepared: Prepared, body: Any) -> Decision:
        def dying(prepared: Prepared) -> Any:
            found = body(prepared)
            if not self.mortal.passes(BEFORE_SETTLE):
                MortalMemory(prepared, "", self.mortal).die(BEFORE_SETTLE)
            return found

        return self.real.run(prepared, dying)


def rescue(db: Database, using: str, claim_id: str) -> bool:
    """Rescue the job of a claim as that of a dead worker; return False if it was lost otherwise."""
    conf = get_conf()
    held = Claim.objects.using(using).filter(claim_id=claim_id)
    long_ago = Now() - timedelta(days=3650)
    held.update(lease_expires_at=long_ago, check_at=long_ago)  # earlier than any other: it is the one rescued
    rescued = keeping.rescue_jobs(
        db,
        limit=1,
        quiet_seconds=0.0,
        grace_seconds=conf.rescue_grace_seconds,
        stale_seconds=conf.stale_seconds,
        without_on_cancel=[],
        without_on_abandon=[],
    )
    return bool(rescued)
