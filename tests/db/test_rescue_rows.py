"""Rescue, row by row: which jobs it makes ready, which it leaves, and their rows afterwards.

Only an expired lease makes work dead, or its own worker that could not stop it. Each case moves the stored instants
instead of waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs import clock
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
from tests.plugins.sabotage import line_id, lines_of, sabotage

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


# Deadlines


def test_no_job_is_taken_from_a_worker_whose_lease_runs(raw: RawDatabase) -> None:
    """D25 W17: its worker alone knows when it started and whether it is being stopped; others wait for the lease."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    beat(raw, 0.0)
    pass_deadlines(raw, 1e6)
    before = raw.row(claimed.ids[0])
    assert [rescue(raw) for _ in range(3)] == [[], [], []]
    assert raw.row(claimed.ids[0]) == before
    assert not keeping.check_claims(raw, soon_seconds=0)[1], "it is nothing to look at again and again either"
    expire(raw)
    [found] = rescue(raw)
    assert (found.cause, found.id) == ("lost", claimed.ids[0])


@pytest.mark.parametrize(("name", "line"), lines_of("lease_expires_at <= (", ["rescue_jobs"]), ids=line_id)
def test_without_that_line_a_rescue_takes_the_jobs_of_the_living(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    pass_deadlines(raw, 1e6)
    sabotage(monkeypatch, name, line, "true")
    assert [found.id for found in rescue(raw)] == claimed.ids


def test_a_job_claimed_long_after_its_own_deadline_is_left_to_whoever_claimed_it(raw: RawDatabase) -> None:
    """It abandons it without calling its body; a rescue would charge it, and another worker claim it again."""
    [one] = register()
    raw.query("UPDATE pgjobs_job SET deadline = statement_timestamp() - interval '1 day' WHERE id = %s", [one])
    claimed = claim(raw)
    assert (claimed.ids, rescue(raw)) == ([one], [])
    assert finalising.finalise_end(raw, claimed.ends(outcome="abandoned"), AUTHOR) == [one]


def test_a_worker_rescues_its_own_job_that_it_could_not_stop(raw: RawDatabase) -> None:
    """D25 D26 D30 W19 A69: a process that outlives SIGKILL; the old run is fenced, and its neighbours stay."""
    ids = register(2, timeout_seconds=1.5)
    claimed = claim(raw, 2)
    beat(raw, 0.0)
    overdue = [(ids[0], str(claimed.claim_id))]
    pass_deadlines(raw, 9.9)
    assert rescue(raw, overdue=overdue) == [], "ten seconds longer, for the ladder"
    pass_deadlines(raw, 10.1)
    [found] = rescue(raw, overdue=overdue)
    assert (found.id, found.cause, found.ending, found.outcome) == (ids[0], "timeout", "", "")
    assert "ran past its deadline" in found.message
    assert [(attempt.job_id, attempt.cause) for attempt in Attempt.objects.all()] == [(ids[0], "timeout")]
    assert [job(one).state for one in ids] == ["ready", "running"]
    written = finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    assert written == [ids[1]], "what it writes at last for the other one counts"


@pytest.mark.parametrize(("name", "line"), lines_of("= ANY (%(overdue)s", ["rescue_jobs"]), ids=line_id)
def test_without_that_line_a_worker_would_rescue_jobs_that_have_just_started(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above: the deadline on a row counts from its claim."""
    ids = register(2, timeout_seconds=1.5)
    claimed = claim(raw, 2)
    pass_deadlines(raw, 10.1)
    sabotage(monkeypatch, name, line, "OR true")
    found = rescue(raw, overdue=[(ids[0], str(claimed.claim_id))])
    assert sorted(each.id for each in found) == ids


def test_a_job_that_has_come_to_its_callback_meanwhile_is_left_alone(raw: RawDatabase) -> None:
    claimed = claimed_one(raw, timeout_seconds=1.5)
    pass_deadlines(raw, 60)
    finalising.mark_ending(raw, claimed.ends(outcome="abandoned", cause="failed"), AUTHOR, allowance_seconds=60)
    assert rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))]) == []


@pytest.mark.parametrize(("name", "line"), lines_of("AND j.overdue_at +", ["rescue_jobs"]), ids=line_id)
def test_without_reading_the_deadline_again_its_callback_would_be_taken_for_its_body(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    finalising.mark_ending(raw, claimed.ends(outcome="abandoned", cause="failed"), AUTHOR, allowance_seconds=60)
    sabotage(monkeypatch, name, line)
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    assert len(rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))])) == 1


def test_the_deadline_keeps_fractions_of_a_second(raw: RawDatabase) -> None:
    """D27: 1.5 s is 1.5 s; so is the pause before its worker gives it up."""
    register(timeout_seconds=1.5)
    claimed = claim(raw, allowance=0.25)
    window = raw.value("SELECT extract(epoch FROM overdue_at - claimed_at)::float8 FROM pgjobs_job")
    assert window == pytest.approx(1.75, abs=1e-6)
    pass_deadlines(raw, 10 - patience(0.5))
    overdue = [(claimed.ids[0], str(claimed.claim_id))]
    assert rescue(raw, overdue=overdue) == []
    wait_until(
        lambda: [found.id for found in rescue(raw, overdue=overdue)] == claimed.ids, 5, "the fraction has passed too"
    )


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_without_a_deadline_a_renewed_job_is_never_taken(raw: RawDatabase, timeout: float | None) -> None:
    """D26 D28 W18: no timeout, or a deadline that somebody has taken away by SQL."""
    claimed = claimed_one(raw, timeout_seconds=timeout)
    raw.query("UPDATE pgjobs_job SET overdue_at = NULL, claimed_at = '2001-01-01'")
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    assert rescue(raw) == rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))]) == []
    assert job(claimed.ids[0]).state == "running"


def test_after_a_passed_deadline_the_next_start_has_a_new_one(raw: RawDatabase) -> None:
    """D29: the timeout is kept, the deadline counts from the new claim."""
    claimed = claimed_one(raw, timeout_seconds=60.0)
    pass_deadlines(raw, 11)
    rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))])
    assert (job(claimed.ids[0]).overdue_at, job(claimed.ids[0]).timeout_seconds) == (None, 60.0)
    claim(raw, allowance=5.0)
    left = raw.value("SELECT extract(epoch FROM overdue_at - statement_timestamp())::float8 FROM pgjobs_job")
    assert 60 < left <= 65


def test_a_job_whose_lease_and_deadline_have_both_passed_is_rescued_once(raw: RawDatabase) -> None:
    """D31."""
    claimed_one(raw, timeout_seconds=1.0)
    pass_deadlines(raw, 11)
    expire(raw)
    [found] = rescue(raw)
    assert (found.cause, rescue(raw)) == ("lost", [])
    assert Attempt.objects.count() == 1


@pytest.mark.usefixtures("at_once")
def test_a_lone_worker_rescues_the_job_that_it_could_not_stop(raw: RawDatabase) -> None:
    """D30: in the turn of its own rescuer, though it holds the claim and nobody's lease has run out."""
    claimed = claimed_one(raw, timeout_seconds=1.0)
    raw.query("UPDATE pgjobs_job SET overdue_at = '2001-01-01'")
    raw.query("UPDATE pgjobs_claim SET check_at = '2001-01-01'")
    told: list[Rescued] = []
    own = Own([str(claimed.claim_id)])
    look = Rescuer(told.extend, own)
    db = Old(raw.raw)
    look(db)
    assert told == []
    own.given_up = [(claimed.ids[0], str(claimed.claim_id))]
    look(db)
    assert [(found.id, found.cause) for found in told] == [(claimed.ids[0], "timeout")]
    assert job(claimed.ids[0]).state == "ready"


# What it looks like afterwards


def test_a_rescued_job_is_ready_at_once_and_charged(raw: RawDatabase) -> None:
    """D19 W15 W16 W20 W22: ready, no claim, deadline or backoff; the history has one more; the next claim counts."""
    claimed = claimed_one(raw, timeout_seconds=30.0)
    finalising.finalise_retry(raw, claimed.ends(cause="failed", failure=FAILURE), AUTHOR)
    second = claim(raw)
    finalising.write_progress(raw, [(second.ids[0], str(second.claim_id), '{"n": 1}')])
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


# Silence


def before_a_silence(raw: RawDatabase) -> tuple[datetime, Claimed]:
    """Claim a job, look at the server's time, and let the lease run out since."""
    claimed = claimed_one(raw, max_attempts=1)
    seen, _ = keeping.check_claims(raw, soon_seconds=0)
    raw.query(
        "UPDATE pgjobs_claim SET lease_expires_at = %s::timestamptz + interval '1 ms', check_at = %s",
        [seen, seen + timedelta(milliseconds=1)],
    )
    wait_until(lambda: keeping.check_claims(raw, soon_seconds=0)[1], 5, "the lease has run out")
    return seen, claimed


def late(raw: RawDatabase, seen: datetime | None = None, held: Sequence[str] = ()) -> list[int]:
    found = keeping.rescue_jobs(
        raw, limit=10, quiet_seconds=0, grace_seconds=10, stale_seconds=60, without_on_cancel=["test.job"],
        without_on_abandon=["test.job"], seen=seen, held=held,
    )  # fmt: skip
    return [rescued.id for rescued in found]


def test_a_rescue_that_was_sent_before_a_silence_knows_no_more_than_it_did(raw: RawDatabase) -> None:
    """P39 P41: it arrives before the renewals of those who live; what had run out when it was sent is dead even so."""
    seen, claimed = before_a_silence(raw)
    before = raw.row(claimed.ids[0])
    assert late(raw, seen) == []
    assert raw.row(claimed.ids[0]) == before
    assert late(raw, keeping.check_claims(raw, soon_seconds=0)[0]) == claimed.ids


@pytest.mark.parametrize(("name", "line"), lines_of("%(seen)s", ["rescue_jobs"]), ids=line_id)
def test_without_its_bound_a_late_rescue_takes_the_jobs_of_the_living(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the tests above."""
    seen, claimed = before_a_silence(raw)
    sabotage(monkeypatch, name, line, "SELECT statement_timestamp() AS until")
    assert late(raw, seen) == claimed.ids


def test_a_worker_leaves_alone_what_it_holds_itself(raw: RawDatabase) -> None:
    """D16: until it has read that it has lost it; others take it by the lease."""
    claimed = claimed_one(raw)
    expire(raw)
    assert late(raw, held=[str(claimed.claim_id)]) == []
    assert late(raw) == claimed.ids


@pytest.mark.parametrize(("name", "line"), lines_of("<> ALL (%(held)s", ["rescue_jobs"]), ids=line_id)
def test_without_its_guard_a_worker_would_take_its_own(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw)
    expire(raw)
    sabotage(monkeypatch, name, line)
    assert late(raw, held=[str(claimed.claim_id)]) == claimed.ids


@pytest.mark.parametrize(("within", "due"), [(0.0, False), (5.0, True)])
def test_a_look_tells_whether_anything_is_due_or_soon_will_be(raw: RawDatabase, within: float, due: bool) -> None:
    claimed_one(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = statement_timestamp() + interval '4 s', check_at = now()")
    assert keeping.check_claims(raw, soon_seconds=within)[1] is due


def test_a_ledger_row_that_somebody_holds_is_left_for_the_next_look(raw: RawDatabase, other: RawDatabase) -> None:
    """D18 X2: otherwise every rescue would wait for it, pass after pass, until its statement is given up."""
    held, free = claimed_one(raw), claimed_one(raw)
    expire(raw)
    other.query("SELECT claim_id FROM pgjobs_claim WHERE claim_id = %s FOR UPDATE", [held.claim_id])
    raw.query("SET lock_timeout = '100ms'")
    assert [found.id for found in rescue(raw)] == free.ids
    other.rollback()
    assert [found.id for found in rescue(raw)] == held.ids


def test_a_job_whose_row_somebody_holds_is_looked_for_again_a_second_later(
    raw: RawDatabase, other: RawDatabase
) -> None:
    """Else each look would begin with those that it could not take the last time."""
    claimed = claimed_one(raw)
    expire(raw)
    other.query("SELECT id FROM pgjobs_job WHERE id = ANY (%s) FOR UPDATE", [claimed.ids])
    assert rescue(raw) == []
    assert 0 < raw.value("SELECT extract(epoch FROM check_at - now())::float8 FROM pgjobs_claim") <= 1
    other.rollback()
    expire(raw)
    assert [found.id for found in rescue(raw)] == claimed.ids


@pytest.mark.usefixtures("at_once")
def test_a_look_that_finds_nothing_says_nothing(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """W25."""
    claimed_one(raw)
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        assert Rescuer(lambda rescued: None)(Old(raw.raw)) == []
    assert caplog.records == []


@pytest.mark.usefixtures("at_once")
def test_a_job_is_given_up_with_one_error_though_its_callback_is_rescued_as_well(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """P38: its last attempt was lost with its worker, then its callback with another one."""
    claimed_one(raw, name="no.such", max_attempts=1)
    look, db = Rescuer(lambda rescued: None), Old(raw.raw)
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        for ending_attempt in (0, 1, 2):
            expire(raw)
            assert len(look(db)) == 1
            assert claim(raw).jobs[0].ending_attempt == ending_attempt + 1
    lines = [record.levelname for record in caplog.records if record.msg.startswith("job rescued")]
    assert lines == ["ERROR", "WARNING", "WARNING"]


def test_nobody_rescues_right_after_the_server_has_come_up(raw: RawDatabase) -> None:
    """No storm: live workers renew first. Nobody rescues on a server younger than a renewal period."""
    claimed_one(raw)
    expire(raw)
    assert rescue(raw, quiet=1e9) == []
    assert len(rescue(raw)) == 1


@pytest.mark.usefixtures("at_once")
def test_nobody_rescues_just_after_a_standby_was_promoted(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """P39: connections are older than the promotion, and so is the server; before it nobody could renew."""
    claimed_one(raw)
    expire(raw)
    began = clock.monotonic()
    period = get_conf().renew_seconds
    db, rescue = Old(raw.raw), Rescuer(lambda rescued: None)
    db.connected_at = began
    raw.query("SET default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        rescue(db)
    raw.query("SET default_transaction_read_only = off")
    for passed, found in ((period + 1, 0), (1.9 * period, 0), (2 * period + 2, 1)):
        monkeypatch.setattr(clock, "monotonic", lambda passed=passed: began + passed)
        assert len(rescue(db)) == found


@pytest.mark.parametrize("callbacks", [False, True])
@pytest.mark.parametrize("way", ["lease", "deadline"])
def test_a_job_that_must_not_run_again_is_abandoned(raw: RawDatabase, way: str, *, callbacks: bool) -> None:
    """Whoever lost it, and however many attempts are left: nobody knows how far it came."""
    ids = register(2)
    raw.query('UPDATE pgjobs_job SET options = \'{"on_crash": "abandon"}\', max_attempts = 5 WHERE id = %s', [ids[0]])
    taken = claim(raw, 2)
    if way == "lease":
        expire(raw)
    else:
        pass_deadlines(raw, 11)
    overdue = [] if way == "lease" else taken.fences()
    assert len(rescue(raw, callbacks=callbacks, overdue=overdue)) == 2
    once, other = job(ids[0]), job(ids[1])
    assert (once.outcome, once.ending) == ((None, "abandoned") if callbacks else ("abandoned", None))
    assert once.error.endswith('It is not run again: on_crash="abandon".')
    assert once.attempts.get().cause == ("lost" if way == "lease" else "timeout")
    assert (other.state, other.ending, "on_crash" in other.error) == ("ready", None, False)


def test_its_last_attempt_and_its_cancel_are_worded_as_ever(raw: RawDatabase) -> None:
    ids = register(2)
    raw.query('UPDATE pgjobs_job SET options = \'{"on_crash": "abandon"}\', max_attempts = 1')
    claim(raw, 2)
    raw.query("UPDATE pgjobs_job SET cancel_requested_at = statement_timestamp() WHERE id = %s", [ids[1]])
    expire(raw)
    rescue(raw)
    assert [job(one).outcome for one in ids] == ["abandoned", "cancelled"]
    assert not any("on_crash" in job(one).error for one in ids)
