"""Queues of bounded capacity and bounded registration: nothing is stored beyond it, however many register at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgjobs import job, register_many
from django_pgjobs.exceptions import InvalidJob, QueueFull, RateLimited
from django_pgjobs.models import Job
from django_pgjobs.registering import token_bucket
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.store import finalising, notifying, registering, waking
from django_pgjobs.store.claiming import Pair
from django_pgjobs.store.database import statement
from django_pgjobs.testing import run_jobs
from tests.plugins.explaining import nodes
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, register, wait_until
from tests.plugins.sabotage import sabotage

pytestmark = pytest.mark.usefixtures("committed")


@job(queue="mail")
def send(number: int) -> None: ...


@job(queue="bulk")
def copy(number: int) -> None: ...


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    waking._notified.clear()
    of_this_process.reset()
    yield
    of_this_process.reset()


@pytest.fixture
def ten(settings: Any) -> None:
    settings.PGJOBS = {"CAPACITY": {"mail": 10}}


def full(function: Callable[..., Any], *args: Any) -> bool:
    try:
        function(*args)
    except QueueFull as error:
        words = (error.queue, error.capacity, str(error))
    else:
        return False
    assert words == ("mail", 10, "Queue 'mail' holds at most 10 unfinished jobs: wait until some have ended.")
    return True


def in_mail() -> int:
    return Job.objects.filter(queue="mail", finished_at=None).count()


# How much


def test_a_full_queue_takes_no_more_and_an_end_frees_a_place(ten: None, raw: RawDatabase) -> None:
    """A44: the eleventh is refused; a completion frees a place."""
    for number in range(10):
        send.register(number)
    assert full(send.register, 10)
    assert in_mail() == 10
    held = claim(raw, 1, [Pair("mail", 0, "-infinity", 0)])  # type: ignore[arg-type]
    assert full(send.register, 10)
    assert finalising.finalise_success(raw, held.ends(), AUTHOR)
    assert not full(send.register, 10)
    assert full(send.register, 11)


def test_jobs_that_are_held_count_and_other_queues_do_not(ten: None, raw: RawDatabase) -> None:
    """A44: parked, limited, paused and waiting jobs are unfinished; so is one that runs."""
    ids = register(9, queue="mail")
    for hold, job_id in zip(("parked", "limited", "paused", "blocked"), ids, strict=False):
        raw.query("UPDATE pgjobs_job SET hold = %s WHERE id = %s", [hold, job_id])
    claim(raw, 2, [Pair("mail", 0, "-infinity", 0)])  # type: ignore[arg-type]
    register(30, queue="bulk")
    assert not full(send.register, 10)
    assert full(send.register, 11)


@pytest.mark.parametrize("count", [3, 1200])
def test_a_batch_goes_in_whole_or_not_at_all(ten: None, count: int) -> None:
    """A44: a batch is counted whole, by INSERT and by COPY."""
    assert full(register_many, [send.bind(n) for n in range(count)] + [send.bind(0)] * 8)
    assert full(send.register_many, [(n,) for n in range(11)])
    assert in_mail() == 0
    assert len(send.register_many([(n,) for n in range(10)])) == 10
    assert full(send.register_many, [(0,)])
    assert send.register_many([]) == []


def test_a_batch_of_several_queues_is_held_to_each(settings: Any) -> None:
    settings.PGJOBS = {"CAPACITY": {"mail": 2, "*": 3}}
    calls = [send.bind(0), copy.bind(0), send.bind(1), copy.bind(1), copy.bind(2)]
    assert len(register_many(calls)) == 5
    with pytest.raises(QueueFull) as caught:
        register_many([copy.bind(3)])
    assert (caught.value.queue, caught.value.capacity) == ("bulk", 3)
    assert Job.objects.count() == 5


def test_the_callers_transaction_stays_usable_and_its_own_jobs_count(ten: None) -> None:
    """A44: refused before anything is stored, so nothing has to be rolled back."""
    with transaction.atomic():
        register(9, queue="mail")
        assert not full(send.register, 1)
        assert full(send.register, 2)
        assert in_mail() == 10
        copy.register(1)
    assert Job.objects.count() == 11


def test_a_job_that_is_registered_again_needs_a_place_too(ten: None) -> None:
    again = send.register(0)
    register(9, queue="mail")
    assert full(again.register_again)


def test_a_capacity_costs_nothing_where_it_is_not_set(settings: Any) -> None:
    settings.PGJOBS = {"CAPACITY": {"mail": 10}, "REGISTRATION_RATE": {"mail": {}}, "NOTIFY": False}
    with CaptureQueriesContext(
        connection,
    ) as queries:
        copy.register(1)
    assert len(queries) == 1
    settings.PGJOBS = {}
    with CaptureQueriesContext(connection) as queries, patch.object(token_bucket.Buckets, "take") as take:
        send.register(1)
        send.register_many([(1,)])
    assert len([query for query in queries if "INSERT" in query["sql"]]) == 2
    assert not any("advisory" in query["sql"] for query in queries)
    assert not take.called


def test_outside_of_a_transaction_a_wake_up_is_still_sent_once_in_a_while(ten: None) -> None:
    """The transaction around lock, count and insert is ours, so it does not make every registration notify."""
    in_transaction: list[bool] = []
    with (
        patch.object(waking, "monotonic", lambda: 5.0),
        patch.object(notifying, "notify", lambda *_: in_transaction.append(connection.in_atomic_block)),
    ):
        send.register(1)
        send.register(2)
    assert in_transaction == [False]


def test_a_queue_that_drains_takes_new_jobs(ten: None) -> None:
    """A44, through the testing helper: full, drained, and full again."""
    for _ in range(3):
        send.register_many([(n,) for n in range(10)])
        assert full(send.register, 10)
        run_jobs()


# At once


def test_eight_producers_never_exceed_a_thousand(settings: Any, raw: RawDatabase) -> None:
    """A44: capacity 1,000; producers in eight threads with real commits; ends free places meanwhile."""
    settings.PGJOBS = {"CAPACITY": {"mail": 1000}}
    register(900, queue="mail")
    seen, ended, stop = [], [0], Event()

    def produce(number: int) -> int:
        registered = 0
        for step in range(60):
            try:
                if step % 6 == number % 6:
                    registered += len(send.register_many([(n,) for n in range(7)]))
                elif step % 2:
                    with transaction.atomic():
                        send.register(step)
                    registered += 1
                else:
                    send.register(step)
                    registered += 1
            except QueueFull:
                continue
        return registered

    def watch() -> None:
        while not stop.is_set():
            seen.append(in_mail())

    def consume() -> None:
        while not stop.is_set() and ended[0] < 120:
            held = claim(raw, 3, [Pair("mail", 0, "-infinity", 0)])  # type: ignore[arg-type]
            ended[0] += len(finalising.finalise_success(raw, held.ends(), AUTHOR))

    with ThreadPoolExecutor(10) as pool:
        background = Background(pool)
        producers = [background(produce, number) for number in range(8)]
        watching, consuming = background(watch), background(consume)
        registered = sum(future.result(120) for future in producers)
        stop.set()
        consuming.result(30)
        watching.result(30)
    assert max(seen) <= 1000
    assert in_mail() == 900 + registered - ended[0] <= 1000
    # It was full, and what ended made room for others.
    assert registered > 100


def test_all_eight_at_a_nearly_full_queue(settings: Any, background: Background) -> None:
    """A44: eight producers, three places: exactly three get one, round after round."""
    settings.PGJOBS = {"CAPACITY": {"mail": 10}}
    for _ in range(10):
        Job._base_manager.all().delete()
        register(7, queue="mail")
        refused = [future.result(60) for future in [background(full, send.register, n) for n in range(8)]]
        assert refused.count(False) == 3
        assert in_mail() == 10


def test_the_next_producer_waits_for_the_commit_of_the_one_before(
    ten: None, background: Background, other: RawDatabase, raw: RawDatabase
) -> None:
    """A44: registering waits for uncommitted jobs, and counts them once they are committed."""
    register(9, queue="mail")
    registering.lock_queues(other, ["mail"])
    other.query("INSERT INTO pgjobs_job (name, queue, payload) VALUES ('x', 'mail', '{}')")
    waiting = background(full, send.register, 1)
    elsewhere = background(copy.register, 1)
    elsewhere.result(30)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the second producer waits")
    other.commit()
    assert waiting.result(30)
    assert in_mail() == 10


def test_without_the_lock_a_capacity_is_exceeded(
    ten: None, monkeypatch: pytest.MonkeyPatch, background: Background, other: RawDatabase
) -> None:
    """The sabotaged twin of the test before: the lock is what keeps two from taking one place."""
    line = "SELECT count(pg_advisory_xact_lock(%(class)s::integer, key)), current_setting('transaction_isolation')"
    sabotage(
        monkeypatch, "lock_queues", line, "SELECT count(key + %(class)s), current_setting('transaction_isolation')"
    )
    register(9, queue="mail")
    other.query("INSERT INTO pgjobs_job (name, queue, payload) VALUES ('x', 'mail', '{}')")
    assert not background(full, send.register, 1).result(30)
    other.commit()
    assert in_mail() == 11


def test_locks_are_taken_in_one_order_whatever_the_order_of_the_queues(
    background: Background, other: RawDatabase, db_connection: Callable[..., RawDatabase]
) -> None:
    """Two transactions with the same queues in different orders do not deadlock."""
    second = db_connection(autocommit=False)
    for queues in (["mail", "bulk", "a", "b"], ["b", "a", "bulk", "mail"]):
        registering.lock_queues(other, queues)
        waiting = background(registering.lock_queues, second, list(reversed(queues)))
        other.commit()
        assert waiting.result(30) == "read committed"
        second.commit()


# Isolation


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_at_a_higher_level_it_is_refused(ten: None, background: Background, level: str) -> None:
    """Its snapshot is of before another took the last place, and the other need not be at that level."""
    register(9, queue="mail")
    with transaction.atomic():
        connection.cursor().execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert in_mail() == 9
        assert not background(full, send.register, 1).result(30)
        with pytest.raises(InvalidJob, match=f"has a capacity, and a transaction at {level.upper()} .*: register"):
            send.register(2)
        copy.register(1)
    assert (in_mail(), Job.objects.filter(queue="bulk").count()) == (10, 1)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_database_at_a_higher_level_is_no_hindrance_outside_of_a_transaction(ten: None, level: str) -> None:
    """The transaction opened for it runs at READ COMMITTED, whatever the role's default."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{level}'")
        try:
            assert not full(send.register, 1)
        finally:
            cursor.execute("RESET default_transaction_isolation")


