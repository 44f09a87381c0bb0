"""Fleets made at random: each figure of the overview is what SQL counts, and leads to a list of as many jobs."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from django_pgjobs.maintenance.statistics import Measurer, problems_of
from django_pgjobs.models import Heartbeat, Job, LeaderTerm, QueueState
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.numbers import Minute
from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store.database import on
from tests.plugins.fix_admin import ids_on
from tests.plugins.fix_db import AUTHOR

pytestmark = pytest.mark.django_db

PAGE = "/admin/pgjobs/overview/"
QUEUES = ("default", "mail", "exports", "billing")

UNCLAIMED = "finished_at IS NULL AND claim_id IS NULL"
LATER = "attempt > 0 AND run_at > now() AND (hold IS NULL OR hold IN ('limited', 'paused'))"
STATES = {
    "due": f"{UNCLAIMED} AND hold IS NULL AND run_at <= now()",
    "running": "finished_at IS NULL AND claim_id IS NOT NULL",
    "retrying": f"{UNCLAIMED} AND {LATER}",
    "abandoned": "outcome = 'abandoned' AND finished_at > now() - interval '1 hour'",
    "parked": f"{UNCLAIMED} AND hold = 'parked'",
    "limited": f"{UNCLAIMED} AND hold = 'limited'",
    "paused": f"{UNCLAIMED} AND hold = 'paused'",
    "blocked": f"{UNCLAIMED} AND hold = 'blocked'",
}
"""Tile → the condition of its jobs."""


def recount(condition: str, queue: str | None = None) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM pgjobs_job WHERE ({condition}) AND (%s::text IS NULL OR queue = %s)", [queue, queue]
        )
        return int(cursor.fetchone()[0])


def summed(outcome: str, queue: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(jobs), 0) FROM pgjobs_minute WHERE worker <> %s AND outcome = %s AND queue = %s"
            " AND minute > now() - interval '1 hour'",
            [TREND, outcome, queue],
        )
        return int(cursor.fetchone()[0])


def some_fleet(dice: random.Random) -> None:
    """Workers, pauses, minutes and jobs of all states at random."""
    workers = [uuid4() for _ in range(dice.randint(0, 4))]
    for number, worker in enumerate(workers):
        Heartbeat.objects.create(
            id=worker, name=f"w{number}", host="h", pid=1, processes=1, threads=dice.randint(1, 8), async_slots=1,
            version="1", queues=dice.choice([None, [dice.choice(QUEUES)]]), running=dice.randint(0, 9),
            state=dice.choice(["running", "draining", "lost"]),
            last_beat_at=Now() - timedelta(seconds=dice.choice([1, 30, 500])),
        )  # fmt: skip
    for name in dice.sample(QUEUES, dice.randint(0, 2)):
        QueueState.objects.create(kind="queue", name=name)
    for _ in range(dice.randint(0, 60)):
        Minute.objects.bulk_create(
            [
                Minute(
                    worker=dice.choice([FLEET, *workers]), minute=Now() - timedelta(minutes=dice.randint(0, 70)),
                    queue=dice.choice(QUEUES), name=f"job{dice.randint(0, 3)}",
                    outcome=dice.choice(["succeeded", "abandoned", "cancelled", "retried"]), release="",
                    jobs=dice.randint(1, 5000), run_seconds=1, wait_seconds=1, run_histogram=[1], wait_histogram=[1],
                )
            ],
            ignore_conflicts=True,
        )  # fmt: skip
    jobs = Job.objects.bulk_create([Job(name="shop.charge", payload={}, **facts(dice)) for _ in range(120)])
    for job in jobs:
        if job.claim_id is not None and job.outcome is None:
            Claim.objects.create(
                claim_id=job.claim_id, part=0, worker=UUID(int=7), job_ids=[job.pk],
                lease_expires_at=Now() + timedelta(minutes=1), check_at=Now() + timedelta(minutes=1),
            )  # fmt: skip


def facts(dice: random.Random) -> dict[str, Any]:
    """The columns of one job."""
    given: dict[str, Any] = {
        "queue": dice.choice(QUEUES), "priority": dice.choice([0, 0, 5]), "attempt": dice.choice([0, 0, 1, 3]),
        "run_at": Now() + timedelta(seconds=dice.choice([-7200, -30, 600, 90_000])),
    }  # fmt: skip
    match dice.choice(["ready", "ready", "held", "running", "ended"]):
        case "held":
            hold = dice.choice(["blocked", "parked", "limited", "paused"])
            given |= {"hold": hold, "limit_key": "eu" if hold == "limited" else None}
        case "running":
            given |= {"claim_id": uuid4(), "worker": UUID(int=7), "attempt": 1}
        case "ended":
            ago = timedelta(seconds=dice.choice([5, 3000, 4000]))
            given |= {"outcome": dice.choice(["succeeded", "abandoned", "cancelled"]), "finished_at": Now() - ago}
    return given


def sections(page: Any) -> dict[str, dict[str, Any]]:
    return {each["id"].removeprefix("pgjobs-"): each for each in page.context["sections"]}


def number(text: str) -> int:
    assert text.replace(",", "").isdecimal(), text
    return int(text.replace(",", ""))


@pytest.mark.parametrize("seed", range(12))
def test_each_figure_is_what_sql_counts(seed: int) -> None:
    dice = random.Random(seed)
    some_fleet(dice)
    if dice.random() < 0.6:
        LeaderTerm.objects.create(
            id=1, term=1, worker=uuid4(), worker_name=AUTHOR.name, taken_at=Now(),
            expires_at=Now() + timedelta(minutes=1),
        )  # fmt: skip
        Measurer(AUTHOR, problems_of)(on("default"))
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    shown = sections(root.get(PAGE))
    for tile in shown["tiles"]["tiles"]:
        assert number(tile["number"]) == recount(STATES[tile["label"]]), tile["label"]
        assert len(ids_on(root.get(tile["url"] + "&all="))) == recount(STATES[tile["label"]]), tile["label"]
    rows = {row["name"]: row for row in shown["queues"]["queues"]}
    for queue in QUEUES:
        row = rows.get(queue)
        expected = {name: recount(STATES[name], queue) for name in ("due", "running", "abandoned")}
        expected["succeeded"] = summed("succeeded", queue)
        assert {name: number(row[name]) if row else 0 for name in expected} == expected, queue
        held = {str(word): number(jobs) for jobs, word, _ in row["held"]} if row else {}
        wanted = {name: recount(STATES[name], queue) for name in ("parked", "limited", "paused", "blocked")}
        assert held == {name: jobs for name, jobs in wanted.items() if jobs}, queue
    banner = shown["banner"]
    unfinished = recount("finished_at IS NULL AND claim_id IS NULL")
    if banner["calm"].endswith("no job waits."):
        assert unfinished == 0
    told = " ".join(each["text"] for each in banner["problems"])
    for words, state in (("parked", "parked"), ("held by limits", "limited"), ("to be tried again", "retrying")):
        assert (words in told) == bool(recount(STATES[state])), words
    assert ("abandoned within" in told) == bool(recount(STATES["abandoned"]))
    for queue in QueueState.objects.values_list("name", flat=True):
        assert f"Queue {queue} is paused" in told
