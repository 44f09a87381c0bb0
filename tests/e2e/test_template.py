"""Executors are forked from a template; where that cannot be, they are started as programs, and nothing is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from django.db import connection

from django_pgjobs.models import Job
from tests.e2e import jobs, libraries
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, command_of, ended, history

SHORT = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 1.0, "STALE_SECONDS": 3.0}
"""With it a template has less than a second to answer."""

GONE = "WARNING template of the executors is gone"


def children(pid: int) -> list[int]:
    """Return all children of a process, those included that nobody has reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def sockets(pid: int) -> set[str]:
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return {link for link in links if link.startswith("socket:")}


def forked(process: WorkerProcess) -> list[int]:
    return [pid for pid in process.executors() if command_of(pid)[0] == "pgjobs"]


def only_known_children(process: WorkerProcess, template: int = 0) -> bool:
    """Tell whether the supervisor has its executors, its watchdog and its template as children, and no zombie."""
    watchdogs = [pid for pid in process.processes() if any("watchdog.py" in part for part in command_of(pid))]
    return sorted(children(process.pid)) == sorted(
        {*process.executors(), *watchdogs, *([template] if template else [])}
    )


def test_executors_are_children_of_the_supervisor_and_lead_groups_of_their_own(worker: Workers, stage: Stage) -> None:
    process = worker(processes=2, env={"PGJOBS_TEST_IMPORTING": "nothing"})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert len(forked(process)) == 2
    assert stage.count("imported") == 1, "no executor has imported the project again"
    template = process.templates()[0]
    assert only_known_children(process, template)
    for pid in [*forked(process), template]:
        assert os.getpgid(pid) == pid
        assert len(os.listdir(f"/proc/{template}/task")) == 1
    names = [command_of(pid)[:2] for pid in forked(process)]
    assert names == [["pgjobs", "executor"]] * 2
    assert not process.said("WARNING executors are not forked")
    assert process.stop() == 0, process.log
    assert not process.said(GONE)


def test_no_process_has_the_sockets_of_another(worker: Workers) -> None:
    process = worker(processes=3)
    one, two, three = forked(process)
    assert not sockets(one) & sockets(two) | sockets(two) & sockets(three) | sockets(one) & sockets(three)
    for pid in (one, two, three):
        assert len(sockets(pid)) == 1, "its channel"
        assert not sockets(pid) & (sockets(process.templates()[0]) | sockets(process.pid))


HANDS_ON = """
import os, socket, sys
kept = [*os.pipe(), *(sock.detach() for sock in socket.socketpair()), socket.create_server(("127.0.0.1", 0)).detach()]
for descriptor in kept:
    os.set_inheritable(descriptor, True)
os.execv(sys.executable, [sys.executable, "-m", "django", *sys.argv[1:]])
"""


def test_no_pipe_or_socket_comes_along_from_the_program_before_the_worker(worker: Workers) -> None:
    """As a new program an executor gets none either: whoever waits for the end of a pipe would not see it."""
    process = worker(program=(sys.executable, "-c", HANDS_ON))
    (pid,) = forked(process)
    assert not process.said("WARNING executors are not forked")
    own = {os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir() if int(path.name) in range(3, 8)}
    assert len({link for link in own if link.startswith(("pipe:", "socket:"))}) == 4, "a pipe has two ends"
    for each in (pid, process.templates()[0]):
        assert not own & {os.readlink(path) for path in Path(f"/proc/{each}/fd").iterdir()}
        assert os.readlink(f"/proc/{each}/fd/0") == "/dev/null"


def test_what_comes_along_no_more_leaves_its_number_to_no_other(worker: Workers) -> None:
    """A C library that writes into its pipe would write into the board or the channel of an executor."""
    process = worker(env={"PGJOBS_TEST_IMPORTING": "inheritable pipe"})
    assert len(forked(process)) == 1
    assert ended(libraries.writes_into_pipe.register())[0].result == "/dev/null"


def test_a_closed_stdin_gives_its_number_to_no_socket(worker: Workers) -> None:
    process = worker(env={"PGJOBS_TEST_IMPORTING": "no stdin"})
    assert len(forked(process)) == 1
    for pid in [process.pid, *process.templates(), *forked(process)]:
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_a_directory_that_the_import_made_ends_with_the_worker_not_with_an_executor(
    worker: Workers, stage: Stage
) -> None:
    process = worker("--executor-max-jobs=1", env={"PGJOBS_TEST_IMPORTING": "directory"})
    ((_, path),) = (trace.words for trace in stage.traces("directory"))
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    process.wait_for_log("executor has been recycled")
    assert Path(path).exists()
    assert stage.count("ended") == 1, "what else it wants to do at its end is done"
    assert process.stop() == 0, process.log
    assert not Path(path).exists()


