"""Stand-ins for what surrounds the pure rooms of the worker: claimed jobs, executors without a process."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel import pack
from django_pgjobs.worker.shared.run_groups import SentRun, groups_of, sent_runs
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.supervisor.executor_process import READY, ExecutorProcess
from django_pgjobs.worker.supervisor.run_events import EVERY_KIND
from django_pgjobs.worker.threads.inbox_messages import InboxMessage, RefusedEnds, Stored

DUE = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(id: int = 1, **changes: Any) -> ClaimedJob:
    """Return a job as a claim returns it."""
    facts: dict[str, Any] = {
        "queue": "default", "priority": 0, "run_at": DUE, "name": "fakes.unknown", "attempt": 1, "max_attempts": 3,
        "timeout_seconds": 30.0, "ending": None, "ending_attempt": 0, "cancelled": False, "description": "",
        "payload": "{}", "headers": None, "error": "", "claim_id": f"claim-{id}",
    }  # fmt: skip
    return ClaimedJob(id=id, **{**facts, **changes})


def under(claim_id: str, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
    """Return jobs as this claim returns them."""
    return [job._replace(claim_id=claim_id) for job in jobs]


def run_of(id: int = 1, *, number: int = 0, claim: HeldClaim | None = None, **changes: Any) -> HeldRun:
    """Return a run of a claimed job, dispatched as ``number``; ``changes`` are of the run or of its job."""
    own = {key: changes.pop(key) for key in list(changes) if key in HeldRun.__annotations__ or key == "size"}
    claim = claim or HeldClaim(f"claim-{id}", 0.0, 1, 1e12)
    run = HeldRun(claimed(id, claim_id=claim.claim_id, **changes), claim, fresh_until=1e12)
    for key, value in {**own, "run": number}.items():
        setattr(run, key, value)
    return run


def sent_run(run: int, start_by: float = 1e12, **changes: Any) -> SentRun:
    """Return the run with this number as its executor gets it; ``changes`` are of its job, whose id is ten times it."""
    [[run_sent]] = [runs for runs, _ in sent_to_executor(run_of(run * 10, number=run, **changes), start_by=start_by)]
    return run_sent


def sent_to_executor(*runs: HeldRun, start_by: float = 1e12) -> list[tuple[list[SentRun], bool]]:
    """Return the groups in which these runs arrive in an executor, and whether each is for its event loop."""
    return [sent_runs(group, start_by) for group in marshal.loads(marshal.dumps(groups_of(runs)))]


class FakeEnd:
    """A supervisor's end that keeps what it is given to send, and hands out what it is to receive."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.arriving: list[Any] = []
        self.eof = False
        self.broken = ""
        self.kept = 0
        self.sock = object()

    def send(self, message: Any) -> None:
        pack(message)  # only what a frame can carry
        self.sent.append(message)

    def receive(self) -> list[Any]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def flush(self) -> None:
        self.kept = 0

    def close(self) -> None: ...


def child_of(threads: int = 2, async_slots: int = 3, **changes: Any) -> ExecutorProcess:
    """Return an executor that is ready and has no process; its board is a real one. ``listens``: to everything."""
    # No process has this id: it is past the largest that Linux gives.
    facts: dict[str, Any] = {
        "number": 1, "process": SimpleNamespace(pid=2**22 + 1, poll=lambda: None), "end": FakeEnd(),
        "board": Board.create(threads, async_slots),
        "application_name": "pgjobs fake", "started_at": 0.0, "pidfd": None, "state": READY, "mean_seconds": 1.0,
    }  # fmt: skip
    if "listens" in changes:
        changes["listens"] = frozenset(EVERY_KIND if changes["listens"] else ())
    return ExecutorProcess(threads=threads, async_slots=async_slots, **{**facts, **changes})


def end_of(child: ExecutorProcess) -> FakeEnd:
    """Return the fake end of ``child``."""
    return cast(FakeEnd, child.end)


M = TypeVar("M", bound=InboxMessage)


class Heard:
    """An inbox whose messages can be read."""

    def __init__(self) -> None:
        self.posts: list[InboxMessage] = []

    def post(self, message: InboxMessage) -> None:
        self.posts.append(message)

    def of(self, kind: type[M]) -> list[M]:
        """The messages of one kind, in order."""
        return [message for message in self.posts if isinstance(message, kind)]

    def told(self, kind: str) -> list[int]:
        """The ids that were told of, in order, once for each time."""
        if kind == "lost":
            return [run.job.id for message in self.of(RefusedEnds) for run, _, _ in message.refused]
        return [run.job.id for message in self.of(Stored) for run, _, _ in message.entries]
