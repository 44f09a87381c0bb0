"""Keys: one live job of a key in a queue, whoever registers at the same time, and what the second one gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgjobs import JobContext, Window, job, register_many
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.models import Job, KeyWindow
from django_pgjobs.registering import conflicts
from django_pgjobs.registering.conflicts import TRIES
from django_pgjobs.signals import job_registered
from django_pgjobs.steering import jobs
from django_pgjobs.store import statements as store
from django_pgjobs.testing import backdate
from tests.plugins.explaining import Explaining, nodes
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, wait_until
from tests.plugins.sabotage import lines_of, sabotage

pytestmark = pytest.mark.usefixtures("committed")


@job(name="keys.plain")
def plain(number: int = 0) -> None: ...


@job(name="keys.welcome", key="welcome:{user_id}")
def welcome(user_id: int, note: str = "") -> None: ...


@job(name="keys.called", key=lambda user_id: f"u{user_id}" if user_id else None, on_conflict="raise")
def called(user_id: int) -> None: ...


@job(name="keys.started", key="reindex:{shop}", key_scope="until_started")
def reindex(shop: str) -> None: ...


@job(name="keys.hourly", key="report:{shop}", key_scope=Window(3600))
def report(shop: str) -> None: ...


@job(name="keys.latest", key="sync", on_conflict="replace")
def latest(number: int) -> None: ...


@job(name="keys.undone")
def undone() -> None: ...


@undone.on_cancel
def undo(context: JobContext) -> None: ...


def finish(raw: RawDatabase, **facts: Any) -> list[int]:
    """Claim and end the first job of queue ``default``."""
    return store.finalise_success(raw, claim(raw).ends(**facts), AUTHOR)


# existing


def test_a_second_job_of_a_live_key_is_the_first_one(raw: RawDatabase) -> None:
    """Row A18: unique in its queue; another queue is another matter; free again after the end."""
    first = plain.using(key="welcome:7").register()
    again = plain.using(key="welcome:7").register(99)
    assert (again.pk, again.payload) == (first.pk, first.payload)
    assert Job.objects.count() == 1
    elsewhere = plain.using(key="welcome:7", queue="mail").register()
    assert elsewhere.pk != first.pk
    assert (first.key, first.unique_key, first.key_scope) == ("welcome:7", "welcome:7", "until_finished")
    claimed = claim(raw)
    assert plain.using(key="welcome:7").register().pk == first.pk  # it runs: not free yet
    store.finalise_success(raw, claimed.ends(), AUTHOR)
    assert plain.using(key="welcome:7").register().pk not in (first.pk, elsewhere.pk)


def test_the_instance_says_what_the_row_says() -> None:
    one = plain.using(key="k", idempotency_key="i").register()
    row = Job.objects.get(pk=one.pk)
    assert {f.attname: getattr(one, f.attname) for f in Job._meta.concrete_fields} == {
        f.attname: getattr(row, f.attname) for f in Job._meta.concrete_fields
    }


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled", "abandoned"])
def test_any_end_frees_the_key(raw: RawDatabase, outcome: str) -> None:
    """Rows A18, A23."""
    first = plain.using(key="k").register()
    ends = claim(raw).ends(outcome=outcome)
    if outcome == "succeeded":
        store.finalise_success(raw, ends, AUTHOR)
    else:
        store.finalise_end(raw, ends, AUTHOR)
    assert plain.using(key="k").register().pk != first.pk


@pytest.mark.parametrize("way", ["delete", "rescue", "cancel", "abandon"])
def test_ends_that_no_attempt_writes_free_it_too(raw: RawDatabase, way: str) -> None:
    """Row A18: deleted at retention 0, rescued on its last attempt, ended by an operator."""
    first = plain.using(key="k", max_attempts=1).register()
    if way == "delete":
        store.finalise_delete(raw, claim(raw).ends())
    elif way == "rescue":
        claim(raw, lease=-1.0)
        raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
        store.rescue_jobs(
            raw, limit=10, quiet_seconds=0, grace_seconds=0, stale_seconds=60,
            without_on_cancel=[plain.name], without_on_abandon=[plain.name],
        )  # fmt: skip
    else:
        getattr(first, way)()
    assert not Job.objects.filter(finished_at=None).exists()
    assert plain.using(key="k").register().pk != first.pk


@pytest.mark.parametrize("way", ["retry", "snooze", "park", "release"])
def test_what_goes_back_into_the_queue_keeps_its_key(raw: RawDatabase, way: str) -> None:
    first = plain.using(key="k").register()
    ends = claim(raw).ends(cause="failed", reason="", fingerprint="")
    writes: dict[str, Callable[[], object]] = {
        "retry": lambda: store.finalise_retry(
            raw, [store.End(e.id, e.claim_id, 0.0, cause="failed") for e in ends], AUTHOR
        ),
        "snooze": lambda: store.finalise_snooze(raw, ends),
        "park": lambda: store.park_jobs(raw, ends),
        "release": lambda: store.release_jobs(raw, [store.End(e.id, e.claim_id) for e in ends], AUTHOR),
    }
    writes[way]()
    assert plain.using(key="k").register().pk == first.pk


def test_a_key_is_made_of_the_arguments() -> None:
    """A format string of arguments with their defaults, or a callable; None is no key."""
    assert welcome.register(7).key == "welcome:7"
    assert welcome.register(user_id=7).pk == welcome.register(7, note="again").pk
    assert called.register(3).key == "u3"
    assert called.register(0).key is None
    assert called.register(0).pk != called.register(0).pk
    assert welcome.using(key="own").register(7).key == "own"
    assert welcome.using(key=None).register(7).key is None
    assert plain.using(key=lambda number=0: f"n{number}").register(5).key == "n5"


def test_who_registers_is_told_nothing_of_a_job_that_was_there() -> None:
    heard: list[int] = []

    def hear(job: Job, **_: Any) -> None:
        heard.append(job.pk)

    job_registered.connect(hear)
    try:
        first = welcome.register(1)
        welcome.register(1)
        ids = welcome.register_many([{"user_id": 1}, {"user_id": 2}])
    finally:
        job_registered.disconnect(hear)
    assert heard == [first.pk, ids[1]]


def test_a_job_that_ended_in_between_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The insert meets it, the look does not: it is tried again, and no more than so often."""
    first = plain.using(key="k").register()
    looks = 0

    def ends_meanwhile(db: store.Database, wanted: Any) -> list[None]:
        nonlocal looks
        looks += 1
        if looks == 3:
            first.cancel()
        return [None] * len(wanted)

    monkeypatch.setattr(conflicts, "find_keys", ends_meanwhile)
    assert plain.using(key="k").register().pk != first.pk
    assert looks == 3
    with pytest.raises(DuplicateJob) as told:
        plain.using(key="k").register()
    assert told.value.existing_id is None
    assert looks == 3 + TRIES
    with pytest.raises(DuplicateJob):
        plain.using(key="k").register_many([()])
    assert looks == 3 + 2 * TRIES


