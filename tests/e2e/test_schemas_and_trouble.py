"""Many schemas, and a server that goes away, a worker that is told to end or to be quiet."""

from __future__ import annotations

from collections import Counter

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e.schemas_ground import ManySchemas, Tenants, noted
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until

RUNNING = 4


def busy(tenants: Tenants, stage: Stage) -> None:
    """Twenty schemas have work: in some of them a job runs, in all one waits for its turn."""
    tenants.make(*(f"t{n}" for n in range(1, 21)))
    for name in tenants.names[:RUNNING]:
        tenants.put(name, "waits", "end")


def test_a_server_that_goes_and_comes_costs_no_job(
    start: ManySchemas, tenants: Tenants, server: EmbeddedServer, stage: Stage
) -> None:
    """Jobs end while it is away, others wait in all schemas; each has run once."""
    busy(tenants, stage)
    process = start(threads=RUNNING)
    wait_until(lambda: stage.count("schema", "waits") == RUNNING, 30, "some run")
    for name in tenants.names:
        tenants.put(name, "notes")
    server.halt()
    process.wait_for_log("database trouble, will try again loop=rota")
    stage.open("end")
    process.wait_for_log("database trouble, will try again loop=[a-z]+ alias=t[0-9]+")
    server.start()
    tenants.all_ended(2, tenants.names[:RUNNING], timeout=60)
    tenants.all_ended(1, tenants.names[RUNNING:], timeout=60)
    assert process.stop() == 0
    expected = {name: {"waits", "plain"} if name in tenants.names[:RUNNING] else {"plain"} for name in tenants.names}
    assert Counter((own, key) for key, own, _ in noted(stage)) == Counter(
        (name, key) for name, keys in expected.items() for key in keys
    )
    for name in tenants.names:
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_claim") == [(0,)]
    assert process.said("database trouble, will try again loop=[a-z]+ alias") == 1, "one home speaks for all"


def test_a_worker_ends_while_the_server_is_away(
    start: ManySchemas, tenants: Tenants, server: EmbeddedServer, stage: Stage
) -> None:
    """Homes that cannot write what they have are not waited for; leases run out."""
    busy(tenants, stage)
    process = start(threads=RUNNING, conf={"DRAIN_SECONDS": 1.0})
    wait_until(lambda: stage.count("schema", "waits") == RUNNING, 30, "some run")
    server.halt()
    process.wait_for_log("database trouble, will try again loop=rota")
    stage.open("end")
    assert process.stop() == 0
    assert process.said("ends could not be written, other workers rescue these jobs jobs=1")
    server.start()
    for name in tenants.names[:RUNNING]:
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_claim") == [(1,)]


def test_quiet_holds_for_schemas_that_wake_later(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    """And the worker is resumed where an operator asked for it."""
    tenants.make("t1", "t2")
    tenants.put("t1", "waits", "end")
    process = start(conf={"BEAT_SECONDS": 0.2})
    wait_until(lambda: stage.count("schema", "waits") == 1, 20, "it runs")
    steer(tenants, "t1", "quiet")
    tenants.put("t2", "notes", "later")
    tenants.ask("t2", "SELECT pg_notify('pgjobs', concat('0:default@', current_schema()))")
    tenants.put("t1", "notes", "also")
    stage.open("end")
    outcomes = "SELECT outcome FROM pgjobs_job ORDER BY id"
    wait_until(lambda: tenants.ask("t1", outcomes) == [("succeeded",), (None,)], 20, "what ran ends")
    # A home of its own comes for a duty, and claims nothing.
    wait_until(lambda: tenants.ask("t2", "SELECT count(*) FROM pgjobs_heartbeat") == [(0,)], 20, "it sleeps")
    tenants.ask("t2", "UPDATE pgjobs_leader_term SET expires_at = statement_timestamp() - interval '1 hour'")
    led = "SELECT count(*) FROM pgjobs_leader_term WHERE expires_at > statement_timestamp() - interval '10 s'"
    wait_until(lambda: tenants.ask("t2", led) == [(1,)], 20, "it is led")
    assert stage.count("schema", "later") == stage.count("schema", "also") == 0
    steer(tenants, "t1", "resume")
    wait_until(lambda: stage.count("schema", "later") == stage.count("schema", "also") == 1, 20, "both run")
    assert process.stop() == 0


def steer(tenants: Tenants, name: str, verb: str) -> None:
    """Ask the worker that is awake in this schema; wait until it has taken that up."""
    ask = (
        "UPDATE pgjobs_heartbeat SET control = %s, control_number = control_number + 1, control_by = 'ann',"
        " control_reason = '', controlled_at = statement_timestamp()"
    )
    tenants.ask(name, ask, verb)
    taken = "SELECT count(*) FROM pgjobs_heartbeat WHERE control_number > 0 AND control_taken = control_number"
    wait_until(lambda: tenants.ask(name, taken) == [(1,)], 20, f"it has taken up: {verb}")
