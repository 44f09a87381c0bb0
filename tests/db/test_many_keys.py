"""``register_many`` with keys: what it stores is what as many calls of ``register`` store, in few statements."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgjobs import Batch, Unique, job, register_many
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.jobs import BoundJob
from django_pgjobs.models import Job
from django_pgjobs.models.keys import KeyWindow
from django_pgjobs.registering import conflicts, encode
from django_pgjobs.store import copying, registering
from django_pgjobs.store.new_jobs import NewJob, NewJobs
from tests.plugins.fix_db import Background, RawDatabase, blocked_by, wait_until

pytestmark = pytest.mark.usefixtures("committed")

COUNT = 60


def key_of(number: int) -> str | None:
    if number < 0:
        raise ValueError("no such key")
    return None if number % 10 == 7 else f"k{number}"


@job(name="many.plain", tags=["all"])
def plain(number: int) -> None: ...


@job(name="many.other")
def unkeyed(number: int) -> None: ...


@job(name="many.keyed", unique=key_of)
def keyed(number: int) -> None: ...


SHARED = {
    "keys": plain.using(unique=lambda number: f"k{number}"),
    "keys until the start": plain.using(unique=Unique(lambda number: f"k{number}", until="started")),
    "windows": plain.using(unique=Unique(lambda number: f"k{number}", window=timedelta(days=1000))),
    "some keys": plain.using(unique=key_of),
    "idempotency keys": plain.using(idempotency_key=lambda number: f"i{number}"),
    "some of both": plain.using(unique=key_of, idempotency_key=lambda number: f"i{number}" if number % 3 else None),
    "one key": plain.using(unique="one"),
    "tags": plain.using(tags=["few"], priority=3),
    "an expiry": plain.using(expires=3600.25, delay=60.5),
    "an option": plain.using(timeout=(10, 20), unique=key_of),
    "results": plain.using(unique=lambda number: f"ключ {number}\" \\ '", description="Ω", queue="q"),
}
FIELDS = (
    "name", "queue", "priority", "max_attempts", "timeout_seconds", "payload", "headers", "description", "key",
    "key_scope", "unique_key", "idempotency_key", "limit_key", "hold", "tags", "options", "flow", "parent_id",
)  # fmt: skip


def rows() -> list[tuple[Any, ...]]:
    fields = Job.objects.order_by("pk").values_list(*FIELDS, "run_at", "expires_at", "deadline", "created_at")
    return [
        (*row[:-4], *((instant and round((instant - row[-1]).total_seconds())) for instant in row[-4:-1]))
        for row in fields
    ]


@pytest.mark.parametrize("at_once", [5000, 7, "copy"])
@pytest.mark.parametrize("what", SHARED)
def test_many_are_as_many_of_one(
    what: str, at_once: int | str, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once == "copy":
        monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 2)
    else:
        monkeypatch.setattr(registering, "SPECIAL_AT_ONCE", at_once)
    monkeypatch.setattr(encode, "ROWS_AT_ONCE", 25)
    using = SHARED[what]
    alone = [using.register(number).pk for number in range(COUNT)]
    expected = rows()
    windows = set(KeyWindow.objects.values_list("queue", "key"))
    raw.query("TRUNCATE pgjobs_job, pgjobs_key_window")
    ids = using.register_many([(number,) for number in range(COUNT)])
    assert sorted(map(str, rows())) == sorted(map(str, expected))
    assert set(KeyWindow.objects.values_list("queue", "key")) == windows
    assert len(set(ids)) == len(set(alone))
    args = dict(Job.objects.values_list("pk", "payload__args"))
    assert [args[one] for one in ids] == ([[0]] * COUNT if what == "one key" else [[n] for n in range(COUNT)])
    if at_once != 7:
        assert ids == sorted(ids), "jobs that start at one instant run in this order"


@pytest.mark.parametrize("copied", [False, True])
def test_instants_are_stored_to_the_microsecond(monkeypatch: pytest.MonkeyPatch, *, copied: bool) -> None:
    monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 2 if copied else 1000)
    start = timezone.now().replace(microsecond=123456) + timedelta(days=1)
    deadline, expiry = start + timedelta(hours=2), start + timedelta(hours=1, microseconds=1)
    plain.using(run_at=start, deadline=deadline, expires=expiry).register_many([(1,), (2,)])
    assert set(Job.objects.values_list("run_at", "deadline", "expires_at")) == {(start, deadline, expiry)}


@pytest.mark.parametrize("copied", [False, True])
def test_jobs_of_many_kinds_are_each_stored_as_they_are(monkeypatch: pytest.MonkeyPatch, *, copied: bool) -> None:
    monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 2 if copied else 1000)
    calls: list[BoundJob] = []
    for number in range(COUNT):
        calls += [keyed.bind(number), unkeyed.bind(number), plain.using(priority=number % 3).bind(number)]
    ids = register_many(calls)
    found = Job.objects.in_bulk(ids)
    assert [(found[one].name, found[one].payload["args"][0], found[one].priority) for one in ids] == [
        each
        for number in range(COUNT)
        for each in (("many.keyed", number, 0), ("many.other", number, 0), ("many.plain", number, number % 3))
    ]
    assert [found[one].tags for one in ids[:3]] == [(), (), ("all",)]


def test_few_statements_write_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 1001)
    with CaptureQueriesContext(connection) as queries:
        keyed.register_many([(number,) for number in range(1000)])
    assert len([query for query in queries if "INSERT INTO pgjobs_job" in query["sql"]]) == 1
    [sql] = [query["sql"] for query in queries if "INSERT INTO pgjobs_job" in query["sql"]]
    assert sql.count("many.keyed") < 300, "jobs with a key share what they have in common"


def test_a_key_is_made_once_for_each_row_in_their_order() -> None:
    made: list[int] = []

    def make(number: int) -> str:
        made.append(number)
        return f"k{number}"

    plain.using(unique=make).register_many([(number,) for number in range(COUNT)])
    assert made == list(range(COUNT))


@pytest.mark.parametrize("wrong", [0, 5, COUNT - 1])
def test_the_row_whose_key_cannot_be_made_is_named(wrong: int) -> None:
    given = [(-1 if number == wrong else number,) for number in range(COUNT)]
    with pytest.raises(
        InvalidJob, match=f"^row {wrong}: job 'many.keyed': key cannot be made .* no such key$"
    ) as caught:
        keyed.register_many(given)
    assert isinstance(caught.value.__cause__, ValueError)
    assert not Job.objects.exists()


@pytest.mark.parametrize("way", ["insert", "copy", "copy in vain"])
@pytest.mark.parametrize("policy", ["existing", "raise", "replace", "postpone"])
def test_taken_keys_among_free_ones_follow_their_policy(policy: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In vain: as if the keys had been taken between the look and the COPY."""
    if way != "insert":
        monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 2)
    if way == "copy in vain":
        monkeypatch.setattr(copying, "are_keys_taken", lambda *_: False)
    using = plain.using(unique=Unique(lambda number: f"k{number}", until="finished", on_conflict=policy), delay=100)
    taken = {number: using.register(number).pk for number in range(0, COUNT, 3)}
    given = [(number,) for number in range(COUNT)]
    if policy == "raise":
        with transaction.atomic():
            with pytest.raises(DuplicateJob):
                using.register_many(given)
            unkeyed.register(1)
        assert Job.objects.count() == len(taken) + 1
        return
    ids = using.register_many(given)
    assert len(set(ids)) == COUNT
    kept = {number: ids[number] == pk for number, pk in taken.items()}
    assert set(kept.values()) == {policy != "replace"}
    cancelled = Job.objects.filter(outcome="cancelled").values_list("pk", flat=True)
    assert set(cancelled) == (set(taken.values()) if policy == "replace" else set())


