"""Jobs that a worker finds when a row names them: executors import their modules, the supervisor never (O1, O2)."""

from __future__ import annotations

import sys

import pytest

from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import register, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

RESOLVING = {"PGJOBS_TEST_RESOLVING": "1"}

MODULE = """
import os
from tests.e2e import stage

stage.here().note("imported", __name__)

def runs(key):
    stage.here().note("ran", key)
    return key

async def aruns(key):
    return runs(key)

def fails(key):
    raise LookupError(key)
"""

CALLBACKS = """
from django_pgjobs import Cancel

def cancels(key):
    raise Cancel(key)

def commits(key):
    return key

commits.options = {"atomic": True}

def on_success(context, key):
    stage.here().note("on_success", key)

def on_abandon(context, key):
    stage.here().note("on_abandon", key)

def on_cancel(context, key):
    stage.here().note("on_cancel", key)
"""

QUERIES = "from django_pgjobs.models import Job\nJob.objects.exists()\n"
"""At import, which a module had better not do: an event loop's thread would refuse it."""


def write(stage: Stage, module: str, text: str = MODULE) -> None:
    (stage.path / f"{module}.py").write_text(text)


def named(name: str, key: str = "k") -> Job:
    [job_id] = register(name=name, payload=f'{{"args": ["{key}"], "kwargs": {{}}}}')
    return Job.objects.get(pk=job_id)


def test_executors_import_what_a_row_names_and_the_supervisor_never_does(worker: Workers, stage: Stage) -> None:
    """O1: from start to stop, whatever becomes of the job: an import that hangs must not take the leases along."""
    write(stage, "distant_tasks")
    process = worker(processes=2, env=RESOLVING)
    assert stage.traces("imported") == [], "nothing imports it by itself"
    good, colour, bad = named("distant_tasks.runs"), named("distant_tasks.aruns"), named("distant_tasks.fails")
    Job.objects.filter(pk=bad.pk).update(max_attempts=1)
    assert [job.result for job in ended(good, colour)] == ["k", "k"]
    assert (ended(bad)[0].outcome, history(bad)) == ("abandoned", [(1, "failed")])
    executors = process.executors()
    assert process.stop() == 0
    importers = [trace.pid for trace in stage.traces("imported")]
    assert importers
    assert len(importers) == len(set(importers)), "once in each process"
    assert set(importers) <= set(executors)


def test_its_callbacks_run_though_the_supervisor_does_not_know_its_code(worker: Workers, stage: Stage) -> None:
    """The executor says what it has found before the supervisor writes an end: several at once, in both executors."""
    write(stage, "distant_tasks", MODULE + CALLBACKS)
    process = worker(processes=2, env=RESOLVING)
    jobs_of = {
        "on_success": [*(named("distant_tasks.runs", f"s{n}") for n in range(20)), named("distant_tasks.commits")],
        "on_abandon": [named("distant_tasks.fails", "a")],
        "on_cancel": [named("distant_tasks.cancels", "c")],
    }
    Job.objects.filter(name="distant_tasks.fails").update(max_attempts=1)
    everything = [job for some in jobs_of.values() for job in some]
    ended(*everything)
    assert {what: stage.count(what) for what in jobs_of} == {what: len(some) for what, some in jobs_of.items()}
    assert process.pid not in {trace.pid for trace in stage.traces("imported")}


