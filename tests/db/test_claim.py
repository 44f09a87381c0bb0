"""The claim: which jobs, in which order, by which worker, and the traces on the row and in the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from django_pgjobs.decisions import Failure
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import claiming, finalising, keeping
from django_pgjobs.store.claiming import ClaimedJob, Line, Pair
from django_pgjobs.store.database import Database, Params, Rows, array_of, on, statement
from django_pgjobs.store.finalising import End
from tests.plugins.fix_db import (
    AUTHOR,
    WORKER,
    Background,
    RawDatabase,
    blocked_by,
    claim,
    from_the_beginning,
    job,
    patience,
    register,
    wait_until,
)
from tests.plugins.sabotage import sabotage

Connect = Callable[..., RawDatabase]


def test_the_larger_priority_is_claimed_first_then_the_earlier_then_the_older(raw: RawDatabase) -> None:
    """P5: oldest effective time first; priority before it."""
    late = register(2)
    [early] = register(delay_seconds=0)
    Job.objects.filter(pk=early).update(run_at="2001-01-01T00:00:00Z")
    [urgent] = register(priority=5)
    [idle] = register(priority=-5)
    pairs = from_the_beginning(("default", 5), ("default", 0), ("default", -5))
    assert claim(raw, 10, pairs).ids == [urgent, early, *late, idle]


def test_an_array_as_text_is_the_list_that_psycopg_would_send(raw: RawDatabase) -> None:
    instant = datetime(2026, 7, 1, 12, 30, 0, 123456, UTC)
    lists: dict[str, list[Any]] = {
        "text": ["plain", "", "NULL", 'a"b', "a\\b", "{a,b}", " a ", "ключ", "a\nb", None],
        "bigint": [2**62, -1, None],
        "boolean": [True, False, None],
        "timestamptz": [instant, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), None],
        "float8": [],
    }
    for kind, values in lists.items():
        assert raw.value(f"SELECT %s::{kind}[] IS NOT DISTINCT FROM %s::{kind}[]", [array_of(values), values]), kind


def test_only_the_pairs_asked_for_are_served_in_the_order_asked(raw: RawDatabase) -> None:
    [mail] = register(queue="mail")
    [urgent] = register(queue="mail", priority=9)
    register(queue="other")
    assert claim(raw, 1, from_the_beginning(("mail", 9), ("mail", 0))).ids == [urgent]
    assert claim(raw, 5, from_the_beginning(("mail", 9), ("mail", 0))).ids == [mail]


def test_a_future_job_is_not_claimed_and_one_that_is_due_is(raw: RawDatabase) -> None:
    """P2: a job is due once ``run_at`` has passed by the database's clock."""
    [later] = register(delay_seconds=60)
    assert claim(raw, 5).ids == []
    raw.query("UPDATE pgjobs_job SET run_at = statement_timestamp() WHERE id = %s", [later])
    assert claim(raw, 5).ids == [later]


@pytest.mark.parametrize("hold", ["parked", "blocked", "limited", "something new"])
def test_a_held_job_is_not_claimed(raw: RawDatabase, hold: str) -> None:
    """P6: a row set aside is never claimed."""
    [held] = register()
    Job.objects.filter(pk=held).update(hold=hold)
    assert claim(raw, 5).ids == []


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled", "abandoned"])
def test_an_ended_job_is_not_claimed(raw: RawDatabase, outcome: str) -> None:
    [ended] = register()
    raw.query("UPDATE pgjobs_job SET outcome = %s, finished_at = statement_timestamp() WHERE id = %s", [outcome, ended])
    assert claim(raw, 5).ids == []


def test_a_claimed_job_is_not_claimed_again(raw: RawDatabase) -> None:
    register()
    assert len(claim(raw).ids) == 1
    assert claim(raw).ids == []


def test_the_claim_starts_behind_the_frontier(raw: RawDatabase) -> None:
    """A row before the frontier waits for the sweep; a wrong frontier costs a second, never a job."""
    register(4)
    first, second, *rest = claim(raw, 4).jobs
    finalising.release_jobs(raw, [End(item.id, _claim_of(raw, item.id)) for item in (first, second, *rest)], AUTHOR)
    behind = [Pair("default", 0, second.run_at, second.id)]
    assert claim(raw, 10, behind).ids == [item.id for item in rest]
    assert claim(raw, 10).ids == [first.id, second.id]


