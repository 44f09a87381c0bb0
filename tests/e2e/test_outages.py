"""The database away, restarted, not migrated, behind odd settings: workers say so, wait, and lose nothing."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Job
from tests.e2e import jobs, newer
from tests.e2e.elsewhere import ask, call, manage, put
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import Workers, database_url, ended, read


def outcomes(url: str) -> list[tuple[str | None, int]]:
    """Return (outcome, attempt) of all jobs."""
    return ask(url, "SELECT outcome, attempt FROM pgjobs_job ORDER BY id")


def test_a_worker_waits_for_a_server_that_is_not_there_yet(worker: Workers, server: EmbeddedServer) -> None:
    """P41: says so, goes on when it is there."""
    url = server.url
    put(url, "effect", call("early"))
    server.halt()
    process = worker("--until-idle", ready=False, env={"DATABASE_URL": url})
    process.wait_for_log("database cannot be reached, waiting")
    assert process.process.poll() is None
    server.start()
    assert process.wait(40) == 0, process.log
    assert outcomes(url) == [("succeeded", 1)]


@pytest.mark.parametrize("immediate", [False, True], ids=["restart", "crash"])
def test_outcomes_of_an_outage_are_written_afterwards(
    worker: Workers, server: EmbeddedServer, stage: Stage, immediate: bool
) -> None:
    """C10 C52 P39 P41 W5: jobs that end while the server is away are recorded once it is back; none runs twice."""
    url = server.url
    process = worker(env={"DATABASE_URL": url}, conf={"POLL_SECONDS": 2})
    for n in range(3):
        put(url, "waits", call(f"w{n}"))
    put(url, "awaits", call("a"))
    ask(url, "SELECT pg_notify('pgjobs', '0:default')")
    wait_until(lambda: stage.count("start") == 4, 10, "all four run")
    # A claim's commit returns before it is on disk; one that is waited for takes it there.
    ask(url, "UPDATE pgjobs_heartbeat SET pid = pid")
    server.halt(immediate=immediate)
    for key in ("w0", "w1", "a"):
        stage.open(key)
    wait_until(lambda: stage.count("end") == 3, 10, "three have ended while the server is away")
    process.wait_for_log("database trouble, will try again loop=finalise")
    server.start()
    wait_until(lambda: outcomes(url).count(("succeeded", 1)) == 3, 30, "their ends are written")
    stage.open("w2")
    put(url, "effect", call("afterwards"))
    wait_until(lambda: outcomes(url).count(("succeeded", 1)) == 5, 30, "the last ends and new ones are done")
    assert stage.count("start") == 4
    assert process.stop() == 0
    process.wait_for_log("database is back loop=finalise")
    assert ask(url, "SELECT count(*) FROM pgjobs_claim") == [(0,)]


def test_in_an_outage_nothing_starts_whose_claim_cannot_be_confirmed(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    """C1 C3: it waits for a thread while the server is away: not started, not taken for lost; afterwards it runs."""
    url = server.url
    process = worker(threads=1, env={"DATABASE_URL": url}, conf={"POLL_SECONDS": 0.5})
    for _ in range(40):
        put(url, "no_op")
    wait_until(lambda: outcomes(url).count(("succeeded", 1)) == 40, 30, "the worker knows that jobs are short")
    both = (
        "INSERT INTO pgjobs_job (name, max_attempts, payload) VALUES ('tests.e2e.jobs.waits', 3, %s),"
        " ('tests.e2e.jobs.effect', 3, %s)"
    )
    ask(url, both, call("slow"), call("next"))
    wait_until(lambda: stage.count("start", "slow"), 20, "the first runs")
    claimed = "SELECT count(*) FROM pgjobs_job AS j WHERE j.state = 'running'"
    wait_until(lambda: ask(url, claimed) == [(2,)], 20, "and the second is claimed")
    server.halt()
    process.wait_for_log("database trouble, will try again loop=keep")
    old = time.monotonic() + 3.5
    wait_until(lambda: time.monotonic() > old, 10, "the last reading of its claim is old")
    stage.open("slow")
    wait_until(lambda: stage.count("end", "slow"), 10, "the thread is free")
    process.wait_for_log("database trouble, will try again loop=finalise")
    assert stage.count("effect", "next") == 0
    server.start()
    wait_until(lambda: outcomes(url).count(("succeeded", 1)) == 42, 40, "both have run, on their first attempt")
    assert not process.said("lease lost")


def test_who_leads_is_asked_again_after_an_outage(worker: Workers, server: EmbeddedServer) -> None:
    """W5 W7: that the server is away is a warning; once it is back somebody leads, as before."""
    process = worker(env={"DATABASE_URL": server.url})
    leads = "SELECT 1 FROM pgjobs_leader_term WHERE worker_name = %s AND expires_at > statement_timestamp()"
    wait_until(lambda: ask(server.url, leads, process.name), 15, "it leads")
    server.halt()
    process.wait_for_log(r"WARNING.* database trouble, will try again loop=maintenance")
    server.start()
    began = ask(server.url, "SELECT statement_timestamp()")[0][0]
    renewed = "SELECT 1 FROM pgjobs_leader_term WHERE worker_name = %s AND expires_at > %s + interval '6 s'"
    wait_until(lambda: ask(server.url, renewed, process.name, began), 30, "it leads again")


@pytest.mark.slow
def test_executors_that_die_in_an_outage_are_replaced_after_it(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    """P41 W5: a new executor waits for the database like everybody else; the worker does not give up."""
    url = server.url
    process = worker(env={"DATABASE_URL": url})
    (pid,) = process.executors()
    server.halt()
    os.kill(pid, signal.SIGKILL)
    process.wait_for_log("executor cannot boot, tried again", times=5)
    server.start()
    process.wait_for_log("executor is ready", times=2)
    put(url, "effect", call("after"))
    wait_until(lambda: outcomes(url) == [("succeeded", 1)], 30, "it runs")


@pytest.mark.slow
def test_a_worker_can_be_stopped_while_the_server_is_away(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    """W6 P41: with an outcome that cannot be written; it is not waited for longer than the drain limit and a little."""
    url = server.url
    process = worker(env={"DATABASE_URL": url}, conf={"DRAIN_SECONDS": 1.0, "LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0})
    put(url, "waits", call("w"))
    wait_until(lambda: stage.count("start") == 1, 10, "it runs")
    server.halt()
    stage.open("w")
    process.wait_for_log("database trouble, will try again loop=finalise")
    process.stop(25)
    server.start()
    ((outcome, attempt),) = outcomes(url)
    assert (outcome, attempt) == (None, 1), "its lease will run out"


@pytest.mark.slow
def test_tables_that_are_not_there_are_waited_for(worker: Workers, server: EmbeddedServer) -> None:
    """P41: says what to run."""
    ask(server.url, "CREATE DATABASE empty")
    url = server.url.rpartition("/")[0] + "/empty"
    process = worker("--until-idle", ready=False, env={"DATABASE_URL": url})
    process.wait_for_log(
        "the tables of django-pgjobs are not there, or older than this code: run manage.py migrate; waiting"
    )
    manage(url, "migrate", "-v0")
    assert process.wait(30) == 0, process.log
    ask(server.url, "DROP DATABASE empty WITH (FORCE)")


@pytest.mark.slow
def test_the_defaults_of_a_role_do_not_matter(worker: Workers, server: EmbeddedServer, stage: Stage) -> None:
    """§3 claim: every worker transaction names READ COMMITTED; also a tiny statement_timeout, also read-only."""
    ask(server.url, "CREATE ROLE odd LOGIN SUPERUSER PASSWORD 'odd'")
    for setting in (
        "default_transaction_isolation = 'repeatable read'",
        "statement_timeout = '5s'",
        "timezone = 'Asia/Tokyo'",
    ):
        ask(server.url, f"ALTER ROLE odd SET {setting}")
    host = server.url.rpartition("@")[2]
    url = f"postgres://odd:odd@{host}"
    for n in range(200):
        put(url, "effect", call(n))
    processes = [worker("--until-idle", ready=False, env={"DATABASE_URL": url}) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0], processes[0].log
    assert stage.count("effect") == 200
    assert set(outcomes(url)) == {("succeeded", 1)}
    assert not any("could not serialize" in process.log for process in processes)


def test_without_notify_everything_works_by_polling(worker: Workers, stage: Stage) -> None:
    """§3 wake-up: within a poll, which is a second at most for a worker that hears nothing."""
    process = worker(conf={"NOTIFY": False, "POLL_SECONDS": 60})
    first = ended(jobs.effect.register("one"), jobs.fails_thrice.using(max_attempts=1).register(), timeout=patience(5))
    assert [job.outcome for job in first] == ["succeeded", "abandoned"]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [f"pgjobs {process.name} listen"]
        )
        assert cursor.fetchone() == (0,)


def test_another_alias_is_served_when_told(worker: Workers, server: EmbeddedServer, stage: Stage) -> None:
    """§3: every statement runs on the alias it is told."""
    put(server.url, "effect", call("second"))
    here = jobs.effect.register("default")
    process = worker(
        "--until-idle", "--database=second", ready=False, env={"PGJOBS_TEST_SECOND_DATABASE_URL": server.url}
    )
    assert process.wait() == 0, process.log
    assert outcomes(server.url) == [("succeeded", 1)]
    assert (read(here).state, stage.count("effect", "default")) == ("ready", 0)
    refused = worker("--database=nowhere", ready=False)
    assert refused.wait() == 1
    assert refused.said("There is no database alias 'nowhere'")


def test_a_name_nobody_knows_is_parked_until_newer_code_comes(worker: Workers, stage: Stage) -> None:
    """P13 P14 P15 §5: parked with the reason, uncharged, never looped."""
    unknown, known = newer.newer.register("n"), jobs.effect.register("k")
    assert worker("--until-idle", ready=False).wait() == 0
    parked = read(unknown)
    assert (parked.state, parked.attempt) == ("parked", 0)
    assert "e2e.newer" in parked.hold_reason
    assert read(known).outcome == "succeeded"
    worker(env={"PGJOBS_TEST_NEWER": "1"})
    assert ended(unknown)[0].attempt == 1
    assert stage.count("newer", "n") == 1


@pytest.mark.parametrize(
    "payload",
    ['{"args": 5}', "[]", '"text"', '{"args": [], "kwargs": {"nobody": 1}}', '{"args": [{"$datetime": "never"}]}'],
)
def test_a_payload_that_cannot_be_read_is_parked(worker: Workers, raw: Any, payload: str) -> None:
    """P13 P15 D21: forged by SQL; the next job runs."""
    forged, good = jobs.effect.register("f"), jobs.effect.register("g")
    raw.query("UPDATE pgjobs_job SET payload = %s WHERE id = %s", [payload, forged.pk])
    assert worker("--until-idle", ready=False).wait() == 0
    assert read(good).outcome == "succeeded"
    assert (read(forged).state, read(forged).attempt) == ("parked", 0)
    assert read(forged).hold_reason


def test_the_url_of_the_test_database_is_the_one_workers_get() -> None:
    """Guards the fixture: a worker on any other database would make these tests lie."""
    assert database_url().endswith(f"/{connection.settings_dict['NAME']}")
    assert not Job._meta.swapped


def test_a_server_that_takes_no_writes_is_asked_seldom_and_told_of_once(worker: Workers, raw: RawDatabase) -> None:
    """Each loop looks again with growing pauses, says one word of trouble and one when it is over."""
    process = worker()
    name = connection.settings_dict["NAME"]
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgjobs%%'"
        " AND datname = current_database()"
    )
    raw.query(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        raw.query(end)
        process.wait_for_log(
            "database trouble, will try again loop=maintenance: cannot execute .* in a read-only transaction"
        )
        before = sessions(raw)
        wait_until(lambda: sessions(raw) >= before + 8, 60, "the worker has looked several times")
    finally:
        raw.query(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert ended(jobs.effect.register("after"), timeout=40)[0].outcome == "succeeded"
    process.wait_for_log("database is back loop=maintenance", times=2)  # once after its session was ended
    assert not process.said("database trouble, will try again loop=maintenance: cannot execute", times=2)
    assert not process.said("database is back loop=maintenance", times=3)


def sessions(raw: RawDatabase) -> int:
    """How many sessions of the database have been counted so far."""
    return int(raw.value("SELECT sessions FROM pg_stat_database WHERE datname = current_database()"))
