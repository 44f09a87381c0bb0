"""What a job that a limit holds back waits for, and what admission costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from django_pgjobs import Limit, register_many
from django_pgjobs import job as define
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution.admission import AdmissionScan
from django_pgjobs.models import Job, QueueState
from django_pgjobs.store import admitting, registering, steering
from django_pgjobs.store.admitting import LOCK_CLASS, Bounds, Terms
from django_pgjobs.store.database import Params, Rows, statement
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import run_job, run_jobs
from django_pgjobs.values.limit import read_job_limits
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests import jobs
from tests.db.limits_ground import PER_KEY, Connect, admit, admitted_ids, blocked, entered, terms
from tests.plugins.explaining import Explaining, analysed_while_empty, faults, nodes, pages
from tests.plugins.fix_db import (
    RawDatabase,
    alike,
    claim,
    job,
    register,
    wait_until,
)

# What a job waits for


def _declared(monkeypatch: pytest.MonkeyPatch, *limits: Limit) -> None:
    definition = registry.get("tests.jobs.succeeds")
    monkeypatch.setattr(definition, "limits", read_job_limits(list(limits)))
    monkeypatch.setattr(definition, "_is_limited", True)
    monkeypatch.setattr(definition, "_limit_rule", definition._checked_limit_rule())


NAMED = {"name": "tests.jobs.succeeds"}


def test_a_blocked_job_says_by_which_limit_and_by_whom(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    _declared(monkeypatch, Limit(8), Limit(1, rate=3, key=lambda value=None: str(value)))
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"concurrency": 9}}}
    running = blocked(7, "others", **NAMED)
    of_key = blocked(1, "a", **NAMED)
    waits = job(blocked(1, "a", **NAMED)[0])
    assert waits.blocked_by() == []
    assert entered(raw, terms(**_names())) == 9
    raw.query("UPDATE pgjobs_job SET hold = 'limited' WHERE id = %s", [waits.id])
    found = {blocker.kind: blocker for blocker in waits.blocked_by()}
    assert found["job"].words == "job tests.jobs.succeeds: 8 of 8 slots are taken"
    assert found["job"].job_ids == tuple(running[:5])
    assert found["key"].words == "key a: 1 of 1 slots are taken"
    assert found["key"].job_ids == tuple(of_key)
    assert set(found) == {"job", "key"}
    assert job(of_key[0]).blocked_by() == []
    raw.query("UPDATE pgjobs_job SET run_at = run_at + interval '1 hour' WHERE id = %s", [waits.id])
    assert waits.blocked_by() == [], "it is not due"


def test_a_callback_that_waits_blocks_nobody(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(1, key=lambda value=None: str(value)))
    cancelled, waits = blocked(2, "a", **NAMED)
    steering.cancel_jobs(raw, [cancelled], mode="ask", by="", reason="", with_callback=[NAMED["name"]])
    assert job(waits).blocked_by() == []
    assert f"#{cancelled}" not in str(job(waits).why())


def _names() -> dict[str, Any]:
    return {"name": "tests.jobs.succeeds", "job": "tests.jobs.succeeds", "names": ("tests.jobs.succeeds",)}


def test_a_job_that_waits_for_a_window_says_so(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(rate=2, per=30))
    first = blocked(3, **NAMED)
    assert entered(raw, terms(**_names(), of_job=Bounds(None, 2, 30.0))) == 2
    [blocker] = job(first[2]).blocked_by()
    assert blocker.words == "job tests.jobs.succeeds: 2 of 2 starts in 30 seconds are used up"
    assert blocker.job_ids == ()


def test_jobs_with_keys_and_limits_are_registered_together(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of its own changes nothing about a limit, for one job and for many."""
    _declared(monkeypatch, Limit(1, key=lambda value=None: f"v{value}"))
    definition = jobs.succeeds
    one = definition.using(unique="one").register(1)
    assert (one.state, one.limit_key, one.hold) == ("limited", "v1", "limited")
    many = register_many([definition.bind(2).using(unique="two"), definition.bind(3), jobs.sleeps.bind(0)])
    again = definition.register(4).register_again()
    found = [
        (each.state, each.limit_key) for each in Job.objects.filter(id__in=[one.pk, *many, again.pk]).order_by("id")
    ]
    assert found == [("limited", "v1"), ("limited", "v2"), ("limited", "v3"), ("ready", None), ("limited", "v4")]