# raise


def test_to_raise_leaves_the_callers_transaction_usable() -> None:
    """Row A18: the error says which job has the key."""
    first = called.register(7)
    with transaction.atomic():
        plain.register(1)
        with pytest.raises(DuplicateJob, match=f"Job {first.pk} has the key 'u7' in queue 'default'") as told:
            called.register(7)
        plain.register(2)
    assert (told.value.existing_id, told.value.key, told.value.queue) == (first.pk, "u7", "default")
    assert Job.objects.filter(name=plain.name).count() == 2


# replace


def test_the_newest_replaces_one_that_has_not_started() -> None:
    first = latest.register(1)
    second = latest.register(2)
    first.refresh_from_db()
    assert (first.state, first.cancel_reason) == ("cancelled", "replaced")
    assert (second.state, second.payload["args"]) == ("ready", [2])


def test_the_callback_of_a_replaced_job_runs(raw: RawDatabase) -> None:
    """Its key is the newer one's at once."""
    first = undone.using(key="k", on_conflict="replace").register()
    second = undone.using(key="k", on_conflict="replace").register()
    first.refresh_from_db()
    assert (first.state, first.ending, first.unique_key) == ("ready", "cancelled", None)
    assert second.unique_key == "k"


def test_a_running_job_is_not_replaced(raw: RawDatabase) -> None:
    """Two of a key would run at once, or the work of both be lost: neither is changed."""
    first = latest.register(1)
    claim(raw)
    with transaction.atomic(), pytest.raises(DuplicateJob, match="has started") as told:
        latest.register(2)
    assert told.value.existing_id == first.pk
    row = Job.objects.get()
    assert (row.state, row.cancel_requested_at) == ("running", None)


