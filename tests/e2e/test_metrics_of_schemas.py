"""Metrics of a worker for many schemas: what a schema has counted stays when its home leaves."""

from __future__ import annotations

from tests.e2e.schemas_ground import ManySchemas, Tenants
from tests.e2e.test_metrics import answers, ends_of, scrape, total
from tests.plugins.fix_db import wait_until
from tests.plugins.ports import free_port


def test_counts_of_schemas_that_sleep_again_stay(start: ManySchemas, tenants: Tenants) -> None:
    """They vanished a moment after the last job, and a counter that falls is a restart to Prometheus."""
    tenants.make("t1", "t2", "t3")
    port = free_port()
    process = start(f"--metrics-port={port}")
    wait_until(lambda: answers(port), 10, "it answers")

    def sleeps() -> bool:
        return not any(tenants.ask(name, "SELECT count(*) FROM pgjobs_heartbeat") != [(0,)] for name in tenants.names)

    for jobs in (1, 2, 3):
        for name in tenants.names:
            tenants.put(name, "silent")
        tenants.all_ended(jobs)
        wait_until(sleeps, 30, "all sleep")
    page = scrape(port)
    assert ends_of(page) == {("silent", "succeeded"): 9}
    assert total(page, "pgjobs_jobs_claimed_total") == 9
    for name in tenants.names:
        assert tenants.ask(name, "SELECT sum(jobs)::int FROM pgjobs_minute") == [(3,)], "several visits a minute"
    assert process.stop() == 0