def test_places_behind_those_that_one_turn_looks_at_have_their_turn(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue for each customer: limited jobs of the first customers do not keep the last one's jobs from admission."""
    monkeypatch.setattr("django_pgjobs.execution.admission.GROUPS", 2)
    for queue in ("a", "b", "c"):
        blocked(1, queue=queue)
    QueueState.objects.bulk_create([QueueState(kind="queue", name=queue) for queue in ("a", "b")])
    with registry.isolated():
        define(name="test.job")(jobs.succeeds.func)
        admission = AdmissionScan(lambda queue: True, get_conf())
        turns = [admission.turn(raw) for _ in range(4)]
    assert [(turn.jobs, turn.due, turn.again) for turn in turns] == [
        (0, True, True), (1, True, True), (0, True, True), (0, False, False),
    ]  # fmt: skip
    assert [job(each).queue for each in admitted_ids()] == ["c"]


def test_of_many_keys_it_is_known_after_a_round_that_none_is_due(raw: RawDatabase) -> None:
    """More than one turn looks at: a worker until idle would never end, and every worker look all night long."""
    for number in range(600):
        blocked(1, f"k{number}", delay_seconds=3600)
    with registry.isolated():
        define(name="test.job", limits=Limit(1, key=lambda value=None: "k"))(jobs.succeeds.func)
        admission = AdmissionScan(lambda queue: True, get_conf())
        turns = [admission.turn(raw) for _ in range(4)]
        assert [(turn.due, turn.again) for turn in turns] == [(True, True)] + 3 * [(False, False)]
        assert 3500 < (turns[-1].seconds or 0) <= 3600
        [due] = blocked(1, "k5")
        raw.query("UPDATE pgjobs_job SET hold = NULL WHERE limit_key = 'k5' AND id <> %s", [due])
        admission.begin_anew()
        assert all(admission.turn(raw).due for _ in range(6))
        raw.query("UPDATE pgjobs_job SET hold = 'limited' WHERE limit_key = 'k5' AND id <> %s", [due])
        assert sum(admission.turn(raw).jobs for _ in range(2)) == 1
        assert [admission.turn(raw).due for _ in range(5)][-1] is False


def test_run_jobs_is_held_up_by_no_limit(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(1, rate=1))
    ids = jobs.succeeds.register_many([(n,) for n in range(150)])
    later = jobs.succeeds.using(delay=60).register("later")
    assert run_jobs().succeeded == ids
    assert run_job(later).outcome == "succeeded"
    again = jobs.succeeds.using(delay=60).register("later")
    assert run_jobs(include_scheduled=True).succeeded == [again.pk]


# What it costs

BLOCKED = NewJob("test.job", "{}", limit_key="a", run_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_ten_thousand_blocked_jobs_cost_the_claim_nothing(db_connection: Connect, raw: RawDatabase) -> None:
    """They stand before all others in their queue: a claim touches as many pages as without them, by the same plan."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    found = []
    for held in (0, 10_000):
        with analysed_while_empty(raw):
            registering.register_jobs("default", [alike(BLOCKED, held)], limited=True)
            register(500)
            claim(explaining, 100)
            worker.rollback()
            assert faults(explaining.plan, jobs=100) == []
            kinds = [(node["Node Type"], node.get("Index Name")) for node in nodes(explaining.plan)]
            found.append((kinds, explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"]))
    assert found[0][0] == found[1][0]
    assert abs(found[0][1] - found[1][1]) < 20


@pytest.mark.parametrize("keys", [1, 100_000])
def test_a_turn_costs_its_bounds_and_not_what_is_blocked(db_connection: Connect, raw: RawDatabase, keys: int) -> None:
    """100,000 jobs of one key, or of as many: pages of a turn that lets in one, and of one that lets in nothing."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, queue, limit_key, hold) "
            "SELECT 'test.job', '{}', 'default', 'k' || n %% %s, 'limited' FROM generate_series(1, 100000) AS n",
            [keys],
        )
        bounds = {"of_key": Bounds(1), "of_job": Bounds(1)}
        for after in (None, ("k5", 0)):
            admit_explained(explaining, terms(**bounds, after=after))
            worker.rollback()
            assert faults(explaining.plan, jobs=500, vain=12) == []
        assert entered(raw, terms(**bounds)) == 1
        admit_explained(explaining, terms(**bounds))
        assert explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"] < 100


def test_a_turn_passes_what_an_old_snapshot_keeps_no_oftener_than_it_must(
    db_connection: Connect, raw: RawDatabase
) -> None:
    """Once to count admitted jobs, once in each key's count, once on the way to each key's first job."""
    dead, keys = 5000, 250
    pinned, worker = db_connection(autocommit=False), db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        given = terms(of_key=Bounds(1), of_job=Bounds(5000))
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, queue, limit_key, hold) "
            "SELECT 'test.job', '{}', 'default', 'k' || mod(n, %s), 'limited' FROM generate_series(1, %s) AS n",
            [keys, 2 * dead],
        )
        first, last = raw.query("SELECT min(id), min(id) + %s FROM pgjobs_job", [dead - 1])[0]
        admit_explained(explaining, given)
        worker.rollback()
        free = pages(explaining)
        pinned.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.query("SELECT count(*) FROM pgjobs_job")
        for change in (
            "hold = NULL",
            "claim_id = gen_random_uuid()",
            "outcome = 'succeeded', finished_at = statement_timestamp()",
        ):
            raw.query(f"UPDATE pgjobs_job SET {change} WHERE id BETWEEN %s AND %s", [first, last])
        admit_explained(explaining, given)
        assert pages(explaining) - free < 6.3 * dead
    pinned.rollback()