def test_nothing_is_replaced_when_the_new_one_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    first = latest.register(1)
    monkeypatch.setattr(conflicts, "register_special", lambda *_args, **_kwargs: None)
    with pytest.raises(DuplicateJob):
        latest.register(2)
    first.refresh_from_db()
    assert (first.state, first.unique_key) == ("ready", "sync")


def test_a_replaced_job_can_be_retried_when_the_key_is_free() -> None:
    first, second = latest.register(1), latest.register(2)
    assert first.retry().skipped == {"key taken": 1}
    second.cancel()
    assert first.retry().changed == 1
    first.refresh_from_db()
    assert first.unique_key == "sync"


# Scopes


def test_until_started_the_key_is_free_from_the_claim_on(raw: RawDatabase) -> None:
    first = reindex.register("a")
    assert reindex.register("a").pk == first.pk
    claimed = claim(raw)
    second = reindex.register("a")
    assert second.pk != first.pk
    # What comes back does not take it again: a rival may have it, and both run, one after the other or at once.
    store.release_jobs(raw, claimed.ends(), AUTHOR)
    first.refresh_from_db()
    assert (first.key, first.unique_key, first.state) == ("reindex:a", None, "ready")
    assert reindex.register("a").pk == second.pk


def test_claim_one_frees_it_too(raw: RawDatabase) -> None:
    one = reindex.register("a")
    store.claim_one(
        raw, one.pk,
        claim_id=uuid4(), worker=AUTHOR.worker, lease_seconds=30.0, allowance_seconds=5.0, grace_seconds=5.0,
    )  # fmt: skip
    one.refresh_from_db()
    assert (one.state, one.unique_key) == ("running", None)


def test_in_a_window_a_key_is_used_once_whatever_became_of_the_job(raw: RawDatabase) -> None:
    """By the database's clock; the window outlives the job's row."""
    first = report.register("a")
    assert report.register("a").pk == first.pk
    finish(raw)
    assert report.register("a").pk == first.pk
    assert report.using(queue="mail").register("a").pk != first.pk
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [first.pk])
    gone = report.register("a")
    assert (gone.pk, gone.key, gone.queue) == (first.pk, "report:a", "default")
    with pytest.raises(Job.DoesNotExist):
        _ = gone.state
    row = KeyWindow.objects.get(queue="default")
    assert row.ends_at - row.begins_at == timedelta(hours=1)
    assert row.begins_at.timestamp() % 3600 == 0
    backdate(KeyWindow.objects.all(), begins_at=3600, ends_at=3600)
    assert report.register("a").pk != first.pk


def test_windows_of_many(raw: RawDatabase) -> None:
    ids = report.register_many([("a",), ("b",), ("a",)])
    assert ids[0] == ids[2] != ids[1]
    assert report.register_many([("b",), ("c",)])[0] == ids[1]
    assert Job.objects.count() == KeyWindow.objects.count() == 3
    assert set(KeyWindow.objects.values_list("job_id", flat=True)) == set(Job.objects.values_list("pk", flat=True))


