"""Limits with real workers: what the jobs' own journal says of how many ran at once, and of when they started."""

from __future__ import annotations

import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.chaos.history import Checker
from tests.chaos.witnesses import Execution, History, Violation
from tests.e2e import jobs, limited
from tests.e2e.stage import Stage, Trace
from tests.plugins.fix_db import RawDatabase, patience, register, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, read

QUICK = {"RENEW_SECONDS": 0.3, "LEASE_SECONDS": 1.0}


LIMITED = {"PGJOBS_TEST_LIMITED": "1"}
Start = Callable[..., WorkerProcess]


@pytest.fixture
def limited_worker(worker: Workers) -> Start:
    """Start workers whose code has limits."""
    return partial(worker, env=LIMITED)


def at_once(traces: Iterable[Trace]) -> int:
    """Return how many were between their start and their end at the same time, at most."""
    running = most = 0
    for trace in sorted(traces, key=lambda t: t.at):
        running += {"start": 1, "end": -1}.get(trace.words[0], 0)
        most = max(most, running)
    return most


def by_key(stage: Stage) -> dict[str, list[Trace]]:
    found: dict[str, list[Trace]] = defaultdict(list)
    for trace in stage.traces():
        if trace.words[0] in ("start", "end"):
            found[trace.words[1]].append(trace)
    return found


def all_ended(ids: list[int], timeout: float = 60) -> None:
    still_open = Job.objects.filter(id__gte=min(ids), id__lte=max(ids), finished_at=None)
    wait_until(lambda: not still_open.exists(), timeout, f"{len(ids)} jobs have ended")


def overlaps(stage: Stage) -> list[Violation]:
    """What the history checker says, each limit's key taken for one that must not run twice at once."""
    runs = []
    for key, traces in by_key(stage).items():
        started: dict[str, Trace] = {}
        for trace in traces:
            number = trace.words[2]
            if trace.words[0] == "start":
                started[number] = trace
            else:
                first = started.pop(number)
                runs.append(Execution(key, int(number), number, 1, trace.pid, first.at, trace.at, how="end"))
        assert not started
    return list(Checker(History(executions=runs)).overlaps())


def test_jobs_of_one_key_never_overlap_and_keys_run_beside_each_other(worker: Workers, limited_worker: Start) -> None:
    for _ in range(2):
        limited_worker(processes=1, threads=4)
    ids = limited.per_key.register_many([(f"k{n % 10}", n, 0.005) for n in range(300)])
    all_ended(ids)
    assert {key: at_once(traces) for key, traces in by_key(worker.stage).items()} == {f"k{n}": 1 for n in range(10)}
    assert at_once(worker.stage.traces()) > 1
    assert worker.stage.count("start") == 300
    assert Job.objects.filter(outcome="succeeded").count() == 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_jobs_of_two_hundred_keys_on_four_workers_never_overlap(
    worker: Workers, limited_worker: Start
) -> None:
    """One at a time of each key: by the jobs' own journal and the history checker."""
    for _ in range(4):
        limited_worker(processes=1, threads=4)
    ids = limited.per_key.register_many([(f"k{n % 200}", n, 0.002) for n in range(10_000)])
    all_ended(ids, timeout=300)
    assert worker.stage.count("start") == 10_000
    assert overlaps(worker.stage) == []
    assert at_once(worker.stage.traces()) > 4
    pids = {trace.pid for trace in worker.stage.traces("start")}
    assert len(pids) == 4


def test_without_the_limit_the_checker_finds_overlaps(worker: Workers, limited_worker: Start) -> None:
    """The sabotaged twin of the test above, on a small scale: the same jobs, not held back."""
    limited_worker(processes=1, threads=4)
    ids = limited.plain.register_many([(f"k{n % 2}", n, 0.05) for n in range(20)])
    all_ended(ids)
    assert {violation.kind for violation in overlaps(worker.stage)} == {"overlap"}


def test_a_name_has_so_many_places_and_they_are_dealt_out_fairly(worker: Workers, limited_worker: Start) -> None:
    """One key has 200 jobs, another one registered last: it is among the first to start."""
    ids = limited.per_name.register_many([("many", n, 0.01) for n in range(100)])
    ids += limited.per_name.register_many([("one", 0, 0.01)])
    for _ in range(2):
        limited_worker(processes=1, threads=4)
    all_ended(ids)
    assert at_once(worker.stage.traces()) == 2
    starts = [trace.words[1] for trace in worker.stage.traces("start")]
    assert starts.index("one") < 4


def test_a_queue_has_so_many_places(worker: Workers, limited_worker: Start, settings: Any) -> None:
    """Whatever jobs are registered into it; other queues are not concerned."""
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 3}}}
    conf = {**settings.PGJOBS, "QUEUES": ["mail", "default"]}
    limited_worker(processes=2, threads=4, conf=conf)
    calls = [limited.plain.bind(f"k{n}", n, 0.01).using(queue="mail") for n in range(60)]
    ids = register_many(calls)
    free = limited.plain.register_many([("free", n, 0.05) for n in range(8)])
    assert Job.objects.filter(limit_key="").count() == 60
    all_ended(ids + free)
    mail = [trace for key, traces in by_key(worker.stage).items() if key != "free" for trace in traces]
    assert at_once(mail) == 3
    assert at_once(by_key(worker.stage)["free"]) > 3


