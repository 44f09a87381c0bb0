"""Walks beside each other: drained, failing, killed, rescued while they run, and steered: each row's effect once.

At any instant, in any snapshot, an atomic job has had as many effects as its cursor says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from threading import Event
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models import Q

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.decisions import Decision
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer, WrittenEnd
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, keeping, memos
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.testing import run_job
from django_pgjobs.values import stopping
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, patience, wait_until
from tests.plugins.fix_worker import database_url

pytestmark = pytest.mark.usefixtures("committed")

ROWS, JOBS, WORKERS = 40, 6, 3
TROUBLES = 120
"""After so many troubles there are no more, so that everything comes to its end."""

NOW = Backoff(0)
NOT_DONE = Q(outcome=None) | ~Q(outcome="succeeded")


class Luck:
    """What happens at a row; shared by all threads."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.left = TROUBLES

    def trouble(self) -> str:
        kind = self.dice.choice(["", "", "", "stop", "fail", "die"]) if self.left > 0 else ""
        self.left -= kind != ""
        return kind


lucks: list[Luck] = []


class Died(BaseException):
    """The process has died: nothing is rolled back, written or released by it."""


def effect(job_id: int, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO random_walk (job_id, key) VALUES (%s, %s)", [job_id, key])


def go_through(context: JobContext, *, atomic: bool) -> None:
    for key in context.each(range(ROWS), every=5, atomic=atomic):
        effect(context.id, key)
        match lucks[0].trouble():
            case "stop":
                context._cancellation.stopping.announce(stopping.DRAIN, None)
            case "fail":
                raise ValueError(key)
            case "die":
                raise Died


@job(name="walk.atomic", takes_context=True, max_attempts=1000, backoff=NOW)
def atomically(context: JobContext) -> None:
    go_through(context, atomic=True)


@job(name="walk.plain", takes_context=True, max_attempts=1000, backoff=NOW)
def plainly(context: JobContext) -> None:
    go_through(context, atomic=False)


@pytest.fixture(autouse=True)
def table(committed: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS random_walk")
        cursor.execute("CREATE TABLE random_walk (job_id bigint, key integer)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE random_walk")
    lucks.clear()


def run(prepared: Prepared) -> Decision:
    """Run an attempt; if its process has died, its connection is gone, and nobody hears of it."""
    decision = attempt.run(prepared)
    failure = getattr(decision, "failure", None)
    if failure is not None and failure.kind.endswith("Died"):
        connection.close()
        raise Died
    return decision


def live(over: Event) -> None:
    """Claim and run jobs, one at a time; a rescue may take one away while it runs."""
    with psycopg.connect(database_url(), autocommit=True) as raw:
        db = RawDatabase(raw)
        while not over.is_set():
            for each in claim(db).jobs:
                try:
                    Performer(db, AUTHOR, run).perform(each)
                except Died:
                    continue
                finalising.delete_claims(db, [each.claim_id])


def operate(over: Event, dice: random.Random) -> None:
    """Let leases end at random, also of what runs, and steer at random."""
    with psycopg.connect(database_url(), autocommit=True) as raw:
        db = RawDatabase(raw)
        while not over.is_set():
            steer(db, dice)


def steer(db: RawDatabase, dice: random.Random) -> None:
    match dice.randrange(6):
        case 0:
            Job.objects.filter(pk__in=some(dice)).cancel(reason="at random")
        case 1:
            Job.objects.filter(NOT_DONE).retry()
        case 2:
            Job.objects.filter(pk__in=some(dice)).release()
        case 3:
            Job.objects.filter(pk__in=some(dice)).reschedule(delay=0)
        case _:
            rescue(db, "WHERE claim_id IN (SELECT claim_id FROM pgjobs_claim ORDER BY random() LIMIT 1)")


def rescue(db: RawDatabase, which: str = "") -> None:
    """Let leases end, and rescue their jobs."""
    db.query(f"UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01' {which}")
    keeping.rescue_jobs(
        db,
        limit=100,
        quiet_seconds=0,
        grace_seconds=10,
        stale_seconds=60,
        without_on_cancel=[atomically.name, plainly.name],
        without_on_abandon=[atomically.name, plainly.name],
    )


def some(dice: random.Random) -> list[int]:
    ids = list(Job.objects.values_list("pk", flat=True))
    return dice.sample(ids, 2)


DISAGREEING = """
    SELECT j.id, j.options #> '{each,each}', count(e.key)
    FROM pgjobs_job AS j
    LEFT JOIN random_walk AS e ON e.job_id = j.id
    WHERE j.name = 'walk.atomic'
    GROUP BY j.id
    HAVING count(e.key) <> coalesce(
        (CASE jsonb_typeof(j.options #> '{each,each}')
            WHEN 'number' THEN j.options #>> '{each,each}' ELSE j.options #>> '{each,each,n}'
        END)::integer, 0)
"""


def audit(over: Event) -> list[Any]:
    """Return the jobs of the first snapshot in which effects and cursor disagree."""
    with psycopg.connect(database_url(), autocommit=True) as raw:
        while not over.is_set():
            if wrong := RawDatabase(raw).query(DISAGREEING):
                return wrong
    return []


def walked(background: Background, seed: int) -> tuple[list[Any], dict[str, set[int]]]:
    """Run all jobs; return what an auditor has found, and by their names how often rows have had an effect."""
    lucks[:] = [Luck(seed)]
    jobs = [(atomically if number % 2 else plainly).register() for number in range(JOBS)]
    over, dice = Event(), random.Random(f"{seed} operator")
    lives = [background(live, over) for _ in range(WORKERS)]
    lives += [background(operate, over, dice)]
    auditor = background(audit, over)
    try:
        wait_for_troubles()
    finally:
        over.set()
    for each in lives:
        each.result(timeout=patience(60))
    with psycopg.connect(database_url(), autocommit=True) as raw:
        finish(RawDatabase(raw))
    assert {Job.objects.get(pk=each.pk).outcome for each in jobs} == {"succeeded"}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT j.name, w.key, count(*) FROM random_walk AS w JOIN pgjobs_job AS j ON j.id = w.job_id "
            " GROUP BY 1, 2, j.id"
        )
        found = cursor.fetchall()
    assert Counter(name for name, _, _ in found) == {"walk.atomic": ROWS * JOBS // 2, "walk.plain": ROWS * JOBS // 2}
    times: dict[str, set[int]] = {"walk.atomic": set(), "walk.plain": set()}
    for name, _, count in found:
        times[name].add(count)
    return auditor.result(timeout=patience(60)), times


def wait_for_troubles() -> None:
    """Until there are none left, or all jobs have succeeded in spite of them."""

    def are_over() -> bool:
        return lucks[0].left <= 0 or not Job.objects.filter(NOT_DONE).exists()

    wait_until(are_over, 60, "all troubles have happened")


def finish(db: RawDatabase) -> None:
    """Rescue what has died, retry what has ended otherwise, and run all to its end."""
    lucks[0].left = 0
    while Job.objects.filter(NOT_DONE).exists():
        rescue(db)
        Job.objects.filter(NOT_DONE).retry()
        for each in claim(db, JOBS).jobs:
            Performer(db, AUTHOR, run).perform(each)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_row_has_its_effect_once_whatever_happens(background: Background, seed: int) -> None:
    found, times = walked(background, seed)
    assert found == []
    assert times["walk.atomic"] == {1}
    assert min(times["walk.plain"]) == 1


def test_a_run_waits_for_the_last_commit_of_the_one_before_it(background: Background) -> None:
    """Under the same claim, as its process has died: the fence cannot tell the two apart."""
    lucks[:] = [Luck(0)]
    lucks[0].left = 0
    registered = atomically.register()
    with psycopg.connect(database_url(), autocommit=True) as raw, psycopg.connect(database_url()) as dead:
        (claimed,) = claim(RawDatabase(raw)).jobs
        before = RawDatabase(dead)
        before.query("INSERT INTO random_walk SELECT %s, generate_series(0, 4)", [registered.pk])
        cursor = '{"n": 5, "of": 40, "at": 4}'
        assert memos.write_cursor(before, *claimed.fence, name="each", cursor=cursor, progress="{}", idle="10s")
        following = background(follow, claimed)
        wait_until(lambda: blocked_by(RawDatabase(raw), before.pid), 10, "the run waits for the row")
        dead.commit()
        assert following.result(timeout=patience(30)).recorded
        assert RawDatabase(raw).query("SELECT count(*), count(DISTINCT key) FROM random_walk") == [(ROWS, ROWS)]


def follow(claimed: ClaimedJob) -> WrittenEnd:
    """Run a job as another executor of its worker does."""
    with psycopg.connect(database_url(), autocommit=True) as raw:
        return Performer(RawDatabase(raw), AUTHOR, run).perform(claimed)


@job(name="each.reads_by_cursor", takes_context=True, max_attempts=3)
def reads_by_cursor(context: JobContext) -> None:
    for _ in context.each(Job.objects.order_by("pk").values_list("pk", flat=True).iterator(2), every=2, atomic=True):
        pass


def test_an_iterable_may_read_by_a_cursor_of_the_server() -> None:
    """The batches commit while it reads."""
    *_, registered = [reads_by_cursor.register() for _ in range(9)]
    run_job(registered)
    registered.refresh_from_db()
    assert (registered.outcome, registered.attempt, registered.error) == ("succeeded", 1, "")
