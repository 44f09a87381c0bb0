"""``pgjobs import django-q2``: packages that it has signed and pickled come over, and nothing that they name is run."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.core import signing
from django.db import connection

from django_pgjobs import job, sql
from django_pgjobs.importing import taking
from django_pgjobs.importing.pickles import read_pickle
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.serialization.payload import revive
from tests.db.importing_ground import deaths, mail, send, tables_of
from tests.db.test_importing import imported, left, taken, undone
from tests.plugins.explaining import numbered
from tests.plugins.fix_db import RawDatabase

BY_NAME = (
    "gAWVAQEAAAAAAAB9lCiMAmlklIwgN2QzN2U4NjliN2QzNGM3MDlkZWM3N2ZlY2UxODRhMWWUjARuYW1llIwcc25ha2UtaGFtcGVy"
    "LXdpc2NvbnNpbi1tYW5nb5SMBGZ1bmOUjAlzaG9wLnNlbmSUjARhcmdzlIwEYW5uYZSFlIwEaG9va5SMCnNob3AuYWZ0ZXKUjAZr"
    "d2FyZ3OUfZSMBmNvcGllc5RLAnOMB3N0YXJ0ZWSUjAhkYXRldGltZZSMCGRhdGV0aW1llJOUQwoH6gscDRoBDG0RlGgQjAh0aW1l"
    "em9uZZSTlGgQjAl0aW1lZGVsdGGUk5RLAEsASwCHlFKUhZRSlIaUUpR1Lg:1xXIRF:6_EQOGgTlYfP34Ym1zzUM8mDWBNEWJyZD0"
    "gybV0B87w"
)
BY_FUNCTION = (
    "gAWV8AAAAAAAAAB9lCiMAmlklIwgZTYyNGIxN2ZlMDQyNDk0YWFmOGE1YjNkMzg2M2NiMmOUjARuYW1llIwbYXNwZW4tb2N0b2Jl"
    "ci1maWZ0ZWVuLXJvbWVvlIwEZnVuY5SMBHNob3CUjARzZW5klJOUjARhcmdzlIwEYW5uYZSFlIwGa3dhcmdzlH2UjAZjb3BpZXOU"
    "SwJzjAdzdGFydGVklIwIZGF0ZXRpbWWUjAhkYXRldGltZZSTlEMKB-oLHA0aAQxu9JRoEIwIdGltZXpvbmWUk5RoEIwJdGltZWRl"
    "bHRhlJOUSwBLAEsAh5RSlIWUUpSGlFKUdS4:1xXIRF:6mKy5R0RjR7HLFBjYWhLl40wDOEECWcZtUuz4FukWqw"
)
"""What ``async_task("shop.send", "anna", copies=2, hook="shop.after")`` of django-q2 1.11.1 writes, and what
``async_task(send, "anna", copies=2)`` does for a function ``send`` of a module ``shop``."""


@job(name="shop.anything")
def anything(value: object) -> None: ...


class Pickles:
    """The serializer of django-q2."""

    def dumps(self, value: object) -> bytes:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class Cluster:
    """django-q2 with its broker "orm"."""

    def __init__(self, raw: RawDatabase) -> None:
        self.raw = raw

    def write(self, package: str, key: str = "shop", lock: str = "statement_timestamp()") -> str:
        query = f"INSERT INTO django_q_ormq (key, payload, lock) VALUES (%s, %s, {lock}) RETURNING id"
        return str(self.raw.value(query, [key, package]))

    def defer(self, func: object = "shop.send", *args: object, key: str = "shop", **options: Any) -> str:
        task = {"id": "26485dfe", "name": "sodium", "func": func, "args": args or ("anna",), "kwargs": {}, **options}
        task["started"] = datetime.now(UTC)
        return self.write(signing.dumps(task, salt="shop", serializer=Pickles), key)  # type: ignore[arg-type]

    def waiting(self) -> list[str]:
        return [row[0] for row in self.raw.query("SELECT id::text FROM django_q_ormq ORDER BY id")]


@pytest.fixture(scope="module")
def cluster_tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), tables_of("django-q2"):
        yield


@pytest.fixture
def cluster(cluster_tables: None, committed: None, raw: RawDatabase, settings: Any) -> Iterator[Cluster]:
    settings.Q_CLUSTER = {"name": "shop", "orm": "default"}
    yield Cluster(raw)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_q_ormq")


@pytest.mark.parametrize("verb", ["lock", "read", "take", "return"])
def test_a_statement_prepares_on_the_table_of_its_source(cluster: Cluster, verb: str) -> None:
    result = cluster.raw.raw.pgconn.prepare(b"", numbered(sql.statement(f"{verb}_q2_jobs")).encode())
    assert result.error_message == b""


def test_a_package_as_it_is_written_becomes_a_job(cluster: Cluster) -> None:
    ids = [cluster.write(BY_NAME), cluster.write(BY_FUNCTION)]
    answer = taken("django-q2")
    assert [each["id"] for each in answer["jobs"]] == ids
    assert [each["differences"] for each in answer["jobs"]] == [["without its hook"], []]
    for found in Job.objects.all():
        assert (found.name, found.payload["args"], found.payload["kwargs"]) == (send.name, ["anna"], {"copies": 2})
        assert (found.queue, found.state) == ("default", "ready")
    assert cluster.waiting() == []


VALUES = [
    "text", 1, 2**80, 1.5, True, None, b"bytes", (1, 2), [1], {"a": 1}, date(2031, 5, 6), time(7, 8), timedelta(1),
    datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC), UUID(int=7), Decimal("1.50"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_come(cluster: Cluster, value: object) -> None:
    assert read_pickle(pickle.dumps(value)) == value
    cluster.defer("shop.anything", value)
    found = taken("django-q2")["jobs"][0]["job_id"]
    assert revive(Job.objects.get(pk=found).payload)["args"] == [value]


class Trap:
    """Unpickled, it calls a function."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("import tests.db.test_importing_q2 as here; here.RUN.append('run')",)


