"""Starting a worker: what is wrong is said in its own words, and ends it; --reload and --inline."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from django.db import connection

from django_pgjobs.models import Heartbeat, Job
from tests.db.forged_rows import FORGED, forge
from tests.e2e import decorated, jobs, libraries
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ANEW, Workers, database_url, ended, history, read


def test_a_jobs_module_that_cannot_be_imported_stops_the_worker(worker: Workers) -> None:
    """§4 boot: in the executor only; its own words are in the log, no process is restarted for ever."""
    process = worker(ready=False, env={"PGJOBS_TEST_BOOT": "raises"}, conf=ANEW)
    assert process.wait() == 1
    assert process.said("the jobs of this project cannot be imported")
    assert process.said("executor cannot boot, worker stops .* it exited with status 1 before it was ready")
    assert process.log.count("Traceback") == 1


def test_an_executor_that_is_never_ready_stops_the_worker(worker: Workers) -> None:
    """§4 boot: READY has a deadline."""
    process = worker(ready=False, env={"PGJOBS_TEST_BOOT": "sleeps"}, conf={"READY_SECONDS": 1.0, **ANEW})
    assert process.wait() == 1
    assert process.said("executor cannot boot, worker stops .* it was not READY within 1 s")


def test_a_first_executor_that_somebody_kills_while_it_boots_is_started_again(worker: Workers) -> None:
    """The kernel may want memory just then; that says nothing about the project's code."""
    process = worker(env={"PGJOBS_TEST_BOOT": "killed"}, conf=ANEW)
    assert process.said("executor cannot boot, tried again in .* SIGKILL ended it before it was ready")
    assert ended(jobs.effect.register("k"))[0].outcome == "succeeded"


@pytest.mark.parametrize("how", [(), ("--inline",)])
def test_a_psycopg_without_its_extension_is_named_once_with_its_cure(worker: Workers, how: tuple[str, ...]) -> None:
    process = worker("--until-idle", *how, ready=False, env={"PSYCOPG_IMPL": "python"})
    done = jobs.effect.register("slow")
    assert process.wait(60) == 0, process.log
    assert ended(done)[0].outcome == "succeeded"
    assert process.log.count("psycopg runs in Python") == 1
    assert process.said(r'psycopg runs in Python: Install "django-pgjobs\[binary\]"')


def test_check_errors_refuse_the_start_with_their_own_text(worker: Workers) -> None:
    """§2 configuration: the same text as ``manage.py check``."""
    process = worker(ready=False, conf={"LEASE_SECOND": 3})
    assert process.wait() == 1
    assert process.said("LEASE_SECOND")
    assert process.said("did you mean|Did you mean")
    assert not process.said("Traceback")


def test_an_executor_that_sees_another_database_is_a_boot_failure(worker: Workers) -> None:
    """§4: a child under a test runner, or with another environment, must never run a job of another database."""
    elsewhere = database_url(NAME="postgres")
    waiting = jobs.effect.register("never")
    process = worker(ready=False, env={"PGJOBS_TEST_EXECUTOR_DATABASE_URL": elsewhere}, conf=ANEW)
    assert process.wait() == 1
    assert process.said("executor cannot boot, worker stops .* it sees another database")
    assert (read(waiting).state, read(waiting).attempt) == ("ready", 0)


def test_the_heartbeat_says_what_a_worker_is(worker: Workers) -> None:
    """D5 D7: one row, at once, with its sizes and queues; each beat changes its instant and nothing else."""
    process = worker("--queues=a,b", processes=1, threads=3)
    wait_until(lambda: Heartbeat.objects.filter(name=process.name).exists(), 5, "its row is there")
    beat = Heartbeat.objects.get(name=process.name)
    assert (beat.pid, beat.state, beat.queues, beat.threads) == (process.pid, "running", ["a", "b"], 3)
    wait_until(lambda: Heartbeat.objects.get(pk=beat.pk).last_beat_at > beat.last_beat_at, 15, "it beats again")
    [again] = Heartbeat.objects.values()
    first = Heartbeat.objects.filter(pk=beat.pk).values().get() | {"last_beat_at": beat.last_beat_at}
    assert again | {"last_beat_at": beat.last_beat_at} == first


# --inline