# How fast


def test_registering_too_fast_is_refused_and_stores_nothing(settings: Any) -> None:
    """A47, A49: ten registrations of three tokens each, then the time to wait for the next."""
    settings.PGJOBS = {"REGISTRATION_RATE": {"mail": {"seconds_per_token": 60}}}
    for number in range(10):
        send.register(number)
    with pytest.raises(RateLimited, match="too many actions by this process") as caught:
        send.register(10)
    assert 170 < caught.value.retry_after <= 180
    assert in_mail() == 10
    copy.register(1)


def test_a_batch_pays_for_each_job(settings: Any) -> None:
    """A48."""
    settings.PGJOBS = {"REGISTRATION_RATE": {"*": {"seconds_per_token": 60}}}
    assert len(register_many([send.bind(1)] * 9 + [copy.bind(1)])) == 10
    assert len(send.register_many([(1,)])) == 1
    with pytest.raises(RateLimited):
        register_many([copy.bind(1), send.bind(1)])
    assert Job.objects.count() == 11
    assert len(copy.register_many([(1,)] * 9)) == 9


def test_bad_arguments_cost_no_tokens(settings: Any) -> None:
    settings.PGJOBS = {"REGISTRATION_RATE": {"mail": {"tokens": 3, "seconds_per_token": 60}}}
    with pytest.raises(InvalidJob):
        send.register(object())  # type: ignore[arg-type]
    send.register(1)
    with pytest.raises(RateLimited):
        send.register(1)