def test_the_claim_of_a_slice_ends_at_its_end(raw: RawDatabase) -> None:
    """Its end included; the frontier of the same pair is another stretch of the same claim."""
    ids = register(6)
    Job.objects.filter(pk__in=ids).update(run_at="2001-01-01T00:00:00Z")
    instant = Job.objects.get(pk=ids[0]).run_at
    piece = Pair("default", 0, instant, ids[0], until=(instant, ids[2]))
    assert claim(raw, 9, [piece, Pair("default", 0, instant, ids[4])]).ids == [ids[1], ids[2], ids[5]]


def test_a_frontier_in_the_future_begins_seconds_ago(raw: RawDatabase) -> None:
    """The clock was set back: new jobs would be behind the frontier until the clock catches up."""
    [new] = register()
    assert claim(raw, 9, [Pair("default", 0, datetime(2999, 1, 1, tzinfo=UTC), 5)]).ids == [new]


def test_two_connections_never_claim_the_same_job_and_never_wait(raw: RawDatabase, other: RawDatabase) -> None:
    """P5: SKIP LOCKED; the second claim answers while the first is uncommitted."""
    ids = register(10)
    first = claim(other, 4)
    raw.query(f"SET statement_timeout = '{patience(2)}s'")
    second = claim(raw, 10)
    assert (first.ids, second.ids) == (ids[:4], ids[4:])
    other.commit()


def test_a_claim_that_is_rolled_back_changes_nothing(raw: RawDatabase, other: RawDatabase) -> None:
    """P10: rows and ledger in one statement; a crash before the commit leaves neither."""
    [one] = register()
    before = raw.row(one)
    claim(other)
    other.rollback()
    assert raw.row(one) == before
    assert Claim.objects.count() == 0


def test_concurrent_claimers_take_disjoint_jobs_and_leave_none(db_connection: Connect, background: Background) -> None:
    """P5, under fire: four connections drain 2,000 jobs of two pairs."""
    ids = set(register(1000)) | set(register(1000, priority=1))
    pairs = from_the_beginning(("default", 1), ("default", 0))

    def drain(db: RawDatabase) -> list[int]:
        taken: list[int] = []
        while batch := claim(db, 37, pairs).ids:
            taken += batch
        return taken

    futures: list[Future[list[int]]] = [background(drain, db_connection()) for _ in range(4)]
    taken = [job_id for future in futures for job_id in future.result()]
    assert len(taken) == len(set(taken))
    assert set(taken) == ids
    assert sorted(i for part in Claim.objects.all() for i in part.job_ids) == sorted(ids)


def test_only_limit_rows_are_locked_whatever_the_number_of_pairs(raw: RawDatabase, other: RawDatabase) -> None:
    """The pairs are visited lazily: a claim of 3 over 3 × 5 rows leaves 12 to others."""
    ids = register(5, priority=2) + register(5, priority=1) + register(5)
    taken = claim(other, 3, from_the_beginning(("default", 2), ("default", 1), ("default", 0))).ids
    free = [row[0] for row in raw.query("SELECT id FROM pgjobs_job ORDER BY id FOR UPDATE SKIP LOCKED")]
    assert taken == ids[:3]
    assert free == ids[3:]


def test_the_ledger_names_at_most_200_jobs_a_row(raw: RawDatabase) -> None:
    """Short rows stay inline, and renewing touches one row per 200 jobs."""
    ids = register(450)
    claimed = claim(raw, 450)
    parts = list(Claim.objects.filter(claim_id=claimed.claim_id).order_by("part"))
    assert [part.part for part in parts] == [0, 1, 2]
    assert sorted(len(part.job_ids) for part in parts) == [50, 200, 200]
    assert sorted(i for part in parts for i in part.job_ids) == ids
    assert {part.worker for part in parts} == {WORKER}


def test_a_claim_of_nothing_leaves_no_ledger_row(raw: RawDatabase) -> None:
    assert claim(raw, 5).jobs == []
    assert Claim.objects.count() == 0