def admit_explained(explaining: Explaining, *given: Terms) -> None:
    assert admitting.admit_jobs(explaining, given, lanes=500, limit=500, lookahead=1000, notify=False) == []


# A worker's own connection


@pytest.fixture(params=[False, True], ids=["direct", "pooled"])
def worker_connection(request: pytest.FixtureRequest, raw: RawDatabase) -> Iterator[WorkerConnection]:
    db = WorkerConnection("default", "pgjobs test admit", statement_seconds=1)
    db.pooled = request.param
    yield db
    db.close()


LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database AND d.datname = current_database()"
    " WHERE locktype = 'advisory' AND classid = %s"
)


def test_a_turn_is_one_message_and_leaves_nothing_behind(worker_connection: WorkerConnection, raw: RawDatabase) -> None:
    """No transaction is open afterwards and no lock is held, whatever came of it."""
    blocked(2, "a")
    assert [each.jobs for each in admit(worker_connection, PER_KEY)] == [1]
    assert worker_connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert raw.value(LOCKS, [LOCK_CLASS]) == 0
    raw.query("BEGIN")
    raw.query("LOCK TABLE pgjobs_job")
    with pytest.raises(psycopg.errors.QueryCanceled):
        admit(worker_connection, PER_KEY)
    assert raw.value(LOCKS, [LOCK_CLASS]) == 0
    raw.query("ROLLBACK")
    assert worker_connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert [each.jobs for each in admit(worker_connection, PER_KEY)] == [0]


def test_a_turn_is_read_committed_whatever_the_role_says(worker_connection: WorkerConnection) -> None:
    """At a higher level the count would have the snapshot of the lock, and be late."""
    if worker_connection.pooled:
        worker_connection.connection.execute("SET default_transaction_isolation = 'serializable'")
    *_, [(count, isolation)] = worker_connection.fetch_together([("lock_queues", {"class": LOCK_CLASS, "keys": [1]})])
    assert (count, isolation) == (1, "read committed")


def test_a_worker_that_freezes_at_its_turn_holds_nobody_up(
    worker_connection: WorkerConnection, raw: RawDatabase
) -> None:
    """All is sent before any answer is read: who never reads it has let in, and holds nothing."""
    blocked(2, "a")
    sent: list[bytes] = []

    class Frozen(Exception):
        """It stands still from here on."""

    def freeze(statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        cursor = psycopg.ClientCursor(worker_connection.connection)
        text = ";".join(f"{cursor.mogrify(statement(name), params)}\n" for name, params in statements)
        sent.append(text.encode())
        raise Frozen

    db = SimpleNamespace(fetch_together=freeze)
    with pytest.raises(Frozen):
        admit(db, PER_KEY)
    worker_connection.connection.pgconn.send_query(sent[0])
    worker_connection.connection.pgconn.flush()
    wait_until(lambda: len(admitted_ids()) == 1, 10, "it has let in, though nobody read the answer")
    wait_until(lambda: raw.value(LOCKS, [LOCK_CLASS]) == 0, 10, "the lock is free")
    assert entered(raw, PER_KEY) == 0


def test_the_page_of_a_blocked_job_says_by_whom(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    _declared(monkeypatch, Limit(1))
    running, waits = blocked(2, **NAMED)
    assert entered(raw, terms(**_names(), of_job=Bounds(1))) == 1
    user = get_user_model().objects.create_superuser("limits", "", "x")
    try:
        client.force_login(user)
        page = client.get(reverse("admin:pgjobs_job_change", args=[waits])).content.decode()
        assert "Blocked by" in page
        assert "1 of 1 slots are taken" in page
        assert f'href="/admin/pgjobs/job/{running}/change/"' in page
        other = client.get(reverse("admin:pgjobs_job_change", args=[running])).content.decode()
        assert "slots are taken" not in other
    finally:
        user.delete()
