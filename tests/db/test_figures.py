"""The figures of the queues: the counts, their bounds and cost, the leader's row, and ``pgjobs stats``."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.db.models import DateTimeField, F, Sum
from django.db.models.functions import Now, Trunc
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgjobs.inspection import figures
from django_pgjobs.maintenance import statistics
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.statistics import Measurer
from django_pgjobs.models import Heartbeat, Job, LeaderTerm, QueueState
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.numbers import Minute
from django_pgjobs.models.workers import Statistic
from django_pgjobs.store import counting, finalising, leading, noticing, numbers, scheduling, troubles
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.explaining import list_running
from django_pgjobs.store.numbers import count_ends
from django_pgjobs.testing import backdate
from tests import jobs
from tests.plugins.explaining import Explaining, analysed_while_empty, nodes
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, job, register, slow_duty
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

SUCCEEDS = jobs.succeeds.name


def beat(**facts: Any) -> None:
    """Store the heartbeat of a worker with two threads that holds one job."""
    given = {"id": uuid4(), "name": "w", "host": "h", "pid": 1, "processes": 1, "threads": 2, "async_slots": 1}
    Heartbeat.objects.create(**{**given, "version": "1", "running": 1, **facts})


def fill(raw: RawDatabase) -> None:
    """Queue default has one job of each kind, two due ones with different priorities; mail has one scheduled job."""
    for hold in ("blocked", "parked", "limited", "paused"):
        Job.objects.filter(pk=register()[0]).update(hold=hold)
    register(3)
    good, bad, _ = claim(raw), claim(raw), claim(raw)
    finalising.finalise_success(raw, good.ends(), AUTHOR)
    finalising.finalise_end(raw, bad.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR)
    ended("succeeded", 1)
    ended("abandoned", 1)
    backdate(job(register()[0]), run_at=90)
    register(priority=7)
    register(delay_seconds=60)
    register(delay_seconds=60, queue="mail")


def ended(
    outcome: str, jobs: int, *, queue: str = "default", name: str = "shop.charge", ago: int = 0, **more: Any
) -> None:
    """Store what a worker sends of a minute."""
    facts = {"worker": WORKER, "release": "", "run_seconds": 1.0, "wait_seconds": 1.0, "wait_histogram": [jobs]}
    minute = Trunc(Now() - timedelta(minutes=ago), "minute", output_field=DateTimeField())
    given = {"queue": queue, "name": name, "outcome": outcome, "jobs": jobs, "run_histogram": [0, jobs]}
    Minute.objects.create(**{**facts, "minute": minute, **given, **more})


def measured(db: Database, **how: Any) -> dict[str, dict[str, Any]]:
    found = figures.measure(db, silent_seconds=20, stale_seconds=60, **how)
    return {each["queue"]: each for each in found["queues"]}


def test_each_kind_of_job_is_counted_where_it_belongs(raw: RawDatabase) -> None:
    fill(raw)
    beat()
    beat(name="mailer", queues=["mail", "idle"])
    beat(name="drains", state="draining")
    beat(name="gone", state="stopped")
    beat(name="silent", last_beat_at=Now() - timedelta(seconds=21), queues=["nobody"])
    beat(name="lost", state="lost")
    found = measured(raw)
    assert list(found) == ["default", "idle", "mail"]
    ours = found["default"]
    assert 90 <= ours.pop("oldest_ready_seconds") < 120
    assert ours == {
        "queue": "default",
        "ready": 2,
        "scheduled": 1,
        "retrying": 0,
        "running": 1,
        "held": {"blocked": 1, "parked": 1, "limited": 1, "paused": 1, "moving": 0},
        "ended": {"succeeded": 1, "cancelled": 0, "abandoned": 1},
        "workers": 1,
        "at_least": [],
    }
    assert (found["mail"]["scheduled"], found["mail"]["workers"], found["mail"]["oldest_ready_seconds"]) == (1, 2, None)
    told = figures.measure(raw, silent_seconds=20, stale_seconds=60)["workers"]
    assert told == {"live": 3, "quiet": 0, "draining": 1, "silent": 1, "slots": 6, "running": 3}


def test_jobs_that_are_tried_again_are_told_from_those_that_never_ran(raw: RawDatabase) -> None:
    register(delay_seconds=60)
    register(delay_seconds=60, priority=3)
    Job.objects.filter(pk__in=register(2, delay_seconds=60)).update(attempt=1)
    found = measured(raw)["default"]
    assert (found["scheduled"], found["retrying"]) == (2, 2)
    held = register(3, delay_seconds=60)
    Job.objects.filter(pk__in=held).update(attempt=2, hold="limited", limit_key="eu")
    Job.objects.filter(pk=held[0]).update(hold="paused")
    Job.objects.filter(pk=held[1]).update(run_at=Now())
    found = measured(raw)["default"]
    assert (found["scheduled"], found["retrying"], found["held"]["limited"]) == (2, 4, 2)


def test_what_ended_long_ago_is_not_counted(raw: RawDatabase) -> None:
    fill(raw)
    Job.objects.filter(finished_at__isnull=False).update(finished_at=Now() - timedelta(seconds=3601))
    Minute.objects.update(minute=F("minute") - timedelta(seconds=3600))
    assert measured(raw)["default"]["ended"] == {"succeeded": 0, "cancelled": 0, "abandoned": 0}


def test_beyond_the_bound_a_figure_says_at_least(raw: RawDatabase) -> None:
    register(5)
    register(5, delay_seconds=60)
    Job.objects.filter(pk__in=register(5)).update(hold="parked")
    claim(raw, 4)
    found = measured(raw, most=3)["default"]
    assert sorted(found["at_least"]) == ["held.parked", "retrying", "running", "scheduled"]
    assert (found["ready"], found["running"], found["held"]["parked"]) == (1, 3, 3)
    assert measured(raw, most=6)["default"]["at_least"] == []


def test_many_queues_share_what_is_read(raw: RawDatabase) -> None:
    """With 50 pairs and a bound of 10 no more than 100 due jobs are read: two of each."""
    for number in range(50):
        register(4, queue=f"q{number}")
    found = measured(raw, most=10)
    assert len(found) == 50
    assert {each["ready"] for each in found.values()} == {2}
    assert all(each["at_least"] == ["ready"] for each in found.values())


def test_a_ledger_row_of_others_counts_nothing(raw: RawDatabase) -> None:
    """Bad input: ids that are of none, or that another claim has."""
    register()
    held = claim(raw)
    ids = [*held.ids, 999_999_999]
    Claim.objects.create(claim_id=uuid4(), part=0, worker=uuid4(), lease_expires_at=Now(), check_at=Now(), job_ids=ids)
    assert measured(raw)["default"]["running"] == 1


def test_figures_cost_the_same_however_many_jobs_there_are(db_connection: Any) -> None:
    """40,000 jobs of each kind, the tables analysed while empty: each statement reads up to its bound, by an index."""
    raw = db_connection(pins=True)
    many = 40_000
    with analysed_while_empty(raw):
        register(many)
        register(many, delay_seconds=3600, queue="mail")
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, outcome, finished_at, hold) SELECT 'test.job', '{}', kind.outcome,"
            " CASE WHEN kind.outcome IS NOT NULL THEN statement_timestamp() - n * interval '0.01 s' END, kind.hold"
            " FROM generate_series(1, %s) AS n,"
            " (VALUES ('succeeded', NULL), ('abandoned', NULL), (NULL, 'limited'), (NULL, 'parked'))"
            " AS kind (outcome, hold)",
            [many],
        )
        claim(raw, 500)
        most = 1000
        runs = {
            "count_due": lambda db: counting.count_due(db, most=most, budget=10 * most),
            "count_held": lambda db: troubles.count_held(db, [("default", "limited")], most=most),
            "list_held_pairs": troubles.list_held_pairs,
            "list_parked": lambda db: troubles.list_parked(db, ["default"]),
            "count_running": lambda db: counting.count_running(db, most=most),
            "count_ended": lambda db: counting.count_ended(db, ["succeeded", "abandoned"], seconds=3600, most=most),
            "count_sizes": lambda db: counting.count_sizes(db, ["succeeded", "abandoned"], most=most),
            "count_retrying": lambda db: counting.count_retrying(db, [("mail", 0), ("default", 0)], most=most),
            "list_running": lambda db: list_running(db, [WORKER], most=most),
            "list_fired": lambda db: scheduling.list_fired(db, ["nightly"], most=10),
            "list_failures": lambda db: noticing.list_failures(db, seconds=86_400, groups=20, most=most),
        }
        explaining = Explaining(raw, set())
        for name, run in runs.items():
            run(explaining)
            read = [
                (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                for node in nodes(explaining.plan)
            ]
            assert max(read) <= 4 * most, (name, explaining.plan)
            kinds = [node["Node Type"] for node in nodes(explaining.plan) if node.get("Relation Name") == "pgjobs_job"]
            assert all(kind.startswith("Index") for kind in kinds), (name, kinds)


# The leader keeps them


def test_the_leader_keeps_one_row_of_figures(raw: RawDatabase) -> None:
    fill(raw)
    measurer = Measurer(AUTHOR)
    measurer(raw)
    first = Statistic.objects.get()
    assert first.worker_name == "test worker"
    register(queue="new")
    measurer(raw)
    second = Statistic.objects.get()
    assert second.measured_at > first.measured_at
    assert "new" in {found["queue"] for found in second.figures["queues"]}


def test_only_the_leader_measures_and_now_and_then(raw: RawDatabase) -> None:
    """W1: a worker that does not lead writes nothing."""
    leader, ours = Leader(AUTHOR), on("default")
    duty = slow_duty(leader, "statistics")
    duty.tick(ours)
    assert not Statistic.objects.exists()
    leader.tick(raw)
    duty.tick(ours)
    before = Statistic.objects.get().measured_at
    duty.tick(ours)
    assert Statistic.objects.get().measured_at == before
    assert duty.seconds == 15


def test_the_leader_says_what_keeps_jobs_from_running(raw: RawDatabase) -> None:
    leader, ours = Leader(AUTHOR), on("default")
    backdate(job(register(queue="mail")[0]), run_at=90)
    leader.tick(raw)
    slow_duty(leader, "statistics").tick(ours)
    found = {(each[0], each[2]) for each in Statistic.objects.get().figures["problems"]}
    assert ("no_worker", "mail") in found


def test_a_server_that_cannot_count_in_time_is_asked_for_less(raw: RawDatabase, monkeypatch: Any) -> None:
    asked: list[int] = []
    whole = figures.measure

    def slow(db: RawDatabase, *, silent_seconds: float, stale_seconds: float, most: int) -> dict[str, Any]:
        asked.append(most)
        if most > 100:
            db.query("SET LOCAL statement_timeout = '5ms'")
            db.query("SELECT pg_sleep(10)")
        return whole(db, silent_seconds=silent_seconds, stale_seconds=stale_seconds, most=most)

    monkeypatch.setattr(figures, "measure", slow)
    Measurer(AUTHOR)(raw)
    assert asked == list(statistics.BOUNDS)
    assert Statistic.objects.count() == 1


# pgjobs stats


def stats(*arguments: object) -> dict[str, Any]:
    status, out, err = pgjobs("stats", *arguments, "--format", "json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_stats_show_what_the_leader_counted(raw: RawDatabase) -> None:
    fill(raw)
    beat()
    assert leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    Job._base_manager.all().delete()
    Minute.objects.all().delete()
    found = stats()
    assert (found["measured_by"], found["queues"][0]["ready"]) == ("test worker", 2)
    assert 0 < found["age_seconds"] < 60
    assert set(found) == {
        "measured_at", "age_seconds", "measured_by", "ended_within_seconds", "workers", "queues", "problems",
        "notes",
    }  # fmt: skip
    now = stats("--now")
    assert (now["measured_by"], now["age_seconds"], now["queues"]) == (None, 0.0, [])


def test_stats_count_where_nobody_did_or_long_ago(raw: RawDatabase) -> None:
    fill(raw)
    assert stats()["measured_by"] is None
    assert leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    assert stats()["measured_by"] == "test worker"
    Statistic.objects.update(measured_at=Now() - timedelta(seconds=61))
    assert stats()["measured_by"] is None
    assert [found["queue"] for found in stats("--queue", "mail")["queues"]] == ["mail"]


def test_counting_from_the_shell_is_pinned_to_the_indexes(raw: RawDatabase) -> None:
    """An operator's connection has no pins of its own, and the tables may have been analysed while they were empty."""
    register()
    for command in (["stats", "--now"], ["check"]):
        with CaptureQueriesContext(connection) as queries:
            pgjobs(*command)
        pins = [n for n, query in enumerate(queries) if "enable_sort" in query["sql"]]
        counts = [n for n, query in enumerate(queries) if "count(*)" in query["sql"]]
        assert len(pins) == 1
        assert pins[0] < counts[0]


