"""``pgjobs import``: what waits in another queue of the database comes over, each job once, and goes back."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgjobs import sql
from django_pgjobs.importing import taking
from django_pgjobs.importing.sources import BEHIND, SOURCES
from django_pgjobs.importing.taking import ImportTally
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.store import finalising, memos
from tests.db.importing_ground import (
    DjQueue,
    Ox,
    Procrastinate,
    TasksDb,
    deaths,
    mail,
    once,
    rival_tables,
    rivals,
    send,
)
from tests.plugins.explaining import numbered
from tests.plugins.fix_db import AUTHOR, Background, Claimed, RawDatabase, claim
from tests.plugins.shell import pgjobs

__all__ = ["rival_tables", "rivals"]

pytestmark = pytest.mark.usefixtures("rivals")

Queue = Procrastinate


@pytest.fixture(params=[Procrastinate, TasksDb, Ox, DjQueue])
def queue(request: pytest.FixtureRequest, raw: RawDatabase) -> Queue:
    found: Queue = request.param(raw)
    return found


@pytest.fixture
def procrastinate(raw: RawDatabase) -> Procrastinate:
    return Procrastinate(raw)


def imported(source: str, *options: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = pgjobs("import", source, "--format", "json", *options)
    return status, json.loads(out)


def taken(source: str) -> dict[str, Any]:
    status, answer = imported(source, "--apply")
    assert (status, answer["left"]) == (0, 0)
    return answer


def left(source: str, *options: str) -> dict[str, str]:
    """Return why jobs are left: name there → reason."""
    status, answer = imported(source, *options)
    assert status == 1
    return {each["name"]: each["reason"] for each in answer["jobs"] if each["reason"]}


@pytest.mark.parametrize("verb", ["lock", "read", "take", "return"])
@pytest.mark.parametrize("source", ["procrastinate", "tasks_db", "ox", "dj_queue"])
def test_a_statement_prepares_on_the_tables_of_its_source(raw: RawDatabase, verb: str, source: str) -> None:
    result = raw.raw.pgconn.prepare(b"", numbered(sql.statement(f"{verb}_{source}")).encode())
    assert result.error_message == b""


def test_a_job_is_registered_as_the_code_here_would_do_it(queue: Queue) -> None:
    there = queue.defer(args={"to": "anna", "copies": 3}, priority=7, start="2031-05-06 07:08:09.123456+00")
    answer = taken(queue.source)
    [job] = Job.objects.all()
    assert (job.name, job.payload["kwargs"], job.priority, job.max_attempts, job.queue) == (
        "shop.send", {"to": "anna", "copies": 3}, 7, 4, "default",
    )  # fmt: skip
    assert job.run_at.isoformat() == "2031-05-06T07:08:09.123456+00:00"
    assert job.state == "ready"
    assert answer["jobs"] == [
        {"id": there, "name": "shop.send", "job_id": job.pk, "differences": [], "reason": ""},
    ]
    [note] = ImportNote.objects.all()
    assert (note.source, note.source_id, note.job_id, note.run) == (queue.source, there, job.pk, answer["run"])
    assert queue.waiting() == []


def test_at_once_means_at_once(queue: Queue, raw: RawDatabase) -> None:
    queue.defer()
    taken(queue.source)
    assert len(claim(raw).ids) == 1


def test_positional_arguments_come_too(raw: RawDatabase) -> None:
    TasksDb(raw).defer(args={}, positional=["anna", 2])
    taken("django-tasks-db")
    assert Job.objects.get().payload["args"] == ["anna", 2]


def test_the_history_there_says_that_it_was_cancelled(procrastinate: Procrastinate, raw: RawDatabase) -> None:
    there = procrastinate.defer()
    taken("procrastinate")
    events = raw.query("SELECT type::text FROM procrastinate_events WHERE job_id = %s ORDER BY id", [int(there)])
    assert events == [("deferred",), ("cancelled",)]


def test_without_apply_nothing_is_written(queue: Queue) -> None:
    queue.defer()
    queue.defer("shop.gone")
    before = queue.rows()
    status, answer = imported(queue.source)
    assert (status, answer["applied"], answer["run"], answer["taken"], answer["left"]) == (1, False, None, 1, 1)
    assert imported(queue.source, "--dry-run")[1] == answer
    assert (queue.rows(), Job.objects.count(), ImportNote.objects.count()) == (before, 0, 0)


def test_what_would_park_stays_there_and_is_named(queue: Queue) -> None:
    queue.defer("shop.gone")
    queue.defer("shop.mail", {"whom": "anna"})
    queue.defer("pgjobs.undo", {})
    good = queue.defer()
    reasons = left(queue.source)
    assert left(queue.source, "--apply") == reasons
    assert "No job named 'shop.gone'" in reasons["shop.gone"]
    assert "whom" in reasons["shop.mail"]
    assert "own jobs" in reasons["pgjobs.undo"]
    assert Job.objects.get().name == "shop.send"
    assert len(queue.waiting()) == 3
    assert good not in queue.waiting()


def test_a_queue_that_is_not_allowed_is_a_reason(queue: Queue, settings: Any) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "QUEUES": ["default", "mail"]}
    queue.defer(queue="attic")
    assert "attic" in left(queue.source, "--apply")["shop.send"]


def test_a_difference_is_told(procrastinate: Procrastinate, raw: RawDatabase) -> None:
    procrastinate.defer("shop.mail", priority=500)
    retried = procrastinate.defer()
    raw.query("UPDATE procrastinate_jobs SET attempts = 3 WHERE id = %s", [int(retried)])
    answer = taken("procrastinate")
    assert answer["different"] == 2
    differences = {each["name"]: each["differences"] for each in answer["jobs"]}
    assert differences == {
        "shop.mail": ["queue mail, not default", "priority 100, not 500"],
        "shop.send": ["1 attempts left, after 3 there"],
    }
    assert Job.objects.get(name="shop.mail").queue == mail.queue == "mail"
    assert Job.objects.get(name="shop.send").max_attempts == 1


def test_a_start_that_no_calendar_has_is_a_reason(queue: Queue) -> None:
    queue.defer(start="-infinity")
    queue.defer("shop.mail")
    assert list(left(queue.source, "--apply")) == ["shop.send"]
    assert Job.objects.get().name == "shop.mail"


def test_a_queueing_lock_is_a_key_until_the_start(procrastinate: Procrastinate) -> None:
    procrastinate.defer(queueing_lock="report")
    taken("procrastinate")
    job = Job.objects.get()
    assert (job.key, job.key_scope) == ("report", "until_started")


def test_a_key_that_is_taken_here_keeps_the_job_there(procrastinate: Procrastinate) -> None:
    send.using(unique="report").register("bert")
    mail.using(queue="default", unique="letters").register("bert")
    once.register("bert")
    procrastinate.defer(queueing_lock="report")
    procrastinate.defer("shop.send", {"to": "carl"}, queueing_lock="letters")
    procrastinate.defer("shop.once", {"to": "bert"})
    procrastinate.defer("shop.once", {"to": "dora"})
    _, answer = imported("procrastinate", "--apply")
    assert (answer["taken"], answer["left"]) == (1, 3)
    assert all("key" in each["reason"] for each in answer["jobs"] if each["reason"])
    assert len(procrastinate.waiting()) == 3


def test_jobs_of_a_lock_keep_their_order(procrastinate: Procrastinate) -> None:
    for number in range(3):
        procrastinate.defer(args={"to": str(number)}, lock="customer 7")
    taken("procrastinate")
    states = [(job.payload["kwargs"]["to"], job.sequence, job.state) for job in Job.objects.order_by("pk")]
    assert states == [("0", "customer 7", "ready"), ("1", "customer 7", "blocked"), ("2", "customer 7", "blocked")]


def test_jobs_of_dj_queue_free_the_slots_of_those_that_run_there(raw: RawDatabase) -> None:
    """Two that hold slots, one that waits for one and one that runs: its slot stays."""
    queue = DjQueue(raw)
    raw.query(
        """INSERT INTO dj_queue_semaphores (key, value, active_count, "limit", expires_at, created_at, updated_at)"""
        " SELECT 'report', 0, 3, 3, statement_timestamp(), statement_timestamp(), statement_timestamp()"
    )
    queue.defer(concurrency="report")
    assert queue.fetch()
    for state in ("ready", "ready", "blocked"):
        queue.defer(concurrency="report", state=state)
    answer = taken("dj-queue")
    assert (answer["taken"], answer["jobs"][0]["differences"]) == (3, ["without its concurrency key 'report'"])
    assert raw.query("SELECT value, active_count FROM dj_queue_semaphores") == [(2, 1)]
    assert raw.value("SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NULL") == 1
    assert undone(answer["run"], "--apply")[1]["returned"] == 3
    assert raw.value("SELECT count(*) FROM dj_queue_scheduled_executions WHERE scheduled_at <= now()") == 3


def test_a_job_of_dj_queue_that_is_tried_again_there_is_told(raw: RawDatabase) -> None:
    queue = DjQueue(raw)
    for retry in ("statement_timestamp()", "NULL"):
        queue.defer()
        raw.query(
            "WITH gone AS (DELETE FROM dj_queue_ready_executions RETURNING job_id) INSERT INTO"
            " dj_queue_failed_executions (job_id, exception_class, message, traceback, retry_at, created_at)"
            f" SELECT job_id, 'ValueError', '', '', {retry}, statement_timestamp() FROM gone"
        )
    reasons = left("dj-queue")
    assert left("dj-queue", "--apply") == reasons == {"shop.send": "it has failed there, and is tried again there"}


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_lock_goes_by_priority_first_as_there(
    procrastinate: Procrastinate, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """One of a lower priority waits there for the next run, if those before it are not in its batch."""
    monkeypatch.setattr(taking, "BATCH", size)
    for name, priority in (("second", 0), ("first", 9), ("third", 0), ("last", -1)):
        procrastinate.defer(args={"to": name}, lock="customer 7", priority=priority)
    while procrastinate.waiting():
        imported("procrastinate", "--apply")
    order = [job.payload["kwargs"]["to"] for job in Job.objects.order_by("pk")]
    assert order == ["first", "second", "third", "last"]


def test_a_job_of_a_lock_does_not_come_before_one_that_stays(
    procrastinate: Procrastinate, db_connection: Callable[..., RawDatabase]
) -> None:
    """One that runs there, one that its worker has just locked, and one that no code knows here."""
    procrastinate.defer(args={"to": "runs"}, lock="customer 7")
    procrastinate.fetch()
    procrastinate.defer(lock="customer 7")
    procrastinate.defer(args={"to": "locked"}, lock="customer 8")
    other = Procrastinate(db_connection(autocommit=False))
    other.fetch()
    procrastinate.defer(lock="customer 8")
    procrastinate.defer("shop.gone", lock="customer 9")
    procrastinate.defer(lock="customer 9")
    procrastinate.defer(args={"to": "free"}, lock="customer 10")
    _, answer = imported("procrastinate", "--apply")
    other.raw.rollback()
    assert (answer["taken"], answer["left"]) == (1, 5)
    assert [each["reason"] for each in answer["jobs"]].count(BEHIND) == 3
    assert Job.objects.get().payload["kwargs"] == {"to": "free"}


def test_a_row_that_its_worker_has_is_not_taken(queue: Queue) -> None:
    queue.defer()
    assert queue.fetch() is not None
    assert taken(queue.source)["taken"] == 0


def test_a_row_that_is_locked_there_is_told(queue: Queue, db_connection: Callable[..., RawDatabase]) -> None:
    queue.defer()
    other = type(queue)(db_connection(autocommit=False))
    other.fetch()
    assert left(queue.source, "--apply") == {"shop.send": taking.BUSY}
    other.raw.rollback()
    assert taken(queue.source)["taken"] == 1


def test_what_was_imported_before_is_not_taken_again(queue: Queue) -> None:
    """As when the other queue is restored from a backup."""
    there = queue.defer()
    kept = queue.rows()
    taken(queue.source)
    [job] = Job.objects.all()
    queue.restore(kept[0][0])
    assert queue.waiting() == [there]
    assert left(queue.source, "--apply") == {"shop.send": f"was imported before, as job {job.pk}"}
    assert Job.objects.count() == 1


def test_more_than_one_batch_comes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BATCH", 3)
    names = ["shop.send", "shop.gone"]
    for number in range(10):
        queue.defer(names[number % 2])
    _, answer = imported(queue.source, "--apply")
    assert (answer["taken"], answer["left"], len(queue.waiting())) == (5, 5, 5)
    assert Job.objects.count() == ImportNote.objects.count() == 5


def test_several_importers_and_the_worker_there_take_each_job_once(
    queue: Queue, background: Background, db_connection: Callable[..., RawDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 5)
    deferred = {queue.defer() for _ in range(120)}
    done = threading.Event()
    theirs: list[str] = []

    def work() -> None:
        worker = type(queue)(db_connection())
        while not done.is_set() and (found := worker.fetch()):
            theirs.append(str(found))

    def produce() -> list[str]:
        producer = type(queue)(db_connection())
        return [producer.defer() for _ in range(40)]

    def run() -> ImportTally:
        return taking.take(SOURCES[queue.source], "default", apply=True, report=lambda fates: None)

    worker, producer = background(work), background(produce)
    importers = [background(run) for _ in range(3)]
    for each in importers:
        each.result()
    deferred.update(producer.result())
    done.set()
    worker.result()
    run()
    ours = list(ImportNote.objects.values_list("source_id", flat=True))
    assert Counter(ours + theirs) == Counter(deferred)
    assert Job.objects.count() == len(ours) > 0


# Deaths


def test_whatever_dies_each_job_comes_once(queue: Queue, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    deferred: set[str] = set()

    def action() -> None:
        deferred.update(queue.defer() for _ in range(3))
        imported(queue.source, "--apply")

    for _ in deaths(raw, action):
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert sorted([*noted, *queue.waiting()]) == sorted(deferred)
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
    assert queue.waiting() == []


def test_the_check_above_sees_a_batch_that_is_not_one_transaction(
    queue: Queue, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "at_read_committed", lambda using: nullcontext())
    with pytest.raises(AssertionError):
        test_whatever_dies_each_job_comes_once(queue, raw, monkeypatch)


def test_whatever_dies_each_job_goes_back_once(queue: Queue, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    deferred = {queue.defer() for _ in range(5)}
    run = taken(queue.source)["run"]
    for _ in deaths(raw, lambda: pgjobs("import", "--undo", run, "--apply")):
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert sorted([*noted, *queue.waiting()]) == sorted(deferred)
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
    assert sorted(queue.waiting()) == sorted(deferred)


# Undo


def undone(run: str, *options: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = pgjobs("import", "--undo", run, "--format", "json", *options)
    return status, json.loads(out)


def test_what_nobody_has_started_goes_back_as_it_was(queue: Queue) -> None:
    queue.defer(args={"to": "anna", "copies": 2}, priority=9, start="2031-05-06 07:08:09+00")
    queue.defer()
    before = queue.rows()
    run = taken(queue.source)["run"]
    status, answer = undone(run)
    assert (status, answer["applied"], answer["returned"]) == (0, False, 2)
    assert Job.objects.count() == 2
    status, answer = undone(run, "--apply")
    assert (status, answer["returned"], answer["kept"]) == (0, 2, {})
    assert queue.rows() == before
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)
    assert taken(queue.source)["taken"] == 2


HAVE_STARTED: dict[str, Callable[[RawDatabase, Claimed], object]] = {
    "running": lambda raw, claimed: None,
    "snoozed": lambda raw, claimed: finalising.finalise_snooze(raw, claimed.ends(delay=60.0)),
    "suspended": lambda raw, claimed: memos.suspend_jobs(raw, claimed.ends(columns=SLEEP), AUTHOR),
    "released": lambda raw, claimed: finalising.release_jobs(raw, claimed.ends(seconds=1.0), AUTHOR),
    "step": lambda raw, claimed: finalising.next_step(raw, claimed.ends(columns=STEP), AUTHOR),
}

SLEEP = '{"memo": "nap", "kind": "sleep", "event": null, "delay": 60, "failures": 0, "progressed": true}'
STEP = '{"name": "shop.mail", "queue": "default", "max_attempts": 5, "payload": {}}'


@pytest.mark.parametrize("how", HAVE_STARTED)
def test_what_has_started_stays_here(queue: Queue, raw: RawDatabase, how: str) -> None:
    """Also what is ready again and has no attempt that counts."""
    queue.defer()
    queue.defer()
    run = taken(queue.source)["run"]
    claimed = claim(raw)
    HAVE_STARTED[how](raw, claimed)
    status, answer = undone(run, "--apply")
    kept = "running" if how == "running" else "ready, started or needed"
    assert (status, answer["returned"], answer["kept"]) == (1, 1, {kept: 1})
    assert list(Job.objects.values_list("pk", flat=True)) == claimed.ids
    assert len(queue.waiting()) == 1


def test_a_run_that_is_not_known_is_an_error(procrastinate: Procrastinate) -> None:
    procrastinate.defer()
    run = taken("procrastinate")["run"]
    with pytest.raises(CommandError, match=r"^Nothing here is of a run 'typo'"):
        undone("typo", "--apply")
    assert undone(run, "--apply")[0] == 0
    with pytest.raises(CommandError, match="all of it went back"):
        undone(run, "--apply")


def test_a_job_that_another_needs_stays_here(queue: Queue) -> None:
    queue.defer()
    run = taken(queue.source)["run"]
    mail.using(after=Job.objects.get()).register("bert")
    assert undone(run, "--apply") == (1, {**undone(run)[1], "applied": True})
    assert queue.waiting() == []


def test_the_source_may_refuse(procrastinate: Procrastinate) -> None:
    procrastinate.defer(queueing_lock="report")
    run = taken("procrastinate")["run"]
    procrastinate.defer(queueing_lock="report")
    status, answer = undone(run, "--apply")
    assert (status, answer["returned"]) == (1, 0)
    assert answer["kept"] == {"procrastinate does not take it back": 1}
    assert Job.objects.count() == 1


def test_the_turn_in_a_sequence_goes_on(procrastinate: Procrastinate, raw: RawDatabase) -> None:
    procrastinate.defer(lock="customer 7")
    run = taken("procrastinate")["run"]
    send.using(sequence="customer 7").register("bert")
    assert Job.objects.get(payload__args=["bert"]).state == "blocked"
    assert undone(run, "--apply")[0] == 0
    assert Job.objects.get().state == "ready"
    assert len(claim(raw).ids) == 1


# The shell


def test_the_report_has_a_line_per_job(procrastinate: Procrastinate) -> None:
    there = procrastinate.defer()
    gone = procrastinate.defer("shop.gone")
    status, out, _ = pgjobs("import", "procrastinate")
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == f"  {there} shop.send"
    assert lines[1].startswith(f"  left {gone} shop.gone: No job named 'shop.gone'")
    assert lines[2] == "import: 1 would be taken, 0 of them with a difference, 1 left."
    assert lines[3] == "Nothing was written. To take them: manage.py pgjobs import procrastinate --apply"
    status, out, _ = pgjobs("import", "procrastinate", "--apply")
    [note] = ImportNote.objects.all()
    assert out.splitlines()[0] == f"  {there} shop.send -> #{note.job_id}"
    assert out.splitlines()[-1] == f"To undo it: manage.py pgjobs import --undo {note.run} --apply"
    status, out, _ = pgjobs("import", "--undo", note.run, "--apply")
    assert (status, out.splitlines()) == (0, [f"  #{note.job_id} -> {there}", "import: 1 returned, 0 stay here."])


@pytest.mark.parametrize("arguments", [(), ("procrastinate", "--undo", "x"), ("procrastinate", "--apply", "--dry-run")])
def test_wrong_usage_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as raised:
        pgjobs("import", *arguments)
    assert raised.value.returncode in (1, 2)


def test_a_database_without_that_queue_says_so() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = public")
    with pytest.raises(CommandError, match=r"^This database has no such queue \(relation .* does not exist\)\.$"):
        pgjobs("import", "django-tasks-db")
    connection.close()


# Under load


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_come_once_while_producers_and_workers_continue(
    procrastinate: Procrastinate, raw: RawDatabase, background: Background, db_connection: Callable[..., RawDatabase]
) -> None:
    done = threading.Event()

    def produce() -> int:
        producer, count = Procrastinate(db_connection()), 0
        while not done.is_set():
            producer.defer()
            count += 1
        return count

    def work() -> list[str]:
        worker = Procrastinate(db_connection())
        return [str(found) for _ in iter(lambda: done.is_set(), True) if (found := worker.fetch())]

    raw.query(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
        """ SELECT 'default', 'shop.send', '{"to": "anna"}' FROM generate_series(1, 100000)"""
    )
    producing, working = background(produce), background(work)
    while ImportNote.objects.count() < 100_000:
        run_import()
    done.set()
    produced, theirs = producing.result(), working.result()
    run_import()
    noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
    everything = [row[0] for row in raw.query("SELECT id::text FROM procrastinate_jobs")]
    assert len(everything) == 100_000 + produced
    assert sorted([*noted, *theirs]) == sorted(everything)
    assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
    assert len(set(noted.values())) == len(noted)


def run_import() -> ImportTally:
    return taking.take(SOURCES["procrastinate"], "default", apply=True, report=lambda fates: None)
