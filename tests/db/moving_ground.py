"""What tests of moves share: a second server, the alias *far*, and a mover that dies at a statement of one's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connections

from django_pgjobs import Unique, job
from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Job
from django_pgjobs.steering import moving
from django_pgjobs.steering.batching import Steered
from tests.e2e.elsewhere import aliased, ask, migrated
from tests.plugins.fix_db import TABLES


class Killed(BaseException):
    """The mover is dead; nothing catches this."""


@job(name="moving.plain", tags=["tenant:globex"])
def plain(number: int = 0) -> int:
    return number


@job(name="moving.fails", max_attempts=3)
def fails() -> None:
    raise ValueError("not today")


@job(name="moving.keyed", unique=Unique("{key}"))
def keyed(key: str) -> None: ...


@job(name="moving.windowed", unique=Unique("{key}", window=3600))
def windowed(key: str) -> None: ...


@pytest.fixture(scope="module")
def far_server() -> Iterator[EmbeddedServer]:
    """A server of this module's own, migrated."""
    with migrated() as server:
        yield server


@pytest.fixture
def far(far_server: EmbeddedServer, committed: None) -> Iterator[str]:
    """An alias that leads there; ids begin with a million, so none is taken for one of this database."""
    ask(far_server.url, f"TRUNCATE {', '.join(TABLES)}")
    ask(far_server.url, "ALTER SEQUENCE pgjobs_job_id_seq RESTART 1000000")
    with aliased("far", far_server.url):
        yield "far"


def move(jobs: Any = None, **options: Any) -> tuple[dict[int, int], Steered]:
    """Move to *far*; return former id → id, and what was skipped."""
    moved_ids: list[tuple[int, int]] = []
    done = moving.move(
        Job.objects.all() if jobs is None else jobs, "default", to="far", report=moved_ids.extend, **options
    )
    assert done.changed == len(moved_ids) == len(dict(moved_ids))
    return dict(moved_ids), done


def rows(using: str) -> list[dict[str, Any]]:
    found: Any = Job.objects.using(using).order_by("pk").values()
    return list(found)


def claimable(using: str) -> list[int]:
    """Return the payload's number of each job that a worker might claim there."""
    found = Job.objects.using(using).filter(hold=None, finished_at=None).order_by("pk")
    return [payload["args"][0] for payload in found.values_list("payload", flat=True)]


POINTS = ("INTO pgjobs_", "UPDATE pgjobs_", "DELETE FROM pgjobs_", "pg_advisory_xact_lock")
"""Parts of the statements at which a mover dies: those that write, and the first of each transaction that writes."""


@contextmanager
def dies_at(statement: int | str, *, after: bool = False) -> Iterator[list[str]]:
    """Kill the mover before its n-th statement that writes, or after it, or at the first with a text: both its sessions
    end, and open transactions with them.
    """
    seen: list[str] = []

    def count(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not any(point in sql for point in POINTS):
            return execute(sql, params, many, context)
        seen.append(sql)
        if (statement not in sql) if isinstance(statement, str) else (len(seen) - 1 != statement):
            return execute(sql, params, many, context)
        if after:
            execute(sql, params, many, context)
        raise Killed

    with ExitStack() as stack:
        for alias in ("default", "far"):
            stack.enter_context(connections[alias].execute_wrapper(count))
        try:
            yield seen
        except Killed:
            for alias in ("default", "far"):
                raw = connections[alias].connection
                if raw is not None:
                    raw.close()
    for alias in ("default", "far"):
        connections[alias].close()