def test_stats_as_a_table(raw: RawDatabase, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_pgjobs.diagnosis.latest.MOST_NOW", 1)
    fill(raw)
    beat(queues=["\x1b[31mred"])
    QueueState.objects.create(kind="queue", name="mail")
    status, out, _ = pgjobs("stats")
    first, second, head, *rows = out.partition("\n\n")[2].splitlines()
    assert (status, first) == (0, "Counted now.")
    assert second == "1 worker was heard from within 20 s, with 1 job in 2 threads at the last heartbeat."
    assert head.split()[:6] == ["QUEUE", "READY", "OLDEST", "SCHEDULED", "RETRYING", "RUNNING"]
    assert rows[0].split()[0] == "\\x1b[31mred"
    queue, ready, oldest, *others = rows[1].split()
    assert (queue, ready, others) == ("default", "≥2", ["s", "≥1", "≥0", "≥1", *["≥1"] * 4, "0", "1", "0", "1", "0"])
    assert 90 <= int(oldest) < 120
    assert rows[2].startswith("mail (paused)  ")
    assert leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    assert "\n\nCounted " in pgjobs("stats")[1]
    assert " ago by test worker.\n" in pgjobs("stats")[1]


def sized(name: str, outcome: str = "succeeded", *, chars: int = 0, ago: int = 5, queue: str = "default") -> None:
    """Store an ended job whose result has this many characters that cannot be compressed."""
    text = "".join(sha256(f"{name} {n}".encode()).hexdigest() for n in range(chars // 64))
    ended_at = timezone.now() - timedelta(seconds=ago)
    facts: dict[str, Any] = {"payload": {"args": [], "kwargs": {}}, "result": text or None, "attempt": 1}
    Job.objects.bulk_create([Job(name=name, queue=queue, outcome=outcome, finished_at=ended_at, **facts)])


def test_stats_by_size_name_what_takes_the_room() -> None:
    """A job that has not ended takes part in none of the sums."""
    for _ in range(3):
        sized("shop.report", chars=64_000)
    sized("shop.report", "cancelled")
    sized("shop.mail", queue="mail")
    register()
    found = stats("--sizes")
    first, second = found["sizes"]
    assert 3 * 32_000 < first.pop("result_bytes") < 3 * 70_000
    assert 4 * 20 < first.pop("argument_bytes") < 4 * 60
    assert first == {"queue": "default", "name": "shop.report", "jobs": 4}
    assert (second["name"], second["jobs"], second["result_bytes"]) == ("shop.mail", 1, 0)
    assert [(each["outcome"], each["jobs"], each["more"]) for each in found["read"]] == [
        ("succeeded", 4, False), ("cancelled", 1, False), ("abandoned", 0, False),
    ]  # fmt: skip
    assert [each["name"] for each in stats("--sizes", "--queue", "mail")["sizes"]] == ["shop.mail"]


def test_stats_by_size_as_a_table_say_what_they_looked_at(monkeypatch: Any) -> None:
    monkeypatch.setattr("django_pgjobs.management.stats.MOST_NOW", 2)
    sized("long.ago", chars=640_000, ago=9000)
    sized("\x1b[31mred", chars=64_000, ago=600)
    sized("small", ago=1)
    sized("small", "abandoned")
    status, out, _ = pgjobs("stats", "--sizes")
    first, head, *rows, last = out.splitlines()
    assert (status, first) == (
        0, "Looked at the latest 2 succeeded (of 10 min), all 0 cancelled, all 1 abandoned.",
    )  # fmt: skip
    assert head.split() == ["QUEUE", "NAME", "JOBS", "RESULTS", "ARGUMENTS"]
    assert rows[0].split()[:3] == ["default", "\\x1b[31mred", "1"]
    assert rows[0].split()[4] == "KB"
    assert rows[1].split()[:5] == ["default", "small", "2", "0", "bytes"]
    assert len(rows) == 2
    assert "pgjobs prune --name NAME --older-than AGE" in last


def test_stats_by_size_of_no_jobs() -> None:
    status, out, _ = pgjobs("stats", "--sizes")
    assert (status, out.splitlines()) == (
        0, ["Looked at all 0 succeeded, all 0 cancelled, all 0 abandoned.", "QUEUE  NAME  JOBS  RESULTS  ARGUMENTS"],
    )  # fmt: skip


@pytest.mark.parametrize("other", ["--now", "--watch"])
def test_stats_by_size_are_counted_once(other: str) -> None:
    with pytest.raises(CommandError, match="--sizes goes with neither --now nor --watch") as caught:
        pgjobs("stats", "--sizes", other)
    assert caught.value.returncode == 2


@pytest.mark.parametrize("gone", ["its term is over", "another leads"])
def test_figures_of_a_leader_that_is_gone_are_not_shown_as_current(raw: RawDatabase, gone: str) -> None:
    fill(raw)
    assert leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    assert stats()["measured_by"] == "test worker"
    if gone == "another leads":
        LeaderTerm.objects.update(worker_name="other")
    else:
        LeaderTerm.objects.update(expires_at=Now())
    assert stats()["measured_by"] is None


def test_stats_tell_of_the_workers_that_there_are_now(raw: RawDatabase) -> None:
    """What the leader kept is of its time; who lives is read when somebody asks."""
    beat(name="web-1", queues=["default"])
    register()
    assert leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    assert (stats()["workers"]["live"], stats()["queues"][0]["workers"]) == (1, 1)
    Heartbeat.objects.update(last_beat_at=Now() - timedelta(seconds=25))
    found = stats()
    assert found["measured_by"] == "test worker"
    assert found["workers"] == {"live": 0, "quiet": 0, "draining": 0, "silent": 1, "slots": 0, "running": 0}
    assert found["queues"][0]["workers"] == 0
    lines = pgjobs("stats")[1].partition("\n\n")[2].splitlines()
    assert lines[1] == "No worker was heard from within 20 s."
    assert re.fullmatch(r"Worker web-1 is silent: last heard from [2-5]\d s ago, with 1 job\.", lines[2])


def test_no_queue_is_left_out_however_many_there_are(raw: RawDatabase) -> None:
    """A probe that sees the first thousand queues says that all is well while the last is a day late."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, queue, priority, created_at)"
        " SELECT 'test.job', '{}', 'q' || lpad((n / 3)::text, 4, '0'), n %% 3, statement_timestamp()"
        " - CASE WHEN n >= 3000 THEN interval '1 day' ELSE '0' END FROM generate_series(0, 3002) AS n",
        [],
    )
    raw.query("UPDATE pgjobs_job SET run_at = created_at")
    found = measured(raw)
    assert len(found) == 1001
    assert {each["ready"] for each in found.values()} == {3}
    late = [due.queue for due in counting.count_due(raw, most=1, budget=1000) if (due.oldest_seconds or 0) > 3600]
    assert late == ["q1000"]


def test_before_anything_was_measured_there_are_no_figures(raw: RawDatabase) -> None:
    """A leader measures from time to time; an earlier caller learns that, and the time."""
    found = counting.read_statistic(raw)
    assert tuple(found)[:4] == (None, None, None, None)
    assert tuple(found)[4] is not None


# Ends by operators


def test_what_operators_end_is_in_the_figures_and_the_charts(raw: RawDatabase) -> None:
    """A cancel and an abandon by hand count like ends by workers, and only if they are committed."""
    kept, gone = register(5, queue="mail", name=SUCCEEDS), register(2)
    Job.objects.filter(pk__in=kept[:3]).cancel(by="anna")
    Job.objects.filter(pk__in=kept[3:]).abandon(by="anna")
    Job.objects.get(pk=gone[0]).cancel()
    with transaction.atomic():
        Job.objects.get(pk=gone[1]).cancel()
        transaction.set_rollback(True)
    found = measured(raw)
    assert found["mail"]["ended"] == {"succeeded": 0, "cancelled": 3, "abandoned": 2}
    assert found["default"]["ended"]["cancelled"] == 1
    names = dict(Minute.objects.values_list("name").annotate(Sum("jobs")))
    assert names == {SUCCEEDS: 5, "others": 1}
    [bucket] = numbers.read_trend(raw, step=3600, buckets=2, most=100)[-1:]
    assert bucket.ended == {"cancelled": 4, "abandoned": 2}


def test_two_who_cancel_at_once_do_not_wait_for_each_other(db_connection: Any) -> None:
    ours, theirs = db_connection(), db_connection()
    ours.query("SET lock_timeout = '2s'")
    with theirs.transaction():
        count_ends(theirs, {("mail", "shop.charge", "cancelled"): 3})
        count_ends(theirs, {("mail", "shop.charge", "cancelled"): 1})
        with ours.transaction():
            count_ends(ours, {("mail", "shop.charge", "cancelled"): 5})
    assert sorted(Minute.objects.values_list("jobs", flat=True)) == [4, 5]
