"""The inline worker: what of the keep thread's messages reaches the running job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from django_pgjobs.maintenance.duties import DutyProgress, duties, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.running.inline import InlineWorker
from django_pgjobs.running.worker import Worker, WorkerOptions
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.keeping import Flag
from django_pgjobs.worker.threads.inbox_messages import FlagsRead, Renewed

AUTHOR = Author(UUID(int=1), "one")
CLAIM = "6b1c7f0e-0000-4000-8000-000000000001"
EARLIER = "6b1c7f0e-0000-4000-8000-000000000002"


class Keeper:
    """A keep thread that does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Slow:
    """A duty that notes its turns."""

    name = "slow"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.did: list[str] = []

    def tick(self, db: object) -> None:
        self.did.append("tick")
        if self.error is not None:
            raise self.error

    def leave(self, db: object) -> None:
        self.did.append("leave")


@pytest.mark.parametrize(("job", "claim", "heeded"), [(7, CLAIM, True), (7, EARLIER, False), (8, CLAIM, False)])
def test_only_a_flag_of_the_running_claim_reaches_the_job(job: int, claim: str, heeded: bool) -> None:
    """A54 §5: one that was read for an earlier job, or an earlier claim of this one, may come late."""
    worker = InlineWorker(Worker.of(WorkerOptions()))
    worker.held[7] = CLAIM
    worker.post(Renewed(0.0, {CLAIM}))
    worker.post(FlagsRead(0.0, {job}, [Flag(job, claim, False, True, "ask", "operator", "too late", False)]))
    expected = (True, "operator", "too late") if heeded else (False, "", "")
    assert (worker.control.requested, worker.control.by, worker.control.reason) == expected


def test_it_has_every_duty_of_a_worker_and_of_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a leader must do: otherwise figures stand still while one leads, and `check` says that all is well."""
    worker = InlineWorker(Worker.of(WorkerOptions()))
    worker.stopped.set()
    monkeypatch.setattr(worker, "keeper", Keeper())
    worker.run()
    progress = DutyProgress(Leader(AUTHOR), {})
    known = [*duties(progress, lambda rescued: None), *upkeep(progress, lambda: pytest.fail("connected"))]
    names = {duty.name for duty in (*worker.duties, *worker.upkeep)}
    assert names == {*(duty.name for duty in known), "minutes"}


def test_the_slow_duties_take_turns_while_it_leads_and_leave_after_the_term() -> None:
    worker = InlineWorker(Worker.of(WorkerOptions()))
    worker.duties, slow = (), Slow()
    worker.upkeep = [slow]
    link: Any = SimpleNamespace(gone=False)
    for trusted_until in (0.0, 1e12, 1e12, 0.0, 0.0):
        worker.leader.term, worker.leader.trusted_until = 1, trusted_until
        worker._do_duties(link)
    assert slow.did == ["tick", "tick", "leave"]


def test_a_duty_that_fails_stops_neither_the_others_nor_the_jobs(caplog: pytest.LogCaptureFixture) -> None:
    """A table that is locked, a right that is missing."""
    worker = InlineWorker(Worker.of(WorkerOptions()))
    first, second = Slow(psycopg.errors.InsufficientPrivilege("no")), Slow()
    worker.duties = [first, second]
    worker._do_duties(cast(Any, SimpleNamespace(gone=False)))
    assert (first.did, second.did) == (["tick"], ["tick"])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