def test_a_claim_counts_an_attempt(raw: RawDatabase) -> None:
    """C33: what max_attempts is compared with."""
    [one] = register(max_attempts=3)
    [taken] = claim(raw).jobs
    assert (taken.attempt, taken.max_attempts, taken.ending, taken.ending_attempt) == (1, 3, None, 0)
    assert (job(one).attempt, job(one).ending_attempt) == (1, 0)


def test_a_claim_for_the_callback_counts_its_starts_and_no_attempt(raw: RawDatabase) -> None:
    """C36: only the callback is left, the body's attempts stay as they were."""
    [one] = register()
    Job.objects.filter(pk=one).update(ending="abandoned", attempt=5, ending_attempt=1)
    [taken] = claim(raw).jobs
    assert (taken.attempt, taken.ending, taken.ending_attempt) == (5, "abandoned", 2)


def test_a_row_beyond_its_attempts_stops_no_claim(raw: RawDatabase) -> None:
    """C17, C36: no constraint relates the two numbers; the worker decides what such a row gets."""
    exhausted, normal = register(2, max_attempts=1)
    Job.objects.filter(pk=exhausted).update(attempt=40_000)
    assert claim(raw, 5).ids == [exhausted, normal]
    assert job(exhausted).attempt == 40_001


def test_the_deadline_is_the_timeout_and_the_allowance_by_the_clock_of_the_database(raw: RawDatabase) -> None:
    """P10: the expiry is set with the claim."""
    timed, unlimited = [*register(timeout_seconds=60.0), *register()]
    claim(raw, 2, allowance=5.0)
    seconds = "extract(epoch FROM overdue_at - claimed_at)::float8 FROM pgjobs_job WHERE id = %s"
    assert raw.value(f"SELECT {seconds}", [timed]) == pytest.approx(65.0)
    assert raw.value(f"SELECT {seconds}", [unlimited]) is None


@pytest.mark.parametrize(
    ("timeouts", "check"),
    [([None], 30.0), ([100.0], 30.0), ([1.0, None, 100.0], 16.0)],
    ids=["none", "later", "sooner"],
)
def test_others_look_at_the_end_of_the_lease_or_at_the_earliest_deadline(
    raw: RawDatabase, timeouts: list[float | None], check: float
) -> None:
    """The lease is 30 s; a deadline of 1 + 5 s, and 10 s of grace, come sooner."""
    for timeout in timeouts:
        register(timeout_seconds=timeout)
    claim(raw, 5, lease=30.0, allowance=5.0, grace=10.0)
    lease, look = raw.query(
        "SELECT extract(epoch FROM k.lease_expires_at - j.claimed_at)::float8, "
        "extract(epoch FROM k.check_at - j.claimed_at)::float8 "
        "FROM pgjobs_claim AS k JOIN pgjobs_job AS j USING (claim_id) LIMIT 1"
    )[0]
    assert (lease, look) == (pytest.approx(30.0), pytest.approx(check))


def test_the_claim_returns_what_an_executor_needs(raw: RawDatabase) -> None:
    [one] = register(
        queue="mail",
        name="shop.pay",
        description="pay 7",
        headers='{"tenant": "north"}',
        timeout_seconds=9.0,
        priority=3,
    )
    [taken] = claim(raw, 1, from_the_beginning(("mail", 3))).jobs
    assert taken == ClaimedJob(
        one, job(one).run_at, '{"args": [1], "kwargs": {}}', "mail", 3, "shop.pay", 1, 5, 9.0, '{"tenant": "north"}',
        str(job(one).claim_id), "pay 7",
    )  # fmt: skip


def test_texts_that_no_registration_writes_come_cut_so_that_a_claim_stays_quick(raw: RawDatabase) -> None:
    """A row forged with endless headers, description or error must not hold up its queue; its worker parks it."""
    long = claiming.MOST_CHARS + 1
    ids = register(3)
    raw.query("UPDATE pgjobs_job SET headers = to_jsonb(repeat('h', %s)) WHERE id = %s", [2 * long, ids[0]])
    raw.query("UPDATE pgjobs_job SET description = repeat('d', %s) WHERE id = %s", [2 * long, ids[1]])
    raw.query("UPDATE pgjobs_job SET error = repeat('e', %s) WHERE id = %s", [2 * long, ids[2]])
    found = {job.id: job for job in claim(raw, 3).jobs}
    assert len(found[ids[0]].headers or "") == len(found[ids[1]].description) == len(found[ids[2]].error) == long
    assert found[ids[1]].headers is None


