"""Numbers over time: workers' minutes, the fleet's minutes and hours, totals, depths, and the class of errors."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from django_pgjobs.ends import kinds
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.statistics import Measurer, NumbersKeeper
from django_pgjobs.models import Job
from django_pgjobs.models.numbers import Depth, Minute, Total
from django_pgjobs.models.workers import Statistic
from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store import finalising, numbers
from django_pgjobs.store.finalising import End
from django_pgjobs.store.numbers import AttemptFigures, Bucket
from django_pgjobs.testing import backdate
from django_pgjobs.worker.shared.runs import HeldClaim
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.threads.minutes import MinuteWriter
from tests.plugins.explaining import Explaining, pages
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    WORKER,
    Background,
    RawDatabase,
    claim,
    job,
    register,
    slow_duty,
    wait_until,
)
from tests.unit.worker_fakes import run_of

pytestmark = pytest.mark.usefixtures("committed")

ONE = {"jobs": 1, "run_seconds": 0.5, "wait_seconds": 2.0, "run_histogram": [0, 1], "wait_histogram": [1]}
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def figures(**changes: Any) -> AttemptFigures:
    return AttemptFigures(**{"queue": "default", "name": "shop.mail", "outcome": "succeeded", **ONE, **changes})


def wrote(raw: RawDatabase, minute: datetime, worker: UUID = WORKER, **changes: Any) -> None:
    """Let a worker write figures of a minute."""
    numbers.write_minutes(raw, [figures(**changes)], worker=worker, release="r1", minute=minute.isoformat())


def ago(raw: RawDatabase, distance: timedelta) -> datetime:
    """Return the minute that began at least so long ago, by the server's clock."""
    found: datetime = raw.value("SELECT date_trunc('minute', statement_timestamp(), 'UTC')") - distance
    return found


def rows(**condition: Any) -> list[tuple[UUID, datetime, int]]:
    return list(
        Minute.objects.filter(**condition)
        .exclude(worker=TREND)
        .order_by("worker", "minute")
        .values_list("worker", "minute", "jobs")
    )


# A worker's minutes


def test_a_minute_says_what_the_worker_says_now(raw: RawDatabase) -> None:
    """A repetition counts nothing twice."""
    minute = ago(raw, MINUTE)
    wrote(raw, minute)
    wrote(raw, minute, jobs=3, run_histogram=[0, 3])
    [row] = Minute.objects.all()
    assert (row.worker, row.minute, row.release, row.jobs, row.run_histogram) == (WORKER, minute, "r1", 3, [0, 3])
    assert (row.run_seconds, row.wait_seconds, row.wait_histogram) == (0.5, 2.0, [1])


def test_visits_of_one_schema_count_in_the_same_minute(raw: RawDatabase) -> None:
    """Each begins anew, with the same worker's name and number."""
    for ends in (2, 1, 3):
        tallies = Tallies(lambda name: True)
        tallies.stored(kinds.SUCCESS, [(run_of(claim=HeldClaim("c", 0.0, 1)), End(1, "c", 0.5), None)] * ends)
        MinuteWriter(tallies, AUTHOR.release, 5.0)(raw)
    assert sum(jobs for _, _, jobs in rows()) == 6
    assert sum(total.jobs for total in numbers.read_totals(raw)) == 6


def test_without_figures_the_answer_is_the_present_minute(raw: RawDatabase) -> None:
    before = ago(raw, timedelta())
    answer = numbers.write_minutes(raw, [], worker=WORKER, release="", minute=None)
    assert before <= datetime.fromisoformat(answer) <= ago(raw, timedelta())
    assert not Minute.objects.exists()


# The fleet's


def test_workers_minutes_become_one_of_the_fleet_and_count_in_the_totals(raw: RawDatabase) -> None:
    old, young = ago(raw, 15 * MINUTE), ago(raw, 5 * MINUTE)
    for worker in (WORKER, uuid4()):
        wrote(raw, old, worker)
        wrote(raw, old, worker, outcome="abandoned", run_histogram=[], wait_histogram=[])
    wrote(raw, young)
    assert NumbersKeeper()(raw) == 4
    assert rows(worker=FLEET) == [(FLEET, old, 2), (FLEET, old, 2)]
    assert rows(worker=WORKER) == [(WORKER, young, 1)]  # it may still be written
    merged = Minute.objects.get(worker=FLEET, outcome="succeeded")
    assert (merged.run_seconds, merged.wait_seconds, merged.run_histogram, merged.wait_histogram) == (1, 4, [0, 2], [2])
    assert sorted(Total.objects.values_list("queue", "name", "outcome", "jobs")) == [
        ("default", "shop.mail", "abandoned", 2),
        ("default", "shop.mail", "succeeded", 2),
    ]


