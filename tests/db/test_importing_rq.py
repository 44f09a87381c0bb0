"""``pgjobs import rq``: what RQ keeps beside an id, and producers that enqueue the same id while it is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from rq import Callback, Queue
from rq.job import Dependency

from django_pgjobs.importing import brokers
from django_pgjobs.importing.brokers import CHANGED, OURS
from django_pgjobs.importing.judging import judge
from django_pgjobs.importing.moves import MOVE
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from tests.db.importing_brokers_ground import Rq, Run, killings, meanwhile, reasons, redis_url, rq, run_import
from tests.db.importing_ground import mail

__all__ = ["redis_url", "rq", "run_import"]

pytestmark = pytest.mark.usefixtures("committed")

INSERT, WITHDRAW = "INSERT INTO pgjobs_job ", "DELETE FROM pgjobs_job "


def test_queues_of_rq_are_queues_here(rq: Rq, run_import: Run) -> None:
    Queue("high", connection=rq.client).enqueue("shop.send", "anna")
    rq.defer("shop.mail")
    answer = run_import("rq", "--apply")
    assert {job.name: job.queue for job in Job.objects.all()} == {"shop.send": "high", mail.name: "mail"}
    assert [each["differences"] for each in answer["jobs"]] == [["queue mail, not default"], []]


def test_jobs_of_rq_that_depend_on_others_stay(rq: Rq, run_import: Run) -> None:
    first = rq.queue.enqueue("shop.send", "anna")
    rq.queue.enqueue("shop.mail", "bert", depends_on=Dependency([first]))
    answer = run_import("rq", "--apply")
    assert reasons(answer) == {
        "shop.send": "another job waits for it there", "shop.mail": "it waits for another job there",
    }  # fmt: skip


def test_what_is_lost_of_a_job_of_rq_is_told(rq: Rq, run_import: Run) -> None:
    rq.queue.enqueue("shop.send", "anna", on_success=Callback("shop.mail"), meta={"a": 1}, ttl=500)
    answer = run_import("rq", "--apply")
    assert answer["jobs"][0]["differences"] == ["without its callbacks", "without its meta", "without its ttl"]


def test_json_of_rq_is_read(rq: Rq, run_import: Run) -> None:
    Queue(connection=rq.client, serializer="rq.serializers.JSONSerializer").enqueue("shop.send", "anna")
    assert run_import("rq", "--apply")["taken"] == 1


def test_what_a_scheduler_of_rq_may_have_read_is_not_taken(rq: Rq, run_import: Run) -> None:
    rq.queue.enqueue_in(timedelta(seconds=5), "shop.send", "anna")
    rq.client.set("rq:scheduler-lock:default", "7")
    assert "is due" in reasons(run_import("rq", "--apply"))["shop.send"]
    rq.client.delete("rq:scheduler-lock:default")
    assert run_import("rq", "--apply")["taken"] == 1


def test_a_job_of_rq_without_its_hash_is_told(rq: Rq, run_import: Run) -> None:
    rq.client.delete(f"rq:job:{rq.defer()}")
    assert reasons(run_import("rq", "--apply")) == {"": "its hash is gone"}


def test_a_foreign_member_of_rq_stops_no_import(rq: Rq, run_import: Run) -> None:
    for member in (b"\xff", b"a\0b", b"x" * 3000):
        rq.client.rpush(rq.queue.key, member)
        rq.client.hset(b"rq:job:" + member, mapping=rq.client.hgetall(f"rq:job:{rq.defer()}"))
    rq.client.rpush(rq.queue.key, "wrong")
    rq.client.set("rq:job:wrong", "no hash")
    rq.client.sadd("rq:queues", b"rq:queue:\xff", "rq:queue:text", "rq:queue:a\0b")
    rq.client.set("rq:queue:text", "no list")
    Queue("a\0b", connection=rq.client).enqueue("shop.send", "anna")
    answer = run_import("rq", "--apply")
    assert answer["taken"] == Job.objects.count() == 3
    assert Counter(each["reason"] for each in answer["jobs"] if each["reason"]) == {
        "its id cannot be stored": 3, "its hash is gone": 1, "the name of its key cannot be stored": 1,
    }  # fmt: skip


def test_a_process_that_deletes_late_leaves_the_hash_of_what_went_back(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = []
    settle = brokers._settle
    monkeypatch.setattr(brokers, "_settle", lambda *given: late.append(given))
    there = rq.defer()
    run = run_import("rq", "--apply")["run"]
    monkeypatch.setattr(brokers, "_settle", settle)
    assert run_import("--undo", run, "--apply")["returned"] == 1
    for given in late:
        settle(*given)
    assert rq.queue.fetch_job(there).args == ("anna",)


# Producers at the same id


def again(rq: Rq, there: str) -> None:
    """Enqueue another job under this id, as a producer does."""
    rq.queue.enqueue("shop.send", "again", job_id=there)


def args_of(rq: Rq, there: str) -> Any:
    found = rq.queue.fetch_job(there)
    return found and found.args


def test_a_job_that_is_enqueued_while_its_id_is_taken_keeps_its_hash(rq: Rq, run_import: Run) -> None:
    there = rq.defer()
    with meanwhile(INSERT, partial(again, rq, there)):
        assert run_import("rq", "--apply")["taken"] == 1
    [job] = Job.objects.all()
    assert job.payload["args"] == ["anna"]
    assert (rq.waiting(), args_of(rq, there)) == ([there], ("again",))
    assert reasons(run_import("rq", "--apply")) == {"shop.send": f"was imported before, as job {job.pk}"}
    assert rq.client.keys(OURS + "*") == []


def after_the_read(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Call the action once, after a job was read and before it is taken."""
    left = [action]

    def judged(*given: Any) -> Any:
        if left:
            left.pop()()
        return judge(*given)

    monkeypatch.setattr(brokers, "judge", judged)


