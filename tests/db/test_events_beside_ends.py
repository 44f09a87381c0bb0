"""Jobs that begin to wait for events, as the real finaliser suspends them, beside senders who take long to commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgjobs import Event, JobContext, job
from django_pgjobs import decisions as decide
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import AWAIT, SUCCESS, EndKind
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer
from django_pgjobs.models import Job
from django_pgjobs.store import memos
from django_pgjobs.store.database import on
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import Stored
from tests.plugins.fix_db import AUTHOR, Claimed, RawDatabase, claim, register
from tests.unit.worker_fakes import Heard

pytestmark = pytest.mark.usefixtures("committed")

approval: Event[str] = Event("beside.approval")


@pytest.fixture
def link(committed: None) -> Iterator[WorkerConnection]:
    """The finaliser's connection."""
    db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    yield db
    db.close()


class Flushing:
    """A finaliser whose flushes a test makes one by one; ``waited`` has how long each one was ready to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, db: WorkerConnection) -> None:
        self.db = db
        self.heard = Heard()
        self.finaliser = Finaliser(lambda: pytest.fail("connected"), self.heard, AUTHOR)
        self.waited: list[float] = []
        write_await = kinds.write_await

        def written(*args: Any, lock_seconds: float) -> dict[int, Any]:
            self.waited.append(lock_seconds)
            return write_await(*args, lock_seconds=lock_seconds)

        monkeypatch.setattr(kinds, "write_await", written)

    def put(self, taken: Claimed, *events: str) -> None:
        """Queue the ends of these jobs: each begins to wait for one of the events, or succeeds if there is none."""
        held = HeldClaim(str(taken.claim_id), 0.0, len(taken.ids), 1e12)
        runs = [HeldRun(each, held, fresh_until=1e12) for each in taken.jobs]
        if not events:
            self.finaliser.put_many(SUCCESS, list(zip(runs, taken.ends(), strict=True)))
            return
        for run, event in zip(runs, events, strict=True):
            waits = decide.Suspended(event, "event", 3600.0, event=event)
            self.finaliser.put(*self._entry(run, waits))

    def _entry(self, run: HeldRun, decision: decide.Unwritten) -> tuple[EndKind, HeldRun, End]:
        kind, end = finalise.end_of(decision, run.job.id, run.claim.claim_id, run.job.name, 0.0)
        assert kind == AWAIT
        return kind, run, end

    def flush(self) -> tuple[list[int], list[float]]:
        """Flush once, after the pause of busy ends; return the recorded ids, and how long each try would wait."""
        self.heard.posts.clear()
        self.waited.clear()
        self.finaliser.busy.until = 0.0
        self.finaliser._flush(self.db)
        stored = [end.id for post in self.heard.posts if isinstance(post, Stored) for _, end, _ in post.entries]
        return sorted(stored), list(self.waited)


@pytest.mark.parametrize("known", [True, False])
def test_an_event_that_a_sender_has_locked_keeps_only_its_waiters_busy(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase, link: WorkerConnection, *, known: bool
) -> None:
    """Whether the event was known before or not: then the sender's row is one that nobody else sees."""
    flushing = Flushing(monkeypatch, link)
    register(10)
    first, second, third = claim(raw, 6), claim(raw, 2), claim(raw, 2)
    if known:
        memos.await_events(raw, ["locked"])
    assert memos.send_event(other, "locked", '"yes"', "")
    flushing.put(first, "a", "b", "locked", "c", "locked", "a")
    free = [first.ids[n] for n in (0, 1, 3, 5)]
    stored, waited = flushing.flush()
    assert stored == free
    assert (waited[0], set(waited[1:])) == (memos.EVENT_SECONDS, {memos.NO_SECONDS}), "the others waited once"
    flushing.put(second, "a", "d")
    flushing.put(third)
    stored, waited = flushing.flush()
    assert stored == [*second.ids, *third.ids]
    assert set(waited) == {memos.NO_SECONDS}
    assert raw.value("SELECT count(*) FROM pgjobs_memo") == 6
    other.commit()
    stored, _ = flushing.flush()
    assert stored == [first.ids[n] for n in (2, 4)]
    assert flushing.finaliser.count == 0
    due = raw.query("SELECT id FROM pgjobs_job WHERE claim_id IS NULL AND run_at <= statement_timestamp() ORDER BY id")
    assert [job_id for (job_id,) in due] == stored, "their event was sent before"


# --- a claim that is lost --------------------------------------------------------------------------------------------


@job(name="beside.loses", takes_context=True, max_attempts=1)
def loses(context: JobContext, then: str) -> None:
    Job.objects.filter(pk=context.id).update(claim_id="00000000-0000-4000-8000-0000000000ff")
    if then == "step":
        context.step(str, 1)
    elif then == "failing step":
        context.step.using(attempts=1)(int, "no number")
    elif then == "wait":
        context.wait_for(approval, timeout=60)
    else:
        context.gather([loses.bind("step")])


@pytest.mark.parametrize("then", ["step", "failing step", "wait", "gather"])
def test_a_run_that_finds_its_claim_lost_decides_nothing(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    """It was its last attempt, and yet nobody logs that the job was abandoned."""
    loses.register(then)
    decided: list[object] = []

    def run(prepared: Prepared) -> decide.Decision:
        decided.append(attempt.run_here(prepared))
        return decide.Lost() if decided[0] == decide.Lost() else pytest.fail(str(decided))

    taken = claim(on("default"))
    Performer(on("default"), AUTHOR, run).perform(taken.jobs[0])
    assert decided == [decide.Lost()]
    assert "abandoned" not in caplog.text
    assert "lease lost, nothing of the job was changed" in caplog.text
    assert raw.query("SELECT outcome FROM pgjobs_job") == [(None,)], "no job of a gather is left either"
    assert raw.value("SELECT count(*) FROM pgjobs_memo") == 0
