"""What tests of notices share: abandoned jobs, a leader that has a notifier, and its turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.notices import Notifier
from django_pgjobs.models import Job
from django_pgjobs.store import noticing
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, RawDatabase

Connect = Callable[..., RawDatabase]


@pytest.fixture(autouse=True)
def notified(settings: Any) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "mail_admins", "every_seconds": 900, "at_most": 3}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement has its lock as soon as it starts: one turn shows who is writing, the next tells."""
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 0.0)


@pytest.fixture
def leader(raw: RawDatabase) -> Leader:
    leader = Leader(AUTHOR)
    leader.tick(raw)
    return leader


class Found:
    """What is wrong, as a test says."""

    def __init__(self) -> None:
        self.problems: list[HealthProblem] = []
        self.asked = 0

    def __call__(self, db: object) -> list[HealthProblem]:
        self.asked += 1
        return self.problems


@pytest.fixture
def found() -> Found:
    return Found()


@pytest.fixture
def notifier(raw: RawDatabase, leader: Leader, time: Time, found: Found) -> Notifier:
    """A leader that has had its first turn."""
    made = Notifier(leader, found)
    assert made(raw) is None
    return made


def abandon(
    raw: RawDatabase,
    count: int = 1,
    name: str = "shop.pay",
    error: str | None = "shop.Declined",
    ago: float = 0.0,
    queue: str = "default",
) -> list[int]:
    """Store abandoned jobs, that ended so many seconds ago."""
    rows = raw.query(
        "INSERT INTO pgjobs_job (name, queue, payload, outcome, finished_at, error_class, error, result)"
        ' SELECT %s, %s, \'{"args": ["secret"], "kwargs": {}}\', \'abandoned\','
        " statement_timestamp() - make_interval(secs => %s), %s, 'secret message', '\"secret\"'"
        " FROM generate_series(1, %s) RETURNING id",
        [name, queue, ago, error, count],
    )
    return [row[0] for row in rows]


def turns(notifier: Notifier, db: RawDatabase, count: int = 3) -> dict[str, Any] | None:
    """Give it so many turns, and return the digest of the one notice that it makes, if it makes one."""
    made = [job_id for _ in range(count) if (job_id := notifier(db)) is not None]
    assert len(made) <= 1
    if not made:
        return None
    job = Job.objects.get(pk=made[0])
    [digest] = job.payload["args"]
    return dict(digest)


def delivered(raw: RawDatabase) -> None:
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = statement_timestamp() WHERE name = 'pgjobs.notify'"
    )


def silence(raw: RawDatabase, time: Time, seconds: float = 900.0) -> None:
    """Let so many seconds pass since the last notice, by both clocks."""
    raw.query("UPDATE pgjobs_notice SET notified_at = notified_at - make_interval(secs => %s)", [seconds])
    time(seconds)


def counted(digest: dict[str, Any] | None) -> dict[tuple[str, str], int]:
    return {} if digest is None else {(each["name"], each["error_class"]): each["jobs"] for each in digest["groups"]}
