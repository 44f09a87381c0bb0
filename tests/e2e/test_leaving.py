"""What is left to be written when an executor leaves, is."""

from __future__ import annotations

import os
import signal

from tests.e2e import jobs, libraries
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended

# Prints


def test_a_printed_line_is_there_at_once_and_half_a_line_when_the_worker_drains(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PYTHONUNBUFFERED": ""})
    job = libraries.prints.register("one")
    wait_until(lambda: stage.count("printed", "one"), 15, "it has printed")
    assert "printed one\n" in process.log
    stage.open("one")
    assert ended(job)[0].result == {"stderr": True}
    assert "half a line" not in process.log
    assert process.stop() == 0
    assert "half a line of one" in process.log


def test_half_a_printed_line_is_not_lost_with_the_supervisor(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PYTHONUNBUFFERED": ""})
    stage.open("one")
    ended(libraries.prints.register("one"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "its executor has left")
    assert "half a line of one" in process.log


# What libraries flush at exit

LIBRARIES = {"PGJOBS_TEST_LEAVING": "sentry,opentelemetry"}


def arrived(stage: Stage) -> dict[str, set[str]]:
    """Return what the libraries have delivered."""
    return {kind: {trace.words[1] for trace in stage.traces(kind)} for kind in ("sentry", "span")}


def test_reports_and_spans_of_jobs_arrive_when_the_worker_is_stopped(worker: Workers, stage: Stage) -> None:
    """By the libraries' own ``atexit`` callbacks; a last failure too, by Sentry's own handler of ``logging``."""
    process = worker(env=LIBRARIES, processes=2)
    ended(libraries.reports.register("one"), libraries.reports.register("two", fails=True))
    assert arrived(stage) == {"sentry": set(), "span": set()}
    assert process.stop() == 0
    assert arrived(stage) == {
        "sentry": {"message_of_one", "message_of_two", "failure_of_two"},
        "span": {"span_of_one", "span_of_two"},
    }


def test_reports_and_spans_of_jobs_arrive_when_an_executor_is_recycled(worker: Workers, stage: Stage) -> None:
    process = worker("--executor-max-jobs=1", env=LIBRARIES)
    ended(libraries.reports.register("one"))
    process.wait_for_log("executor has been recycled")
    assert arrived(stage) == {"sentry": {"message_of_one"}, "span": {"span_of_one"}}


def test_reports_and_spans_of_jobs_arrive_when_the_supervisor_is_killed(worker: Workers, stage: Stage) -> None:
    process = worker(env=LIBRARIES)
    ended(libraries.reports.register("one"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "its executor has left")
    assert arrived(stage) == {"sentry": {"message_of_one"}, "span": {"span_of_one"}}


# Signals of executors


def test_every_executor_tells_of_its_start_and_of_its_leaving(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PGJOBS_TEST_LEAVING": "signals"}, processes=2, threads=3)
    executors = set(process.executors())
    assert {trace.pid for trace in stage.traces("executor_started", None, "default", 3, 50)} == executors
    assert stage.count("executor_started") == 2
    assert stage.count("executor_stopping") == 0
    assert process.stop() == 0
    assert {trace.pid for trace in stage.traces("executor_stopping", None, "drained")} == executors
    assert stage.count("executor_stopping") == 2
    told = [(trace.pid, trace.words[0]) for trace in stage.traces() if trace.pid in executors]
    for pid in executors:
        assert [word for each, word in told if each == pid] == ["executor_started", "executor_stopping", "atexit"]


def test_an_executor_whose_supervisor_is_killed_tells_so(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PGJOBS_TEST_LEAVING": "signals"})
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "its executor has left")
    assert [trace.words[2] for trace in stage.traces("executor_stopping")] == ["orphaned"]
    wait_until(lambda: stage.count("atexit"), 5, "its callbacks were called")


def test_an_inline_worker_is_its_own_executor(worker: Workers, stage: Stage) -> None:
    process = worker("--inline", "--until-idle", env={"PGJOBS_TEST_LEAVING": "signals"}, ready=False)
    assert process.wait() == 0, process.log
    told = [(trace.pid, trace.words[0]) for trace in stage.traces()]
    assert told == [(process.pid, word) for word in ("executor_started", "executor_stopping", "atexit")]


def test_receivers_and_callbacks_that_raise_or_leave_change_nothing(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PGJOBS_TEST_LEAVING": "signals,receivers leave,callbacks raise"})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert process.stop() == 0
    assert process.said("receivers of executor_started failed")
    assert process.said("receivers of executor_stopping failed")
    assert stage.count("atexit") == 1


def test_receivers_and_callbacks_that_hang_hold_up_nobody_for_long(worker: Workers, stage: Stage) -> None:
    """What libraries have kept is flushed all the same, if its turn comes before what hangs."""
    ways = "short,callbacks hang,signals,sentry,opentelemetry,receivers hang"
    process = worker("--executor-max-jobs=1", env={"PGJOBS_TEST_LEAVING": ways})
    assert process.said("receivers of executor_started take too long, executor continues without seconds=1.0 at=.* in=")
    assert ended(libraries.reports.register("one"))[0].outcome == "succeeded"
    process.wait_for_log("executor has been recycled")
    assert process.said("receivers of executor_stopping take too long")
    assert process.said("exit callbacks take too long")
    found = arrived(stage)
    assert ("message_of_one" in found["sentry"], found["span"]) == (True, {"span_of_one"})


def test_an_executor_that_hangs_in_logging_while_it_leaves_is_ended(worker: Workers, stage: Stage) -> None:
    """Recycling goes on, and so does a drain that has no end."""
    env = {"PGJOBS_TEST_LEAVING": "short,logging hangs"}
    process = worker("--executor-max-jobs=1", conf={"DRAIN_SECONDS": 3600.0}, env=env)
    ended(jobs.effect.register("one"))
    process.wait_for_log("executor ended, replaced")
    assert process.said("most recent call first"), "its stacks say where it hung"
    assert process.stop() == 0
