"""What one schema of many has for itself: its rights, whose copy it is, events, old jobs, stacks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e import schemas
from tests.e2e.elsewhere import aliased, ask
from tests.e2e.schemas_ground import ManySchemas, Tenants, noted
from tests.e2e.stage import Stage
from tests.e2e.test_past_one_server import in_schema
from tests.plugins.fix_db import wait_until
from tests.plugins.shell import printed

ROLE = "some_schemas"
SAID = "schema is not served yet, tried again schema=t2: "


def grants(name: str, verb: str = "GRANT", to: str = "TO") -> list[str]:
    rights = f"{verb} SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} {to} {ROLE}"
    return [f"{verb} USAGE ON SCHEMA {name} {to} {ROLE}", rights]


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[str]:
    """Of a role that may use what it was granted."""
    ask(server.url, f"CREATE ROLE {ROLE} LOGIN PASSWORD 'x'")
    parts = urlsplit(server.url)
    yield parts._replace(netloc=f"{ROLE}:x@{parts.netloc.rpartition('@')[2]}").geturl()
    ask(server.url, f"DROP OWNED BY {ROLE}")
    ask(server.url, f"DROP ROLE {ROLE}")


def test_rights_come_and_go(url: str, start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """A schema that is closed to the role is said once, also while a job of it runs; the others go on."""
    tenants.make("t1", "t2")
    for grant in grants("t1"):
        ask(tenants.url, grant)
    process = start(env={"DATABASE_URL": url})
    process.wait_for_log(f"{SAID}permission denied for schema t2")
    tenants.put("t2", "waits", "end")
    tenants.put("t1", "notes", 1)
    tenants.all_ended(1, ["t1"])
    assert stage.count("schema", "waits") == 0
    for grant in grants("t2"):
        ask(tenants.url, grant)
    wait_until(lambda: stage.count("schema", "waits") == 1, 30, "it runs")
    for grant in grants("t2", "REVOKE", "FROM"):
        ask(tenants.url, grant)
    process.wait_for_log(f"{SAID}permission denied for schema t2", times=2)
    tenants.put("t1", "notes", 2)
    tenants.all_ended(2, ["t1"])
    stage.open("end")
    assert process.stop() == 0


def test_the_copy_of_a_schema_runs_nothing(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """Until an operator has adopted it; each schema has a row of its own."""
    tenants.make("t1", "t2", "t3")
    row = (
        "INSERT INTO pgjobs_installation (id, system, database_oid, database_name, table_oid, version, environment,"
        " adopted_at, adopted_by, written_in) VALUES (1, '1', 1, 'shop', 1, 18, 'production', now(), '', 1)"
    )
    tenants.ask("t2", row)
    for name in tenants.names:
        tenants.put(name, "notes")
    process = start(conf={"ENVIRONMENT": "staging"})
    process.wait_for_log(f"{SAID}This database is of environment 'production', and ENVIRONMENT names 'staging'")
    tenants.all_ended(1, ["t1", "t3"])
    assert tenants.ask("t2", "SELECT attempt, outcome FROM pgjobs_job") == [(0, None)]
    assert tenants.ask("t2", "SELECT count(*) FROM pgjobs_leader_term") == [(0,)]
    tenants.ask("t2", "UPDATE pgjobs_installation SET environment = 'staging'")
    tenants.all_ended(1, ["t2"], timeout=30)
    assert tenants.ask("t1", "SELECT environment FROM pgjobs_installation") == [("staging",)]
    assert not process.said(SAID, 2)
    assert process.stop() == 0


def test_events_and_stacks_are_of_one_schema(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """The same number waits for an event of the same name in two schemas, and runs in two."""
    tenants.make("t1", "t2")
    process = start(conf={"BEAT_SECONDS": 60, "STALE_SECONDS": 130})
    with aliased("t1", in_schema(tenants.url, "t1")), aliased("t2", in_schema(tenants.url, "t2")):
        for name in ("t1", "t2"):
            tenants.put(name, "hears")
        waiting = "SELECT count(*) FROM pgjobs_memo WHERE kind = 'event'"
        wait_until(lambda: [tenants.ask(name, waiting) for name in tenants.names] == [[(1,)]] * 2, 20, "both wait")
        assert schemas.opened.send("door", payload="for-t2", database="t2")
        wait_until(lambda: noted(stage) == [("for-t2", "t2", "t2")], 20, "one goes on")
        runs = {name: schemas.waits.using(database=name).register(f"end-{name}") for name in ("t1", "t2")}
        wait_until(lambda: stage.count("schema", "waits") == 2, 20, "both run")
        assert runs["t1"].pk == runs["t2"].pk
        status, text = printed("stack", str(runs["t2"].pk), "--database=t2", "--by=ann")
        assert (status, "in waits" in text) == (0, True), text
        assert [tenants.ask(name, "SELECT count(*) FROM pgjobs_stack") for name in tenants.names] == [
            [(0,)],
            [(1,)],
        ]
        assert schemas.opened.send("door", payload="for-t1", database="t1")
    for name in tenants.names:
        stage.open(f"end-{name}")
    tenants.all_ended(2)
    assert process.stop() == 0


def test_old_jobs_of_a_sleeping_schema_are_pruned(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    tenants.make("t1", "t2")
    old = (
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, outcome, created_at, finished_at)"
        " VALUES ('schemas.silent', 'default', 0, 3, '{}', 'succeeded', now() - interval '1 y', now() - interval '1 y')"
    )
    for name in tenants.names:
        tenants.ask(name, old)
    process = start()
    left = "SELECT count(*) FROM pgjobs_job"
    wait_until(lambda: [tenants.ask(name, left) for name in tenants.names] == [[(0,)]] * 2, 30, "they are gone")
    assert process.stop() == 0
