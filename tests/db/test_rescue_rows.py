"""Rescue, row by row: which jobs it makes ready, which it leaves, and their rows afterwards.

Only an expired lease makes work dead, or its own worker that could not stop it. Each case moves the stored instants
instead of waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance.rescue import Rescuer
from django_pgjobs.models import Attempt
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import finalising, keeping, steering
from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Rescued
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    WORKER,
    Background,
    Claimed,
    RawDatabase,
    claim,
    job,
    patience,
    register,
    wait_for_age,
    wait_until,
)

OTHER = UUID("00000000-0000-4000-8000-000000000002")


def rescue(
    db: Database,
    limit: int = 50,
    *,
    quiet: float = 0.0,
    callbacks: bool = False,
    overdue: Sequence[tuple[int, str]] = (),
) -> list[Rescued]:
    """Look as a worker does whose code has no callbacks, unless told, and who could not stop ``overdue``."""
    without = [] if callbacks else ["test.job"]
    return keeping.rescue_jobs(
        db,
        limit=limit,
        quiet_seconds=quiet,
        grace_seconds=10,
        stale_seconds=60,
        without_on_cancel=without,
        without_on_abandon=without,
        held=sorted({claim_id for _, claim_id in overdue}),
        overdue=overdue,
    )


def expire(raw: RawDatabase, ago: str = "1 ms") -> None:
    """Let every lease have run out so long ago."""
    raw.query(
        "UPDATE pgjobs_claim SET lease_expires_at = statement_timestamp() - %s::interval, "
        "check_at = statement_timestamp() - %s::interval",
        [ago, ago],
    )


def pass_deadlines(raw: RawDatabase, ago: float) -> None:
    """Let every deadline have passed so many seconds ago; leases go on."""
    raw.query("UPDATE pgjobs_job SET overdue_at = statement_timestamp() - make_interval(secs => %s)", [ago])
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")


def beat(raw: RawDatabase, ago: float, state: str = "running", worker: UUID = WORKER) -> None:
    """Write a heartbeat of so many seconds ago."""
    raw.query(
        "INSERT INTO pgjobs_heartbeat"
        " (id, name, host, pid, processes, threads, async_slots, version, state, last_beat_at)"
        " VALUES (%s, 'the worker', 'h', 1, 1, 1, 1, '1', %s, statement_timestamp() - make_interval(secs => %s))",
        [worker, state, ago],
    )


def claimed_one(raw: RawDatabase, **fields: Any) -> Claimed:
    register(**fields)
    return claim(raw)


# What is taken


@pytest.mark.parametrize(
    ("heartbeat", "words"),
    [
        (None, "the worker is not known"),
        ((5.0, "running"), "worker the worker did not renew it"),
        ((61.0, "running"), "worker the worker was last heard from at"),
        ((5.0, "stopped"), "worker the worker has stopped"),
    ],
)
def test_an_expired_lease_is_taken_back_whatever_the_heartbeat_says(
    raw: RawDatabase, heartbeat: tuple[float, str] | None, words: str
) -> None:
    """D11 D12 W13 W16: a heartbeat, fresh, old or missing, only words the cause."""
    claimed = claimed_one(raw)
    if heartbeat:
        beat(raw, *heartbeat)
    expire(raw)
    [found] = rescue(raw)
    assert words in found.message
    assert Attempt.objects.get().message == found.message
    assert claim(raw).ids == claimed.ids


@pytest.mark.parametrize("heartbeat", [None, (1e6, "running"), (5.0, "stopped")])
def test_a_running_lease_is_left_alone_whatever_the_heartbeat_says(
    raw: RawDatabase, heartbeat: tuple[float, str] | None
) -> None:
    """D12 D16 D17 X3: however long the job has been running, and however long nothing was heard of its worker."""
    claimed = claimed_one(raw)
    raw.query("UPDATE pgjobs_job SET claimed_at = statement_timestamp() - interval '9 h'")
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    if heartbeat:
        beat(raw, *heartbeat)
    before = raw.row(claimed.ids[0])
    assert [rescue(raw) for _ in range(3)] == [[], [], []]
    assert raw.row(claimed.ids[0]) == before


def test_a_row_without_a_claim_is_nobodys_to_rescue(raw: RawDatabase) -> None:
    """D13 D14 P2: ready, though somebody forged a worker and a start of long ago; it is simply claimed."""
    [one] = register()
    raw.query("UPDATE pgjobs_job SET worker = gen_random_uuid(), claimed_at = '2001-01-01' WHERE id = %s", [one])
    assert rescue(raw) == []
    assert claim(raw).ids == [one]


def test_nothing_but_running_jobs_is_touched(raw: RawDatabase) -> None:
    """D32: every other state, though a ledger row that names it is due."""
    ids = register(5)
    ready, parked, ended, ending, foreign = ids
    claimed = claim(raw, 5)
    finalising.release_jobs(raw, [end for end in claimed.ends() if end.id == ready], AUTHOR)
    finalising.park_jobs(raw, [End(parked, str(claimed.claim_id), reason="r", fingerprint="f")])
    finalising.finalise_success(raw, [End(ended, str(claimed.claim_id), 0.1)], AUTHOR)
    finalising.release_jobs(raw, [end for end in claimed.ends() if end.id == ending], AUTHOR)
    steering.abandon_jobs(raw, [ending], reason="r", with_callback=["test.job"])
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [foreign])
    expire(raw)
    before = [raw.row(one) for one in ids]
    assert rescue(raw) == []
    assert [raw.row(one) for one in ids] == before
    assert Claim.objects.count() == 0, "and the ledger row, of no use to anybody, is gone"


def test_leases_below_a_second_count_to_the_microsecond(raw: RawDatabase) -> None:
    """D22 C7: no whole seconds anywhere, and the clock is the database's at the statement."""
    register()
    claimed = claim(raw, lease=0.3)
    wait_until(lambda: [found.id for found in rescue(raw)] == claimed.ids, 5, "the lease of 0.3 s has run out")
    late = raw.value(
        "SELECT extract(epoch FROM ended_at - started_at)::float8 FROM pgjobs_attempt WHERE job_id = %s", claimed.ids
    )
    assert late >= 0.3