def test_within_a_window_one_that_has_not_started_is_replaced(raw: RawDatabase) -> None:
    newest = report.using(on_conflict="replace")
    first, second = newest.register("a"), newest.register("a")
    first.refresh_from_db()
    assert (first.state, second.state) == ("cancelled", "ready")
    assert KeyWindow.objects.get().job_id == second.pk
    finish(raw)
    with pytest.raises(DuplicateJob, match="has started"):
        newest.register("a")


# Many


def test_of_many_the_ids_come_in_input_order(raw: RawDatabase) -> None:
    """Existing ids where a key is taken, one id for rows of one key, and rows without a key are as ever."""
    old = welcome.register(5)
    rows = [welcome.bind(9), plain.bind(1), welcome.bind(5), welcome.bind(1), welcome.bind(9, note="x"), plain.bind(2)]
    ids = register_many(rows)
    assert ids[2] == old.pk
    assert ids[0] == ids[4]
    assert len({*ids}) == 5
    keys = dict(Job.objects.values_list("pk", "key"))
    assert [keys[one] for one in ids] == ["welcome:9", None, "welcome:5", "welcome:1", "welcome:9", None]
    args = dict(Job.objects.values_list("pk", "payload"))
    assert [args[one]["args"] for one in ids] == [[9], [1], [5], [1], [9], [2]]


def test_of_very_many_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row A18: in several statements, still in the order of the keys."""
    monkeypatch.setattr("django_pgjobs.store.registering.SPECIAL_AT_ONCE", 7)
    rows = [(number * 13 % 40,) for number in range(50)]
    ids = welcome.register_many(rows)
    assert Job.objects.count() == 40
    keys = dict(Job.objects.values_list("pk", "key"))
    assert [keys[one] for one in ids] == [f"welcome:{user}" for (user,) in rows]


def test_of_very_large_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row A18: PostgreSQL takes no parameter of 1 GiB, so a statement ends at so much text; one row always goes."""
    monkeypatch.setattr("django_pgjobs.store.registering.TEXT_AT_ONCE", 1000)
    rows = [(user, "x" * length) for user, length in ((4, 10), (1, 5000), (3, 600), (2, 600), (5, 10))]
    with CaptureQueriesContext(connection) as queries:
        ids = welcome.register_many(rows)
    assert len([q for q in queries if "INSERT INTO pgjobs_job" in q["sql"]]) == 3
    found = Job.objects.in_bulk(ids)
    assert [found[one].payload["args"] for one in ids] == [list(row) for row in rows]


def test_many_that_shall_raise_are_all_refused() -> None:
    """Row A18: nothing of the batch is stored, nor in the caller's transaction spoiled."""
    first = called.register(3)
    with transaction.atomic():
        with pytest.raises(DuplicateJob) as told:
            register_many([plain.bind(1), called.bind(2), called.bind(3)])
        plain.register(7)
    assert told.value.existing_id == first.pk
    assert Job.objects.count() == 2
    with pytest.raises(DuplicateJob, match="rows 1 and 2 have the same key 'u8'"):
        register_many([plain.bind(1), called.bind(8), called.bind(8)])
    with pytest.raises(DuplicateJob):  # as if one by one: the first of the key was to raise
        register_many([called.bind(3), called.bind(3).using(on_conflict="replace")])
    assert Job.objects.count() == 2


def test_many_that_shall_replace_do() -> None:
    first = latest.register(1)
    ids = latest.register_many([(2,), (3,)])
    first.refresh_from_db()
    assert first.state == "cancelled"
    assert ids[0] == ids[1]
    assert Job.objects.get(finished_at=None).payload["args"] == [3]


def test_many_do_not_replace_what_runs(raw: RawDatabase) -> None:
    latest.register(1)
    claim(raw)
    with pytest.raises(DuplicateJob):
        register_many([plain.bind(5), latest.bind(2)])
    assert Job.objects.count() == 1


