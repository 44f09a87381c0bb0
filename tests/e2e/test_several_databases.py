"""One worker serves several databases: each job in its own home, and none of them waits for another."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import urllib.request
from typing import Any

import psycopg
import pytest

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import CronEntry, Job
from tests.e2e import jobs
from tests.e2e.elsewhere import ask, call, manage, put
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ANEW, Workers, database_url, ended, history, started
from tests.plugins.ports import free_port

BOTH = "--database=default,second"


@pytest.fixture(params=["server", "nodes"])
def second(request: pytest.FixtureRequest) -> EmbeddedServer:
    """What the alias *second* leads to: a server of ours, or the last node of Citus where any is named."""
    found = request.getfixturevalue(request.param)
    return found if request.param == "server" else found[-1]  # type: ignore[no-any-return]


def beside(server: EmbeddedServer | str) -> dict[str, str]:
    """The environment of a worker that has it as the alias *second*."""
    return {"PGJOBS_TEST_SECOND_DATABASE_URL": server if isinstance(server, str) else server.url}


def there(server: EmbeddedServer, columns: str = "outcome, attempt") -> list[tuple[Any, ...]]:
    return ask(server.url, f"SELECT {columns} FROM pgjobs_job ORDER BY id")


def all_ended_there(server: EmbeddedServer, jobs: int, timeout: float = 20) -> None:
    text = "SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded'"
    wait_until(lambda: ask(server.url, text) == [(jobs,)], timeout, f"{jobs} jobs have succeeded there")


@pytest.mark.parametrize("conf", [{}, ANEW], ids=["forked", "anew"])
def test_each_job_runs_in_its_own_home(
    worker: Workers, second: EmbeddedServer, stage: Stage, conf: dict[str, object]
) -> None:
    here = [jobs.notes_its_home.register("here"), jobs.anotes_its_home.register("ahere")]
    put(second.url, "notes_its_home", call("there"))
    put(second.url, "anotes_its_home", call("athere"))
    process = worker("--until-idle", BOTH, ready=False, env=beside(second), conf=conf)
    assert process.wait() == 0, process.log
    assert [job.outcome for job in ended(*here)] == ["succeeded"] * 2
    assert there(second) == [("succeeded", 1)] * 2
    told = {words[1]: words[2] for words in (trace.words for trace in stage.traces("home"))}
    assert told == {"here": "default", "ahere": "default", "there": "second", "athere": "second"}
    assert ask(second.url, "SELECT name, state FROM pgjobs_heartbeat") == [(process.name, "stopped")]
    assert process.said("worker serves several databases alias=default,second")
    assert process.said("executor is ready") == 1


def twins(server: EmbeddedServer, name: str, here: tuple[object, ...], there: tuple[object, ...]) -> Job:
    """Register the same job twice, with one number: in the suite's database, which is returned, and there."""
    job = getattr(jobs, name).register(*here)
    put(server.url, name, call(*there))
    ask(server.url, "UPDATE pgjobs_job SET id = %s, timeout_seconds = 30", job.pk)
    return job  # type: ignore[no-any-return]


