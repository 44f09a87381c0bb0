"""Patterns of keys, what an operator does with keyed jobs, their plans and deadlocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_pgjobs import Unique, register_many
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.registering import conflicts
from django_pgjobs.store import finalising, keys, pruning, steering
from django_pgjobs.store.database import Database
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.store.steering import Moved
from tests.db.keys_ground import abandoned, latest, plain, reindex
from tests.plugins.explaining import Explaining, nodes
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, wait_until
from tests.plugins.sabotage import lines_of, sabotage

pytestmark = pytest.mark.usefixtures("committed")


# Patterns


ANTIKYTHERA = {"BOUNDS": {"key_pattern": "[0-9A-Za-z_-]{1,32}"}}


@override_settings(PGJOBS=ANTIKYTHERA)
def test_a_key_matches_the_pattern() -> None:
    """Row A17: with the seed's pattern set; a newline at the end does not slip through."""
    assert plain.using(unique="x" * 32).register().key == "x" * 32
    for bad in ("x" * 33, "", "a b", "ü", "x\n", "a.b"):
        with pytest.raises(InvalidJob, match="key"):
            plain.using(unique=bad)
        with pytest.raises(InvalidJob, match="key"):
            plain.using(unique=lambda number=0, bad=bad: bad).register()
    assert Job.objects.count() == 1


def test_by_default_a_key_is_printable() -> None:
    """Row A17: 1 to 200 characters."""
    assert plain.using(unique="Grüße: " + "x" * 193).register().key
    for bad in ("", "x" * 201, "a\nb", "a\0", "\ud800"):
        with pytest.raises(InvalidJob, match="unique must be 1 to 200 printable characters"):
            plain.using(unique=bad)
        with pytest.raises(InvalidJob, match="idempotency_key must be 1 to 200 printable characters"):
            plain.using(idempotency_key=bad)


def test_the_longest_key_fits_into_the_index() -> None:
    """Four bytes a character, and nothing that could be compressed."""
    key = "".join(chr(0x20000 + number * 7) for number in range(200))
    assert key.isprintable()
    assert plain.using(unique=key, queue="q" * 100).register().key == key
    assert plain.using(unique=Unique(key, window=60)).register().key == key


@override_settings(PGJOBS=ANTIKYTHERA)
def test_generated_ids_match_the_pattern_and_are_unique() -> None:
    """Row A19: ours is the job's number; 10⁵ of them."""
    ids = plain.register_many([()] * 100_000)
    assert len(set(ids)) == 100_000
    assert all(re.fullmatch("[0-9A-Za-z_-]{1,32}", str(one)) for one in ids)


def test_a_retry_takes_the_key_again() -> None:
    """Row A18: and a new registration meets it."""
    one = abandoned()
    assert one.retry().changed == 1
    assert plain.using(unique="k").register().pk == one.pk


def test_a_retry_of_many_skips_those_whose_key_is_taken() -> None:
    """A thousand and one of them does not fail: a thousand are ready again."""
    ended = [abandoned(f"k{number}") for number in range(8)]
    twins = [abandoned("twin"), abandoned("twin")]
    rival = plain.using(unique="k3").register()
    done = Job.objects.filter(outcome="abandoned").retry()
    assert (done.changed, done.skipped) == (8, {"key taken": 2})
    left = set(Job.objects.filter(outcome="abandoned").values_list("pk", flat=True))
    assert left == {ended[3].pk, twins[1].pk}
    assert Job.objects.filter(finished_at=None, key="k3").get().pk == rival.pk


def test_a_retry_of_a_parked_job_keeps_its_key_from_an_ended_one(raw: RawDatabase) -> None:
    old = abandoned()
    parked = plain.using(unique="k").register()
    finalising.park_jobs(raw, claim(raw).ends(reason="unknown"))
    done = Job.objects.all().retry()
    assert (done.changed, done.skipped) == (1, {"key taken": 1})
    assert Job.objects.get(finished_at=None).pk == parked.pk != old.pk


def test_a_retry_of_a_job_that_has_started_once_does_not_take_its_key_again(raw: RawDatabase) -> None:
    """Scope until_started: its rival waits, both run."""
    one = reindex.register("a")
    finalising.finalise_end(raw, claim(raw).ends(outcome="abandoned"), AUTHOR)
    rival = reindex.register("a")
    assert one.retry().changed == 1
    one.refresh_from_db()
    assert (one.state, one.unique_key, rival.unique_key) == ("ready", None, "reindex:a")


def test_a_job_is_not_moved_to_a_queue_where_its_key_is_taken() -> None:
    stays = [plain.using(unique="a", queue="mail").register(), plain.using(unique="b").register()]
    moves, twin = plain.using(unique="c").register(), plain.using(unique="c", queue="third").register()
    rival = plain.using(unique="a").register()
    done = Job.objects.exclude(pk=stays[0].pk).reschedule(queue="mail", delay=60)
    assert (done.changed, done.skipped) == (2, {"key taken": 2})
    queues = dict(Job.objects.values_list("pk", "queue"))
    assert queues == {
        stays[0].pk: "mail", stays[1].pk: "mail", moves.pk: "mail", twin.pk: "third", rival.pk: "default"
    }  # fmt: skip


