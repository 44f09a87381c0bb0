"""Arrangements of several servers and schemas, as ``docs/how-to/past-one-server.md`` describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from environ import Env

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e.elsewhere import ask, call, manage, put
from tests.e2e.stage import Stage
from tests.plugins.fix_worker import Workers

ENGINE = "django.db.backends.postgresql"
MADE_BY_CITUS = (
    "SET allow_system_table_mods = on;"
    'CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char", repmodel "char",'
    " colocationid integer)"
)
UNMADE = "SET allow_system_table_mods = on; DROP TABLE pg_catalog.pg_dist_partition"


def in_schema(url: str, name: str) -> str:
    return f"{url}?options=-c%20search_path%3D{name}"


def test_each_schema_of_a_database_is_a_home_of_its_own(worker: Workers, server: EmbeddedServer, stage: Stage) -> None:
    """One server, one database, a queue for each of two tenants: their jobs have the same numbers."""
    urls = [in_schema(server.url, name) for name in ("tenant1", "tenant2")]
    ask(server.url, "CREATE SCHEMA tenant1")
    ask(server.url, "CREATE SCHEMA tenant2")
    for url in urls:
        manage(url, "migrate", "-v0")
    ids = [put(url, "notes_its_home", call(f"of-{n}")) for n, url in enumerate(urls, 1)]
    assert ids == [1, 1]
    environment = {
        "PGJOBS_TEST_SECOND_DATABASE_URL": urls[0],
        "PGJOBS_TEST_DATABASES": json.dumps({"tenant2": Env.db_url_config(urls[1], engine=ENGINE)}),
    }
    process = worker("--until-idle", "--database=second,tenant2", ready=False, env=environment)
    assert process.wait() == 0, process.log
    told = {words[1]: words[2] for words in (trace.words for trace in stage.traces("home"))}
    assert told == {"of-1": "second", "of-2": "tenant2"}
    for url in urls:
        assert ask(url, "SELECT outcome, attempt FROM pgjobs_job") == [("succeeded", 1)]
        assert ask(url, "SELECT count(*) FROM pgjobs_claim") == [(0,)]
    assert ask(server.url, "SELECT count(*) FROM pgjobs_job") == [(0,)]


@contextmanager
def distributed(url: str, how: str) -> Iterator[None]:
    """Make the catalog of Citus, and list the job table in it."""
    ask(url, MADE_BY_CITUS)
    try:
        ask(url, f"INSERT INTO pg_dist_partition VALUES ('pgjobs_job'::regclass, {how})")
        yield
    finally:
        ask(url, UNMADE)


def test_a_worker_says_at_its_start_that_citus_has_distributed_the_tables(
    worker: Workers, server: EmbeddedServer
) -> None:
    environment = {"PGJOBS_TEST_SECOND_DATABASE_URL": server.url}
    with distributed(server.url, "'h', 's', 3"):
        for databases in ("second", "default,second"):
            process = worker("--until-idle", f"--database={databases}", ready=False, env=environment)
            assert process.wait() == 0, process.log
            assert process.said("tables are distributed by Citus, keep them local") == 1
    with distributed(server.url, "'n', 's', 0"):  # Citus knows the table and has left it where it was
        process = worker("--until-idle", "--database=second", ready=False, env=environment)
        assert process.wait() == 0, process.log
        assert process.said("tables are distributed by Citus") == 0