def test_what_a_worker_writes_late_is_added_to_what_is_there(raw: RawDatabase) -> None:
    old = ago(raw, 15 * MINUTE)
    wrote(raw, old, run_histogram=[0, 1])
    NumbersKeeper()(raw)
    wrote(raw, old, run_histogram=[2, 0, 0, 5], wait_histogram=[])
    NumbersKeeper()(raw)
    [merged] = Minute.objects.filter(worker=FLEET)
    [total] = Total.objects.all()
    assert (merged.jobs, merged.run_histogram, merged.wait_histogram) == (2, [2, 1, 0, 5], [1])
    assert (total.jobs, total.run_histogram, total.wait_histogram) == (2, [2, 1, 0, 5], [1])


def test_after_a_day_minutes_become_hours(raw: RawDatabase) -> None:
    hour = ago(raw, 2 * DAY).replace(minute=0)
    for minute in (hour, hour + MINUTE, hour + 59 * MINUTE, hour + 60 * MINUTE):
        wrote(raw, minute)
    wrote(raw, young := ago(raw, 20 * MINUTE))
    keeper = NumbersKeeper()
    keeper(raw)
    assert rows() == [(FLEET, hour, 3), (FLEET, hour + 60 * MINUTE, 1), (FLEET, young, 1)]
    keeper.fold_at = 0.0
    assert keeper(raw) == 0  # hours are not taken again
    assert Total.objects.get().jobs == 5


def test_hours_and_depths_whose_time_is_over_are_deleted_and_totals_stay(raw: RawDatabase) -> None:
    wrote(raw, ago(raw, 31 * DAY))
    wrote(raw, kept := ago(raw, 29 * DAY).replace(minute=0))
    for at in (ago(raw, 31 * DAY), kept):
        Depth.objects.create(minute=at, queue="default", ready=1, scheduled=0, running=0, held=0)
    NumbersKeeper()(raw)
    assert rows() == [(FLEET, kept, 1)]
    assert [depth.minute for depth in Depth.objects.all()] == [kept]
    assert Total.objects.get().jobs == 2


def test_settings_say_how_long(raw: RawDatabase, settings: Any) -> None:
    kept = {"numbers_by_minute": timedelta(hours=2), "numbers": timedelta(hours=5)}
    settings.PGJOBS = {**settings.PGJOBS, "RETENTION": kept}
    wrote(raw, ago(raw, timedelta(hours=7)))
    wrote(raw, hour := ago(raw, timedelta(hours=4)).replace(minute=0))
    wrote(raw, hour + MINUTE)
    NumbersKeeper()(raw)
    assert rows() == [(FLEET, hour, 2)]


def test_rows_that_somebody_holds_wait_for_the_next_turn(raw: RawDatabase, other: RawDatabase) -> None:
    old = ago(raw, 15 * MINUTE)
    wrote(raw, old, held := uuid4())
    wrote(raw, old)
    with other.transaction():
        other.query("SELECT 1 FROM pgjobs_minute WHERE worker = %s FOR UPDATE", [held])
        assert NumbersKeeper()(raw) == 1
    assert NumbersKeeper()(raw) == 1
    assert rows() == [(FLEET, old, 2)]


