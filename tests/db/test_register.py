"""Registering: the stored row, when others see it, and refusals that leave nothing behind."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection, connections, transaction
from django.db.models.signals import post_init
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgjobs import JobContext, job, register_many
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.models import Job
from django_pgjobs.signals import job_registered
from django_pgjobs.store import registering
from django_pgjobs.store.new_jobs import NewJob, NewJobs
from django_pgjobs.testing import isolated_registry
from tests.db.registering_ground import anything, as_django_reads, on_disk, pay, send, stored, total
from tests.plugins.fix_db import alike

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh_throttle")]


@job(takes_context=True)
def with_context(context: JobContext, path: str) -> None: ...


def say(user_id: object, *, how: str = "") -> str:
    if how == "fail":
        raise LookupError
    return how


@job(description=say)
def described(user_id: object, *, how: str = "") -> None: ...


@dataclass
class Order:
    """A payload that is a dataclass."""

    id: int
    due: date


def refund(order_id: int) -> None: ...


def loaded(job_: Job) -> tuple[list[Any], dict[str, Any]]:
    return registry.get(job_.name)._load(json.dumps(stored(job_)["payload"]))


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


# What is stored


def test_a_job_is_stored_ready_and_due_now() -> None:
    """Rows A13, A20: the handle has an id; the default schedule is once, now."""
    before = database_now()
    registered = pay.register(7, note="thanks")
    row = stored(registered)
    assert (row["name"], row["queue"], row["priority"], row["state"]) == (pay.name, "default", 0, "ready")
    assert (row["max_attempts"], row["timeout_seconds"], row["attempt"]) == (5, 1800.0, 0)
    assert row["payload"] == {"args": [7], "kwargs": {"note": "thanks"}}
    assert before <= row["run_at"] == row["created_at"] <= database_now()
    assert loaded(registered) == ([7], {"note": "thanks"})


def test_the_returned_job_is_the_stored_one_without_another_query() -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        registered = send.using(delay=60).register("a@example.org")
        seen = {field.attname: getattr(registered, field.attname) for field in Job._meta.concrete_fields}
    assert len(queries) == 1
    assert seen == stored(registered)
    assert (registered._state.db, registered._state.adding) == ("default", False)
    assert registered == Job.objects.get(pk=registered.pk)


def test_the_definitions_policy_is_written() -> None:
    row = stored(send.register("a@example.org"))
    assert (row["queue"], row["priority"], row["max_attempts"], row["timeout_seconds"]) == ("mail", 7, 2, 30.0)


def test_options_win_over_the_definition() -> None:
    """Row A15: another queue may be named."""
    options = send.using(queue="bulk", priority=-7, max_attempts=9, timeout=None, database="default")
    row = stored(options.register("a@example.org"))
    assert (row["queue"], row["priority"], row["max_attempts"], row["timeout_seconds"]) == ("bulk", -7, 9, None)


@pytest.mark.parametrize("delay", [90, 90.5, timedelta(minutes=2)])
def test_a_delay_counts_from_the_databases_clock(delay: float | timedelta) -> None:
    """Rows A21, A22, C35."""
    registered = pay.using(delay=delay).register(7)
    expected = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    assert registered.run_at - registered.created_at == expected


def test_a_delay_does_not_know_this_machines_clock() -> None:
    """Row D6: a clock that is an hour ahead changes nothing."""
    with patch("time.time", return_value=datetime.now().timestamp() + 3600):
        registered = pay.using(delay=60).register(7)
    assert registered.run_at - registered.created_at == timedelta(seconds=60)


def test_an_instant_is_kept() -> None:
    when = datetime.now(UTC).replace(microsecond=123456) + timedelta(days=30)
    assert stored(pay.using(run_at=when).register(7))["run_at"] == as_django_reads(when)


def test_a_past_instant_means_now_or_earlier() -> None:
    when = datetime(2020, 1, 1, tzinfo=UTC)
    assert pay.using(run_at=when).register(7).run_at == as_django_reads(when)


def test_the_context_is_not_stored() -> None:
    assert stored(with_context.register("/tmp"))["payload"] == {"args": ["/tmp"], "kwargs": {}}


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "ü€😀"]},
        datetime(2030, 3, 31, 2, 30, tzinfo=UTC),
        timedelta(days=1, microseconds=1),
        uuid.UUID(int=7),
        b"\0\xff",
        (1, (2, 3)),
        1e16,
        "x" * 100_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_went_in(value: Any) -> None:
    """Rows A45, A46."""
    assert loaded(anything.register(value, named=value)) == ([value], {"named": value})


def test_dataclasses_arrive_as_dicts() -> None:
    """Row A14."""
    assert loaded(anything.register(Order(7, date(2030, 1, 2)))) == ([{"id": 7, "due": date(2030, 1, 2)}], {})


# Transactions


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction, or a savepoint within one, that is taken back at the block's end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@on_disk
def test_a_rolled_back_registration_is_never_seen() -> None:
    """A job that was rolled back never was: no attempt, no trace (design, promise 1)."""
    with rolled_back():
        pay.register(7)
        assert Job.objects.count() == 1
    assert Job.objects.count() == 0


@on_disk
def test_a_registration_is_seen_by_others_at_the_callers_commit() -> None:
    def others_see() -> int:
        counts: list[int] = []

        def look() -> None:
            counts.append(Job.objects.count())
            connection.close()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return counts[0]

    with transaction.atomic():
        pay.register(7)
        register_many([pay.bind(8), send.bind("a@example.org")])
        assert others_see() == 0
    assert others_see() == 3


@on_disk
def test_a_savepoint_takes_its_registrations_back() -> None:
    with transaction.atomic():
        kept = pay.register(1)
        with rolled_back():
            pay.register(2)
    assert list(Job.objects.all()) == [kept]


def unstorable(definition: JobDefinition[..., Any]) -> list[Any]:
    return [object(), "\0", "\ud800", float("nan"), {1: 2}, {1, 2}, definition.register]


@pytest.mark.parametrize("number", range(7))
def test_bad_input_stores_nothing_and_leaves_the_transaction_usable(number: int) -> None:
    """Rows A14, A43."""
    value = unstorable(pay)[number]
    with CaptureQueriesContext(connection) as queries:
        with pytest.raises(InvalidJob, match=rf"^job '{pay.name}': user_id cannot be stored"):
            pay.register(value)
        with pytest.raises(InvalidJob, match="row 1: "):
            pay.register_many([(1,), (value,)])
        with pytest.raises(InvalidJob, match="row 1: "):
            register_many([pay.bind(1), pay.bind(value)])
        with pytest.raises(InvalidJob, match="row 1234: "):
            pay.register_many([(1,)] * 1234 + [(value,), (1,)])
    assert len(queries) == 0
    assert pay.register(7).pk
    assert Job.objects.count() == 1


def test_wrong_arguments_store_nothing() -> None:
    """Row A43."""
    with CaptureQueriesContext(connection) as queries:
        for call in (pay.register, pay.using(delay=1).register, pay.bind):
            with pytest.raises(TypeError, match="unexpected keyword argument 'atempts'"):
                call(7, atempts=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="row 1"):
            pay.register_many([(7,), (7, 8)])
    assert len(queries) == 0


@override_settings(PGJOBS={"BOUNDS": {"payload_bytes": 1000}})
def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidJob, match=r"10\d\d bytes and at most 1000"):
        pay.register("x" * 1000)  # type: ignore[arg-type]
    assert Job.objects.count() == 0


@override_settings(PGJOBS={"QUEUES": ["default", "mail"]})
def test_an_undeclared_queue_is_refused_and_nothing_stored() -> None:
    """Row A16."""
    with pytest.raises(InvalidJob, match="did you mean 'mail'"):
        pay.using(queue="mial")
    assert pay.using(queue="mail").register(7).queue == "mail"


# Databases


def test_an_unknown_alias_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"no database 'defualt' \(did you mean 'default'\?\)"):
        pay.using(database="defualt").register(7)


def test_an_alias_that_is_not_postgresql_is_refused() -> None:
    with pytest.raises(InvalidJob, match="jobs live on PostgreSQL; database 'other' is SQLite"):
        pay.using(database="other").register(7)
    with pytest.raises(InvalidJob, match="database 'other' is SQLite"):
        register_many([pay.bind(7)], database="other")


def test_without_an_alias_the_router_decides() -> None:
    with patch("tests.routers.EverythingOnDefault.db_for_write", return_value="other"):
        with pytest.raises(InvalidJob, match="'other' is SQLite"):
            pay.register(7)
        assert pay.using(database="default").register(7)._state.db == "default"


def test_one_bulk_registration_goes_to_one_database() -> None:
    calls = [pay.bind(1), pay.using(database="default").bind(2)]
    assert len(register_many(calls)) == 2
    with pytest.raises(InvalidJob, match="one database, not to default, other"):
        register_many([*calls, pay.using(database="other").bind(3)])
    with pytest.raises(InvalidJob, match="one database, not to default, other"):
        register_many(calls, database="other")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_transaction_on_another_alias_is_not_joined_and_said_once_per_call_site(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "django_pgjobs"), transaction.atomic(using="other"):
        for n in range(3):
            pay.register(n)
        pay.register_many([(3,)])
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert all("open=other" in text and "test_register.py" in text and "alias=default" in text for text in warnings)
    assert Job.objects.count() == 4


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_joined_transaction_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        pay.register(1)
        with transaction.atomic(using="other"), transaction.atomic():
            pay.register(2)
    assert caplog.records == []


# Description, headers, signal


def test_a_description_is_made_once_at_registering() -> None:
    """Row A9."""
    assert stored(described.register(1, how="order 7"))["description"] == "order 7"
    assert stored(pay.register(1))["description"] == "", "row A10: nothing by default"
    ids = described.register_many([{"user_id": 1, "how": "a"}, {"user_id": 1, "how": "b"}])
    assert [Job.objects.get(pk=pk).description for pk in ids] == ["a", "b"]


def test_a_description_comes_from_the_registration_else_from_the_definition() -> None:
    with isolated_registry():
        worded = job(name="shop.charge", description="Charge a card")(refund)
        assert stored(worded.register(7))["description"] == "Charge a card"
        assert stored(worded.using(description="Again, ticket 4711").register(7))["description"] == "Again, ticket 4711"
        assert stored(worded.using(description=None).register(7))["description"] == "Charge a card"
        ids = worded.using(priority=3).register_many([(n,) for n in range(3)])
        assert {Job.objects.get(pk=pk).description for pk in ids} == {"Charge a card"}
        template = job(name="shop.charge_order", description="Charge order {order_id}")(refund)
        assert stored(template.register(7))["description"] == "Charge order 7"
        assert stored(template.using(description="of {braces}").register(7))["description"] == "of {braces}"
        assert stored(template.using(description="").register(7))["description"] == ""
        ids = template.register_many([(n,) for n in range(3)])
        assert [Job.objects.get(pk=pk).description for pk in ids] == [f"Charge order {n}" for n in range(3)]


@pytest.mark.parametrize(
    ("said", "kept"), [("x" * 500, "x" * 199 + "…"), ("a\0b", "ab"), ("a\ud800b", "a?b"), (None, ""), (7, "7")]
)
def test_a_description_is_short_and_storable(said: Any, kept: str) -> None:
    with patch.object(described, "_describe_func", lambda *args, **kwargs: said):
        assert stored(described.register(1))["description"] == kept


def test_an_error_in_a_description_costs_only_the_description(caplog: pytest.LogCaptureFixture) -> None:
    """Row A11."""
    with caplog.at_level(logging.ERROR, "django_pgjobs"):
        registered = described.register(1, how="fail")
    assert stored(registered)["description"] == ""
    assert "description cannot be made name=" in caplog.text


def test_captured_headers_are_stored() -> None:
    assert stored(pay.register(7))["headers"] is None
    with patch(
        "django_pgjobs.registering.encode.capture_headers", return_value={"tenant": "north", "at": date(2030, 1, 2)}
    ):
        registered = pay.register(7)
        (pk,) = pay.register_many([(8,)])
    headers = {"tenant": "north", "at": {"$date": "2030-01-02"}}
    assert registered.headers == stored(registered)["headers"] == headers
    assert Job.objects.get(pk=pk).headers == headers


def test_headers_that_cannot_be_stored_are_refused() -> None:
    with (
        patch("django_pgjobs.registering.encode.capture_headers", return_value={"user": object()}),
        pytest.raises(InvalidJob, match=r"PGJOBS\['MIDDLEWARE'\] captured headers that cannot be stored"),
    ):
        pay.register(7)
    assert Job.objects.count() == 0


@pytest.fixture
def heard() -> Iterator[list[tuple[Any, Job]]]:
    received: list[tuple[Any, Job]] = []

    def listen(sender: Any, job: Job, **_: Any) -> None:
        received.append((sender, job))

    job_registered.connect(listen)
    yield received
    job_registered.disconnect(listen)


def test_a_signal_tells_of_each_registered_job(heard: list[tuple[Any, Job]]) -> None:
    registered = pay.register(7)
    assert heard == [(pay, registered)]
    assert heard[0][1] is registered


def test_a_signal_of_a_bulk_registration_loads_the_instants_when_asked(heard: list[tuple[Any, Job]]) -> None:
    ids = register_many([pay.bind(7), send.bind("a@example.org")])
    assert [(sender, job_.pk) for sender, job_ in heard] == [(pay, ids[0]), (send, ids[1])]
    job_ = heard[1][1]
    assert job_.get_deferred_fields() == {"run_at", "created_at"}
    assert (job_.queue, job_.payload) == ("mail", {"args": ["a@example.org"], "kwargs": {}})
    assert job_.run_at == stored(job_)["run_at"]


def test_a_signal_of_a_bulk_registration_has_the_arguments_of_each_job(heard: list[tuple[Any, Job]]) -> None:
    """Those that differ in their payloads only are kept as one until somebody asks."""
    ids = register_many(
        [*(pay.bind(n) for n in range(700)), *(described.bind(n, how=f"no. {n}") for n in range(3)), total.bind([1])]
    )
    assert [job_.pk for _, job_ in heard] == ids
    assert [job_.payload["args"] for _, job_ in heard] == [*([n] for n in range(700)), [0], [1], [2], [[1]]]
    assert [(sender, job_.description) for sender, job_ in heard[699:]] == [
        (pay, ""),
        *((described, f"no. {n}") for n in range(3)),
        (total, ""),
    ]
    assert [stored(job_)["description"] for _, job_ in heard[699:]] == ["", "no. 0", "no. 1", "no. 2", ""]


def test_an_error_in_a_receiver_changes_nothing(heard: list[tuple[Any, Job]]) -> None:
    def fail(**_: Any) -> None:
        raise LookupError

    job_registered.connect(fail)
    try:
        assert pay.register(7).pk
    finally:
        job_registered.disconnect(fail)
    assert len(heard) == 1


# Text of all kinds


def test_connections_of_other_aliases_are_left_alone() -> None:
    with patch.object(type(connections["other"]), "connect", side_effect=AssertionError):
        assert pay.register(1).pk


NASTY = ["", "\\N", "\\.", "a\tb\nc\rd", "back\\slash", '"', "'; --", "\\u0041", "\x07\x1b", "Ω𝄞", "\u2028", "end\\"]


def test_the_two_ways_of_registering_many_store_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """§2 register_many: what a text line of COPY gives a meaning is text like any other."""
    when = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    new = [
        NewJob(
            f"test.job{number // 4}", json.dumps({"args": [text, twin], "kwargs": {text: [1.5, None]}}), queue="q",
            priority=-number,
            timeout_seconds=None if number % 2 else 1.25, headers=json.dumps({"h": text}) if number % 3 else None,
            description=text, run_at=when if number % 2 else None, delay_seconds=2.5 if number % 3 else None,
        )
        for number, text in enumerate(NASTY)
        for twin in "ab"
    ]  # fmt: skip
    columns = "name, payload::text, queue, priority, max_attempts, timeout_seconds, headers::text, description"
    stored = []
    for copied in (False, True):
        monkeypatch.setattr(registering, "COPY_FROM_JOBS", 1 if copied else 1000)
        ids = registering.register_jobs("default", [alike(job) for job in new])
        assert ids == sorted(set(ids))
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {columns}, run_at, created_at FROM pgjobs_job WHERE id = ANY (%s) ORDER BY id",
                [ids],
            )
            rows = cursor.fetchall()
        stored.append([row[:-2] for row in rows])
        for row, one in zip(rows, new, strict=True):
            due = (one.run_at or row[-1]) + timedelta(seconds=one.delay_seconds or 0)
            assert abs(row[-2] - due) < timedelta(seconds=5 if one.run_at is None else 0.000001)
            assert row[-3] == one.description
    assert stored[0] == stored[1]


def test_each_way_of_registering_special_jobs_stores_all_that_they_can_have() -> None:
    when = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    new = NewJob(
        "test.job", '{"args": [], "kwargs": {}}', queue="q", priority=-3, max_attempts=7, timeout_seconds=1.25,
        headers='{"h": "1"}', description="Ω", run_at=when, delay_seconds=2.5, limit_key="l", key="k",
        key_scope="until_finished", idempotency_key="i", cron_entry="c", fire_at=when, tags=("a", "b"),
        deadline=when + timedelta(days=1), expires_at=when + timedelta(hours=1), options={"on_crash": "abandon"},
    )  # fmt: skip
    flowing = new._replace(key="k3", limit_key=None, flow=1, parent_id=5, target_id=6, waits=True, id=4_000_000)
    several = [NewJobs.of(new._replace(key="k2")), NewJobs.of(flowing)]
    alone = registering.register_job("default", new)
    stored = [alone and alone.id, *registering.register_special_jobs("default", several)]
    rows = [Job.objects.get(pk=job_id) for job_id in stored if job_id is not None]
    expected = {
        "name": "test.job", "queue": "q", "priority": -3, "max_attempts": 7, "timeout_seconds": 1.25,
        "payload": {"args": [], "kwargs": {}}, "headers": {"h": "1"}, "description": "Ω",
        "run_at": when + timedelta(seconds=2.5), "key_scope": "until_finished", "idempotency_key": "i",
        "cron_entry": "c", "fire_at": when, "tags": ("a", "b"), "deadline": when + timedelta(days=1),
        "expires_at": when + timedelta(hours=1), "options": {"on_crash": "abandon"},
    }  # fmt: skip
    assert [{name: getattr(row, name) for name in expected} for row in rows] == [expected] * 3
    assert [(row.key, row.unique_key) for row in rows] == [("k", "k"), ("k2", "k2"), ("k3", "k3")]
    assert [(row.limit_key, row.hold) for row in rows] == [("l", "limited"), ("l", "limited"), (None, "blocked")]
    assert [(row.flow, row.parent_id, row.target_id) for row in rows] == [(0, None, None), (0, None, None), (1, 5, 6)]
    assert rows[2].pk == 4_000_000


def test_few_that_are_very_large_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not be one parameter, which PostgreSQL bounds by 1 GiB."""
    monkeypatch.setattr(registering, "TEXT_AT_ONCE", 1000)
    for length, inserts in ((400, 1), (600, 0)):
        with CaptureQueriesContext(connection) as queries:
            assert len(pay.register_many([{"user_id": 1, "note": "x" * length}] * 2)) == 2
        assert len([q for q in queries if "INSERT INTO pgjobs_job" in q["sql"]]) == inserts


def test_the_instance_is_what_the_database_would_give_with_or_without_receivers_of_init() -> None:
    """Building it takes no query, and skips Django's constructor if no signal receiver listens to it."""
    plain = pay.register(1)
    made: list[Job] = []

    def note(instance: Job, **_: object) -> None:
        made.append(instance)

    post_init.connect(note, sender=Job)
    try:
        heard = pay.register(1)
    finally:
        post_init.disconnect(note, sender=Job)
    assert [one is heard for one in made] == [True]
    for one in (plain, heard):
        read = Job.objects.get(pk=one.pk)
        assert {f.attname: getattr(one, f.attname) for f in Job._meta.concrete_fields} == {
            f.attname: getattr(read, f.attname) for f in Job._meta.concrete_fields
        }
        assert (one._state.adding, one._state.db, one == read) == (False, "default", True)
        one.refresh_from_db()