def inserted() -> int:
    """Return how many rows the open transaction has written, also in vain."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT n_tup_ins FROM pg_stat_xact_user_tables WHERE relname = 'pgjobs_job'")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("taken", [0, 1, 300])
def test_no_row_is_written_in_vain(taken: int) -> None:
    """A look before saves a COPY that would fail, even if it fails only at the last of many keys."""
    using = plain.using(unique=lambda number: f"k{number:04}")
    rows = [(number,) for number in range(300)]
    if taken:
        using.register_many(rows[-taken:])
    with transaction.atomic():
        before = inserted()
        using.register_many(rows)
        assert inserted() - before == len(rows) - taken
    assert Job.objects.count() == len(rows)


def test_a_copy_inserts_in_the_order_of_the_keys() -> None:
    """Other callers do, too, so they wait for each other in no circle."""
    keys = [f"k{n * 7 % 100:02}" for n in range(100)]
    first, second = (NewJob("many.plain", "{}", queue=queue, key_scope="until_finished") for queue in ("q1", "q0"))
    new = [NewJobs(first._replace(key=keys[0]), ["{}"] * 100, keys, [None] * 100)]
    new += [NewJobs.of(second._replace(key=key)) for key in keys]
    rows = list(copying._Rows(timezone.now(), "utf-8", None).special(new, iter(range(200))))
    found = [re.findall(rb"\x00\x02(q\d)|\x00\x03(k\d\d)", row) for row in rows]
    assert found == sorted(found)
    assert len({tuple(row) for row in found}) == 200


def test_what_a_copy_wrote_before_a_key_was_taken_is_gone(
    background: Background, other: RawDatabase, raw: RawDatabase
) -> None:
    """The look has found all keys free; by the COPY, which waits for it, another has taken one."""
    using = plain.using(unique=lambda number: f"k{number:04}")
    [(held,)] = other.query(
        "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
        " VALUES ('many.plain', '{}', 'k0290', 'until_finished', 'k0290') RETURNING id"
    )

    def register() -> list[int]:
        with transaction.atomic():
            return using.register_many([(number,) for number in range(300)])

    waiting = background(register)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the caller waits for the key")
    other.commit()
    ids = waiting.result(30)
    assert ids[290] == held
    assert sorted(ids) == list(Job.objects.order_by("pk").values_list("pk", flat=True))


@pytest.mark.parametrize("count", [2, 300])
def test_a_deadlock_by_keys_is_settled_whatever_writes_them(
    background: Background, other: RawDatabase, raw: RawDatabase, count: int
) -> None:
    """Another transaction takes the last key and then waits for the first."""
    take = (
        "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
        " VALUES ('many.plain', '{}', %(key)s, 'until_finished', %(key)s) ON CONFLICT DO NOTHING"
    )
    other.query("SET LOCAL deadlock_timeout = '60s'")
    other.query(take, {"key": f"k{count - 1:04}"})
    using = plain.using(unique=lambda number: f"k{number:04}")
    waiting = background(using.register_many, [(number,) for number in range(count)])
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the caller waits for the last key")
    other.query(take, {"key": "k0000"})
    other.commit()
    ids = waiting.result(30)
    assert sorted(ids) == list(Job.objects.order_by("pk").values_list("pk", flat=True))
    assert Job.objects.count() == count


@pytest.mark.parametrize("copied", [False, True])
def test_members_with_keys_are_added_once(monkeypatch: pytest.MonkeyPatch, *, copied: bool) -> None:
    monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 2 if copied else 1000)
    batch = Batch("keys")
    calls = [keyed.bind(number) for number in range(COUNT)]
    with batch:
        assert batch.add_many(calls[: COUNT // 2]) == COUNT // 2
        without = sum(key_of(number) is None for number in range(COUNT // 2))
        assert batch.add_many(calls) == COUNT // 2 + without
    assert batch.figures.total == COUNT + without
    members = Job.objects.filter(parent_id=batch.job.pk)
    assert set(members.values_list("flow", flat=True)) == {1}
    assert members.exclude(key=None).count() == COUNT - sum(key_of(number) is None for number in range(COUNT))


@pytest.mark.parametrize(("at_once", "copied"), [(5000, False), (40, False), (40, True)])
def test_two_callers_whose_keys_overlap_in_opposite_order_both_end(
    background: Background, at_once: int, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, *, copied: bool
) -> None:
    """Both insert in the order of the keys, so one waits for the other, and takes its jobs."""
    monkeypatch.setattr(conflicts, "DEADLOCKS", 1)
    monkeypatch.setattr(registering, "SPECIAL_AT_ONCE", at_once)
    using = plain.using(unique=lambda number: f"k{number}")
    monkeypatch.setattr(conflicts, "COPY_FROM_JOBS", 100 if copied else 1000)
    numbers = list(range(300))
    for turn in range(4):
        raw.query("TRUNCATE pgjobs_job")
        each = [numbers[:200], numbers[:99:-1], numbers[::2], numbers[::-3]]
        found = [background(using.register_many, [(number,) for number in some]) for some in each]
        ids = [dict(zip(some, one.result(60), strict=True)) for some, one in zip(each, found, strict=True)]
        assert Job.objects.count() == len(numbers), f"turn {turn}"
        stored = {key: pk for pk, key in Job.objects.values_list("pk", "key")}
        for one in ids:
            assert one == {number: stored[f"k{number}"] for number in one}


def test_two_callers_that_replace_what_the_other_postpones_both_end(
    background: Background, other: RawDatabase, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each locks all jobs that have its keys before it moves or cancels one, whatever it does with which."""
    monkeypatch.setattr(conflicts, "DEADLOCKS", 1)
    one, two = [plain.using(unique=key, delay=3600).register(number).pk for number, key in enumerate(["a", "b"])]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def call(postponed: str, replaced: str) -> list[int]:
        moves = plain.using(unique=Unique(postponed, on_conflict="postpone"), delay=60)
        cancels = plain.using(unique=Unique(replaced, on_conflict="replace"), delay=60)
        return register_many([moves.bind(2), cancels.bind(3)])

    other.lock(two)
    first = background(call, "b", "a")
    wait_until(lambda: raw.value(waiting) == 1, 10, "the first caller waits")
    second = background(call, "a", "b")
    wait_until(lambda: raw.value(waiting) == 2, 10, "the second caller waits, too")
    other.commit()
    moved, new = first.result(30)
    assert (moved, new > two) == (two, True)
    assert second.result(30)[0] == new
    assert set(Job.objects.filter(outcome="cancelled").values_list("pk", flat=True)) == {one, two}


@pytest.mark.parametrize("commits", [True, False])
def test_a_caller_waits_for_one_key_of_another_and_inserts_the_rest(
    background: Background, other: RawDatabase, raw: RawDatabase, commits: bool
) -> None:
    [(held,)] = other.query(
        "INSERT INTO pgjobs_job (name, payload, key, key_scope, unique_key)"
        " VALUES ('many.plain', '{}', 'k30', 'until_finished', 'k30') RETURNING id"
    )
    using = plain.using(unique=lambda number: f"k{number}")
    waiting = background(using.register_many, [(number,) for number in range(COUNT)])
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the caller waits for the key")
    (other.commit if commits else other.rollback)()
    ids = waiting.result(30)
    assert (ids[30] == held) is commits
    assert Job.objects.count() == COUNT