def test_many_without_a_key_go_by_the_fast_path() -> None:
    """COPY and one plain INSERT stay theirs."""
    with CaptureQueriesContext(
        connection,
    ) as queries:
        plain.register_many([(n,) for n in range(3)])
    assert len([q for q in queries if "INSERT" in q["sql"]]) == 1
    assert not [q for q in queries if "SAVEPOINT" in q["sql"] or "key_window" in q["sql"]]


# At the same time


def test_an_uncommitted_twin_is_waited_for(raw: RawDatabase, other: RawDatabase, background: Background) -> None:
    """Its commit decides: then it is the existing one; its rollback leaves the key to the second."""
    for ends, same in ((other.commit, True), (other.rollback, False)):
        twin = other.value(
            "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
            " VALUES ('keys.plain', '{}', 'k', 'until_finished', 'k') RETURNING id"
        )
        second = background(lambda: plain.using(key="k").register().pk)
        wait_until(lambda: blocked_by(raw, other.pid), 10, "the second waits for the twin")
        ends()
        assert (second.result(30) == twin) is same
        raw.query("DELETE FROM pgjobs_job")


def test_of_many_who_register_at_once_one_wins(background: Background) -> None:
    """Row A18: eight producers, one key."""
    found = [background(lambda: plain.using(key="one").register().pk) for _ in range(24)]
    assert len({each.result(60) for each in found}) == 1
    assert Job.objects.count() == 1


def test_batches_whose_keys_cross_meet_in_no_deadlock(background: Background) -> None:
    """Keys are inserted in sorted order, whatever the order of the rows."""
    users = list(range(300))
    batches = [background(welcome.register_many, [(u,) for u in users[:: (1 if n % 2 else -1)]]) for n in range(8)]
    ids = [each.result(60) for each in batches]
    assert {tuple(sorted(one)) for one in ids} == {tuple(sorted(ids[0]))}
    assert Job.objects.count() == 300


def test_the_database_sorts_keys_as_the_client_does(raw: RawDatabase) -> None:
    """By code points, however it sorts by itself: of a batch in several statements both have a part in the order."""
    explaining = Explaining(raw, set())
    explaining.fetch("register_special_jobs", {"jobs": "[]"})
    sorts = [node["Sort Key"] for node in nodes(explaining.plan) if node["Node Type"] == "Sort"]
    assert len(sorts) == 2
    for queue, key, _ in sorts:
        assert queue.endswith('queue COLLATE "C"')
        assert key.endswith('key COLLATE "C"')


# Patterns


ANTIKYTHERA = {"KEY_PATTERN": "[0-9A-Za-z_-]{1,32}"}


@override_settings(PGJOBS=ANTIKYTHERA)
def test_a_key_matches_the_pattern() -> None:
    """Row A17: with the seed's pattern set; a newline at the end does not slip through."""
    assert plain.using(key="x" * 32).register().key == "x" * 32
    for bad in ("x" * 33, "", "a b", "ü", "x\n", "a.b"):
        with pytest.raises(InvalidJob, match="key"):
            plain.using(key=bad)
        with pytest.raises(InvalidJob, match="key"):
            plain.using(key=lambda number=0, bad=bad: bad).register()
    assert Job.objects.count() == 1


def test_by_default_a_key_is_printable() -> None:
    """Row A17: 1 to 200 characters."""
    assert plain.using(key="Grüße: " + "x" * 193).register().key
    for bad in ("", "x" * 201, "a\nb", "a\0", "\ud800"):
        with pytest.raises(InvalidJob, match="key must be 1 to 200 printable characters"):
            plain.using(key=bad)
        with pytest.raises(InvalidJob, match="idempotency_key must be 1 to 200 printable characters"):
            plain.using(idempotency_key=bad)


