"""A shop's fleet on a bad morning, for pictures of the overview: a release fails, a queue grows, another is paused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.cron_declaring import CronRows
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.numbers import Depth, Minute
from django_pgjobs.queues import Queue
from django_pgjobs.states import TREND
from django_pgjobs.store.database import on
from tests.db.cron_ground import declare
from tests.db.test_overview import beginning, lead
from tests.plugins.fix_admin import WORKER
from tests.plugins.fix_db import AUTHOR

GOOD, BAD = "2026-11-20.1", "2026-11-22.3"
SINCE = 17
"""How many minutes ago the bad release began."""

WAVE = (0, 2, 5, 9, 12, 14, 13, 11, 8, 4, 1, 0)


def nothing() -> None: ...


@pytest.fixture
def showcase() -> Iterator[None]:
    """All of it, and a leader's figures."""
    with registry.isolated():
        _declare()
        _run()
        _wait()
        _fail()
        _count(beginning(60))
        CronRows(Leader(AUTHOR)).tick(on("default"))
        _fire()
        Queue("imports").pause(by="auth.User:1 anna", reason="the warehouse moves")
        lead()
        yield


CRONS = {
    "reports.nightly": "30 2 * * *",
    "mail.digest": "0 7 * * 1-5",
    "stock.sync": "*/15 * * * *",
    "sessions.clear": "0 * * * *",
}
NAMES = ("shop.payments.charge", "shop.payments.refund", "shop.mail.welcome", "shop.images.resize")


def _declare() -> None:
    for name, expression in CRONS.items():
        declare(on("default"), name, expression=expression, job_name=f"shop.{name}")
    for name in NAMES:
        job(name=name)(nothing)


def _run() -> None:
    """Three workers and what they run, one of it for long."""
    given: dict[str, Any] = {"host": "h", "pid": 1, "threads": 4, "async_slots": 0, "version": "0.1.0", "release": BAD}
    running = {
        "web-1": (2, (("shop.payments.charge", 1), ("shop.payments.charge", 2), ("shop.mail.welcome", 1))),
        "web-2": (2, (("shop.images.resize", 38), ("shop.mail.welcome", 2))),
        "batch-1": (1, (("shop.reports.yearly", 5400),)),
    }
    for number, (name, (processes, jobs)) in enumerate(running.items()):
        worker, claim = (WORKER if not number else UUID(int=number + 1)), UUID(int=number + 100)
        Heartbeat.objects.create(id=worker, name=name, processes=processes, running=len(jobs), **given)
        rows = _make(
            *(
                {"name": each, "queue": each.split(".")[1], "claim_id": claim, "worker": worker, "attempt": 1,
                 "claimed_at": Now() - timedelta(seconds=seconds)}
                for each, seconds in jobs
            )
        )  # fmt: skip
        far = Now() + timedelta(hours=1)
        ids = [row.pk for row in rows]
        Claim.objects.create(claim_id=claim, part=0, worker=worker, lease_expires_at=far, check_at=far, job_ids=ids)


def _make(*rows: dict[str, Any]) -> list[Job]:
    return Job.objects.bulk_create([Job(**{"payload": {"args": [], "kwargs": {}}, **row}) for row in rows])


def _wait() -> None:
    ago = {"created_at": Now() - timedelta(minutes=9)}
    _make(
        *({"name": "shop.payments.charge", "queue": "payments", "run_at": Now() - timedelta(seconds=4 + n), **ago}
          for n in range(34)),
        *({"name": "shop.mail.welcome", "queue": "mail", "run_at": Now() - timedelta(seconds=1), **ago}
          for n in range(6)),
        *({"name": "shop.payments.charge", "queue": "payments", "run_at": Now() + timedelta(minutes=3 + n),
           "attempt": 2, "error": "Declined: card refused"} for n in range(11)),
        *({"name": "shop.stock.import", "queue": "imports", "hold": "paused"} for _ in range(42)),
        *({"name": "shop.mail.welcome", "queue": "mail", "hold": "limited"} for _ in range(8)),
        {"name": "shop.old.job", "queue": "mail", "hold": "parked"},
    )  # fmt: skip


def _fail() -> None:
    groups = (
        ("shop.payments.charge", "shop.errors.Declined", 27), ("shop.payments.refund", "builtins.KeyError", 4),
        ("shop.images.resize", "crashed", 2),
    )  # fmt: skip
    for name, error, jobs in groups:
        _make(
            *(
                {"name": name, "queue": name.split(".")[1], "outcome": "abandoned", "error_class": error, "attempt": 5,
                 "finished_at": Now() - timedelta(seconds=2 * jobs + 31 * n)}
                for n in reversed(range(jobs))
            )
        )  # fmt: skip
        last = Job.objects.filter(name=name, error_class=error).latest("finished_at")
        Attempt.objects.create(
            job=last, claim_id=UUID(int=9), number=5, cause="failed", worker_name="web-1", release=BAD,
            started_at=last.finished_at, duration_seconds=0.4, exception=error, message="",
        )  # fmt: skip
    _make(
        *({"name": "shop.mail.welcome", "queue": queue, "outcome": "succeeded", "attempt": 1,
           "finished_at": Now() - timedelta(seconds=9 * n)} for queue, most in (("mail", 390), ("payments", 160))
          for n in range(most))
    )  # fmt: skip


def _count(now: datetime) -> None:
    """An hour of charts."""
    for ago in range(60):
        bad, wave = int(ago < SINCE), WAVE[ago % len(WAVE)]
        ended = {"succeeded": 70 + 3 * wave - 25 * bad, "retried": 3 + wave // 3, "abandoned": (18 + wave) * bad}
        Minute.objects.bulk_create(
            Minute(
                worker=TREND, minute=now - timedelta(minutes=ago), queue="", name="", outcome=outcome, jobs=jobs,
                release=BAD if bad else GOOD, run_seconds=1, wait_seconds=1,
                run_histogram=[0, 2, 8, 20, 30, 22, 11, 6, 3, 2 * bad, bad],
                wait_histogram=[30, 24, 16, 9, 5 + wave, 3, 2, 1 + bad, bad * wave],
            )
            for outcome, jobs in ended.items()
            if jobs
        )  # fmt: skip
        due = {"payments": 34 - 2 * ago if ago < SINCE else wave // 4, "mail": 3 + wave // 2, "imports": 0}
        Depth.objects.bulk_create(
            Depth(minute=now - timedelta(minutes=ago), queue=queue, ready=max(jobs, 0), scheduled=0, running=0, held=0)
            for queue, jobs in due.items()
        )


def _fire() -> None:
    """The last jobs of the entries, one of which has failed of late."""
    for name in CRONS:
        failed = (
            {"outcome": "abandoned", "error_class": "OSError"} if name == "stock.sync" else {"outcome": "succeeded"}
        )
        common = {"name": f"shop.{name}", "queue": "reports", "cron_entry": name, "attempt": 1, "outcome": "succeeded"}
        _make(
            *(
                {**common, **(failed if n < 2 else {}), "finished_at": at, "fire_at": at}
                for n, at in ((n, Now() - timedelta(hours=25 + n)) for n in reversed(range(8)))
            )
        )