# What it looks like afterwards


def test_a_rescued_job_is_ready_at_once_and_charged(raw: RawDatabase) -> None:
    """D19 W15 W16 W20 W22: ready, no claim, deadline or backoff; the history has one more; the next claim counts."""
    claimed = claimed_one(raw, timeout_seconds=30.0)
    finalising.finalise_retry(raw, claimed.ends(cause="failed", failure=FAILURE), AUTHOR)
    second = claim(raw)
    finalising.write_progress(raw, [(second.ids[0], str(second.claim_id), {"progress": '{"n": 1}'})])
    steering.request_release(raw, second.ids)
    expire(raw)
    due = job(second.ids[0]).run_at
    rescue(raw)
    row = job(second.ids[0])
    assert (row.state, row.claim_id, row.overdue_at, row.progress, row.release_requested_at) == (
        "ready", None, None, None, None,
    )  # fmt: skip
    assert (row.attempt, row.run_at) == (2, due)
    history = [(attempt.number, attempt.cause) for attempt in row.attempts.order_by("id")]
    assert history == [(1, "failed"), (2, "lost")]
    assert claim(raw).jobs[0].attempt == 3


@pytest.mark.parametrize("callbacks", [False, True])
def test_the_last_attempt_is_not_followed_by_another(raw: RawDatabase, callbacks: bool) -> None:
    """W21 X8 C36: abandoned with its cause, or left for its callback, never its body."""
    claimed = claimed_one(raw, max_attempts=1)
    expire(raw)
    [found] = rescue(raw, callbacks=callbacks)
    row = job(claimed.ids[0])
    assert (found.outcome, found.ending) == (("", "abandoned") if callbacks else ("abandoned", ""))
    assert (row.state, row.ending) == (("ready", "abandoned") if callbacks else ("abandoned", None))
    assert "The lease ran out" in row.error
    again = claim(raw)
    assert [(taken.attempt, taken.ending) for taken in again.jobs] == ([(1, "abandoned")] if callbacks else [])


@pytest.mark.parametrize("callbacks", [False, True])
def test_a_rescued_job_that_was_to_be_cancelled_is(raw: RawDatabase, callbacks: bool) -> None:
    """W24: it does not run again, and its old owner's end is refused."""
    claimed = claimed_one(raw)
    steering.cancel_jobs(raw, claimed.ids, mode="ask", by="anna", reason="no", with_callback=[])
    expire(raw)
    [found] = rescue(raw, callbacks=callbacks)
    assert (found.outcome, found.ending) == (("", "cancelled") if callbacks else ("cancelled", ""))
    before = raw.row(claimed.ids[0])
    assert finalising.finalise_retry(raw, claimed.ends(cause="failed", failure=FAILURE), AUTHOR) == []
    assert raw.row(claimed.ids[0]) == before