RUN: list[str] = []


@pytest.mark.parametrize(
    ("func", "value", "reason"),
    [
        ("shop.anything", Trap(), "an object of builtins.exec"),
        ("shop.anything", [UUID(int=7), {"to": Trap()}], "an object of builtins.exec"),
        ("shop.anything", object(), "an object of builtins.object"),
        ("shop.anything", print, "cannot be stored"),
        (len, print, "arguments name builtins.print"),
        (Trap(), 1, "an object of builtins.exec"),
    ],
)
def test_nothing_that_a_pickle_names_is_run(cluster: Cluster, func: object, value: object, reason: str) -> None:
    cluster.defer(func, value)
    assert reason in "".join(left("django-q2", "--apply").values())
    assert (len(cluster.waiting()), RUN) == (1, [])


def test_a_signature_is_verified(cluster: Cluster, settings: Any) -> None:
    """A row that another program has written, of another name or key, or one that was changed."""
    cluster.write(BY_NAME)
    cluster.write(BY_NAME.replace("gAWV", "gAWW"))
    cluster.write("gAWV")
    settings.Q_CLUSTER = {"name": "other"}
    status, answer = imported("django-q2", "--apply")
    assert (status, answer["left"]) == (1, 3)
    assert all("signed it" in each["reason"] for each in answer["jobs"])
    settings.Q_CLUSTER = {"name": "shop"}
    assert imported("django-q2", "--apply")[1]["taken"] == 1


def test_another_cluster_is_another_queue(cluster: Cluster) -> None:
    cluster.defer(key="long")
    cluster.defer("shop.mail")
    answer = taken("django-q2")
    assert {found.name: found.queue for found in Job.objects.all()} == {"shop.send": "long", mail.name: "mail"}
    assert answer["jobs"][1]["differences"] == ["queue mail, not default"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"chain": [("shop.mail", ("bert",))]}, "one of a chain"),
        ({"iter_count": 3}, "one of a chain"),
        ({"kwargs": {"whom": "x"}}, "whom"),
        ({"func": "shop.gone"}, "No job named"),
        ({"func": 7}, "No job named"),
        ({"kwargs": 7}, "mapping"),
    ],
)
def test_what_would_park_or_lose_its_rest_is_left(cluster: Cluster, options: dict[str, Any], reason: str) -> None:
    func = options.pop("func", "shop.send")
    cluster.defer(func, **options)
    reasons = left("django-q2")
    assert left("django-q2", "--apply") == reasons
    assert reason in "".join(reasons.values())
    assert (len(cluster.waiting()), Job.objects.count()) == (1, 0)


@pytest.mark.parametrize("lock", ["statement_timestamp() + interval '1 minute'", "NULL"])
def test_what_a_worker_has_stays(cluster: Cluster, lock: str) -> None:
    """Also what has failed there: it is pulled again when its lock is over."""
    cluster.write(BY_NAME, lock=lock)
    reasons = left("django-q2")
    assert left("django-q2", "--apply") == reasons == {"shop.send": "a worker there has it, or tries it again later"}


def test_what_a_worker_pulls_at_that_moment_is_not_taken(
    cluster: Cluster, db_connection: Callable[..., RawDatabase]
) -> None:
    """It changes the lock of the row that it has read."""
    cluster.write(BY_NAME)
    other = db_connection(autocommit=False)
    other.query("UPDATE django_q_ormq SET lock = lock + interval '1 minute' RETURNING id")
    assert left("django-q2", "--apply") == {"shop.send": taking.BUSY}
    other.commit()
    assert "a worker there" in left("django-q2", "--apply")["shop.send"]


def test_it_goes_back_as_it_was(cluster: Cluster) -> None:
    ids = [cluster.write(BY_NAME), cluster.defer(key="long")]
    before = cluster.raw.query("SELECT to_jsonb(t) FROM django_q_ormq AS t ORDER BY id")
    run = taken("django-q2")["run"]
    status, answer = undone(run, "--apply")
    assert (status, answer["returned"]) == (0, 2)
    assert cluster.raw.query("SELECT to_jsonb(t) FROM django_q_ormq AS t ORDER BY id") == before
    assert (cluster.waiting(), Job.objects.count()) == (ids, 0)


def test_whatever_dies_each_task_is_there_or_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    ids = [cluster.defer() for _ in range(5)]

    def check() -> None:
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert sorted([*noted, *cluster.waiting()]) == sorted(ids)
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))

    for _ in deaths(cluster.raw, lambda: imported("django-q2", "--apply")):
        check()
    assert cluster.waiting() == []


def test_whatever_dies_each_task_goes_back_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    ids = [cluster.defer() for _ in range(5)]
    run = taken("django-q2")["run"]
    for _ in deaths(cluster.raw, lambda: undone(run, "--apply")):
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert sorted([*noted, *cluster.waiting()]) == sorted(ids)
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
    assert cluster.waiting() == ids