def test_two_leaders_at_once_count_each_row_once(
    raw: RawDatabase, db_connection: Any, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgjobs.maintenance.statistics.BATCH", 7)
    old = ago(raw, 15 * MINUTE)
    for n in range(200):
        wrote(raw, old - MINUTE * (n % 3), uuid4(), name=f"shop.n{n % 5}")
    turns = [background(NumbersKeeper(), db_connection()) for _ in range(3)]
    assert sum(turn.result() for turn in turns) == 200
    assert sum(total.jobs for total in Total.objects.all()) == 200
    assert sum(row.jobs for row in Minute.objects.filter(worker=FLEET)) == 200


def test_a_leader_that_fails_between_taking_and_adding_loses_nothing(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(raw, old := ago(raw, 15 * MINUTE))
    with monkeypatch.context() as broken:
        broken.setattr(numbers, "add_totals", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            NumbersKeeper()(raw)
    assert rows() == [(WORKER, old, 1)]


def test_a_leader_whose_term_is_over_stops(raw: RawDatabase) -> None:
    wrote(raw, ago(raw, 15 * MINUTE))
    assert NumbersKeeper(lambda: False)(raw) == 0
    assert rows(worker=FLEET) == []


def test_a_turn_with_nothing_to_take_reads_the_index_alone(raw: RawDatabase) -> None:
    """30 days of hours, 40 rows each: a turn must not read them."""
    hours = "generate_series(date_trunc('hour', now()) - interval '30 days', now(), '1 hour') AS hour"
    raw.query("TRUNCATE pgjobs_minute")  # the index may be full of the rows of other tests
    raw.query(
        "INSERT INTO pgjobs_minute (worker, minute, queue, name, outcome, release, jobs, run_seconds, wait_seconds,"
        " run_histogram, wait_histogram)"
        f" SELECT %s, hour, 'default', 'n' || n, 'succeeded', '', 1, 1, 1, '{{1}}', '{{1}}' FROM {hours},"
        " generate_series(1, 40) AS n",
        [FLEET],
    )
    raw.query("ANALYZE pgjobs_minute")
    explaining = Explaining(raw, set())
    numbers.take_minutes(explaining, hourly=None, seconds=600.0, limit=2000)
    assert pages(explaining) < 20


# What charts show


def trend(raw: RawDatabase, step: int = 60, buckets: int = 60) -> list[Bucket]:
    return numbers.read_trend(raw, step=step, buckets=buckets, most=1000)


def test_charts_show_each_end_once_before_and_after_it_is_added_up(raw: RawDatabase) -> None:
    """Two names, two workers, two releases; what is older than the chart is not in it."""
    old, young = ago(raw, 15 * MINUTE), ago(raw, MINUTE)
    for minute, worker, name in product((old, young), (WORKER, uuid4()), ("shop.mail", "shop.charge")):
        wrote(raw, minute, worker, name=name)
        wrote(raw, minute, worker, name=name, outcome="abandoned", run_histogram=[], wait_histogram=[3])
    wrote(raw, ago(raw, 61 * MINUTE))
    before = trend(raw)
    expected = Bucket(0, {"succeeded": 4, "abandoned": 4}, [0, 4], [16], ["r1"])
    assert before == [expected._replace(at=int(minute.timestamp())) for minute in (old, young)]
    NumbersKeeper()(raw)
    assert trend(raw) == before
    [whole] = trend(raw, step=86_400, buckets=2)[-1:]
    assert whole.ended["succeeded"] >= 4


def test_the_trend_is_folded_to_hours_and_deleted_like_the_fleets(raw: RawDatabase) -> None:
    hour = ago(raw, 2 * DAY).replace(minute=0)
    for minute in (hour, hour + MINUTE, ago(raw, 31 * DAY)):
        wrote(raw, minute)
        wrote(raw, minute, name="other")
    NumbersKeeper()(raw)
    assert list(Minute.objects.filter(worker=TREND).values_list("minute", "name", "jobs")) == [(hour, "", 4)]


def test_a_chart_reads_few_rows_however_many_names_there_are(raw: RawDatabase) -> None:
    """A day of 200 names; the trend has one row a minute."""
    raw.query("TRUNCATE pgjobs_minute")
    insert = (
        "INSERT INTO pgjobs_minute (worker, minute, queue, name, outcome, release, jobs, run_seconds, wait_seconds,"
        " run_histogram, wait_histogram) SELECT %s, minute, 'default', 'n' || n, 'succeeded', '', 1, 1, 1, '{1}', '{1}'"
        " FROM generate_series(date_trunc('minute', now()) - interval '1 day', now(), '1 min') AS minute,"
        " generate_series(1, %s) AS n"
    )
    raw.query(insert, [FLEET, 40])
    raw.query(insert, [TREND, 1])
    raw.query("ANALYZE pgjobs_minute")
    explaining = Explaining(raw, set())
    assert len(numbers.read_trend(raw, step=900, buckets=96, most=20_000)) == 96
    numbers.read_trend(explaining, step=900, buckets=96, most=20_000)
    assert pages(explaining) < 200


def test_depths_are_the_most_of_each_queue_and_span(raw: RawDatabase) -> None:
    minute = ago(raw, 5 * MINUTE)
    for queue, ready, at in (("a", 3, minute), ("a", 5, minute + MINUTE), ("b", 1, minute), ("a", 9, minute - DAY)):
        Depth.objects.create(
            minute=at, queue=queue, ready=ready, scheduled=0, running=0, held=0, oldest_seconds=ready * 2.0
        )
    by_minute = numbers.read_depths(raw, step=60, buckets=60, most=1000)
    start = int(minute.timestamp())
    assert by_minute == [(start, "a", 3, 6.0), (start, "b", 1, 2.0), (start + 60, "a", 5, 10.0)]
    most = numbers.read_depths(raw, step=21_600, buckets=8, most=1000)
    assert max(each.ready for each in most if each.queue == "a") == 9


# Depths and totals for metrics


def test_the_leader_keeps_the_most_that_waits_in_each_minute(raw: RawDatabase) -> None:
    backdate(job(register()[0]), run_at=90)
    register(delay_seconds=60, queue="mail")
    held = register(queue="mail")[0]
    Job.objects.filter(pk=held).update(hold="parked")
    measurer = Measurer(AUTHOR)
    measurer(raw)
    Job.objects.filter(queue="default").update(run_at=timezone.now() + DAY)
    measurer(raw)
    found = {depth.queue: depth for depth in Depth.objects.order_by("minute")}
    assert (found["default"].ready, found["mail"].scheduled, found["mail"].held) == (1, 1, 1)
    assert 89 < (found["default"].oldest_seconds or 0) < 200
    assert found["mail"].oldest_seconds is None


def test_after_a_day_an_hour_keeps_the_most(raw: RawDatabase) -> None:
    hour = ago(raw, 2 * DAY).replace(minute=0)
    for n, minute in enumerate((hour + MINUTE, hour + 2 * MINUTE, hour, hour + 61 * MINUTE)):
        Depth.objects.create(minute=minute, queue="a", ready=n, scheduled=9 - n, running=1, held=0, oldest_seconds=n)
    Depth.objects.create(minute=ago(raw, MINUTE), queue="a", ready=7, scheduled=0, running=0, held=0)
    NumbersKeeper()(raw)
    found = list(Depth.objects.order_by("minute").values_list("minute", "ready", "scheduled", "oldest_seconds"))
    assert found[:2] == [(hour, 2, 9, 2.0), (hour + 60 * MINUTE, 3, 6, 3.0)]
    assert found[2][1] == 7


def test_the_statistic_has_everything_that_has_ended(raw: RawDatabase) -> None:
    """What is not added to the totals yet counts too; no end counts twice when it is."""
    wrote(raw, ago(raw, 15 * MINUTE))
    wrote(raw, ago(raw, MINUTE), uuid4(), jobs=2, run_histogram=[1, 1])
    told = []
    for keep in (False, True):
        if keep:
            NumbersKeeper()(raw)
        Measurer(AUTHOR)(raw)
        told.append(Statistic.objects.get().figures["totals"])
    assert told == [[["default", "shop.mail", "succeeded", 3, 1.0, 4.0, [1, 2], [2]]]] * 2


# The class of errors


def abandon(raw: RawDatabase, **facts: Any) -> Job:
    register()
    ends = claim(raw).ends(seconds=1.0, outcome="abandoned", **facts)
    finalising.finalise_end(raw, ends, AUTHOR)
    return job(ends[0].id)


def test_an_abandoned_job_has_the_class_of_its_error(raw: RawDatabase) -> None:
    assert abandon(raw, cause="failed", failure=FAILURE).error_class == "shop.errors.Declined"
    assert abandon(raw, cause="crashed").error_class == "crashed"
    assert abandon(raw).error_class is None


def test_a_class_longer_than_an_index_takes_is_cut(raw: RawDatabase) -> None:
    long = replace(FAILURE, kind="x" * 100_000)
    assert abandon(raw, cause="failed", failure=long).error_class == "x" * 200


def test_the_class_outlives_a_callback_and_ends_with_a_retry(raw: RawDatabase) -> None:
    register()
    claimed = claim(raw)
    ends = claimed.ends(seconds=1.0, outcome="abandoned", cause="failed", failure=FAILURE)
    finalising.mark_ending(raw, ends, AUTHOR, allowance_seconds=10.0)
    finalising.finalise_end(raw, claimed.ends(outcome="abandoned"), AUTHOR)
    doomed = job(claimed.ids[0])
    assert (doomed.state, doomed.error_class) == ("abandoned", "shop.errors.Declined")
    doomed.retry()
    assert job(doomed.pk).error_class is None


def test_a_cancelled_job_has_none(raw: RawDatabase) -> None:
    register()
    ends = claim(raw).ends(seconds=1.0, outcome="cancelled", cause="failed", failure=FAILURE)
    finalising.finalise_end(raw, ends, AUTHOR)
    assert job(ends[0].id).error_class is None


def test_jobs_of_a_class_are_found_by_their_index(raw: RawDatabase) -> None:
    raw.query("BEGIN")
    raw.query("SET LOCAL enable_seqscan = off")
    # In a table of few rows both indexes cost the same, as neighbours have left them.
    raw.query("DROP INDEX pgjobs_job_ended")
    [[plan]] = raw.query(
        "EXPLAIN (FORMAT JSON) SELECT id FROM pgjobs_job"
        " WHERE error_class = 'x' AND finished_at > now() - interval '1 h'"
    )
    raw.query("ROLLBACK")
    assert "pgjobs_job_error_class" in json.dumps(plan)


def test_the_leader_adds_up_as_a_duty(raw: RawDatabase) -> None:
    wrote(raw, ago(raw, 15 * MINUTE))
    leader = Leader(AUTHOR)
    duty = slow_duty(leader, "numbers")
    duty.tick(raw)
    assert not Total.objects.exists()  # it does not lead
    leader.tick(raw)
    wait_until(lambda: leader.leads, 5, "it leads")
    duty.tick(raw)
    assert Total.objects.get().jobs == 1
