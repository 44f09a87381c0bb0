"""Rows that no statement of ours writes. Neighbours run, and each such row is ended or says why not.

Leases of 1.5 s, renewed each 0.4 s (``helping.FAST``).
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from django_pgjobs import register_many
from django_pgjobs.maintenance.unparking import unpark
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from tests.chaos.helping import FAST, LEASE, Record, Recovery
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read

pytestmark = pytest.mark.chaos

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"processes": 2, "threads": 2, "conf": FAST}

# What is written over a job that is ready, the states it may come to, and words that say why.
FORGED: dict[str, tuple[str, str, str]] = {
    "attempts at the maximum": ("attempt = max_attempts", "abandoned", "AttemptsExhausted"),
    "attempts beyond the maximum": ("attempt = 99", "abandoned", "AttemptsExhausted"),
    "the largest attempt": ("attempt = 2147483647", "parked", "out of range"),
    "negative attempt": ("attempt = -7", "succeeded", ""),
    "no attempts": ("max_attempts = 0", "abandoned", "AttemptsExhausted"),
    "negative maximum": ("max_attempts = -3", "abandoned", "AttemptsExhausted"),
    "ending without claim": ("ending = 'abandoned', error = 'forged'", "abandoned", "forged"),
    "ending as success": ("ending = 'succeeded'", "succeeded", ""),  # its callback alone is left, and it has none
    "unknown ending": ("ending = 'limbo'", "parked", "ending"),
    "empty ending": ("ending = ''", "parked", "ending"),
    "the largest ending_attempt": ("ending = 'abandoned', ending_attempt = 32767", "parked", "out of range"),
    "payload null": ("payload = 'null'", "parked", "payload"),
    "payload array": ("payload = '[1, 2]'", "parked", "payload"),
    "payload number": ("payload = '17'", "parked", "payload"),
    "payload that is deep": (
        "payload = jsonb_build_object('args', (repeat('[', 3000) || repeat(']', 3000))::jsonb, 'kwargs', '{}'::jsonb)",
        "parked",
        "recursion",
    ),
    "payload of other arguments": ("""payload = '{"args": [1, 2, 3, 4], "kwargs": {}}'""", "parked", "argument"),
    "headers that are a number": ("headers = '5'", "succeeded", ""),
    "headers that are an array": ("headers = '[1]'", "succeeded", ""),
    "headers without end": ("headers = jsonb_build_object('x', repeat('y', 6000000))", "parked", "headers"),
    "description without end": ("description = repeat('y', 3000000)", "succeeded", ""),
    "timeout null": ("timeout_seconds = NULL", "succeeded", ""),
    "timeout NaN": ("timeout_seconds = 'NaN'", "parked", "interval"),
    "timeout infinite": ("timeout_seconds = 'Infinity'", "parked", "interval"),
    "timeout of ages": ("timeout_seconds = 1e300", "parked", "out of range"),
    "timeout negative": ("timeout_seconds = -5", "succeeded abandoned", ""),
    "timeout minus infinite": ("timeout_seconds = '-Infinity'", "parked", "interval"),
    "name empty": ("name = ''", "parked", "''"),
    "name of SQL": ("name = 'o''brien; --'", "parked", "o'brien; --"),
    "name of other letters": ("name = 'задача.☃'", "parked", "☃"),
    "name of lines": ("name = E'a\\n2026-01-01 00:00:00,000 CRITICAL forged'", "parked", "forged"),
    "name without end": ("name = repeat('n', 100000)", "parked", ""),
    "queue of SQL": ("queue = 'o''brien; --'", "succeeded", ""),
    "queue empty": ("queue = ''", "succeeded", ""),
    "the largest priority": ("priority = 32767", "succeeded", ""),
    "the least priority": ("priority = -32768", "succeeded", ""),
    "a cancel of no mode": ("cancel_requested_at = now(), cancel_mode = 'limbo'", "cancelled", ""),
    "a release nobody asked for": ("release_requested_at = '-infinity'", "succeeded", ""),
}  # fmt: skip


def forge(raw: RawDatabase, job: Job, change: str) -> None:
    """Write over a job that waits, and let it be due."""
    due = "" if "run_at" in change else ", run_at = statement_timestamp()"
    raw.query(f"UPDATE pgjobs_job SET {change}{due} WHERE id = {job.pk}")


def wake(raw: RawDatabase) -> None:
    raw.query("SELECT pg_notify('pgjobs', '0:default')")


def settled(job: Job) -> bool:
    """Tell whether it has ended or is held."""
    now = glance(job)
    return now.finished_at is not None or now.hold is not None


def glance(job: Job) -> Job:
    """Read what nobody can have forged so that Python cannot hold it."""
    columns = ("state", "attempt", "finished_at", "hold", "hold_reason", "error")
    return Job.objects.only(*columns).get(pk=job.pk)


def good(count: int) -> list[Job]:
    """Register neighbours."""
    ids = register_many(jobs.effect.bind(n) for n in range(count))
    return list(Job.objects.filter(pk__in=ids))


def check_good(neighbours: list[Job], stage: Any) -> None:
    """Assert that each neighbour ran once, at its first attempt."""
    assert {(job.outcome, job.attempt) for job in ended(*neighbours)} == {("succeeded", 1)}
    assert stage.count("effect") == len(neighbours)


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_row_ends_or_says_why_not(shared_worker: WorkerProcess, raw: RawDatabase, what: str) -> None:
    """D21 P13 P15 P35: one at a time, among neighbours; it is never tried again and again."""
    change, states, words = FORGED[what]
    forged = jobs.returns.using(delay=3600, max_attempts=2).register("good")
    before = good(5)
    forge(raw, forged, change)
    wake(raw)
    wait_until(lambda: settled(forged), 20, f"a row with {change} has ended or is held")
    check_good([*before, *good(5)], shared_worker.stage)
    after = glance(forged)
    assert after.state in states.split(), (after.state, after.error, after.hold_reason)
    assert words in after.error + after.hold_reason
    assert after.hold_reason or after.state != "parked"
    assert shared_worker.stage.count("returns") <= 1
    assert "\n2026-01-01 00:00:00,000 CRITICAL" not in shared_worker.log
    raw.query("DELETE FROM pgjobs_job WHERE hold IS NOT NULL")


def test_all_forgeries_at_once_among_three_hundred_good_jobs(
    shared_worker: WorkerProcess, raw: RawDatabase, record_property: Record
) -> None:
    """D21 P13 P35 C46: they come in the same batches; every good one has one effect and one attempt."""
    forged = {what: jobs.returns.using(delay=3600, max_attempts=2).register("good") for what in FORGED}
    ids: list[int] = []
    with raw.raw.transaction():
        for position, (what, job) in enumerate(forged.items()):
            forge(raw, job, FORGED[what][0])
            ids += register_many(jobs.effect.bind(8 * position + n) for n in range(8))
    fault = Recovery(record_property)
    wake(raw)
    neighbours = ended(*Job.objects.filter(pk__in=ids), timeout=60)
    for what, job in forged.items():
        wait_until(lambda job=job: settled(job), 30, f"{what} has ended or is held")  # type: ignore[misc]
        after = glance(job)
        assert after.state in FORGED[what][1].split(), (what, after.state, after.error, after.hold_reason)
    fault.check(30)
    assert {job.outcome for job in neighbours} == {"succeeded"}
    assert [job.attempt for job in neighbours] == [1] * len(neighbours)
    assert shared_worker.stage.count("effect") == len(neighbours)
    raw.query("DELETE FROM pgjobs_job WHERE hold IS NOT NULL")


@pytest.mark.parametrize("instant", ["-infinity", "0044-03-15 12:00 BC"])
def test_an_instant_before_the_calendar_waits_for_an_operator(
    shared_worker: WorkerProcess, raw: RawDatabase, instant: str
) -> None:
    """P35: what Python cannot hold is never claimed, so it takes no batch along; rescheduled it runs."""
    forged = jobs.returns.using(delay=3600).register("good")
    forge(raw, forged, f"run_at = '{instant}'")
    wake(raw)
    check_good(good(5), shared_worker.stage)
    assert (glance(forged).state, glance(forged).attempt) == ("ready", 0)
    assert Job.objects.filter(pk=forged.pk).reschedule(delay=0).changed == 1
    assert [(job.outcome, job.attempt) for job in ended(forged)] == [("succeeded", 1)]


def test_a_row_that_cannot_be_claimed_stays_parked_until_it_is_mended(
    shared_worker: WorkerProcess, raw: RawDatabase
) -> None:
    """P15: no code of another release makes it right, so it is not let go with those that wait for such code."""
    forged = jobs.returns.using(delay=3600).register("good")
    forge(raw, forged, "attempt = 2147483647")
    wake(raw)
    wait_until(lambda: glance(forged).state == "parked", 20, "it is parked")
    unpark(raw)
    assert glance(forged).state == "parked"
    raw.query("UPDATE pgjobs_job SET attempt = 0 WHERE id = %s", [forged.pk])
    assert Job.objects.filter(pk=forged.pk).retry().changed == 1
    assert [(job.outcome, job.attempt) for job in ended(forged)] == [("succeeded", 1)]


def test_states_that_nobody_knows_are_left_alone_and_can_be_cancelled(
    shared_worker: WorkerProcess, raw: RawDatabase
) -> None:
    """P13 X10: a hold of later code is not run by this one; its word is the state that people see."""
    held = jobs.returns.using(delay=3600).register("good")
    forge(raw, held, "hold = 'limbo', hold_reason = 'forged'")
    wake(raw)
    check_good(good(5), shared_worker.stage)
    assert (read(held).state, read(held).hold_reason) == ("limbo", "forged")
    assert read(held).cancel(reason="forged").changed == 1
    assert [job.outcome for job in ended(held)] == ["cancelled"]


def test_an_outcome_that_nobody_knows_runs_at_most_once(shared_worker: WorkerProcess, raw: RawDatabase) -> None:
    """I1: what has an outcome gets no other, whoever has written it."""
    forged = jobs.returns.using(delay=3600).register("good")
    forge(raw, forged, "outcome = 'limbo'")
    wake(raw)
    check_good(good(5), shared_worker.stage)
    wait_until(lambda: not Claim.objects.exists(), 20, "no claim is left")
    assert shared_worker.stage.count("returns") <= 1
    assert (read(forged).state, history(forged)) == ("limbo", [])
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [forged.pk])


def test_claims_of_workers_that_never_were_run_out(
    shared_worker: WorkerProcess, raw: RawDatabase, record_property: Record
) -> None:
    """D2 D4 W15: an owner nobody knows: its job is taken back when the lease ends, and says so."""
    claim, owner = uuid4(), uuid4()
    forged = jobs.returns.using(delay=3600, max_attempts=2).register("good")
    forge(raw, forged, f"claim_id = '{claim}', attempt = 1, claimed_at = now(), worker = '{owner}'")
    fault = Recovery(record_property)
    raw.query(
        "INSERT INTO pgjobs_claim VALUES (%s, 0, %s, now() + %s * interval '1 second',"
        " now() + %s * interval '1 second', %s)",
        [claim, owner, LEASE, LEASE, [forged.pk]],
    )
    (after,) = ended(forged)
    fault.check(LEASE + 2)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 2, [(1, "lost")])
    assert after.attempts.get().message == "The lease ran out; the worker is not known."
    wait_until(lambda: not Claim.objects.exists(), 10, "no claim is left")


def test_ledger_rows_that_name_the_wrong_jobs_harm_nobody(shared_worker: WorkerProcess, raw: RawDatabase) -> None:
    """I4 W15: of ready jobs, of running ones, of none, of NULL: expired, they are dropped and nothing is taken."""
    waits = jobs.waits.register("k")
    ready = jobs.returns.using(delay=3600).register("good")
    wait_until(lambda: shared_worker.stage.count("start", "k") == 1, 10, "it runs")
    for job_ids in ([waits.pk], [ready.pk], [10**15], [], [None, -1], [waits.pk] * 1000):
        raw.query(
            "INSERT INTO pgjobs_claim VALUES (%s, 0, %s, now() - interval '1 hour', '-infinity', %s::bigint[])",
            [uuid4(), uuid4(), job_ids],
        )
    wait_until(lambda: Claim.objects.count() == 1, 20, "the forged claims are dropped")
    assert (read(waits).state, history(waits)) == ("running", [])
    assert (read(ready).state, read(ready).attempt) == ("ready", 0)
    shared_worker.stage.open("k")
    assert [(job.outcome, job.attempt) for job in ended(waits)] == [("succeeded", 1)]
    check_good(good(5), shared_worker.stage)