def test_no_more_start_in_any_second_than_the_rate_says(worker: Workers, limited_worker: Start) -> None:
    """By the jobs' own journal; a start is a little later than its admission, so the window is a little shorter."""
    for _ in range(2):
        limited_worker(processes=1, threads=4)
    ids = limited.rated.register_many([("k", n) for n in range(23)])
    all_ended(ids)
    starts = [trace.at for trace in worker.stage.traces("start")]
    windows = [later - first for first, later in zip(starts, starts[5:], strict=False)]
    assert len(starts) == 23
    assert min(windows) > 1.0 - patience(0.1)
    assert starts[-1] - starts[0] >= 3.5


@pytest.mark.parametrize("how", ["fails", "snoozes"])
def test_what_waits_for_its_next_attempt_leaves_its_place_to_others(
    worker: Workers, limited_worker: Start, how: str
) -> None:
    """A backoff takes up no place; the retry waits for one again."""
    limited_worker(threads=2)
    first = limited.comes_back.register("k", 1, how=how)
    others = [limited.comes_back.register("k", n) for n in (2, 3)]
    ended(first, *others)
    starts = [trace.words[2] for trace in worker.stage.traces("start")]
    assert starts == ["1", "2", "3", "1"]
    assert at_once(worker.stage.traces()) == 1


def test_the_places_of_a_killed_worker_are_free_after_its_lease(worker: Workers, limited_worker: Start) -> None:
    first = limited_worker(conf=QUICK)
    held = limited.holds.register("held")
    wait_until(lambda: worker.stage.count("start", "held"), 20, "it has started")
    behind = limited.holds.register("behind")
    limited_worker(conf=QUICK)
    assert read(behind).state == "limited"
    worker.stage.open("behind")
    for pid in [first.pid, *first.executors()]:
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    worker.started.remove(first)
    worker.stage.open("held")
    ended(held, behind)
    assert read(behind).outcome == "succeeded"
    assert at_once(worker.stage.traces("start", "behind") + worker.stage.traces("end", "behind")) == 1


def test_a_blocked_job_can_be_cancelled_and_abandoned(worker: Workers, limited_worker: Start) -> None:
    limited_worker()
    held = limited.holds.register("held")
    wait_until(lambda: worker.stage.count("start", "held"), 20, "it has started")
    blocked = [limited.holds.register(f"b{n}") for n in range(3)]
    assert Job.objects.filter(pk=blocked[0].pk).cancel(reason="no").changed == 1
    assert Job.objects.filter(pk=blocked[1].pk).abandon(reason="no").changed == 1
    worker.stage.open("b2")
    worker.stage.open("held")
    ended(held, *blocked)
    assert [read(job).outcome for job in blocked] == ["cancelled", "abandoned", "succeeded"]
    assert worker.stage.count("start") == 2


def _idle(worker: Workers, *arguments: str) -> None:
    started = worker("--until-idle", *arguments, ready=False, env=LIMITED)
    assert started.wait(60) == 0


@pytest.mark.parametrize("arguments", [(), ("--inline",)])
def test_a_worker_until_idle_runs_all_that_is_held_back_and_due(
    worker: Workers, limited_worker: Start, arguments: tuple[str, ...]
) -> None:
    """Held back and due is not idle, while what is in its way runs; what is due tomorrow is."""
    ids = limited.per_key.register_many([("k", n) for n in range(20)])
    tomorrow = limited.per_key.using(delay=86400).register("k", 99)
    _idle(worker, *arguments)
    assert Job.objects.filter(id__in=ids, outcome="succeeded").count() == 20
    assert read(tomorrow).state == "limited"
    assert at_once(worker.stage.traces()) == 1


@pytest.mark.parametrize("arguments", [(), ("--inline",)])
def test_a_worker_until_idle_ends_though_more_keys_wait_for_tomorrow_than_one_turn_looks_at(
    worker: Workers, limited_worker: Start, arguments: tuple[str, ...]
) -> None:
    limited.per_key.using(delay=86400).register_many([(f"k{n}", n) for n in range(600)])
    ids = limited.per_key.register_many([("k1", n) for n in range(5)])
    _idle(worker, *arguments)
    assert Job.objects.filter(id__in=ids, outcome="succeeded").count() == 5
    assert Job.objects.filter(hold="limited").count() == 600


def test_what_a_limit_held_back_goes_on_where_the_code_has_none_any_more(worker: Workers, raw: RawDatabase) -> None:
    """Without limits a worker has no admitter, and looks now and then whether it needs one."""
    started = worker()
    held = register(5, name=jobs.effect.name, payload='{"args": ["k"], "kwargs": {}}', limit_key="gone")
    all_ended(held)
    admitters = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
    wait_until(lambda: raw.value(admitters, [f"%{started.name} admit"]) == 0, 20, "its connection is gone")


def test_the_budget_of_connections_has_the_admitter_in_it(worker: Workers, limited_worker: Start) -> None:
    """One more where there are limits, none where there are none."""
    budgets = [re.findall("connections≤([0-9]+)", started.log) for started in (worker(), limited_worker())]
    assert int(budgets[1][0]) == int(budgets[0][0]) + 1


def test_the_limit_of_a_step_may_ask_the_database(worker: Workers, limited_worker: Start) -> None:
    """P29: an ``async def`` job goes on with a step whose limit key is a query, which no event loop may send."""
    job = limited.goes_on_to_ask.register("asked")
    limited_worker()
    (after,) = ended(job)
    assert (after.outcome, after.result, after.limit_key) == ("succeeded", "asked", "asked False"), after.error