def test_a_payload_too_big_for_the_channel_is_not_returned_but_read_under_the_fence(raw: RawDatabase) -> None:
    """The size that counts is that of the text, also where the stored value is compressed to little."""
    limit = claiming.INLINE_PAYLOAD_BYTES
    noise = os.urandom(limit).hex()
    contents = [noise, "x" * limit, "x" * (limit - 100), "short"]
    ids = [register(payload=f'{{"args": ["{content}"], "kwargs": {{}}}}')[0] for content in contents]
    big = ids[0]
    claimed = claim(raw, 4)
    inline = {taken.id for taken in claimed.jobs if taken.payload is not None}
    assert inline == set(ids[2:])
    assert noise in (finalising.read_payload(raw, big, str(claimed.claim_id)) or "")
    assert finalising.read_payload(raw, big, str(uuid4())) is None


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("hold = %s", ["parked"]),
        ("run_at = run_at + %s::interval", ["1 hour"]),
        ("queue = %s", ["elsewhere"]),
        ("outcome = %s, finished_at = statement_timestamp()", ["cancelled"]),
        ("claim_id = %s", [str(uuid4())]),
    ],
    ids=["held", "postponed", "moved", "ended", "claimed"],
)
def test_a_row_that_changes_during_the_claim_is_not_claimed_by_its_old_version(
    raw: RawDatabase, other: RawDatabase, db_connection: Connect, background: Background, change: str, values: list[str]
) -> None:
    """P10. The claim has its snapshot and waits at a gate put before its first row; the row changes; it goes on."""
    first, second = register(2)
    gate = db_connection(autocommit=False)
    gate.query("SELECT pg_advisory_lock(1)")
    claimer = db_connection(autocommit=False)
    text = statement("claim_jobs").replace(
        "until_run_at, until_id, line),",
        "until_run_at, until_id, line), (SELECT pg_advisory_xact_lock(1) IS NOT NULL OFFSET 0) AS gate (opened),",
    )
    text = text.replace("WHERE j.queue = pair.queue", "WHERE gate.opened AND j.queue = pair.queue", 1)
    assert "gate" in text
    future = background(_claim_with, claimer, text)
    wait_until(lambda: blocked_by(raw, gate.pid), 5, "the claim waits at the gate")
    other.query(f"UPDATE pgjobs_job SET {change} WHERE id = %s", [*values, first])
    other.commit()
    before = raw.row(first)
    gate.query("SELECT pg_advisory_unlock(1)")
    assert future.result() == [second]
    claimer.commit()
    assert raw.row(first) == before


def test_a_lost_answer_is_found_by_the_claim_id(raw: RawDatabase) -> None:
    """The worker adopts or releases what an ambiguous claim took; ended or released jobs are no part of it."""
    ids = register(3)
    claimed = claim(raw, 3)
    assert sorted(claiming.read_claim(raw, claimed.claim_id)) == ids
    finalising.finalise_success(raw, claimed.ends()[:1], AUTHOR)
    finalising.release_jobs(raw, claimed.ends()[1:2], AUTHOR)
    assert claiming.read_claim(raw, claimed.claim_id) == ids[2:]
    assert claiming.read_claim(raw, uuid4()) == []


def test_a_claim_id_used_twice_is_refused_by_the_ledger(raw: RawDatabase) -> None:
    """The fence must be fresh for every execution; a mistake there fails at once and changes nothing."""
    register(2)
    first = claim(raw)
    with pytest.raises(psycopg.errors.UniqueViolation):
        claiming.claim_jobs(
            raw,
            from_the_beginning(("default", 0)),
            claim_id=first.claim_id,
            worker=WORKER,
            limit=1,
            lease_seconds=30,
            allowance_seconds=5,
            grace_seconds=5,
        )
    assert Job.objects.filter(claim_id__isnull=True).count() == 1


