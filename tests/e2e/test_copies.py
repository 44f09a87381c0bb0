"""Databases that are copied and moved, on real servers: a worker runs the jobs of the first, and of no copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.embedded.server import find_binaries
from django_pgjobs.store import installation
from django_pgjobs.store.installation import NotAdopted, Verdict
from tests.e2e.elsewhere import ask, call, manage, migrated, put
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import Workers

SUCCEEDED = "SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded'"
BINARIES = find_binaries(18)


def at(server: EmbeddedServer, name: str) -> str:
    return f"{server.url.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[EmbeddedServer]:
    """Another server, empty."""
    with EmbeddedServer(fsync=False) as server:
        yield server


@pytest.fixture
def shop(server: EmbeddedServer) -> str:
    """The database that is copied and moved; its jobs were run here."""
    for name in ("shop", "shop_old", "shop_copy"):
        ask(server.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    ask(server.url, "CREATE DATABASE shop TEMPLATE postgres")
    assert seen(at(server, "shop")) is Verdict.MOVED
    return at(server, "shop")


def seen(url: str, environment: str = "") -> Verdict:
    """What a worker sees that begins there."""
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            return installation.settle(RawDatabase(connection), environment).verdict
        except NotAdopted:
            return Verdict.COPY


def shell(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)


def dump(url: str, file: Path) -> None:
    shell(BINARIES / "pg_dump", "--format=custom", f"--file={file}", url)


def test_copies_and_moves_on_one_server(server: EmbeddedServer, shop: str, tmp_path: Path) -> None:
    ask(server.url, "CREATE DATABASE shop_copy TEMPLATE shop")
    assert seen(at(server, "shop_copy")) is Verdict.COPY
    assert seen(shop) is Verdict.SAME
    ask(server.url, "ALTER DATABASE shop RENAME TO shop_old")
    assert seen(at(server, "shop_old")) is Verdict.MOVED
    ask(server.url, "ALTER DATABASE shop_copy RENAME TO shop")
    assert seen(shop) is Verdict.MOVED, "the one that takes its name takes its place"


@pytest.mark.parametrize("way", ["over what is there", "into a new database of the name"])
def test_a_dump_that_is_restored_in_place(server: EmbeddedServer, shop: str, tmp_path: Path, way: str) -> None:
    dump(shop, tmp_path / "dump")
    if way == "over what is there":
        shell(BINARIES / "pg_restore", "--clean", f"--dbname={shop}", tmp_path / "dump")
    else:
        ask(server.url, "DROP DATABASE shop")
        ask(server.url, "CREATE DATABASE shop")
        shell(BINARIES / "pg_restore", f"--dbname={shop}", tmp_path / "dump")
    assert seen(shop) is Verdict.MOVED
    assert seen(shop) is Verdict.SAME


@pytest.mark.parametrize(("named", "names", "verdict"), [
    ("", "", Verdict.COPY), ("production", "", Verdict.COPY), ("production", "staging", Verdict.COPY),
    ("", "production", Verdict.COPY), ("production", "production", Verdict.MOVED),
])  # fmt: skip
def test_a_dump_on_another_server(
    shop: str, elsewhere: EmbeddedServer, tmp_path: Path, named: str, names: str, verdict: Verdict
) -> None:
    assert seen(shop, named) in (Verdict.SAME, Verdict.MOVED)
    dump(shop, tmp_path / "dump")
    ask(elsewhere.url, "DROP DATABASE IF EXISTS shop")
    ask(elsewhere.url, "CREATE DATABASE shop")
    shell(BINARIES / "pg_restore", f"--dbname={at(elsewhere, 'shop')}", tmp_path / "dump")
    assert seen(at(elsewhere, "shop"), names) is verdict


def test_a_snapshot_of_the_whole_server_is_told_by_its_name_alone(tmp_path: Path) -> None:
    """A snapshot, a base backup, a standby that was promoted: to the server all are itself."""
    with migrated() as server:
        assert seen(server.url, "production") is Verdict.MOVED
        server.halt()
        assert server.directory is not None
        data = Path(server.directory.data)
        shell("cp", "-a", data, tmp_path / "snapshot")
        shutil.rmtree(data)
        shell("cp", "-a", tmp_path / "snapshot", data)
        server.start()
        assert seen(server.url, "production") is Verdict.SAME, "a failover"
        assert seen(server.url, "staging") is Verdict.COPY
        assert seen(server.url) is Verdict.COPY


@pytest.mark.parametrize("options", [(), ("--inline",)], ids=["", "inline"])
def test_a_worker_does_not_run_the_jobs_of_a_copy(
    worker: Workers, server: EmbeddedServer, shop: str, stage: Stage, options: tuple[str, ...]
) -> None:
    put(shop, "effect", call("production"))
    ask(server.url, "CREATE DATABASE shop_copy TEMPLATE shop")
    copy = at(server, "shop_copy")
    refused = worker(*options, env={"DATABASE_URL": copy}, ready=False)
    assert refused.wait() == 4, refused.log
    assert "CRITICAL This database is a copy of shop on server" in refused.log
    assert "none of its jobs is run. Decide what becomes of them: manage.py pgjobs adopt" in refused.log
    manage(copy, "pgjobs", "adopt", "--cancel", "--yes")
    put(copy, "effect", call("staging"))
    adopted = worker(*options, "--until-idle", env={"DATABASE_URL": copy}, ready=False)
    assert adopted.wait() == 0, adopted.log
    assert [trace.words for trace in stage.traces("effect")] == [("effect", "staging")]
    original = worker(*options, "--until-idle", env={"DATABASE_URL": shop}, ready=False)
    assert original.wait() == 0, original.log
    assert stage.count("effect") == 2


def test_of_several_databases_a_copy_waits_for_its_adoption(
    worker: Workers, server: EmbeddedServer, shop: str, stage: Stage
) -> None:
    put(shop, "effect", call("there"))
    ask(server.url, "CREATE DATABASE shop_copy TEMPLATE shop")
    copy = at(server, "shop_copy")
    process = worker("--database=default,second", env={"PGJOBS_TEST_SECOND_DATABASE_URL": copy})
    process.wait_for_log("ERROR database is not served yet, tried again alias=second: This database is a copy of shop")
    assert stage.count("effect") == 0
    manage(copy, "pgjobs", "adopt", "--run", "--yes")
    wait_until(lambda: ask(copy, SUCCEEDED) == [(1,)], 40, "the job has succeeded")


def test_a_worker_runs_nothing_of_a_copy_that_takes_the_place_of_its_database(
    worker: Workers, server: EmbeddedServer, shop: str, stage: Stage
) -> None:
    """Staging is filled from production's dump while its workers live."""
    process = worker(env={"DATABASE_URL": shop})
    with psycopg.connect(shop, autocommit=True) as raw:
        raw.execute("UPDATE pgjobs_installation SET system = '1', database_oid = 5, database_name = 'production'")
        raw.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'"
                    " AND pid <> pg_backend_pid()")  # fmt: skip
        process.wait_for_log("ERROR This database is a copy of production on server 1: none of its jobs is run")
    put(shop, "effect", call("production"))
    process.wait_for_log("database trouble, will try again loop=keep")
    process.wait_for_log("database is back loop=keep")
    assert stage.count("effect") == 0
    manage(shop, "pgjobs", "adopt", "--run", "--yes")
    wait_until(lambda: ask(shop, SUCCEEDED) == [(1,)], 40, "the job has succeeded")
    assert ask(shop, "SELECT claimed_at > adopted_at FROM pgjobs_job, pgjobs_installation") == [(True,)]
