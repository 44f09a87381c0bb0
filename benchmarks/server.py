"""The server that DATABASE_URL names: databases of our own on it, and one run at a time."""

from __future__ import annotations

import os
import platform
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

PREFIX = "pgjobs_bench"
RUN = "pgjobs_bench run"
RUN_LOCK = 0x70676A62
"""Key of the advisory lock that a run holds in the database of DATABASE_URL."""


class Server:
    """A connection beside the measured ones, to make and drop databases."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(_for_libpq(url), autocommit=True, application_name=RUN)

    def url(self, name: str) -> str:
        """Return the URL of another database on the same server."""
        return urlunsplit(urlsplit(_for_libpq(self._url))._replace(path=f"/{name}"))

    def take_the_turn(self) -> bool:
        """Return whether no other run uses this server; until ``close`` none can begin."""
        # An advisory lock belongs to one database, so find runs that use another database by their name.
        others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"
        return bool(self.value("SELECT pg_try_advisory_lock(%s)", RUN_LOCK)) and not self.value(others, RUN)

    def make(self, name: str) -> str:
        """Make a database anew and return its URL."""
        self.drop(name)
        self._connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop(self, name: str) -> None:
        """Drop one of our databases and disconnect its users."""
        if not name.startswith(PREFIX):
            raise ValueError(f"{name} is not a database of the benchmarks")
        self._connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def settle(self) -> None:
        """Write out dirty pages, so that a line does not pay for the previous one."""
        self._connection.execute("CHECKPOINT")

    def value(self, statement: LiteralString, *params: object) -> Any:
        """Return the one value of a query."""
        row = self._connection.execute(statement, params).fetchone()
        return None if row is None else row[0]

    def wal_bytes(self) -> int:
        """Return how many bytes of WAL the server has written since it was initialised."""
        return int(self.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def describe(self) -> dict[str, Any]:
        """Return the facts of server and machine that the figures depend on; none identifies the machine."""
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "wal_level")
        return {
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "processor": _processor(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3),
            "system": platform.system(),
            "python": platform.python_version(),
            "server": {name: self.value("SELECT current_setting(%s)", name) for name in names},
            "same_machine": self.value("SELECT inet_server_addr() IS NULL OR inet_server_addr() = inet_client_addr()"),
            "load_before": round(os.getloadavg()[0], 2),
        }

    def close(self) -> None:
        """Let another run begin."""
        self._connection.close()


def _for_libpq(url: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"postgresql://{rest}" if scheme in ("postgres", "pgsql", "psql") else f"{scheme}://{rest}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