def test_the_pairs_are_those_with_something_to_claim_or_running(raw: RawDatabase) -> None:
    register(2, queue="b")
    register(queue="a", priority=-3)
    register(queue="a", priority=7, delay_seconds=60)
    [held] = register(queue="held")
    [ended] = register(queue="ended")
    Job.objects.filter(pk=held).update(hold="parked")
    raw.query("UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = now() WHERE id = %s", [ended])
    assert sorted(claiming.list_pairs(raw)) == [("a", -3), ("a", 7), ("b", 0)]


def test_the_next_due_instant_is_of_an_unclaimed_job_of_the_pairs(raw: RawDatabase) -> None:
    """P8: the earliest future instant; null if there is none."""
    pairs = [("default", 0), ("mail", 0)]
    assert claiming.next_due(raw, pairs) is None
    register()
    register(queue="elsewhere", delay_seconds=5)
    [held] = register(delay_seconds=7)
    Job.objects.filter(pk=held).update(hold="blocked")
    assert claiming.next_due(raw, pairs) is None
    register(delay_seconds=100)
    register(queue="mail", delay_seconds=50)
    assert claiming.next_due(raw, pairs) == pytest.approx(50, abs=5)


def test_what_is_due_already_is_claimed_and_is_nothing_to_wait_for(raw: RawDatabase) -> None:
    """P9: a start in the past or now: no negative wait, and none of zero either while somebody else has the job."""
    now = raw.value("SELECT statement_timestamp()")
    ids = [*register(run_at=now - timedelta(days=400)), *register(run_at=now), *register(delay_seconds=0.0)]
    assert claiming.next_due(raw, [("default", 0)]) is None
    held = claim(raw, 10)
    assert sorted(held.ids) == ids
    assert claiming.next_due(raw, [("default", 0)]) is None
    assert len(finalising.finalise_snooze(raw, held.ends(delay=0.0))) == 3
    assert claiming.next_due(raw, [("default", 0)]) is None
    assert sorted(claim(raw, 10).ids) == ids


def test_the_row_that_makes_a_claim_fail_is_parked_alone(raw: RawDatabase) -> None:
    """D21 P13: a row whose data makes every claim fail is held with the reason; the others run."""
    poison, normal = register(2, timeout_seconds=1.0)
    Job.objects.filter(pk=poison).update(timeout_seconds=1e300)
    with pytest.raises(psycopg.DataError):
        claim(raw, 1)
    assert claiming.next_claimable(raw, from_the_beginning(("default", 0))) == poison
    with pytest.raises(psycopg.DataError):
        claim_one(raw, poison)
    assert claiming.park_unclaimable(raw, poison, "timeout out of range", {"test.job": "this code"}) == [poison]
    assert (job(poison).state, job(poison).hold_reason, job(poison).attempt) == ("parked", "timeout out of range", 0)
    assert keeping.unpark_jobs(raw, {"test.job": "this code"}, limit=5) == [], "it would fail here again and again"
    assert claim(raw, 5).ids == [normal]
    assert [found.id for found in keeping.unpark_jobs(raw, {"test.job": "other code"}, limit=5)] == [poison]


def claim_one(db: Database, job_id: int) -> list[ClaimedJob]:
    return claiming.claim_one(
        db, job_id, claim_id=uuid4(), worker=WORKER, lease_seconds=30, allowance_seconds=5, grace_seconds=10
    ).jobs


def test_two_workers_that_look_for_a_bad_row_at_once_park_no_good_one(raw: RawDatabase, other: RawDatabase) -> None:
    """P13: the second finds the next row first, because the first has parked the bad one a moment ago."""
    poison, good = register(2, timeout_seconds=1.0)
    Job.objects.filter(pk=poison).update(timeout_seconds=1e300)
    pairs = from_the_beginning(("default", 0))
    found = [claiming.next_claimable(db, pairs) for db in (raw, other)]
    other.commit()
    assert found == [poison, poison]
    assert claiming.park_unclaimable(raw, poison, "bad", {"test.job": "code"}) == [poison]
    assert claim_one(other, poison) == []
    assert claiming.park_unclaimable(other, poison, "bad", {"test.job": "code"}) == []
    assert claiming.next_claimable(other, pairs) == good
    other.commit()
    assert [job.id for job in claim_one(raw, good)] == [good]
    assert claiming.next_claimable(raw, pairs) is None
    assert claiming.park_unclaimable(raw, good, "bad", {"test.job": "code"}) == [], "somebody has claimed it"


