"""Jobs that take more memory than they may: they are stopped and charged, and nobody beside them is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.core.management import call_command

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs, leaking
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, started

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 4, "conf": {"POLL_SECONDS": 60}}

GREW = r"^MemoryExceeded: Its process grew by (\d+) MB, more than 100 MB \(memory=100\): from (\d+) MB .* to (\d+) MB\."

KILLED = "executor takes too much memory, it is killed"


def waiting(worker: WorkerProcess, count: int, job: object = jobs.waits) -> list[Job]:
    ids = register_many(job.bind("go") for _ in range(count))  # type: ignore[attr-defined]
    wait_until(lambda: worker.stage.count("start", "go") >= count, 15, f"{count} jobs run")
    return list(Job.objects.filter(pk__in=ids).order_by("id"))


def test_a_job_alone_is_interrupted_and_its_words_have_the_figures(
    shared_worker: WorkerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shared_worker.log
    (after,) = ended(leaking.leaks.register("one"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])
    found = re.search(GREW, after.error)
    assert found, after.error
    grew, start, end = map(int, found.groups())
    assert 100 < grew == pytest.approx(end - start, abs=1)
    assert all("in leaks" in attempt.traceback for attempt in after.attempts.all())
    assert "executor killed" not in shared_worker.log[len(before) :]
    call_command("pgjobs", "show", str(after.pk), "--format", "json")
    shown = json.loads(capsys.readouterr().out)
    assert [each["peak_megabytes"] > 100 for each in shown["attempts"]] == [True, True]
    assert shown["memory"]["peak_megabytes"] >= shown["memory"]["start_megabytes"] + 100


def test_one_that_goes_on_is_killed(shared_worker: WorkerProcess) -> None:
    (after,) = ended(leaking.leaks_deaf.register("deaf"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed")])
    assert re.search(GREW, after.error), after.error
    assert shared_worker.stage.count("stopped", "deaf") == 1


@pytest.mark.parametrize(
    ("beside", "leaks"), [(jobs.waits, leaking.leaks), (jobs.awaits, leaking.aleaks)], ids=["threads", "loop"]
)
def test_its_neighbours_run_to_their_end_uncharged(shared_worker: WorkerProcess, beside: Any, leaks: Any) -> None:
    """Who it was is found by running halves again, as after a crash."""
    neighbours = waiting(shared_worker, 3, beside)
    leak = leaks.register("beside", "now")
    started(shared_worker.stage, "beside")
    killed = len(re.findall(KILLED, shared_worker.log))
    shared_worker.stage.open("now")
    shared_worker.wait_for_log(KILLED, times=killed + 1)
    shared_worker.stage.open("go")
    (after,) = ended(leak, timeout=60)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])
    assert re.search(GREW, after.error), after.error
    assert [(each.outcome, each.attempt) for each in ended(*neighbours)] == [("succeeded", 1)] * 3
    assert [history(each) for each in neighbours] == [[], [], []]
