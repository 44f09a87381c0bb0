"""A row whose instants Python has no ``datetime`` for: lists, pages and duties work, and show a bound instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import DataError, connection, transaction
from django.db.models import F, Max, Min, OrderBy
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgjobs.clock import EARLIEST, LATEST
from django_pgjobs.conf import get_conf
from django_pgjobs.execution.admission import AdmissionScan
from django_pgjobs.inspection import figures
from django_pgjobs.maintenance import audit
from django_pgjobs.models import Attempt, Job
from django_pgjobs.presentation import job_list
from django_pgjobs.queues import Queue
from django_pgjobs.store import claiming, explaining
from django_pgjobs.store.database import on
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.plugins.fix_db import RawDatabase, claim, from_the_beginning, job, register
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

INSTANTS = ("infinity", "-infinity", "17871-03-01", "0044-03-15 BC")


def bound(instant: str) -> Any:
    return EARLIEST if instant in ("-infinity", "0044-03-15 BC") else LATEST


@pytest.fixture
def admin() -> Iterator[Client]:
    User.objects.filter(username="root").delete()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    yield client
    User.objects.filter(username="root").delete()


@pytest.fixture
def worker() -> Iterator[WorkerConnection]:
    """What a supervisor asks by, with its loaders."""
    found = WorkerConnection("default", "test", statement_seconds=30)
    yield found
    found.close()


@pytest.fixture(params=INSTANTS)
def instant(request: Any, raw: RawDatabase) -> str:
    """Between two ordinary jobs there is one that runs at an instant that SQL wrote."""
    ids = register(3)
    raw.query(
        "UPDATE pgjobs_job SET run_at = %s, created_at = %s WHERE id = %s", [request.param, request.param, ids[1]]
    )
    return str(request.param)


def test_the_orm_reads_it_at_a_bound_and_the_others_as_they_are(instant: str) -> None:
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    jobs = {each.pk: each for each in Job.objects.all()}
    assert sorted(jobs) == ids
    assert jobs[ids[1]].run_at == jobs[ids[1]].created_at == bound(instant)
    assert EARLIEST < jobs[ids[0]].run_at < LATEST
    odd = Job.objects.get(pk=ids[1])
    odd.refresh_from_db()
    odd.refresh_from_db(fields=["run_at"])
    assert (odd.run_at, odd.finished_at) == (bound(instant), None)
    assert Job.objects.filter(pk=ids[1]).values_list("run_at", flat=True).first() == bound(instant)
    assert [each.pk for each in Job.objects.order_by("pk").iterator()] == ids
    assert bound(instant) in Job.objects.aggregate(low=Min("run_at"), high=Max("run_at")).values()
    both = Job.objects.filter(pk=ids[0]).union(Job.objects.filter(pk=ids[1]))
    assert {each.run_at for each in both} == {jobs[ids[0]].run_at, bound(instant)}


def test_the_caller_s_transaction_stays_usable(instant: str) -> None:
    with transaction.atomic():
        assert len(Job.objects.all()) == 3
        assert Job.objects.count() == 3


def test_an_error_of_the_server_is_no_reason_to_ask_again() -> None:
    register()
    with CaptureQueriesContext(connection) as asked, pytest.raises(DataError):
        list(Job.objects.extra(where=["1 / (priority - priority) = 1"]))
    assert len(asked) == 1


def test_a_list_in_the_order_of_an_index_is_still_read_along_it(instant: str) -> None:
    """The select list has the bounds; conditions that an index must answer do not."""
    found = Job.objects.order_by(OrderBy(F("run_at"))).filter(queue="default", priority=0, state="ready")
    list(found)
    assert 'ORDER BY "pgjobs_job"."run_at" ASC' in str(found.query)
    clamped = 'CASE WHEN "pgjobs_job"."run_at" < '
    assert clamped in str(found.query)
    assert clamped not in str(Job.objects.all().query)


def test_the_shell_lists_shows_explains_and_counts_it(instant: str) -> None:
    odd = Job.objects.order_by("pk")[1].pk
    for state in ("ready", "scheduled"):
        status, out, _ = pgjobs("list", "--state", state, "--format", "json")
        late = bound(instant) == EARLIEST
        assert status == 0
        assert (odd in [row["id"] for row in json.loads(out)]) == (late == (state == "ready"))
    assert pgjobs("list")[0] == pgjobs("show", odd)[0] == pgjobs("why", odd)[0] == pgjobs("stats")[0] == 0
    status, out, _ = pgjobs("check", "--format", "json")
    assert "database" not in {problem["code"] for problem in json.loads(out)["problems"]}
    assert str(job(odd).why())
    assert {each.pk for each in job_list.in_order(Job.objects.all(), [odd])} == {odd}


def test_the_admin_lists_and_shows_it(instant: str, admin: Client) -> None:
    odd = Job.objects.order_by("pk")[1].pk
    for page in ("", "?state=ready", "?state=scheduled", f"?q={odd}"):
        assert admin.get(reverse("admin:pgjobs_job_changelist") + page).status_code == 200
    assert admin.get(reverse("admin:pgjobs_job_change", args=[odd])).status_code == 200


def test_a_queue_is_listed_though_many_lie_beyond(raw: RawDatabase) -> None:
    ids = register(25)
    raw.query("UPDATE pgjobs_job SET run_at = '20000-01-01'")
    assert [each.pk for each in Queue("default").jobs()] == ids


def test_the_leader_s_audit_walks_past_it(
    instant: str, raw: RawDatabase, worker: WorkerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SLICES", (2,))
    raw.query("UPDATE pgjobs_job SET run_at = %s", [instant])
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [ids[2]])
    walk = audit.Audit()
    assert [walk(worker), walk(worker), walk(worker)] == [0, 1, 0]


def test_figures_and_the_look_at_what_is_due_next_survive_it(instant: str, worker: WorkerConnection) -> None:
    [queue] = figures.measure(worker, silent_seconds=20, stale_seconds=60)["queues"]
    late = bound(instant) == EARLIEST
    assert (queue["ready"], queue["scheduled"]) == ((3, 0) if late else (2, 1))
    assert json.dumps(queue, allow_nan=False)
    due = claiming.next_due(worker, [("default", 0)])
    assert due is None if late else due is not None and 0 < due < 1e12


def test_one_that_is_due_is_claimed_and_one_that_never_is_keeps_nobody_waiting(
    instant: str, worker: WorkerConnection
) -> None:
    late = bound(instant) == EARLIEST
    taken = claim(worker, 10, from_the_beginning(("default", 0)))
    assert len(taken.ids) == (3 if late else 2)
    assert {each.run_at == EARLIEST for each in taken.jobs} == ({True, False} if late else {False})


def test_limits_let_in_what_is_due_beside_it(raw: RawDatabase, worker: WorkerConnection) -> None:
    """For jobs that wait forever, the admitter never receives an instant beyond what it can wait for."""
    ids = register(2, limit_key="")
    raw.query("UPDATE pgjobs_job SET name = 'tests.jobs.succeeds'")
    raw.query("UPDATE pgjobs_job SET run_at = 'infinity' WHERE id = %s", [ids[0]])
    turn = AdmissionScan(lambda queue: True, get_conf()).turn(worker)
    assert turn.jobs == 1
    assert turn.seconds is None or 0 < turn.seconds < 1e12
    assert job(ids[1]).hold is None


def test_every_statement_of_ours_reads_it_at_the_bound_that_it_is_beyond(
    instant: str, worker: WorkerConnection
) -> None:
    """As text on Django's connection and in binary on a worker's."""
    odd = Job.objects.order_by("pk")[1].pk
    for db in (on("default"), worker):
        facts = explaining.read_why(db, odd, silent_seconds=20, stale_seconds=60)
        assert facts is not None
        assert (facts.run_at, facts.finished_at) == (bound(instant), None)


def test_the_history_of_a_job_reads_its_instants_and_its_own_at_a_bound(instant: str, raw: RawDatabase) -> None:
    """Whichever way the ORM is asked for them."""
    jobs = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    for number, one in enumerate(jobs, 1):
        Attempt.objects.create(job_id=one, claim_id=uuid4(), number=number, cause="failed")
    raw.query("UPDATE pgjobs_attempt SET started_at = %s, ended_at = %s WHERE number = 2", [instant, instant])
    of_the_job = list(Attempt.objects.order_by("number").values_list("job__run_at", flat=True))
    assert (len(of_the_job), of_the_job[1]) == (3, bound(instant))
    assert EARLIEST < of_the_job[0] < LATEST
    assert Attempt.objects.values("job__run_at", "number").get(number=2)["job__run_at"] == bound(instant)
    odd = Job.objects.get(pk=jobs[1]).attempts.select_related("job").get()
    assert odd.job.run_at == odd.started_at == odd.ended_at == bound(instant)
    assert [each.number for each in Attempt.objects.order_by("number").iterator()] == [1, 2, 3]
    assert bound(instant) in Attempt.objects.aggregate(low=Min("ended_at"), high=Max("ended_at")).values()