def test_a_job_waits_parked_with_the_words_of_the_import_until_a_worker_starts_that_can(
    worker: Workers, stage: Stage
) -> None:
    """O2: nobody touches the row. Its name is resolved when the next worker starts, in its own process, too."""
    worker.expect("Traceback")  # of the import, once for each executor
    broken, gone = named("distant_tasks.runs"), named("distant_gone.runs")
    write(stage, "distant_tasks", "import no_such_package\n")
    first = worker("--until-idle", env=RESOLVING, ready=False)
    assert first.wait() == 0
    for job, missing in ((broken, "no_such_package"), (gone, "distant_gone")):
        parked = read(job)
        assert (parked.state, parked.attempt) == ("parked", 0)
        assert parked.hold_reason.startswith(
            f"No job named {job.name!r} is known to this process: ModuleNotFoundError: No module named {missing!r}."
        )
    assert first.log.count("job cannot be imported name=distant_tasks.runs") == 1

    write(stage, "distant_tasks")
    second = worker(env=RESOLVING)
    assert ended(broken)[0].result == "k"
    assert read(gone).state == "parked"
    assert second.said("and of schedules resolved name=distant_tasks.runs: 1 are still unknown")
    assert second.pid in {trace.pid for trace in stage.traces("imported")}, "before its threads start"


def test_an_async_job_that_only_the_supervisor_knows_does_not_stop_the_event_loop(
    worker: Workers, stage: Stage
) -> None:
    """The executor imports it in another thread, where the module's import may also query."""
    write(stage, "distant_tasks", f"{QUERIES}{MODULE}")
    job = named("distant_tasks.aruns")
    Job.objects.filter(pk=job.pk).update(hold="parked")
    process = worker(env=RESOLVING)
    assert ended(job)[0].result == "k"
    assert not process.said("job cannot be imported")


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "1 / 0", "def runs(: ..."])
def test_a_worker_starts_whatever_a_parked_name_does_when_it_is_imported(
    worker: Workers, stage: Stage, text: str
) -> None:
    worker.expect("Traceback")
    write(stage, "distant_broken", text)
    job = named("distant_broken.runs")
    Job.objects.filter(pk=job.pk).update(hold="parked")
    process = worker(env=RESOLVING)
    assert ended(jobs.effect.register("k"))[0].outcome == "succeeded"
    assert read(job).state == "parked"
    assert process.said("job cannot be imported name=distant_broken.runs")


def test_an_inline_worker_finds_them_too(worker: Workers, stage: Stage) -> None:
    write(stage, "distant_tasks")
    waiting, parked = named("distant_tasks.runs", "waiting"), named("distant_tasks.runs", "parked")
    Job.objects.filter(pk=parked.pk).update(hold="parked")
    assert worker("--inline", "--until-idle", env=RESOLVING, ready=False).wait() == 0
    assert [job.result for job in ended(waiting, parked)] == ["waiting", "parked"]
    assert stage.count("imported") == 1


def test_without_a_resolver_such_names_are_unknown(worker: Workers, stage: Stage) -> None:
    """The sabotaged twin: what makes the jobs above run is the resolver alone."""
    write(stage, "distant_tasks")
    job = named("distant_tasks.runs")
    worker(env={"PYTHONPATH": ":".join([str(stage.path), *sys.path])})
    wait_until(lambda: read(job).state == "parked", 20, "it is parked")
    assert read(job).hold_reason.startswith("No job named 'distant_tasks.runs' is known to this process. Parked by")
    assert stage.traces("imported") == []


def test_a_limited_job_of_a_name_found_by_path_waits_for_the_next_start_and_the_log_says_so(
    worker: Workers, stage: Stage
) -> None:
    """Only at its start a worker learns the limits of such names; nothing else ever would."""
    write(stage, "distant_tasks")
    conf = {"QUEUE_LIMITS": {"default": {"concurrency": 2}}}
    first = worker(conf=conf, env=RESOLVING)
    [held] = register(name="distant_tasks.runs", payload='{"args": ["k"], "kwargs": {}}', limit_key="")
    first.wait_for_log("limited jobs wait for a worker that knows their name .* queue=default name=distant_tasks.runs:")
    assert Job.objects.get(pk=held).state == "limited"
    worker(conf=conf, env=RESOLVING)
    [done] = ended(Job.objects.get(pk=held))
    assert (done.outcome, stage.count("ran", "k")) == ("succeeded", 1)
    assert first.said("limited jobs wait for a worker", times=1)
    assert not first.said("limited jobs wait for a worker", times=2), "once"
