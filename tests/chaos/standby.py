"""A standby of a chaos server: it streams from it, can be left behind, and takes its place."""

from __future__ import annotations

from pathlib import Path

import psycopg

from django_pgjobs.embedded import EmbeddedError, EmbeddedServer
from django_pgjobs.embedded.directory import ServerDirectory
from django_pgjobs.embedded.server import borrow_binaries
from tests.chaos.ground import ChaosServer
from tests.plugins.fix_db import wait_until

STREAMS = "SELECT pid FROM pg_stat_replication WHERE state = 'streaming'"


class Copy(EmbeddedServer):
    """A server whose data are a base backup of another one's, from which it streams."""

    def __init__(self, primary: EmbeddedServer) -> None:
        super().__init__(major=primary.major, fsync=primary.fsync)
        self.primary = primary

    def _initialise(self, directory: ServerDirectory) -> None:
        program = borrow_binaries(self._given, directory, self.account) / "pg_basebackup"
        argv: list[str | Path] = [program, f"--pgdata={directory.data}", f"--dbname={self.primary.url}"]
        argv += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        status, failure = self.account.run(argv, cwd=directory.path)
        if status != 0:
            raise EmbeddedError(f"pg_basebackup failed: {failure.strip()}")
        password = self.primary.url.partition("@")[0].rpartition(":")[2]
        directory.password.touch(mode=0o600)
        directory.password.write_text(password)


class Standby(ChaosServer):
    """A standby; its commits are those of the primary until ``leave_behind``, afterwards its own."""

    def __init__(self, primary: ChaosServer) -> None:
        self.primary = primary
        self.embedded = Copy(primary.embedded)

    def __enter__(self) -> Standby:
        self.embedded.start()
        try:
            wait_until(lambda: self.primary.ask(STREAMS), 20, "it streams")
        except BaseException:
            self.embedded.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.primary.embedded is not self.embedded:
            self.embedded.stop()

    def catch_up(self) -> None:
        """Wait until everything that the primary has written by now can be read here."""
        ((written,),) = self.primary.ask("SELECT pg_current_wal_insert_lsn()::text")
        caught = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: self.ask(caught, written) == [(True,)], 20, "it has replayed what was written")

    def leave_behind(self) -> None:
        """Receive nothing any more."""
        self.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.ask("SELECT pg_reload_conf()")
        wait_until(lambda: not self.ask("SELECT pid FROM pg_stat_wal_receiver"), 20, "it receives nothing")
        wait_until(lambda: not self.primary.ask(STREAMS), 20, "nothing is sent to it")

    def promote(self) -> None:
        """Make it a primary that takes writes, and let it be the server that its primary was, which is gone."""
        with psycopg.connect(self.url, autocommit=True) as raw:
            raw.execute("SELECT pg_promote()")
        wait_until(lambda: self.ask("SELECT pg_is_in_recovery()") == [(False,)], 20, "it takes writes")
        self.primary.embedded.stop()
        self.primary.embedded = self.embedded