def test_a_row_that_somebody_holds_is_not_taken_for_the_bad_one(raw: RawDatabase, other: RawDatabase) -> None:
    """The claim skips it, and so does the search for the row that made the claim fail."""
    held, poison = register(2)
    other.query("SELECT 1 FROM pgjobs_job WHERE id = %s FOR UPDATE", [held])
    assert claiming.next_claimable(raw, from_the_beginning(("default", 0))) == poison
    assert claim_one(raw, held) == []
    assert claiming.park_unclaimable(raw, held, "bad", {}) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("run_at = run_at + interval '1 hour'", "AND run_at <= statement_timestamp()"),
        ("finished_at = now(), outcome = 'cancelled'", "AND num_nulls(finished_at, hold, claim_id) = 3"),
        ("hold = 'parked'", "AND num_nulls(finished_at, hold, claim_id) = 3"),
        ("claim_id = gen_random_uuid()", "AND num_nulls(finished_at, hold, claim_id) = 3"),
    ],
)
def test_a_claim_by_id_takes_only_a_ready_job(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, change: str, line: str
) -> None:
    """Each sabotaged twin takes that job, too."""
    named, _ = register(2)
    raw.query(f"UPDATE pgjobs_job SET {change} WHERE id = %s", [named])
    assert claim_one(raw, named) == []
    sabotage(monkeypatch, "claim_jobs", line)
    assert [job.id for job in claim_one(raw, named)] == [named]


def test_who_is_asked_about_is_the_first_that_a_claim_of_many_takes() -> None:
    """Else another row would be taken for the bad one."""
    candidates = statement("claim_jobs").partition("claimed AS (")[0]
    first = " ".join(statement("next_claimable").split())
    for of_lines, of_one in (
        ("line.most", "1"),
        (", %(pair_lines)s::bigint[]", ""),
        ("until_id, line)", "until_id)"),
        ("WHERE pair.line = line.number", ""),
        ("line.is_async", "%(is_async)s::boolean"),
    ):
        assert of_lines in candidates
        candidates = candidates.replace(of_lines, of_one)
    assert first in " ".join(candidates.split())


def test_a_queue_with_places_has_lines_of_its_own(raw: RawDatabase) -> None:
    """Each line of one colour gives what it is asked for, from its own queues only."""
    mail, other = register(5, queue="mail"), register(5, priority=3)
    lines: dict[claiming.LineKey, Line] = {
        False: Line(from_the_beginning(("default", 3)), 3),
        True: Line(from_the_beginning(("default", 3)), 3),
        (False, "mail"): Line(from_the_beginning(("mail", 0)), 2),
        (True, "mail"): Line(from_the_beginning(("mail", 0)), 2),
    }
    terms: Any = {"worker": WORKER, "lease_seconds": 30.0, "allowance_seconds": 5.0, "grace_seconds": 30.0}
    claimed = claiming.claim_lines(raw, lines, [], claim_id=uuid4(), **terms)
    assert [job.id for job in claimed.jobs] == [*other[:3], *mail[:2]], "in the order in which they start"


def test_everything_works_in_a_transaction_of_django(committed: None) -> None:
    """The tests of a project run claims inside atomic(), through Django's cursor."""
    [one] = register()
    assert claim(on("default")).ids == [one]


def _claim_with(db: RawDatabase, text: str) -> list[int]:
    class Gated:
        def fetch(self, name: str, params: Params) -> Rows:
            return db.raw.execute(text, params).fetchall()

    return claim(Gated(), 5).ids


def _claim_of(db: RawDatabase, job_id: int) -> str:
    return str(db.value("SELECT claim_id FROM pgjobs_job WHERE id = %s", [job_id]))


# Colours


def claim_lines(
    db: RawDatabase, async_names: Sequence[str], threads: int | None = None, loop: int | None = None
) -> tuple[list[int], list[int]]:
    """Claim by colour from queue ``default``; return the ids for threads, and those for the loop."""
    beginning = from_the_beginning(("default", 0))
    limits = {False: threads, True: loop}
    claimed = claiming.claim_lines(
        db,
        {is_async: Line(beginning, most) for is_async, most in limits.items() if most is not None},
        async_names,
        claim_id=uuid4(),
        worker=WORKER,
        lease_seconds=30,
        allowance_seconds=5,
        grace_seconds=10,
    )
    assert claimed.scanned_at is not None
    on_loop = [job.id for job in claimed.jobs if job.name in async_names and job.ending is None]
    return [job.id for job in claimed.jobs if job.id not in on_loop], on_loop