def test_inline_runs_jobs_of_both_colours_and_ends_when_idle(worker: Workers, stage: Stage) -> None:
    """§4 inline: callbacks, retries, parking and results as elsewhere, in one process."""
    good = [jobs.effect.register("s"), jobs.aeffect.register("a")]
    doomed, cancelled = jobs.doomed.register(), jobs.steers.register("cancel")
    process = worker("--inline", "--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert [(job.outcome, job.result) for job in ended(*good)] == [("succeeded", "s"), ("succeeded", "a")]
    assert (read(doomed).outcome, history(doomed)) == ("abandoned", [(1, "failed"), (2, "failed")])
    assert stage.count("on_abandon", doomed.pk) == 1
    assert read(cancelled).outcome == "cancelled"
    assert {trace.pid for trace in stage.traces("effect")} == {process.pid}
    assert Heartbeat.objects.get(name=process.name).state == "stopped"


def test_inline_awaits_what_a_body_returns(worker: Workers) -> None:
    """A plain decorator hides that a function is async."""
    registered = decorated.awaited.register(4)
    worker("--inline", "--until-idle", ready=False)
    (row,) = ended(registered)
    assert (row.outcome, row.result) == ("succeeded", 5), row.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_inline_ends_after_the_running_job(worker: Workers, stage: Stage, number: int) -> None:
    """§4 inline: the first signal lets the job finish."""
    process = worker("--inline", ready=False)
    running = jobs.waits.register("w")
    wait_until(lambda: stage.count("start", "w"), 20, "it runs")
    process.signal(number)
    stage.open("w")
    assert process.wait() == 0, process.log
    assert (read(running).outcome, read(running).attempt) == ("succeeded", 1)


def test_inline_tells_the_running_job_that_a_cancel_is_asked_for(worker: Workers, stage: Stage) -> None:
    """A54 §5: nothing interrupts a job inline, but one that asks its context learns of the cancel."""
    worker("--inline", ready=False)
    running = jobs.obedient.register("cancel")
    wait_until(lambda: stage.count("start", running.pk), 20, "it runs")
    running.cancel(by="operator", reason="too late")
    (after,) = ended(running)
    assert stage.traces("saw", running.pk)[0].words[2:] == ("True", "operator", "too_late")
    assert (after.outcome, history(after)) == ("cancelled", [])


def test_inline_survives_what_a_job_does_to_its_connection(worker: Workers) -> None:
    """§4 inline: the worker has a connection of its own."""
    for how in ("transaction", "failed block", "autocommit", "breaks"):
        jobs.makes_a_mess.register(how)
    last = jobs.looks.register()
    process = worker("--inline", "--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert read(last).outcome == "succeeded"
    assert (read(last).result or {})["atomic"] is False
    assert not Job.objects.filter(finished_at=None).exists()


@pytest.mark.parametrize("arguments", [(), ("--inline",)], ids=["executors", "inline"])
def test_rows_that_cannot_be_claimed_or_read_are_parked_beside_others_that_run(
    worker: Workers, stage: Stage, arguments: tuple[str, ...]
) -> None:
    """All at once, each between good ones of its own queue; nothing is tried again and again."""
    bad, good = {}, []
    for what, (change, _) in FORGED.items():
        good.append(jobs.effect.register(f"before {what}"))
        bad[what] = jobs.effect.register(what)
        forge(bad[what], change)
    good.append(jobs.effect.register("after all"))
    process = worker(*arguments, "--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert {(row.outcome, row.attempt) for row in ended(*good)} == {("succeeded", 1)}
    assert stage.count("effect") == len(good)
    for what, (_, words) in FORGED.items():
        held = Job.objects.only("hold", "hold_reason").get(pk=bad[what].pk)
        assert held.hold == "parked", what
        assert words in held.hold_reason, what
    assert process.log.count("database trouble") == 0


def test_a_pool_of_processes_works_inline(worker: Workers) -> None:
    """Its children end by the signal they are sent, though this process drains by it."""
    job = libraries.maps_in_a_pool.register("fork")
    process = worker("--inline", "--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert ended(job)[0].result == [1, 2, 3]


# --reload

PROJECT = """
from django_pgjobs import job
from tests.e2e import stage

VERSION = "{version}"


@job(name="shop.reports")
def reports():
    stage.here().note("version", VERSION)
    return VERSION
"""

SETTINGS = """
from tests.settings_worker import *
from tests.settings_worker import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
BASE_DIR = {base!r}
"""


class Shop:
    """A project in a directory of its own, whose code changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "shop").mkdir(parents=True)
        (path / "shop" / "__init__.py").write_text("")
        (path / "shop_settings.py").write_text(SETTINGS.format(base=str(path)))
        self.writes = 0
        self.change(PROJECT.format(version="one"))

    def change(self, text: str) -> None:
        """Write the jobs module; its time of change differs whatever the clock's resolution."""
        self.writes += 1
        module = self.path / "shop" / "jobs.py"
        module.write_text(text)
        stamp = module.stat().st_mtime + self.writes
        os.utime(module, (stamp, stamp))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "project")


@pytest.mark.slow
def test_reload_restarts_at_a_change_and_survives_a_syntax_error(worker: Workers, stage: Stage, shop: Shop) -> None:
    """§4 reload: also in a project that cannot be imported for a while."""
    path = os.pathsep.join([str(shop.path), str(Path(__file__).resolve().parent.parent.parent)])
    env = {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    process = worker("--reload", env=env)
    insert = (
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload)"
        """ VALUES ('shop.reports', 'default', 0, 1, '{"args": [], "kwargs": {}}')"""
    )

    def runs(version: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(insert)
        wait_until(lambda: stage.count("version", version), 30, f"version {version} runs ({process.log[-1500:]})")

    runs("one")
    shop.change(PROJECT.format(version="two"))
    process.wait_for_log("executor is ready", times=2)
    runs("two")
    shop.change("def broken(:\n")
    process.wait_for_log("waiting for the next change")
    assert process.process.poll() is None
    shop.change(PROJECT.format(version="three"))
    process.wait_for_log("executor is ready", times=3)
    runs("three")
    assert process.stop() == 0, process.log


def test_the_command_line_refuses_nonsense(worker: Workers) -> None:
    """§2: numbers from 1 on, names of queues."""
    for arguments in (("--max-jobs=0",), ("--queues=a b",), ("--async-slots=x",)):
        process = worker(*arguments, ready=False)
        assert process.wait() == 2, process.log
        assert process.said("usage:")


def test_manage_py_of_a_project_starts_executors_by_itself(worker: Workers, stage: Stage, tmp_path: Path) -> None:
    """Protocol trap 17: started by a script, with interpreter options; the children get the same."""
    script = tmp_path / "manage.py"
    script.write_text(
        "import sys\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(sys.argv)\n"
    )
    job = jobs.effect.register("k")
    process = worker("--until-idle", ready=False, program=(sys.executable, "-X", "utf8", str(script)))
    assert process.wait() == 0, process.log
    assert read(job).outcome == "succeeded"


@pytest.mark.parametrize("arguments", [(), ("--inline",)], ids=["executors", "inline"])
def test_links_begin_as_those_of_the_web_process(worker: Workers, arguments: tuple[str, ...]) -> None:
    """FORCE_SCRIPT_NAME, which ``django.setup()`` sets for the main thread alone."""
    both = jobs.script_prefix.register(), jobs.ascript_prefix.register()
    forced = json.dumps({"FORCE_SCRIPT_NAME": "/shop"})
    process = worker("--until-idle", *arguments, env={"PGJOBS_TEST_MAIL": forced}, ready=False)
    assert process.wait() == 0, process.log
    assert [job.result for job in ended(*both)] == ["/shop/", "/shop/"]


def test_a_worker_serves_the_database_in_which_jobs_are_registered(worker: Workers) -> None:
    """Where a router decides, *default* may not even have our tables."""
    here = {name: connection.settings_dict[name] for name in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")}
    routed = {
        "DATABASES": {"default": {**here, "NAME": "postgres"}, "jobs": here},
        "DATABASE_ROUTERS": ["tests.routers.OursOnJobs"],
    }
    one = jobs.effect.register("routed")
    process = worker("--until-idle", env={"PGJOBS_TEST_MAIL": json.dumps(routed)}, ready=False)
    assert process.wait() == 0, process.log
    assert ended(one)[0].result == "routed"