def test_a_rival_that_comes_while_it_runs_fails_no_batch(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase
) -> None:
    """The unique index objects to the whole statement: the batch is halved until that job stands alone."""
    ended = [abandoned(f"k{number}") for number in range(40)]
    whole = steering.retry_jobs
    rivals = iter(["k7", "k23"])

    def raced(db: Database, ids: Any, **options: Any) -> Moved:
        for key in rivals:
            raw.query(
                "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
                " VALUES ('keys.plain', '{}', %s, 'until_finished', %s)",
                [key, key],
            )
        return whole(db, ids, **options)

    monkeypatch.setattr(steering, "retry_jobs", raced)
    # Blind to them, as it would be a moment earlier.
    blind(monkeypatch, "retry_jobs")
    done = Job.objects.filter(outcome="abandoned").retry()
    assert (done.changed, done.skipped) == (38, {"key taken": 2})
    assert {one.pk for one in ended if Job.objects.get(pk=one.pk).state == "abandoned"} == {ended[7].pk, ended[23].pk}


def test_an_uncommitted_rival_holds_up_one_job_and_no_others(
    monkeypatch: pytest.MonkeyPatch, other: RawDatabase
) -> None:
    """It is waited for like a row lock, and the job reported as busy."""
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.3)
    ended = [abandoned(f"k{number}") for number in range(10)]
    other.query(
        "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
        " VALUES ('keys.plain', '{}', 'k4', 'until_finished', 'k4')"
    )
    with transaction.atomic():
        done = Job.objects.filter(outcome="abandoned").retry()
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)
    assert (done.changed, done.skipped) == (9, {"busy": 1})
    assert Job.objects.get(pk=ended[4].pk).state == "abandoned"