def test_a_rescue_returns_what_events_need(raw: RawDatabase) -> None:
    """D20 W26: id, name, queue and the rest; there is no parent."""
    claimed = claimed_one(raw, queue="default", priority=0)
    expire(raw)
    [found] = rescue(raw)
    assert found == (
        claimed.ids[0], "test.job", "default", 0, 1, claimed.claim_id,
        "The lease ran out; the worker is not known.", "", "", "lost", False,
    )  # fmt: skip


def test_a_job_rescued_before_its_time_waits_for_it(raw: RawDatabase) -> None:
    """P4 W27: somebody moved its start into the future meanwhile."""
    claimed = claimed_one(raw)
    raw.query("UPDATE pgjobs_job SET run_at = statement_timestamp() + interval '1 h'")
    expire(raw)
    assert [found.id for found in rescue(raw)] == claimed.ids
    assert (claim(raw).ids, job(claimed.ids[0]).state) == ([], "ready")


# Many, and many at once


def test_a_rescue_is_one_statement_of_which_nothing_is_seen_by_halves(raw: RawDatabase, other: RawDatabase) -> None:
    """D10: the one that looks dies in the middle, the next takes everything."""
    ids = register(300)
    claim(raw, 300)
    expire(raw)
    assert len(rescue(other)) == 300
    assert (Attempt.objects.count(), Claim.objects.count(), job(ids[0]).state) == (0, 2, "running")
    gone = f"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {other.raw.info.backend_pid})"
    other.raw.close()
    wait_until(lambda: raw.value(gone), 10, "its server process has let go of the rows")
    assert sorted(found.id for found in rescue(raw)) == ids
    assert (Attempt.objects.count(), Claim.objects.count()) == (300, 0)


def test_many_that_look_at_once_take_disjoint_jobs_and_wait_for_nobody(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """D18 X2 P3: eight look at a thousand dead jobs; none leads, none waits for a lock."""
    ids = register(1000)
    for _ in range(100):
        claim(raw, 10)
    expire(raw)

    def rescue_all(db: RawDatabase) -> list[int]:
        db.query("SET lock_timeout = '100ms'")
        found: list[int] = []
        while more := rescue(db, 5):
            found += [one.id for one in more]
        return found

    parts = [asked.result(patience(30)) for asked in [background(rescue_all, db_connection()) for _ in range(8)]]
    rest = [found.id for found in rescue(raw, 1000)]
    assert sorted([one for part in parts for one in part] + rest) == ids
    assert Attempt.objects.count() == 1000


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look is enough, so that no test waits for the second."""
    monkeypatch.setattr("django_pgjobs.maintenance.rescue.CONFIRM_SECONDS", 0.0)


class Own:
    """A worker that holds these claims, and was never silent."""

    def __init__(self, claims: list[str]) -> None:
        self.claims = claims
        self.given_up: list[tuple[int, str]] = []

    def holds(self) -> list[str]:
        return self.claims

    def overdue(self) -> list[tuple[int, str]]:
        return self.given_up

    def silences(self, longer_than: float) -> list[tuple[float, float]]:
        return []

    def saw_pauses(self, are_any: bool) -> None: ...


class Old(RawDatabase):
    """A connection that has been up for long, to a server that has been; it counts its statements by name."""

    connected_at = -1e9

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self.rescue_all: list[int] = []
        wait_for_age(self, get_conf().renew_seconds)

    def fetch(self, name: str, params: Params) -> Rows:
        rows = super().fetch(name, params)
        if name == "rescue_jobs":
            self.rescue_all.append(len(rows))
        return rows


@pytest.mark.usefixtures("at_once")
def test_however_much_is_dead_a_look_takes_a_bounded_part(
    raw: RawDatabase, other: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """D23 W14 W25: 1,200 claims, one row locked; the others in many looks; counted at WARNING, once a turn."""
    ids = register(1200)
    for _ in range(1200):
        claim(raw)
    expire(raw)
    other.lock(ids[600])
    told: list[Rescued] = []
    db, rescue = Old(raw.raw), Rescuer(told.extend)
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        while rescue(db):
            pass
    assert sorted(found.id for found in told) == [one for one in ids if one != ids[600]]
    assert max(db.rescue_all) == 20, "as the documentation says: more would lock as many rows for as long"
    counts = [record.args[0] for record in caplog.records if record.msg.startswith("jobs were rescued")]  # type: ignore[index]
    assert sum(counts) == 1199  # type: ignore[arg-type]
    assert len(counts) < len(db.rescue_all)
    other.rollback()
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    assert [found.id for found in rescue(db)] == [ids[600]]
