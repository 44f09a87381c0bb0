"""One worker serves many schemas of one database: each job in its own, and a sleeping one costs nothing."""

from __future__ import annotations

import os
import signal

import pytest
from django.db import connections
from django.test import override_settings

from django_pgjobs.exceptions import JobNotFinished
from tests.e2e import schemas
from tests.e2e.elsewhere import aliased, ask, call
from tests.e2e.schemas_ground import ManySchemas, Tenants, noted
from tests.e2e.stage import Stage
from tests.e2e.test_past_one_server import in_schema
from tests.plugins.fix_db import patience, wait_until

NAMES = ["t1", "t2", 'a "quoted" name, 100% odd']


def odd(name: str) -> str:
    """A name as a trace has it."""
    return name.replace(" ", "_")


def test_each_job_runs_in_its_own_schema(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """In threads, as coroutines and in a transaction of its own; so does all that it registers."""
    tenants.make(*NAMES)
    for name in NAMES:
        for job in ("notes", "anotes", "spreads", "aspreads", "atomically", "fails_once"):
            tenants.put(name, job)
    process = start()
    tenants.all_ended(11)
    assert process.stop() == 0
    keys = ["achild", "async", "atomic", "child", "child-of-async", "child-of-atomic", "later", "plain", "tries"]
    expected = [(key, odd(name), odd(name)) for name in NAMES for key in (*keys, "tries")]
    assert sorted(noted(stage)) == sorted(expected)
    for name in NAMES:
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_claim") == [(0,)]
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_heartbeat") == [(0,)], "who left says nothing"
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_leader_term WHERE expires_at > now()") == [(0,)]
    assert ask(tenants.url, "SELECT count(*) FROM pgjobs_job") == [(0,)]


def test_a_sleeping_schema_hears_of_its_jobs(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """A notification names its schema; without one the next look finds the job; a job that is due later is in time."""
    tenants.make("t1", "t2", "t3")
    process = start()
    wait_until(lambda: asleep(tenants), 30, "all were led once, and sleep")
    with aliased("tenants", in_schema(tenants.url, "t2")), override_settings(PGJOBS={"SCHEMAS": schemas.names}):
        schemas.notes.using(database="tenants").register("told")
    tenants.put("t3", "notes", "found")
    tenants.put("t1", "notes", "later", due=3.0)
    wait_until(lambda: len(noted(stage)) == 3, 20, "all three have run")
    assert sorted(noted(stage)) == [("found", "t3", "t3"), ("later", "t1", "t1"), ("told", "t2", "t2")]
    [(late,)] = tenants.ask("t1", "SELECT extract(epoch FROM claimed_at - run_at)::float8 FROM pgjobs_job")
    assert late < patience(1.0)
    assert process.stop() == 0


@pytest.mark.parametrize("schema", ["t1", 'a "quoted" \\name, 100% odd'])
def test_a_job_is_waited_for_in_its_schema(start: ManySchemas, tenants: Tenants, schema: str) -> None:
    """The connection that waits finds the row where the caller's does, which a search path leads there."""
    tenants.make(schema)
    start()
    with aliased("tenants", tenants.url), override_settings(PGJOBS={"SCHEMAS": schemas.names}):
        with connections["tenants"].cursor() as cursor:
            cursor.execute("SELECT set_config('search_path', quote_ident(%s), false)", [schema])
        row = schemas.waits.using(database="tenants").register("gate")
        wait_until(lambda: tenants.stage.count("schema", "waits"), 20, "it runs")
        with pytest.raises(JobNotFinished):
            row.wait(timeout=0.2)
        assert tenants.ask(schema, "SELECT waited FROM pgjobs_job") == [(True,)], "its end notifies"
        tenants.stage.open("gate")
        assert row.wait(timeout=20).outcome == "succeeded"


def asleep(tenants: Tenants) -> bool:
    """Whether every schema has been led, and no worker is there any more."""
    return all(
        tenants.ask(name, "SELECT (SELECT count(*) FROM pgjobs_leader_term), (SELECT count(*) FROM pgjobs_heartbeat)")
        == [(1, 0)]
        for name in tenants.names
    )


def test_failures_in_a_sleeping_schema_are_told(start: ManySchemas, tenants: Tenants) -> None:
    """At the next visit for the leader's duties, and nothing else is: no worker led in the meantime, as it slept."""
    tenants.make("t1")
    process = start(conf={"NOTIFY_FAILURES": {"to": "mail_admins"}})
    wait_until(lambda: tenants.ask("t1", "SELECT 1 FROM pgjobs_notice"), 30, "it was led once")
    wait_until(lambda: asleep(tenants), 30, "it sleeps")
    failed = "INSERT INTO pgjobs_job (name, payload, outcome, finished_at) VALUES ('a', '{}', 'abandoned', now())"
    tenants.ask("t1", failed)
    tenants.ask("t1", "UPDATE pgjobs_leader_term SET expires_at = now() - make_interval(secs => 301)")
    told = "SELECT payload->'args'->0 FROM pgjobs_job WHERE name = 'pgjobs.notify'"
    wait_until(lambda: tenants.ask("t1", told), 20, "it is told")
    [(digest,)] = tenants.ask("t1", told)
    assert (digest["jobs"], digest["problems"]) == (1, [])
    assert process.stop() == 0


def test_a_worker_at_rest_has_few_connections(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    tenants.make(*(f"t{n}" for n in range(1, 31)))
    for name in tenants.names:
        tenants.put(name, "notes")
    process = start()
    tenants.all_ended(1, timeout=60)
    assert sorted({(own, here) for _, own, here in noted(stage)}) == sorted((name, name) for name in tenants.names)
    text = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgjobs %%' AND position(%s IN application_name) > 0"
    )
    [(count,)] = ask(tenants.url, text, process.name)
    assert count <= 7 + 4  # of the supervisor, and of four threads of an executor
    wait_until(lambda: asleep(tenants), 60, "all sleep")
    assert process.stop() == 0


def test_tenants_come_and_go(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """One that is not there, not migrated or dropped is said once, and the others do not feel it."""
    tenants.make("t1", "t2")
    ask(tenants.url, "CREATE SCHEMA bare")
    tenants.name("t1", "t2", "bare", "nowhere")
    process = start()
    process.wait_for_log("schema is not served yet, tried again schema=bare")
    process.wait_for_log("schema is not served yet, tried again schema=nowhere")
    tenants.put("t1", "notes", 1)
    tenants.all_ended(1, ["t1"])
    tenants.make("t3")
    tenants.put("t3", "notes", 3)
    tenants.all_ended(1, ["t3"])
    ask(tenants.url, "DROP SCHEMA t2 CASCADE")
    process.wait_for_log("schema is not served yet, tried again schema=t2")
    tenants.put("t1", "notes", 2)
    tenants.all_ended(2, ["t1"])
    tenants.name("t3")
    process.wait_for_log("schemas are served schemas=1")
    tenants.put("t1", "notes", "unserved")
    tenants.put("t3", "notes", 4)
    tenants.all_ended(2, ["t3"])
    assert tenants.ask("t1", "SELECT count(*) FROM pgjobs_job WHERE finished_at IS NULL") == [(1,)]
    assert process.stop() == 0
    for name in ("bare", "nowhere", "t2"):
        assert (
            len([line for line in process.log.splitlines() if f"not served yet, tried again schema={name}" in line])
            == 1
        )
    assert [own for _, own, here in noted(stage) if own != here] == []


def test_a_flood_in_one_schema_starves_no_other(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """More schemas have jobs than may claim at a time, and one of them far more than the others."""
    tenants.make(*(f"t{n}" for n in range(1, 25)))
    insert = (
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload)"
        " SELECT 'schemas.silent', 'default', 0, 3, %s FROM generate_series(1, %s)"
    )
    tenants.ask("t1", insert, call(), 40_000)
    process = start(threads=2)
    wait_until(
        lambda: tenants.ask("t1", "SELECT count(*) FROM pgjobs_job WHERE outcome IS NOT NULL")[0][0], 20, "it runs"
    )
    for name in tenants.names[1:]:
        tenants.put(name, "notes")
    tenants.all_ended(1, tenants.names[1:])
    last = max(tenants.ask(name, "SELECT claimed_at FROM pgjobs_job")[0][0] for name in tenants.names[1:])
    assert process.stop() == 0
    [(after,)] = tenants.ask("t1", "SELECT count(*) FROM pgjobs_job WHERE outcome IS NULL OR claimed_at > %s", last)
    assert after > 0, "the flood was still there when the last of the others began"


def test_a_long_job_keeps_its_lease_while_others_take_turns(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """A home that claims no more still renews; more such homes than may claim at a time."""
    tenants.make(*(f"t{n}" for n in range(1, 21)))
    for name in tenants.names:
        tenants.put(name, "waits", "end")
    process = start(threads=22, conf={"LEASE_SECONDS": 3, "RENEW_SECONDS": 0.5})
    wait_until(lambda: stage.count("schema", "waits") == 20, 40, "all run at the same time")
    tenants.put("t1", "notes", "beside")
    wait_until(lambda: stage.count("schema", "beside") == 1, 20, "another job runs beside them")
    [(kept,)] = tenants.ask("t20", "SELECT lease_expires_at > statement_timestamp() FROM pgjobs_claim")
    assert kept
    stage.open("end")
    tenants.all_ended(1, tenants.names[1:])
    assert process.stop() == 0
    assert stage.count("schema", "waits") == 20, "each ran once"


def test_jobs_of_a_dead_worker_are_rescued_in_their_schemas(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    tenants.make(*NAMES)
    for name in NAMES:
        tenants.put(name, "waits", "end")
    conf = {"LEASE_SECONDS": 2, "RENEW_SECONDS": 0.5}
    first = start(conf=conf)
    wait_until(lambda: stage.count("schema", "waits") == 3, 20, "all run")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start(conf=conf)
    wait_until(lambda: stage.count("schema", "waits") == 6, 40, "all run again")
    stage.open("end")
    tenants.all_ended(1)
    assert second.stop() == 0
    for name in NAMES:
        assert tenants.ask(name, "SELECT attempt FROM pgjobs_job") == [(2,)]


def test_an_operator_steers_a_job_in_its_schema(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """The same number runs in two schemas; a cancel stops that of one. What is paused waits for its schema alone."""
    tenants.make("t1", "t2")
    process = start()
    with aliased("t1", in_schema(tenants.url, "t1")), aliased("t2", in_schema(tenants.url, "t2")):
        running = {name: schemas.waits.using(database=name).register(f"end-{name}") for name in ("t1", "t2")}
        assert running["t1"].pk == running["t2"].pk
        wait_until(lambda: stage.count("schema", "waits") == 2, 20, "both run")
        running["t2"].cancel(mode="interrupt", reason="not needed")
    text = "SELECT outcome FROM pgjobs_job"
    wait_until(lambda: tenants.ask("t2", text) == [("cancelled",)], 20, "one has ended")
    assert tenants.ask("t1", text) == [(None,)]
    stage.open("end-t1")
    wait_until(lambda: tenants.ask("t1", text) == [("succeeded",)], 20, "the other has ended, too")
    assert process.stop() == 0


def test_schedules_fire_in_each_schema(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """An entry of each database is in each schema; any other in the one that the alias itself leads to."""
    tenants.make("t1", "t2")
    tenants.name("t1", "t2", "public")
    process = start(env={"PGJOBS_TEST_CRON": "schemas"})

    def fired(key: str) -> set[str]:
        return {own for name, own, _ in noted(stage) if name == key}

    wait_until(lambda: fired("everywhere") == {"t1", "t2", "public"}, 40, "it fires in each")
    wait_until(lambda: fired("at-home") == {"public"}, 40, "the other fires at home")
    assert process.stop() == 0


def test_a_session_is_as_new_for_the_next_schema(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """One thread runs jobs of many schemas in turn, on the connection that it keeps."""
    tenants.make(*(f"t{n}" for n in range(1, 6)))
    for _ in range(10):
        for name in tenants.names:
            tenants.put(name, "notes")
            tenants.put(name, "silent")
    process = start(threads=1)
    tenants.all_ended(20)
    assert [(own, here) for _, own, here in noted(stage) if own != here] == []
    assert len(noted(stage)) == 50
    assert process.stop() == 0
