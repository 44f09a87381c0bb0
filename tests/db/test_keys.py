"""Keys: one live job per key and queue, however many register at once, and the answer to the second."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgjobs import JobContext, Unique, job, register_many
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.models.keys import KeyWindow
from django_pgjobs.registering import conflicts
from django_pgjobs.registering.conflicts import TRIES
from django_pgjobs.signals import job_registered
from django_pgjobs.store import claiming, finalising, keeping, registering
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import End
from django_pgjobs.testing import backdate
from tests.db.keys_ground import latest, plain, reindex
from tests.plugins.explaining import Explaining, nodes
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, wait_until

pytestmark = pytest.mark.usefixtures("committed")


@job(name="keys.welcome", unique="welcome:{user_id}")
def welcome(user_id: int, note: str = "") -> None: ...


@job(name="keys.called", unique=Unique(lambda user_id: f"u{user_id}" if user_id else None, on_conflict="raise"))
def called(user_id: int) -> None: ...


@job(name="keys.hourly", unique=Unique("report:{shop}", window=3600))
def report(shop: str) -> None: ...


@job(name="keys.undone")
def undone() -> None: ...


@undone.on_cancel
def undo(context: JobContext) -> None: ...


def finish(raw: RawDatabase, **facts: Any) -> list[int]:
    """Claim and end the first job of queue ``default``."""
    return finalising.finalise_success(raw, claim(raw).ends(**facts), AUTHOR)


NO_KEY = (
    "on_conflict says what to do when the key is taken, but there is no key: declare unique=… in @job, or pass a key to"
)


@pytest.mark.parametrize(
    "registering",
    [
        lambda: plain.using(unique=Unique(on_conflict="replace")).register(7),
        lambda: plain.using(unique=Unique(on_conflict="replace")).using(delay=5).bind(7).register(),
        lambda: plain.using(idempotency_key="k", unique=Unique(on_conflict="postpone")).register(7),
    ],
)
def test_what_to_do_when_the_key_is_taken_is_refused_without_a_key(registering: Any) -> None:
    with pytest.raises(InvalidJob, match=f"^job 'keys.[a-z_]+': {NO_KEY} using$"):
        registering()
    assert Job.objects.count() == 0


def test_many_without_a_key_are_refused_with_their_row() -> None:
    with pytest.raises(InvalidJob, match=f"^row 0: job 'keys.plain': {NO_KEY}"):
        plain.using(unique=Unique(on_conflict="raise")).register_many([(1,), (2,)])
    with pytest.raises(InvalidJob, match=f"^row 2: job 'keys.plain': {NO_KEY}"):
        register_many(
            [
                plain.bind(1),
                plain.using(unique=Unique("k", on_conflict="raise")).bind(2),
                plain.using(unique=Unique(on_conflict="raise")).bind(3),
            ]
        )
    assert Job.objects.count() == 0


def test_a_key_that_using_gives_later_is_one_and_so_is_the_word_that_there_is_none() -> None:
    """In either order; a callable may find that there is none."""
    first = plain.using(unique=Unique(on_conflict="raise")).using(unique="k").register()
    assert plain.using(unique="k").using(unique=Unique(on_conflict="existing")).register().pk == first.pk
    with pytest.raises(DuplicateJob):
        plain.using(unique=Unique("k", on_conflict="raise")).register(7)
    assert plain.using(unique=Unique(on_conflict="raise")).using(unique=None).register().key is None
    assert latest.using(unique=None).register(1).key is None
    assert called.register(0).key is None


# existing


def test_a_second_job_of_a_live_key_is_the_first_one(raw: RawDatabase) -> None:
    """Row A18: unique in its queue; another queue is another matter; free again after the end."""
    first = plain.using(unique="welcome:7").register()
    again = plain.using(unique="welcome:7").register(99)
    assert (again.pk, again.payload) == (first.pk, first.payload)
    assert Job.objects.count() == 1
    elsewhere = plain.using(unique="welcome:7", queue="mail").register()
    assert elsewhere.pk != first.pk
    assert (first.key, first.unique_key, first.key_scope) == ("welcome:7", "welcome:7", "until_finished")
    claimed = claim(raw)
    assert plain.using(unique="welcome:7").register().pk == first.pk  # it runs: not free yet
    finalising.finalise_success(raw, claimed.ends(), AUTHOR)
    assert plain.using(unique="welcome:7").register().pk not in (first.pk, elsewhere.pk)


def test_the_instance_says_what_the_row_says() -> None:
    one = plain.using(unique="k", idempotency_key="i").register()
    row = Job.objects.get(pk=one.pk)
    assert {f.attname: getattr(one, f.attname) for f in Job._meta.concrete_fields} == {
        f.attname: getattr(row, f.attname) for f in Job._meta.concrete_fields
    }


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled", "abandoned"])
def test_any_end_frees_the_key(raw: RawDatabase, outcome: str) -> None:
    """Rows A18, A23."""
    first = plain.using(unique="k").register()
    ends = claim(raw).ends(outcome=outcome)
    if outcome == "succeeded":
        finalising.finalise_success(raw, ends, AUTHOR)
    else:
        finalising.finalise_end(raw, ends, AUTHOR)
    assert plain.using(unique="k").register().pk != first.pk


@pytest.mark.parametrize("way", ["delete", "rescue", "cancel", "abandon"])
def test_ends_that_no_attempt_writes_free_it_too(raw: RawDatabase, way: str) -> None:
    """Row A18: deleted at retention 0, rescued on its last attempt, ended by an operator."""
    first = plain.using(unique="k", max_attempts=1).register()
    if way == "delete":
        finalising.finalise_delete(raw, claim(raw).ends())
    elif way == "rescue":
        claim(raw, lease=-1.0)
        raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
        keeping.rescue_jobs(
            raw, limit=10, quiet_seconds=0, grace_seconds=0, stale_seconds=60,
            without_on_cancel=[plain.name], without_on_abandon=[plain.name],
        )  # fmt: skip
    else:
        getattr(first, way)()
    assert not Job.objects.filter(finished_at=None).exists()
    assert plain.using(unique="k").register().pk != first.pk


@pytest.mark.parametrize("way", ["retry", "snooze", "park", "release"])
def test_what_goes_back_into_the_queue_keeps_its_key(raw: RawDatabase, way: str) -> None:
    first = plain.using(unique="k").register()
    ends = claim(raw).ends(cause="failed", reason="", fingerprint="")
    writes: dict[str, Callable[[], object]] = {
        "retry": lambda: finalising.finalise_retry(
            raw, [End(e.id, e.claim_id, 0.0, cause="failed") for e in ends], AUTHOR
        ),
        "snooze": lambda: finalising.finalise_snooze(raw, ends),
        "park": lambda: finalising.park_jobs(raw, ends),
        "release": lambda: finalising.release_jobs(raw, [End(e.id, e.claim_id) for e in ends], AUTHOR),
    }
    writes[way]()
    assert plain.using(unique="k").register().pk == first.pk


def test_a_key_is_made_of_the_arguments() -> None:
    """A format string of arguments with their defaults, or a callable; None is no key."""
    assert welcome.register(7).key == "welcome:7"
    assert welcome.register(user_id=7).pk == welcome.register(7, note="again").pk
    assert called.register(3).key == "u3"
    assert called.register(0).key is None
    assert called.register(0).pk != called.register(0).pk
    assert welcome.using(unique="own").register(7).key == "own"
    assert welcome.using(unique=None).register(7).key is None
    assert plain.using(unique=lambda number=0: f"n{number}").register(5).key == "n5"


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
    first = plain.using(unique="k").register()
    looks = 0

    def ends_meanwhile(db: Database, wanted: Any) -> list[None]:
        nonlocal looks
        looks += 1
        if looks == 3:
            first.cancel()
        return [None] * len(wanted)

    monkeypatch.setattr(conflicts, "find_keys", ends_meanwhile)
    assert plain.using(unique="k").register().pk != first.pk
    assert looks == 3
    with pytest.raises(DuplicateJob) as told:
        plain.using(unique="k").register()
    assert told.value.existing_id is None
    assert looks == 3 + TRIES
    with pytest.raises(DuplicateJob):
        plain.using(unique="k").register_many([()])
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
    first = undone.using(unique=Unique("k", on_conflict="replace")).register()
    second = undone.using(unique=Unique("k", on_conflict="replace")).register()
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
    monkeypatch.setattr(conflicts, "register_job", lambda *_args, **_kwargs: None)
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
    finalising.release_jobs(raw, claimed.ends(), AUTHOR)
    first.refresh_from_db()
    assert (first.key, first.unique_key, first.state) == ("reindex:a", None, "ready")
    assert reindex.register("a").pk == second.pk


def test_claim_one_frees_it_too(raw: RawDatabase) -> None:
    one = reindex.register("a")
    claiming.claim_one(
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
    newest = report.using(unique=Unique(on_conflict="replace"))
    elsewhere = newest.using(queue="mail").register("a")
    first, second = newest.register("a"), newest.register("a")
    first.refresh_from_db()
    assert (first.state, second.state) == ("cancelled", "ready")
    assert set(KeyWindow.objects.values_list("job_id", flat=True)) == {second.pk, elsewhere.pk}
    finish(raw)
    with pytest.raises(DuplicateJob, match="has started"):
        newest.register("a")


def test_windows_of_two_lengths_take_and_free_a_key_apart() -> None:
    """The long one began in 2019 and ends in 2029: never with the hour, but once."""
    long = report.using(unique=Unique(window=timedelta(days=3650), on_conflict="replace"))
    first = long.register("a")
    short = report.using(unique=Unique(on_conflict="replace"))
    second, third = short.register("a"), short.register("a")
    assert set(KeyWindow.objects.values_list("job_id", flat=True)) == {first.pk, third.pk}
    assert list(Job.objects.filter(finished_at__isnull=False)) == [second]
    fourth = long.register("a")
    assert set(KeyWindow.objects.values_list("job_id", flat=True)) == {third.pk, fourth.pk}


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
        register_many([called.bind(3), called.bind(3).using(unique=Unique(on_conflict="replace"))])
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
        second = background(lambda: plain.using(unique="k").register().pk)
        wait_until(lambda: blocked_by(raw, other.pid), 10, "the second waits for the twin")
        ends()
        assert (second.result(30) == twin) is same
        raw.query("DELETE FROM pgjobs_job")


def test_of_many_who_register_at_once_one_wins(background: Background) -> None:
    """Row A18: eight producers, one key."""
    found = [background(lambda: plain.using(unique="one").register().pk) for _ in range(24)]
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
    explaining.fetch("register_special_jobs", registering._Columns([]).params([]))
    plan = list(nodes(explaining.plan))
    sorts = [node["Sort Key"] for node in plan if node["Node Type"] == "Sort" and len(node["Sort Key"]) > 1]
    assert len(sorts) == 2
    assert "Nested Loop" not in {node["Node Type"] for node in plan}, "many jobs may be of many kinds"
    for queue, key, _ in sorts:
        assert queue.endswith('queue COLLATE "C"')
        assert key.endswith('key COLLATE "C"')
