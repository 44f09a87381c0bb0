"""Executors that hold more memory than they may, whatever their jobs declare."""

from __future__ import annotations

import re

from django_pgjobs.models import Job
from tests.e2e import jobs, leaking
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, history, read, started


def _grown(row: Job) -> int:
    """By how many megabytes the process of its first attempt has grown, as its row says."""
    found = re.fullmatch(r"1:(\d+)-(\d+)", (row.options or {}).get("peaks", ""))
    return int(found[2]) - int(found[1]) if found else 0


def test_an_executor_over_its_limit_is_stopped(worker: Workers) -> None:
    """Whatever its jobs declare; and each long attempt has a peak."""
    process = worker(threads=4, conf={"EXECUTOR_KILL_MEGABYTES": 300, "POLL_SECONDS": 60})
    fine = leaking.takes.register("fine", 50, "end")
    wait_until(lambda: _grown(read(fine)) >= 20, 20, "its peak is written")
    process.stage.open("end")
    ended(fine)
    neighbours = [jobs.waits.register("go") for _ in range(3)]
    started(process.stage, "go", 3)
    guilty = leaking.takes.register("guilty", 400, "never", "now")
    started(process.stage, "guilty")
    process.stage.open("now")
    process.wait_for_log("executor takes too much memory, it is killed")
    process.stage.open("go")
    (after,) = ended(guilty, timeout=60)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])
    assert re.search(r"^MemoryExceeded: Its process held \d+ MB, more than 300 MB \(EXECUTOR_KILL_MEG", after.error)
    assert [(each.outcome, each.attempt) for each in ended(*neighbours)] == [("succeeded", 1)] * 3


def test_what_a_job_has_left_costs_no_later_one(worker: Workers) -> None:
    """An executor is replaced between its jobs before it comes near its limit."""
    process = worker(conf={"EXECUTOR_KILL_MEGABYTES": 300})
    (first,) = ended(leaking.leaves.register(200))
    process.wait_for_log("executor is recycled, its successor starts first .*: it holds")
    assert (first.outcome, history(first)) == ("succeeded", [])


def test_a_limit_below_what_an_idle_executor_holds_stops_the_worker(worker: Workers) -> None:
    process = worker(ready=False, conf={"EXECUTOR_KILL_MEGABYTES": 20})
    assert process.wait() == 1
    assert process.said(r"an executor without jobs holds \d+ MB, EXECUTOR_KILL_MEGABYTES is 20")