def test_a_claim_takes_of_each_colour_what_there_is_room_for(raw: RawDatabase) -> None:
    """A job does not wait for earlier jobs of the other colour."""
    first, last = register(3, name="on.loop"), register(3)
    more = register(2, name="on.loop")
    assert claim_lines(raw, ["on.loop"], threads=2) == (last[:2], [])
    assert claim_lines(raw, ["on.loop"], loop=4) == ([], [*first, more[0]])
    assert claim_lines(raw, ["on.loop"], threads=5, loop=5) == (last[2:], more[1:])
    assert claim_lines(raw, ["on.loop"], threads=5, loop=5) == ([], [])


def test_several_pairs_share_the_room_of_their_colour(raw: RawDatabase) -> None:
    for priority in (0, 1):
        register(3, name="on.loop", priority=priority)
        register(3, priority=priority)
    pairs = from_the_beginning(("default", 1), ("default", 0))
    claimed = claiming.claim_lines(
        raw,
        {False: Line(pairs, 4), True: Line(pairs, 5)},
        ["on.loop"],
        claim_id=uuid4(),
        worker=WORKER,
        lease_seconds=30,
        allowance_seconds=5,
        grace_seconds=10,
    )
    colours = [(job.priority, job.name == "on.loop") for job in claimed.jobs]
    assert {colour: colours.count(colour) for colour in colours} == {
        (1, False): 3, (1, True): 3, (0, False): 1, (0, True): 2,
    }  # fmt: skip


def test_names_nobody_knows_and_callbacks_are_for_threads(raw: RawDatabase) -> None:
    """The first are parked there; a callback is called there, whatever the body is, and can be interrupted."""
    [callback, unknown] = [*register(name="on.loop"), *register(name="of.newer.code")]
    raw.query("UPDATE pgjobs_job SET ending = 'abandoned' WHERE id = %s", [callback])
    pairs = from_the_beginning(("default", 0))
    assert claiming.next_claimable(raw, pairs, is_async=True, async_names=["on.loop"]) is None
    assert claiming.next_claimable(raw, pairs, async_names=["on.loop"]) == callback
    assert claim_lines(raw, ["on.loop"], loop=5) == ([], [])
    assert claim_lines(raw, ["on.loop"], threads=5) == ([callback, unknown], [])


# Suspects


def marks(jobs: Sequence[ClaimedJob]) -> list[bool]:
    return [job.is_suspect for job in jobs]


@pytest.mark.parametrize("how", ["released", "held"])
def test_a_suspect_that_is_given_back_is_one_until_its_attempt_is_charged(raw: RawDatabase, how: str) -> None:
    """Whoever claims it next must not run it in company; once it was charged it is told apart."""
    first, second = register(2)
    raw.query("UPDATE pgjobs_job SET cron_entry = 'nightly'")  # so that a claim tells more of them than their marks
    claimed = claim(raw, 2)
    give_back: Any = finalising.hold_jobs if how == "held" else partial(finalising.release_jobs, author=AUTHOR)
    give_back(raw, claimed.ends(suspect=True, reason="paused")[:1])
    give_back(raw, claimed.ends(reason="paused")[1:])
    raw.query("UPDATE pgjobs_job SET hold = NULL")
    again = claim(raw, 2)
    assert (again.ids, marks(again.jobs)) == ([first, second], [True, False])
    assert [one.attempt for one in again.jobs] == [1, 1]
    finalising.release_jobs(raw, again.ends(), AUTHOR)
    again = claim(raw, 2)
    assert marks(again.jobs) == [True, False], "what did not start is no less suspect"
    failure = Failure("x.Crash", "it crashed")
    finalising.finalise_retry(raw, again.ends(failure=failure, cause="crashed"), AUTHOR)
    assert marks(claim(raw, 2).jobs) == [False, False]