def test_the_longest_key_fits_into_the_index() -> None:
    """Four bytes a character, and nothing that could be compressed."""
    key = "".join(chr(0x20000 + number * 7) for number in range(200))
    assert key.isprintable()
    assert plain.using(key=key, queue="q" * 100).register().key == key
    assert plain.using(key=key, key_scope=Window(60)).register().key == key


@override_settings(PGJOBS=ANTIKYTHERA)
def test_generated_ids_match_the_pattern_and_are_unique() -> None:
    """Row A19: ours is the job's number; 10⁵ of them."""
    ids = plain.register_many([()] * 100_000)
    assert len(set(ids)) == 100_000
    assert all(re.fullmatch("[0-9A-Za-z_-]{1,32}", str(one)) for one in ids)


# What an operator does with keyed jobs


def abandoned(key: str = "k", queue: str = "default") -> Job:
    one = plain.using(key=key, queue=queue).register()
    one.abandon()
    return one


def test_a_retry_takes_the_key_again() -> None:
    """Row A18: and a new registration meets it."""
    one = abandoned()
    assert one.retry().changed == 1
    assert plain.using(key="k").register().pk == one.pk


def test_a_retry_of_many_skips_those_whose_key_is_taken() -> None:
    """A thousand and one of them does not fail: a thousand are ready again."""
    ended = [abandoned(f"k{number}") for number in range(8)]
    twins = [abandoned("twin"), abandoned("twin")]
    rival = plain.using(key="k3").register()
    done = Job.objects.filter(outcome="abandoned").retry()
    assert (done.changed, done.skipped) == (8, {"key taken": 2})
    left = set(Job.objects.filter(outcome="abandoned").values_list("pk", flat=True))
    assert left == {ended[3].pk, twins[1].pk}
    assert Job.objects.filter(finished_at=None, key="k3").get().pk == rival.pk


def test_a_retry_of_a_parked_job_keeps_its_key_from_an_ended_one(raw: RawDatabase) -> None:
    old = abandoned()
    parked = plain.using(key="k").register()
    store.park_jobs(raw, claim(raw).ends(reason="unknown"))
    done = Job.objects.all().retry()
    assert (done.changed, done.skipped) == (1, {"key taken": 1})
    assert Job.objects.get(finished_at=None).pk == parked.pk != old.pk


def test_a_retry_of_a_job_that_has_started_once_does_not_take_its_key_again(raw: RawDatabase) -> None:
    """Scope until_started: its rival waits, both run."""
    one = reindex.register("a")
    store.finalise_end(raw, claim(raw).ends(outcome="abandoned"), AUTHOR)
    rival = reindex.register("a")
    assert one.retry().changed == 1
    one.refresh_from_db()
    assert (one.state, one.unique_key, rival.unique_key) == ("ready", None, "reindex:a")


def test_a_job_is_not_moved_to_a_queue_where_its_key_is_taken() -> None:
    stays = [plain.using(key="a", queue="mail").register(), plain.using(key="b").register()]
    moves, twin = plain.using(key="c").register(), plain.using(key="c", queue="third").register()
    rival = plain.using(key="a").register()
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
    whole = store.retry_jobs
    rivals = iter(["k7", "k23"])

    def raced(db: store.Database, ids: Any, **options: Any) -> store.Moved:
        for key in rivals:
            raw.query(
                "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
                " VALUES ('keys.plain', '{}', %s, 'until_finished', %s)",
                [key, key],
            )
        return whole(db, ids, **options)

    monkeypatch.setattr(store, "retry_jobs", raced)
    # Blind to them, as it would be a moment earlier.
    blind(monkeypatch, "retry_jobs")
    done = Job.objects.filter(outcome="abandoned").retry()
    assert (done.changed, done.skipped) == (38, {"key taken": 2})
    assert {one.pk for one in ended if Job.objects.get(pk=one.pk).state == "abandoned"} == {ended[7].pk, ended[23].pk}