def test_in_a_transaction_too_fast_leaves_it_usable(settings: Any) -> None:
    """A49."""
    settings.PGJOBS = {"REGISTRATION_RATE": {"mail": {"tokens": 3, "seconds_per_token": 60}}}
    with transaction.atomic():
        send.register(1)
        with pytest.raises(RateLimited):
            send.register(2)
        copy.register(1)
    assert Job.objects.count() == 2


# The plan


@pytest.mark.parametrize("most", [11, 1001])
def test_counting_reads_no_more_than_the_capacity(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], most: int
) -> None:
    """On a producer's connection, without a worker's pins, and analysed while empty: by index, and only so far."""
    raw.query("ANALYZE pgjobs_job")
    register(20_000, queue="mail")
    register(20_000, queue="bulk")
    raw.query("UPDATE pgjobs_job SET hold = 'paused' WHERE id %% 2 = 0", [])
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = created_at, hold = NULL WHERE id %% 5 = 0", []
    )
    raw.query("VACUUM pgjobs_job")
    producer = db_connection(pins=False)
    text = statement("count_unfinished")
    cursor = psycopg.ClientCursor(producer.raw)
    cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", {"queues": ["mail"], "most": most})
    row = cursor.fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    found = list(nodes(plan))
    assert not [node for node in found if node["Node Type"] in ("Seq Scan", "Sort", "Bitmap Heap Scan")]
    used = {node["Index Name"] for node in found if "Index Name" in node}
    assert used == {"pgjobs_job_claim_order", "pgjobs_job_held_order"}
    assert all(node["Actual Rows"] <= most for node in found if "Index Name" in node)