def blind(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a statement not see who has a key."""
    [(_, line)] = lines_of("AND rival.unique_key IS NOT NULL", (name,))
    sabotage(monkeypatch, name, line, "AND false")


@pytest.mark.parametrize("line", ["rival.unique_key IS NOT NULL", "row_number() OVER"])
def test_without_a_look_at_rivals_whole_batches_would_fail(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, line: str
) -> None:
    """The sabotaged twin of the retry of many, at the statement."""
    ids = [abandoned("twin").pk, abandoned("twin").pk]
    if "rival" in line:
        plain.using(unique="twin").register()
        ids = ids[:1]
    assert len(steering.retry_jobs(raw, ids, attempts={}, default_attempts=1).taken) == 1
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'abandoned', finished_at = now() WHERE outcome IS NULL AND id = ANY (%s)",
        [ids],
    )
    [(_, found)] = lines_of(line, ("retry_jobs",))
    sabotage(monkeypatch, "retry_jobs", found, "AND false" if "rival" in line else "true")
    with pytest.raises(psycopg.errors.UniqueViolation):
        steering.retry_jobs(raw, ids, attempts={}, default_attempts=1)


# Plans


def many_keys(raw: RawDatabase) -> None:
    raw.query("TRUNCATE pgjobs_job, pgjobs_key_window")
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key, outcome, finished_at)"
        " SELECT 'keys.plain', '{}', 'k' || n, 'until_finished', 'k' || n,"
        " CASE WHEN n > 20000 THEN 'abandoned' END, CASE WHEN n > 20000 THEN now() END"
        " FROM generate_series(1, 40000) AS n"
    )
    raw.query(
        "INSERT INTO pgjobs_key_window (queue, key, begins_at, ends_at, job_id)"
        " SELECT 'default', 'w' || n, now() - interval '1 day', now() - interval '1 hour', n"
        " FROM generate_series(1, 20000) AS n"
    )
    raw.query("ANALYZE pgjobs_job, pgjobs_key_window")


@pytest.mark.parametrize(
    "name",
    ["are_keys_taken", "find_keys", "find_members", "free_keys", "retry_jobs", "reschedule_jobs", "delete_windows"],
)
def test_keys_are_found_by_their_index(db_connection: Callable[..., RawDatabase], name: str) -> None:
    """A batch among 40,000 jobs with keys reads no table."""
    db = db_connection(autocommit=False, pins=False)
    many_keys(db)
    explaining = Explaining(db, set())
    db.query("UPDATE pgjobs_job SET parent_id = id / 20000")
    wanted = [NewJob("keys.plain", "{}", key=f"k{n}", key_scope="until_finished") for n in range(1, 1000, 10)]
    wanted += [one._replace(window_seconds=60.0) for one in wanted]
    ids = [n for (n,) in db.query("SELECT id FROM pgjobs_job WHERE outcome IS NOT NULL ORDER BY id LIMIT 100")]
    runs: dict[str, Callable[[], object]] = {
        "are_keys_taken": lambda: keys.are_keys_taken(explaining, "default", [f"free {n}" for n in range(100)]),
        "find_keys": lambda: keys.find_keys(explaining, wanted),
        "find_members": lambda: keys.find_members(explaining, 7, wanted),
        "free_keys": lambda: keys.free_keys(explaining, wanted),
        "retry_jobs": lambda: steering.retry_jobs(explaining, ids, attempts={}, default_attempts=1),
        "reschedule_jobs": lambda: steering.reschedule_jobs(
            explaining, range(1, 100), run_at=None, delay_seconds=None, queue="mail", priority=None
        ),
        "delete_windows": lambda: explaining.fetch("delete_windows", {"after": pruning.OLDEST, "limit": 100}),
    }
    runs[name]()
    scanned = [n["Relation Name"] for n in nodes(explaining.plan) if n["Node Type"] == "Seq Scan"]
    assert not {"pgjobs_job", "pgjobs_key_window"} & set(scanned)
    db.rollback()


def test_members_are_found_by_their_keys_where_statistics_know_of_none(
    db_connection: Callable[..., RawDatabase],
) -> None:
    """The index of a batch's members would do as well, as far as these say, and each key would read all members."""
    db = db_connection(autocommit=False, pins=False)
    db.query("TRUNCATE pgjobs_job")
    db.query("INSERT INTO pgjobs_job (name, payload) VALUES ('keys.plain', '{}')")
    db.query("ANALYZE pgjobs_job")
    db.query(
        "INSERT INTO pgjobs_job (name, payload, parent_id, key, key_scope)"
        " SELECT 'keys.plain', '{}', 7, 'k' || n, 'until_finished' FROM generate_series(1, 2000) AS n"
    )
    explaining = Explaining(db, set())
    keys.find_members(explaining, 7, [NewJob("keys.plain", "{}", key=f"k{n}") for n in range(100)])
    assert {n["Index Name"] for n in nodes(explaining.plan) if "Index Name" in n} == {"pgjobs_job_member_key"}
    db.rollback()


def test_a_job_that_leaves_the_queue_meanwhile_is_not_replaced(
    raw: RawDatabase, other: RawDatabase, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key belongs to another queue by then: nobody wants it, and nobody may cancel the job."""
    first = latest.register(1)
    look = keys.find_keys

    def moves_after_the_look(db: Database, wanted: Any) -> Any:
        found = look(db, wanted)
        steering.reschedule_jobs(other, [first.pk], run_at=None, delay_seconds=None, queue="mail", priority=None)
        return found

    monkeypatch.setattr(conflicts, "find_keys", moves_after_the_look)
    second = background(lambda: latest.register(2).pk)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the second waits for the move")
    other.commit()
    assert second.result() != first.pk
    first.refresh_from_db()
    assert (first.queue, first.unique_key, first.state) == ("mail", "sync", "ready")


# Deadlocks


KEYED = """
    INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, run_at, key, key_scope, unique_key)
    VALUES ('keys.plain', 'default', 0, 5, '{}', statement_timestamp(), %(key)s, 'until_finished', %(key)s)
    ON CONFLICT DO NOTHING
"""


def in_a_circle(raw: RawDatabase, other: RawDatabase, work: Callable[[], Any], background: Background) -> Any:
    """Let ``work`` take the key *a* and wait for *b*, which ``other`` has and which waits for *a* then."""
    other.query("SET LOCAL deadlock_timeout = '60s'")
    other.query(KEYED, {"key": "b"})
    working = background(work)
    wait_until(lambda: blocked_by(raw, other.pid), 5, "it waits for the key b")
    other.query(KEYED, {"key": "a"})
    other.commit()
    return working.result()


@pytest.mark.parametrize("whole", [False, True], ids=["by itself", "in the caller's transaction"])
def test_a_deadlock_of_keys_is_no_error_of_register_many(
    raw: RawDatabase, other: RawDatabase, background: Background, *, whole: bool
) -> None:
    """Another transaction takes the same keys one after the other, in its own order."""

    def work() -> list[int]:
        with transaction.atomic() if whole else nullcontext():
            return register_many(plain.using(unique=key).bind() for key in ("a", "b", "c"))

    found = in_a_circle(raw, other, work, background)
    assert list(Job.objects.filter(pk__in=found).order_by("key").values_list("key", flat=True)) == ["a", "b", "c"]
    assert Job.objects.count() == 3


def test_a_deadlock_of_keys_is_no_error_of_an_operator(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    ended = [plain.using(unique=key).register() for key in ("a", "b")]
    Job.objects.all().cancel()
    done = in_a_circle(raw, other, Job.objects.filter(pk__in=[each.pk for each in ended]).retry, background)
    assert done.changed + sum(done.skipped.values()) == 2
    assert done.skipped.keys() <= {"key taken", "busy"}
    assert Job.objects.filter(unique_key="b", finished_at=None).exclude(pk__in=[each.pk for each in ended]).exists()