def test_a_project_that_reaps_all_children_costs_no_template(worker: Workers) -> None:
    process = worker(env={"PGJOBS_TEST_IMPORTING": "reaps"})
    assert len(forked(process)) == 1
    assert not process.said(GONE)


def test_executors_do_not_draw_the_same_random_numbers(worker: Workers) -> None:
    process = worker(processes=2, threads=1)
    drawn: set[tuple[object, object]] = set()

    def both() -> bool:
        done = ended(*Job.objects.filter(pk__in=[libraries.draws.register().pk for _ in range(4)]))
        drawn.update((job.result["pid"], job.result["first"]) for job in done if job.result is not None)
        return len({pid for pid, _ in drawn}) == 2

    wait_until(both, 20, "both executors have drawn")
    assert len({first for _, first in drawn}) == 2
    assert process.stop() == 0


def test_a_recycled_executor_has_the_code_of_its_worker(worker: Workers, stage: Stage, tmp_path: Path) -> None:
    """Whatever was deployed since, the successor is of one piece with its supervisor."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    code = 'from django_pgjobs import job\n\n@job(name="shop.version")\ndef version():\n    return "{}"\n'
    (package / "jobs.py").write_text(code.format("old"))
    (tmp_path / "shop_settings.py").write_text(
        "from tests.settings_worker import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'shop']\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parent.parent.parent)])
    env = {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    process = worker("--executor-max-jobs=1", "--no-reload", env=env)
    (package / "jobs.py").write_text(code.format("a later one"))
    results = []
    for turn in range(3):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload)"
                """ VALUES ('shop.version', 'default', 0, 1, '{"args": [], "kwargs": {}}') RETURNING id"""
            )
            (pk,) = cursor.fetchone()
        results.append(ended(Job.objects.get(pk=pk))[0].result)
        process.wait_for_log("executor has been recycled", times=turn + 1)
    assert results == ["old"] * 3
    wait_until(lambda: only_known_children(process, process.templates()[0]), 5, "the recycled are reaped")


def test_no_executor_imports_late_what_a_deploy_may_have_replaced(worker: Workers) -> None:
    worker()
    done = ended(libraries.registers_of_any_kind.register())[0]
    assert (done.error, done.result) == ("", [])


# Kills


def test_a_killed_executor_is_forked_again(worker: Workers, stage: Stage) -> None:
    process = worker()
    job = jobs.waits.register("k")
    wait_until(lambda: stage.count("start", "k") == 1, 15, "it runs")
    (pid,) = forked(process)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stage.count("start", "k") == 2, 30, "it runs again")
    stage.open("k")
    assert ended(job)[0].outcome == "succeeded"
    assert history(job) == [(1, "crashed")]
    assert "killed by SIGKILL" in job.attempts.get().message
    assert process.said(rf"executor ended, replaced pid={pid} status=-9")
    assert len(forked(process)) == 1
    assert only_known_children(process, process.templates()[0])


def test_executors_outlive_their_template_and_later_ones_are_programs(worker: Workers, stage: Stage) -> None:
    process = worker(processes=2)
    job = jobs.waits.register("k")
    wait_until(lambda: stage.count("start", "k") == 1, 15, "it runs")
    before = forked(process)
    os.kill(process.templates()[0], signal.SIGKILL)
    process.wait_for_log(f"{GONE}.* restart the worker.* status=-9")
    wait_until(lambda: only_known_children(process), 5, "it is reaped")
    assert forked(process) == before
    (idle,) = set(before) - {stage.traces("start", "k")[0].pid}
    os.kill(idle, signal.SIGKILL)
    process.ready(3)
    assert len(forked(process)) == 1
    assert len(process.executors()) == 2
    stage.open("k")
    assert ended(job)[0].attempt == 1
    assert process.stop() == 0, process.log
    assert not process.said(GONE, times=2)


@pytest.mark.parametrize("stopped", [False, True], ids=["", "its template is stopped"])
def test_nothing_is_left_of_a_killed_worker(worker: Workers, stage: Stage, stopped: bool) -> None:
    process = worker(processes=2)
    template = process.templates()[0]
    if stopped:
        os.kill(template, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "no process is left")


@pytest.mark.parametrize("how", ["kill the template between", "kill the template and its fork", "hang between"])
def test_a_template_that_fails_while_it_forks_costs_a_slower_start(worker: Workers, stage: Stage, how: str) -> None:
    """Whatever it has forked so far is ended with it, and reaped."""
    process = worker(env={"PGJOBS_TEST_IMPORTING": how}, conf=SHORT)
    process.wait_for_log(GONE)
    assert forked(process) == []
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert only_known_children(process)
    others = [command_of(pid) for pid in process.processes()]
    assert not [command for command in others if command[0] == "pgjobs"]
    assert process.stop() == 0, process.log
    assert not process.said(GONE, times=2)


def test_a_stopped_template_is_given_up_and_the_leases_hold(worker: Workers, stage: Stage) -> None:
    process = worker(processes=2, conf=SHORT)
    job = jobs.waits.register("k")
    wait_until(lambda: stage.count("start", "k") == 1, 15, "it runs")
    os.kill(process.templates()[0], signal.SIGSTOP)
    (idle,) = set(forked(process)) - {stage.traces("start", "k")[0].pid}
    os.kill(idle, signal.SIGKILL)
    process.wait_for_log(GONE)
    process.ready(3)
    stage.open("k")
    assert ended(job)[0].attempt == 1
    assert only_known_children(process)
    assert not process.said("watchdog")


def test_stop_signals_for_all_of_a_worker_end_it_in_good_order(worker: Workers, stage: Stage) -> None:
    """As systemd sends them: the template waits until its supervisor dismisses it."""
    process = worker(processes=2)
    job = jobs.waits.register("k")
    wait_until(lambda: stage.count("start", "k") == 1, 15, "it runs")
    for pid in process.processes():
        os.kill(pid, signal.SIGTERM)
    process.wait_for_log("worker drains")
    time.sleep(0.5)
    stage.open("k")
    assert process.wait() == 0, process.log
    assert ended(job)[0].outcome == "succeeded"
    assert not process.said(GONE)
    assert not process.processes()


# Projects of which no template can be made


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("thread", r"started threads \(of-the-project\); start them in a receiver of executor_started"),
        ("query", r"opened a connection to the database \(default\)"),
        ("socket", "opened 2 sockets or pipes; open them when they are needed"),
        ("pipe", "opened 2 sockets or pipes"),
    ],
)
def test_an_import_that_forbids_a_fork_is_named_once_with_its_cure(worker: Workers, how: str, said: str) -> None:
    process = worker(processes=2, env={"PGJOBS_TEST_IMPORTING": how})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert process.said(f"WARNING executors are not forked from a template.*{said}")
    assert not process.said("WARNING executors are not forked", times=2)
    assert forked(process) == []
    assert len(process.executors()) == 2


def test_a_thread_that_each_fork_starts_forbids_one_too(worker: Workers) -> None:
    process = worker(env={"PGJOBS_TEST_IMPORTING": "thread in forks"})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert process.said(r"os.register_at_fork.*started a thread")
    assert process.said(f"{GONE}.* status=1")
    assert forked(process) == []


def test_a_logging_by_datagrams_forbids_no_fork(worker: Workers) -> None:
    process = worker(env={"PGJOBS_TEST_IMPORTING": "datagrams"})
    assert len(forked(process)) == 1


def test_a_setting_turns_it_off(worker: Workers) -> None:
    process = worker(conf={"EXECUTOR_TEMPLATE": False})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    assert forked(process) == []
    assert not process.said("template")


def test_an_import_that_dies_ends_the_worker_and_leaves_nothing(worker: Workers) -> None:
    process = worker(ready=False, env={"PGJOBS_TEST_IMPORTING": "dies"})
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not process.processes(), 5, "no process is left")


def test_a_copy_that_cannot_begin_says_why(worker: Workers) -> None:
    process = worker(ready=False, env={"PGJOBS_TEST_IMPORTING": "broken numpy"})
    assert process.wait() == 1
    assert process.said("its own words are above")
    assert process.said("AttributeError: module 'numpy.random' has no attribute 'seed'")


def test_a_refused_start_leaves_no_template(worker: Workers) -> None:
    """The checks come after it."""
    process = worker(ready=False, conf={"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 2.9})
    assert process.wait() == 1
    wait_until(lambda: not process.processes(), 5, "no process is left")