def test_a_job_is_not_taken_for_the_one_of_its_number_elsewhere(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    job = twins(second, "waits", ("here",), ("there",))
    process = worker(BOTH, env=beside(second))
    started(stage, "here")
    started(stage, "there")
    Job.objects.filter(pk=job.pk).cancel(mode="kill", reason="only this one")
    assert ended(job)[0].outcome == "cancelled"
    stage.open("there")
    all_ended_there(second, 1)
    assert stage.count("start", "there") <= 2, "once, and once more if it was in the executor that was killed"
    process.wait_for_log(rf"job={job.pk} attempt=1/3 claim=\S+ queue=default alias=default")


def test_what_a_job_registers_stays_beside_it(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    put(second.url, "spreads")
    put(second.url, "aspreads")
    worker(BOTH, env={**beside(second), "PGJOBS_TEST_UNROUTED": "1"})
    wait_until(lambda: stage.count("home") == 9, 30, "all that they registered has run")
    assert {trace.words[2] for trace in stage.traces("home")} == {"second"}
    assert len({trace.words[1] for trace in stage.traces("home")}) == 9
    assert not Job.objects.exists()


def test_twins_whose_executor_is_killed_run_again_each_by_itself(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    job = twins(second, "waits", ("here",), ("there",))
    process = worker(BOTH, env=beside(second))
    started(stage, "here")
    started(stage, "there")
    os.kill(process.executors()[0], signal.SIGKILL)
    process.wait_for_log("suspects run again in groups", times=2)
    stage.open("here")
    stage.open("there")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    all_ended_there(second, 1)
    assert there(second) == [("succeeded", 1)]
    assert (stage.count("end", "here"), stage.count("end", "there")) == (1, 1)
    assert ask(second.url, "SELECT count(*) FROM pgjobs_claim") == [(0,)]


def test_two_databases_of_one_server_are_told_apart(worker: Workers, server: EmbeddedServer, stage: Stage) -> None:
    """Their jobs have the same numbers, and whoever looks at the server sees whose connection is whose."""
    ask(server.url, "CREATE DATABASE beside")
    url = server.url.rpartition("/")[0] + "/beside"
    manage(url, "migrate", "-v0")
    ids = [put(server.url, "notes_its_home", call("one")), put(url, "notes_its_home", call("two"))]
    assert ids == [1, 1]
    process = worker(BOTH, env={"DATABASE_URL": server.url, **beside(url)})
    wait_until(lambda: stage.count("home") == 2, 20, "both have run")
    assert sorted(trace.words for trace in stage.traces("home")) == [
        ("home", "one", "default"),
        ("home", "two", "second"),
    ]
    named = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE %s"
    for name, alias in ((server.url.rpartition("/")[2], "default"), ("beside", "second")):
        [(own,)] = ask(server.url, named, name, f"pgjobs {process.name} {alias} %")
        assert 3 <= own <= 7, "a thread of the supervisor has one at most"
    assert process.stop() == 0
    assert ask(url, "SELECT outcome, attempt FROM pgjobs_job") == [("succeeded", 1)]
    assert ask(server.url, "SELECT outcome, attempt FROM pgjobs_job") == [("succeeded", 1)]
    ask(server.url, "DROP DATABASE beside WITH (FORCE)")


def test_a_timeout_and_a_retry_are_of_one_home(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    job = twins(second, "waits", ("here",), ("there",))
    ask(second.url, "UPDATE pgjobs_job SET timeout_seconds = 0.5, max_attempts = 1")
    worker(BOTH, env=beside(second))
    started(stage, "here")
    wait_until(lambda: there(second) == [("abandoned", 1)], 20, "the one there is over its time")
    stage.open("here")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    assert history(job) == []
    assert ask(second.url, "SELECT cause FROM pgjobs_attempt") == [("timeout",)]


def test_with_a_backlog_in_both_each_gets_its_share(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    for number in range(60):
        jobs.notes_its_home.register(number, 0.05)
    put(second.url, "notes_its_home", call("first", 0.05))
    process = worker(BOTH, "--until-idle", ready=False, threads=2, env=beside(second))
    process.ready()
    wait_until(lambda: stage.count("home") > 4, 10, "the backlog here is being worked off")
    before = stage.count("home")
    for number in range(20):
        put(second.url, "notes_its_home", call(number, 0.05))
    ask(second.url, "SELECT pg_notify('pgjobs', '0:default')")
    wait_until(lambda: stage.count("home") >= before + 40, 30, "forty more have ended")
    homes = [trace.words[2] for trace in stage.traces("home")][before : before + 40]
    assert homes.count("second") >= 14, homes
    assert process.wait() == 0, process.log
    assert stage.count("home") == 81


def test_one_alone_gets_all_places(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    for number in range(4):
        put(second.url, "waits", call(f"w{number}"))
    worker(BOTH, env=beside(second))
    wait_until(lambda: stage.count("start") == 4, 10, "all four places are taken by one database")
    for number in range(4):
        stage.open(f"w{number}")
    all_ended_there(second, 4)


def test_many_callbacks_do_not_keep_the_others_waiting(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    stage.open("told")
    for _ in range(100):
        put(second.url, "no_op")
    worker(BOTH, threads=2, env=beside(second), conf={"POLL_SECONDS": 0.5})
    all_ended_there(second, 100)
    columns = "name, queue, priority, max_attempts, payload"
    many = f"INSERT INTO pgjobs_job ({columns}) SELECT %s, 'default', 0, 3, %s FROM generate_series(1, 100)"
    ask(second.url, many, "tests.e2e.jobs.tells_later", call("told", 0.2))
    ask(second.url, "SELECT pg_notify('pgjobs', '0:default')")
    wait_until(lambda: stage.count("telling") >= 4, 10, "callbacks run")
    for number in range(10):
        jobs.notes_its_home.register(number, 0.01)
    wait_until(lambda: stage.count("home") == 10, 20, "the others have run")
    assert stage.count("telling") < 40, "else all callbacks come first"


def test_a_database_that_is_killed_under_load_costs_the_others_nothing(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    process = worker(BOTH, env=beside(second), conf={"POLL_SECONDS": 1})
    for number in range(3):
        put(second.url, "waits", call(f"w{number}"))
    ask(second.url, "SELECT pg_notify('pgjobs', '0:default')")
    wait_until(lambda: stage.count("start") == 3, 10, "its jobs run")
    ask(second.url, "UPDATE pgjobs_heartbeat SET pid = pid")  # takes the claim to the disk
    acknowledged = [jobs.effect.register(number) for number in range(20)]
    second.halt(immediate=True)
    for number in range(3):
        stage.open(f"w{number}")
    wait_until(lambda: stage.count("end") == 3, 10, "its jobs have ended while it is away")
    acknowledged += [jobs.effect.register(20 + number) for number in range(20)]
    assert {job.outcome for job in ended(*acknowledged)} == {"succeeded"}
    process.wait_for_log("database trouble, will try again loop=[a-z]+ alias=second")
    second.start()
    put(second.url, "effect", call("afterwards"))
    all_ended_there(second, 4, 30)
    assert stage.count("start") == 3, "none ran twice"
    process.wait_for_log("database is back loop=[a-z]+ alias=second")
    assert process.stop() == 0
    assert process.said("database trouble, will try again") == 1
    assert ask(second.url, "SELECT count(*) FROM pgjobs_claim") == [(0,)]


def test_one_that_is_away_at_the_start_is_served_when_it_comes(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    url = second.url
    put(url, "effect", call("there"))
    second.halt()
    here = jobs.effect.register("here")
    process = worker(BOTH, env=beside(url))
    assert ended(here)[0].outcome == "succeeded"
    process.wait_for_log("WARNING database is not served yet, tried again alias=second: it cannot be reached")
    second.start()
    all_ended_there(second, 1, 40)
    assert process.said("database is not served yet") == 1


@pytest.mark.parametrize("state", ["unmigrated", "read-only", "the same"])
def test_one_that_cannot_be_used_is_said_once(
    worker: Workers, second: EmbeddedServer, stage: Stage, state: str
) -> None:
    url, why = second.url, "its server takes no writes"
    if state == "unmigrated":
        ask(url, "DROP DATABASE IF EXISTS bare")
        ask(url, "CREATE DATABASE bare")
        url, why = url.rpartition("/")[0] + "/bare", "the tables of django-pgjobs are not there"
    elif state == "the same":
        url, why = database_url(), "it is the same database as '(default|second)', whose jobs it has"
    else:
        ask(url, "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")
    try:
        process = worker(BOTH, env=beside(url))
        job = jobs.effect.register("here")
        assert ended(job)[0].outcome == "succeeded"
        process.wait_for_log(f"ERROR database is not served yet, tried again alias=(default|second): {why}")
        assert stage.count("effect") == 1
    finally:
        if state == "read-only":
            with psycopg.connect(url, autocommit=True) as raw:
                raw.execute("SET default_transaction_read_only = off")
                raw.execute("ALTER ROLE CURRENT_USER RESET default_transaction_read_only")
    if state == "read-only":
        put(url, "effect", call("there"))
        all_ended_there(second, 1, 30)
    assert process.said("database is not served yet") == 1


@pytest.mark.parametrize("alias", ["second", "alone"])
def test_one_with_an_older_schema_is_said_and_served_after_its_migration(
    worker: Workers, second: EmbeddedServer, stage: Stage, alias: str
) -> None:
    put(second.url, "effect", call("there"))
    ask(second.url, "ALTER TABLE pgjobs_job RENAME COLUMN expires_at TO not_yet")
    lack = r"older than this code \(column .*expires_at.* does not exist\)"
    try:
        if alias == "alone":
            process = worker(env={"DATABASE_URL": second.url}, ready=False)
            process.wait_for_log(f"{lack}: run manage.py migrate; waiting")
        else:
            process = worker(BOTH, env=beside(second))
            here = [jobs.effect.register(number) for number in range(20)]
            assert {job.outcome for job in ended(*here)} == {"succeeded"}
            process.wait_for_log(f"not served yet, tried again alias=second: .*{lack}, run manage.py migrate")
    finally:
        ask(second.url, "ALTER TABLE pgjobs_job RENAME COLUMN not_yet TO expires_at")
    all_ended_there(second, 1, 40)
    assert process.stop() == 0
    assert process.said("not served yet") == (alias == "second")
    assert "loop failed" not in process.log


def test_one_that_is_silent_costs_the_others_nothing(worker: Workers, stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        port = silent.getsockname()[1]
        process = worker(BOTH, env=beside(f"postgres://nobody@127.0.0.1:{port}/nothing"))
        here = [jobs.effect.register(number) for number in range(3)]
        assert {job.outcome for job in ended(*here)} == {"succeeded"}
        process.wait_for_log("database is not served yet, tried again alias=second: it cannot be reached")
        assert process.stop() == 0


def test_one_that_freezes_under_load_costs_the_others_nothing(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    process = worker(BOTH, env=beside(second), conf={"POLL_SECONDS": 1})
    put(second.url, "waits", call("there"))
    ask(second.url, "SELECT pg_notify('pgjobs', '0:default')")
    started(stage, "there")
    frozen = family(second.pid)
    try:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        here = [jobs.effect.register(number) for number in range(40)]
        assert {job.outcome for job in ended(*here)} == {"succeeded"}
        doomed = jobs.doomed.register()
        assert ended(doomed)[0].outcome == "abandoned"
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    stage.open("there")
    all_ended_there(second, 1, 30)
    assert stage.count("start", "there") == 1
    assert process.stop() == 0


def family(pid: int | None) -> list[int]:
    """Return a process and its children."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(each) for each in [str(pid), *children.stdout.split()]]


def test_a_drain_waits_for_the_jobs_of_all(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    job = jobs.waits.register("here")
    put(second.url, "waits", call("there"))
    process = worker(BOTH, env=beside(second))
    started(stage, "here")
    started(stage, "there")
    process.signal(signal.SIGTERM)
    process.wait_for_log("worker drains held=2: SIGTERM")
    stage.open("here")
    assert ended(job)[0].outcome == "succeeded"
    assert process.process.poll() is None
    stage.open("there")
    assert process.wait() == 0
    assert there(second) == [("succeeded", 1)]


def test_leases_that_are_lost_in_one_are_kept_in_the_other(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    job = twins(second, "waits", ("here",), ("there",))
    process = worker(BOTH, env=beside(second))
    started(stage, "here")
    started(stage, "there")
    ask(second.url, "UPDATE pgjobs_job SET claim_id = gen_random_uuid()")
    process.wait_for_log(f"lease lost, nothing of the job was changed .* job={job.pk} .* alias=second")
    stage.open("here")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    stage.open("there")


def test_a_cron_entry_has_one_home(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    worker(BOTH, env={**beside(second), "PGJOBS_TEST_CRON": "1"}, conf={"DATABASES": ["default", "second"]})
    wait_until(lambda: stage.count("tick") >= 2, 20, "it fires")
    wait_until(lambda: ask(second.url, "SELECT count(*) FROM pgjobs_leader_term") == [(1,)], 20, "there is a leader")
    assert ask(second.url, "SELECT count(*) FROM pgjobs_cron_entry") == [(0,)]
    assert there(second) == []


def test_an_entry_of_each_database_fires_in_each_by_itself(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    """One database is away for some of its fires, and then one is paused: the other's go on, and none is made twice."""

    def fires(alias: str) -> list[str]:
        return [trace.words[2] for trace in stage.traces("each") if trace.words[1] == alias]

    def more(alias: str, before: int) -> None:
        wait_until(lambda: len(fires(alias)) >= before + 2, 30, f"it fires in {alias}")

    conf = {"DATABASES": ["default", "second"], "POLL_SECONDS": 1}
    process = worker(BOTH, env={**beside(second), "PGJOBS_TEST_CRON": "each"}, conf=conf)
    more("default", 0)
    more("second", 0)
    second.halt(immediate=True)
    more("default", len(fires("default")))
    second.start()
    more("second", len(fires("second")))
    CronEntry.objects.get(pk="each").pause(by="ann")
    more("second", len(fires("second")))
    assert process.stop() == 0
    for alias in ("default", "second"):
        assert len(fires(alias)) == len(set(fires(alias))), "each fire once"
    assert ask(second.url, "SELECT count(*) FROM pgjobs_cron_entry") == [(1,)]
    assert [row.status for row in CronEntry.objects.filter(pk="each")] == ["paused"]


def test_a_number_of_jobs_to_end_after_is_of_all_together(
    worker: Workers, second: EmbeddedServer, stage: Stage
) -> None:
    for number in range(6):
        jobs.effect.register(number)
        put(second.url, "effect", call(number))
    process = worker(BOTH, "--max-jobs=7", ready=False, env=beside(second))
    assert process.wait() == 0, process.log
    assert stage.count("effect") == 7


def test_what_cannot_be_served_together_is_refused(worker: Workers, second: EmbeddedServer) -> None:
    for arguments, words in (
        (("--database=default", "--database=second"), "argument --database: give it once"),
        (("--database=default,nowhere",), "There is no database alias 'nowhere'"),
        (("--database=default,other",), "Jobs live on PostgreSQL; database 'other' is SQLite"),
        (("--database=default,default",), "name at least one alias, and none twice"),
        ((BOTH, "--inline"), "With --inline a worker serves one database"),
    ):
        refused = worker(*arguments, ready=False, env=beside(second))
        assert refused.wait() != 0
        assert refused.said(words), refused.log


def test_the_setting_names_them(worker: Workers, second: EmbeddedServer, stage: Stage) -> None:
    put(second.url, "notes_its_home", call("there"))
    process = worker("--until-idle", ready=False, env=beside(second), conf={"DATABASES": "tests.e2e.elsewhere.aliases"})
    assert process.wait() == 0, process.log
    assert [trace.words[2] for trace in stage.traces("home")] == ["second"]


@pytest.mark.parametrize(
    ("option", "expected"), [(BOTH, {"default": "1", "second": "1"}), ("--database=second", {"second": "1"})]
)
def test_the_metrics_of_a_worker_say_of_each_database_how_its_fleet_is(
    worker: Workers, second: EmbeddedServer, option: str, expected: dict[str, str]
) -> None:
    """A worker for one of several says which, too: beside others its figures would be taken for theirs."""
    port = free_port()
    conf = {"DATABASES": ["default", "second"]}
    worker(option, f"--metrics-port={port}", env=beside(second), conf=conf)

    def up() -> dict[str, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return dict(re.findall(r'^pgjobs_fleet_up{database="(\w+)"} (\d)$', answer.read().decode(), re.MULTILINE))

    wait_until(lambda: up() == expected, 40, "they have been read")