def test_a_job_that_changes_after_it_was_read_is_told_and_left(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = rq.defer()
    after_the_read(monkeypatch, lambda: rq.queue.create_job("shop.send", args=("bert",), job_id=there).save())
    assert reasons(run_import("rq", "--apply")) == {"shop.send": CHANGED}
    assert run_import("rq", "--apply")["taken"] == 1
    assert Job.objects.get().payload["args"] == ["bert"]


def test_a_job_that_another_one_needs_since_it_was_read_is_told_and_left(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rq.queue.fetch_job(rq.defer())
    after_the_read(monkeypatch, lambda: rq.queue.enqueue("shop.mail", "bert", depends_on=found))
    assert reasons(run_import("rq", "--apply"))["shop.send"] == CHANGED
    assert reasons(run_import("rq", "--apply"))["shop.send"] == "another job waits for it there"
    assert not Job.objects.exists()


def test_a_job_that_a_worker_takes_after_it_was_read_is_not_told(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rq.queue.fetch_job(rq.defer())
    assert found

    def work() -> None:
        rq.fetch()
        found.set_status("started")

    after_the_read(monkeypatch, work)
    assert run_import("rq", "--apply")["jobs"] == []


def test_whatever_dies_a_job_that_is_enqueued_then_is_here_or_there(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    written = [rq.defer()]
    for _ in killings(monkeypatch, lambda: run_import("rq", "--apply")):
        if half_way := bool(rq.client.keys(OURS + "*")):
            again(rq, written[-1])
        run_import("rq", "--apply")
        note = ImportNote.objects.filter(source_id=written[-1]).first()
        assert note
        job = Job.objects.get(pk=note.job_id or 0)
        here, there = job.payload["args"] == ["again"], args_of(rq, written[-1]) == ("again",)
        assert (here or there) == half_way
        assert not (here and there)
        seen.add((here, there))
        assert rq.client.keys(OURS + "*") == []
        rq.client.flushall()
        written.append(rq.defer())
    assert seen == {(False, False), (True, False), (False, True)}


def test_the_checks_above_see_a_hash_that_does_not_move(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_own_hash", lambda origin, message: message.hash_key)
    with pytest.raises(AssertionError):
        test_whatever_dies_a_job_that_is_enqueued_then_is_here_or_there(rq, run_import, monkeypatch)


def test_the_checks_above_see_a_hash_that_is_not_compared(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = MOVE.replace("not is_same(hash, needed, at + 5, size)", "false")
    assert blind != MOVE
    monkeypatch.setattr(brokers, "MOVE", blind)
    with pytest.raises(AssertionError):
        test_a_job_that_changes_after_it_was_read_is_told_and_left(rq, run_import, monkeypatch)


def test_a_job_whose_id_is_enqueued_since_its_import_stays_here(rq: Rq, run_import: Run) -> None:
    there = rq.defer()
    run = run_import("rq", "--apply")["run"]
    again(rq, there)
    assert run_import("--undo", run, "--apply")["kept"] == {"rq does not take it back": 1}
    assert (rq.queue.job_ids, args_of(rq, there)) == ([there], ("again",))
    assert Job.objects.get().payload["args"] == ["anna"]


def test_a_job_that_is_enqueued_while_an_undo_returns_its_id_keeps_its_hash(rq: Rq, run_import: Run) -> None:
    """As in RQ, where it would have found the former one waiting."""
    there = rq.defer()
    run = run_import("rq", "--apply")["run"]
    with meanwhile(WITHDRAW, partial(again, rq, there)):
        assert run_import("--undo", run, "--apply")["returned"] == 1
    assert (rq.queue.job_ids, args_of(rq, there)) == ([there, there], ("again",))
