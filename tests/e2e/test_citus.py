"""Queues on the nodes of Citus that ``PGJOBS_CITUS_URLS`` names, beside data that it distributes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import psycopg
import pytest
from environ import Env

from tests.e2e.citus import NODES, CitusNode, with_options
from tests.e2e.elsewhere import ask, call, manage, put
from tests.e2e.stage import Stage
from tests.plugins.fix_worker import Workers

ENGINE = "django.db.backends.postgresql"
JOBS = 40


def aliases(urls: list[str]) -> dict[str, str]:
    """Return the environment of a worker whose aliases *node0*, *node1* … lead to these."""
    databases = {f"node{number}": Env.db_url_config(url, engine=ENGINE) for number, url in enumerate(urls)}
    return {"PGJOBS_TEST_DATABASES": json.dumps(databases)}


def test_one_worker_serves_all_nodes(worker: Workers, nodes: list[CitusNode], stage: Stage) -> None:
    for number, node in enumerate(nodes):
        for job in range(JOBS):
            put(node.url, "notes_its_home", call(f"{number}-{job}"))
    names = ",".join(f"node{number}" for number in range(len(nodes)))
    environment = aliases([node.url for node in nodes])
    process = worker("--until-idle", f"--database={names}", ready=False, env=environment)
    assert process.wait() == 0, process.log
    assert process.said("tables are distributed by Citus") == 0
    told = sorted((words[2], words[1]) for words in (trace.words for trace in stage.traces("home")))
    assert told == sorted((f"node{number}", f"{number}-{job}") for number in range(len(nodes)) for job in range(JOBS))
    for node in nodes:
        assert ask(node.url, "SELECT outcome, attempt, count(*) FROM pgjobs_job GROUP BY 1, 2") == [
            ("succeeded", 1, JOBS)
        ]
        assert ask(node.url, "SELECT count(*) FROM pgjobs_claim") == [(0,)]


@pytest.fixture
def tenant(nodes: list[CitusNode]) -> Iterator[str]:
    """A distributed schema with a table of a tenant's own."""
    name = f"pgjobs_tenant_{os.getpid()}"
    ask(NODES[0], "SET citus.enable_schema_based_sharding = on;" + f"CREATE SCHEMA {name}")
    try:
        ask(NODES[0], f"CREATE TABLE {name}.orders (id bigint PRIMARY KEY)")
        yield name
    finally:
        ask(NODES[0], f"DROP SCHEMA {name} CASCADE")


@pytest.mark.parametrize("committed", [True, False])
def test_a_job_is_registered_in_the_transaction_of_distributed_data(
    nodes: list[CitusNode], tenant: str, committed: bool
) -> None:
    for number, node in enumerate(nodes):
        with psycopg.connect(node.url) as connection:
            connection.execute(f"INSERT INTO {tenant}.orders VALUES ({number})")
            connection.execute("INSERT INTO pgjobs_job (name, payload) VALUES ('a', '{}')")
            if not committed:
                connection.rollback()
        kept = 1 if committed else 0
        assert ask(node.url, "SELECT count(*) FROM pgjobs_job") == [(kept,)]
        assert ask(node.url, f"SELECT count(*) FROM {tenant}.orders WHERE id = {number}") == [(kept,)]


def test_a_worker_says_at_its_start_that_the_tables_are_distributed(worker: Workers, nodes: list[CitusNode]) -> None:
    """They are where migrations ran in a schema that Citus distributes."""
    name = f"pgjobs_distributed_{os.getpid()}"
    ask(NODES[0], "SET citus.enable_schema_based_sharding = on;" + f"CREATE SCHEMA {name}")
    try:
        url = with_options(NODES[0], f"-c search_path={name}")
        manage(url, "migrate", "-v0")
        process = worker("--until-idle", "--database=node0", ready=False, env=aliases([url]))
        assert process.wait() == 0, process.log
        assert process.said("tables are distributed by Citus, keep them local") == 1
    finally:
        ask(NODES[0], f"DROP SCHEMA {name} CASCADE")