def test_an_uncommitted_rival_holds_up_one_job_and_no_others(
    monkeypatch: pytest.MonkeyPatch, other: RawDatabase
) -> None:
    """It is waited for like a row lock, and the job reported as busy."""
    monkeypatch.setattr(jobs, "LOCK_SECONDS", 0.3)
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
        plain.using(key="twin").register()
        ids = ids[:1]
    assert len(store.retry_jobs(raw, ids, attempts={}, default_attempts=1).taken) == 1
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'abandoned', finished_at = now() WHERE outcome IS NULL AND id = ANY (%s)",
        [ids],
    )
    [(_, found)] = lines_of(line, ("retry_jobs",))
    sabotage(monkeypatch, "retry_jobs", found, "AND false" if "rival" in line else "true")
    with pytest.raises(psycopg.errors.UniqueViolation):
        store.retry_jobs(raw, ids, attempts={}, default_attempts=1)


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


@pytest.mark.parametrize("name", ["find_keys", "free_keys", "retry_jobs", "reschedule_jobs", "delete_windows"])
def test_keys_are_found_by_their_index(db_connection: Callable[..., RawDatabase], name: str) -> None:
    """A batch among 40,000 jobs with keys reads no table."""
    db = db_connection(autocommit=False, pins=False)
    many_keys(db)
    explaining = Explaining(db, set())
    wanted = [store.NewJob("keys.plain", "{}", key=f"k{n}", key_scope="until_finished") for n in range(1, 1000, 10)]
    wanted += [one._replace(window_seconds=60.0) for one in wanted]
    ids = [n for (n,) in db.query("SELECT id FROM pgjobs_job WHERE outcome IS NOT NULL ORDER BY id LIMIT 100")]
    runs: dict[str, Callable[[], object]] = {
        "find_keys": lambda: store.find_keys(explaining, wanted),
        "free_keys": lambda: store.free_keys(explaining, wanted),
        "retry_jobs": lambda: store.retry_jobs(explaining, ids, attempts={}, default_attempts=1),
        "reschedule_jobs": lambda: store.reschedule_jobs(
            explaining, range(1, 100), run_at=None, delay_seconds=None, queue="mail", priority=None
        ),
        "delete_windows": lambda: explaining.fetch("delete_windows", {"after": store.OLDEST, "limit": 100}),
    }
    runs[name]()
    scanned = [n["Relation Name"] for n in nodes(explaining.plan) if n["Node Type"] == "Seq Scan"]
    assert not {"pgjobs_job", "pgjobs_key_window"} & set(scanned)
    db.rollback()


def test_a_job_that_leaves_the_queue_meanwhile_is_not_replaced(
    raw: RawDatabase, other: RawDatabase, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is of another queue by then: nobody wants it, and the job is nobody's to cancel."""
    first = latest.register(1)
    look = store.find_keys

    def moves_after_the_look(db: store.Database, wanted: Any) -> Any:
        found = look(db, wanted)
        store.reschedule_jobs(other, [first.pk], run_at=None, delay_seconds=None, queue="mail", priority=None)
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
            return register_many(plain.using(key=key).bind() for key in ("a", "b", "c"))

    found = in_a_circle(raw, other, work, background)
    assert list(Job.objects.filter(pk__in=found).order_by("key").values_list("key", flat=True)) == ["a", "b", "c"]
    assert Job.objects.count() == 3


def test_a_deadlock_of_keys_is_no_error_of_an_operator(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    ended = [plain.using(key=key).register() for key in ("a", "b")]
    Job.objects.all().cancel()
    done = in_a_circle(raw, other, Job.objects.filter(pk__in=[each.pk for each in ended]).retry, background)
    assert done.changed + sum(done.skipped.values()) == 2
    assert done.skipped.keys() <= {"key taken", "busy"}
    assert Job.objects.filter(unique_key="b", finished_at=None).exclude(pk__in=[each.pk for each in ended]).exists()
