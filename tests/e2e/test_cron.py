"""Real workers: declared entries are fired by the leader, second by second, and by nobody else."""

from __future__ import annotations

from itertools import pairwise

from django.db import connection

from django_pgjobs.models import CronEntry, Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended

CRON = {"PGJOBS_TEST_CRON": "1"}


def seconds(stage: Stage) -> list[float]:
    return [float(trace.words[2]) for trace in stage.traces("tick")]


def test_an_entry_of_every_second_fires_each_second_once(worker: Workers, stage: Stage) -> None:
    """W36 W41 W51 A26: declared, synchronised, fired, run; the running job knows its entry and its instant."""
    process = worker(env=CRON)
    wait_until(lambda: stage.count("tick") >= 5, 40, "it has ticked five times")
    made = Job.objects.filter(cron_entry="every second", finished_at__isnull=False)
    told = {int(trace.words[3]): (trace.words[1], float(trace.words[2])) for trace in stage.traces("tick")}
    for job in made:
        assert job.fire_at is not None
        assert told[job.pk] == ("every_second", job.fire_at.timestamp())
        assert job.fire_at <= job.created_at
        assert job.fire_at.microsecond == 0
    found = seconds(stage)
    assert len(found) == len(set(found))
    assert process.said('cron entry fired cron="every second" name=e2e.tick job='), process.log

    CronEntry.objects.get(pk="every second").stop(by="test")
    count = Job.objects.filter(cron_entry="every second").count()
    ended(jobs.effect.using(delay=3).register("later"))
    assert Job.objects.filter(cron_entry="every second").count() == count, "A55: stopped is stopped"


def test_a_failing_entry_goes_on_with_all_its_attempts(worker: Workers, stage: Stage) -> None:
    """A24 A25 A27: after it was given up; no two at once, each fire with two attempts of its own."""
    worker(env=CRON)
    wait_until(lambda: Job.objects.filter(cron_entry="failing", outcome="abandoned").count() >= 3, 60, "it went on")
    fires: dict[str, list[str]] = {}
    for trace in stage.traces("fails", "f"):
        fires.setdefault(trace.words[3], []).append(trace.words[2])
    assert list(fires.values())[:3] == [["1", "2"]] * 3
    jobs_of = list(Job.objects.filter(cron_entry="failing").order_by("fire_at"))
    for earlier, later in pairwise(jobs_of):
        assert earlier.finished_at is not None
        assert later.fire_at is not None
        assert later.fire_at > earlier.finished_at


def test_what_describes_an_entry_is_called_before_the_worker_serves(worker: Workers, stage: Stage) -> None:
    """I13: in the main thread, and the connection that it made there is closed."""
    process = worker(env=CRON)
    wait_until(lambda: Job.objects.filter(cron_entry="failing").exists(), 40, "it was declared and fired")
    assert {job.description for job in Job.objects.filter(cron_entry="failing")} == {"fails for f"}
    calls = [trace.words[1:] for trace in stage.traces("describes") if trace.pid == process.pid]
    assert {thread for _, thread in calls} == {"MainThread"}
    backends = [int(backend) for backend, _ in calls]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s)", [backends])
        assert cursor.fetchall() == []


def test_another_worker_fires_when_the_leader_is_killed(worker: Workers, stage: Stage) -> None:
    """W46 W11: no fire is made twice by the two."""
    leader = worker(env=CRON)
    wait_until(lambda: stage.count("tick") >= 2, 40, "the first one leads")
    worker(env=CRON)
    leader.kill()
    last = max(seconds(stage))
    wait_until(lambda: any(second > last + 2 for second in seconds(stage)), 60, "the second one leads")
    fires = list(Job.objects.filter(cron_entry="every second").values_list("fire_at", flat=True))
    assert len(fires) == len(set(fires))


def test_a_schedule_made_at_run_time_goes_on_until_it_is_removed(worker: Workers, stage: Stage) -> None:
    """A24 A25 A26 A27: after success and after abandonment, each fire with all its attempts; then cancelled by name."""
    worker()
    jobs.effect.schedule("* * * * * *", name="row:ticking", tz="UTC").register("tick")
    doomed = jobs.doomed.schedule("every 1 second", name="row:doomed", tz="UTC", overlap="after_completion")
    doomed.register()
    given_up = Job.objects.filter(cron_entry="row:doomed", outcome="abandoned")
    wait_until(lambda: stage.count("effect", "tick") >= 3 and given_up.count() >= 2, 60, "both have gone on")
    assert set(given_up.values_list("attempt", flat=True)) == {2}
    for earlier, later in pairwise(given_up.order_by("fire_at")):
        assert earlier.finished_at is not None
        assert later.fire_at is not None
        assert later.fire_at > earlier.finished_at
    CronEntry.objects.filter(pk__startswith="row:").remove(by="test")
    count = Job.objects.filter(cron_entry__startswith="row:").count()
    ended(jobs.effect.using(delay=2).register("later"))
    assert Job.objects.filter(cron_entry__startswith="row:").count() == count
