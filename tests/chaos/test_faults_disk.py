"""The disk of the server is full, on a small tmpfs of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.chaos import history as h
from tests.chaos.ground import Ground
from tests.chaos.load import recovered, under_load, unless
from tests.plugins.fix_db import wait_until

pytestmark = pytest.mark.chaos

MEGABYTES = 192


@pytest.fixture
def small_disk(ground: Ground) -> Iterator[Path]:
    """The server's data moved to a file system of so many megabytes; they are moved back afterwards."""
    unless(os.geteuid() != 0 or shutil.which("mount") is None, "only root can mount a tmpfs")
    server = ground.server.embedded
    ground.server.configure(max_wal_size="64MB", min_wal_size="32MB", restart_after_crash="on")
    ground.server.halt()
    directory = server.directory
    assert directory is not None
    aside = directory.path / "aside"
    directory.data.rename(aside)
    directory.data.mkdir(mode=0o700)
    options = f"size={MEGABYTES}m,mode=0700"
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory.data], check=False).returncode == 0
    )
    try:
        unless(not mounted, "this machine mounts no tmpfs")
        server.account.chown(directory.data)
        subprocess.run(["cp", "-a", f"{aside}/.", str(directory.data)], check=True)
        ground.server.start()
        yield directory.data
    finally:
        ground.server.halt()
        if mounted:
            subprocess.run(["cp", "-a", f"{directory.data}/.", str(aside)], check=True)
            subprocess.run(["umount", directory.data], check=True)
        directory.data.rmdir()
        aside.rename(directory.data)
        ground.server.configure(max_wal_size=None, min_wal_size=None, restart_after_crash=None)


def test_the_disk_of_the_server_is_full(ground: Ground, small_disk: Path) -> None:
    """P39: nothing can be written, perhaps the server stops; when there is space again, everything goes on.

    Jobs that ended meanwhile are recorded then, and none runs twice.
    """
    ground.workers(conf={"LEASE_SECONDS": 20.0, "RENEW_SECONDS": 5.0, "STALE_SECONDS": 30.0})
    jobs = under_load(ground, 200, done=20, seconds=0.1)
    with ground.fault(h.CRASH):
        full = _fill(small_disk)
        with contextlib.suppress(psycopg.Error):
            while True:  # what the server has set aside for its log is used up too
                ground.server.ask(
                    "CREATE TABLE IF NOT EXISTS filler AS SELECT repeat('x', 500) FROM generate_series(1, 5000)"
                )
                ground.server.ask("INSERT INTO filler SELECT repeat('x', 500) FROM generate_series(1, 5000)")
        wait_until(
            lambda: any(worker.said("No space left|database trouble") for worker in ground.workers.started),
            15,
            "a worker has met it",
        )
        full.unlink()
        ground.server.start()
        with contextlib.suppress(psycopg.Error):
            ground.server.ask("DROP TABLE IF EXISTS filler")
    recovered(ground, *jobs, within=30, what="disk full")
    ground.server.ask("DROP TABLE IF EXISTS filler")
    report = ground.check()
    assert report.counts["succeeded"] == 201, report


def _fill(disk: Path) -> Path:
    """Leave not a block free."""
    full = disk / "full"
    with full.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65536)
    return full
