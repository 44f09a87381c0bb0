"""What a claim says of its jobs, against their rows: columns that few jobs have come as one, and lose nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from django_pgjobs import clock
from django_pgjobs.models import Job
from django_pgjobs.states import FlowFlag
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, Line
from django_pgjobs.store.database import Database, Params, Rows, on
from tests.plugins.fix_db import WORKER, RawDatabase, from_the_beginning, job, register

TERMS: dict[str, Any] = {"worker": WORKER, "lease_seconds": 30.0, "allowance_seconds": 5.0, "grace_seconds": 10.0}
TEXTS = [
    "",
    "x",
    'a "quoted" \\ back\\\\slash',
    "line\nbreak\ttab",
    "ünïcödé ☃ 😀",
    "\x01\x1f\x7f",
    "null",
    "[1]",
    "'; --",
]
RARE: dict[str, Callable[[random.Random, datetime], Any]] = {
    "ending": lambda dice, now: dice.choice(["abandoned", "cancelled"]),
    "ending_attempt": lambda dice, now: dice.randrange(1, 9),
    "cancel_requested_at": lambda dice, now: now,
    "description": lambda dice, now: dice.choice(TEXTS),
    "headers": lambda dice, now: {dice.choice(TEXTS[1:]): dice.choice(TEXTS), "n": [1.5, None]},
    "error": lambda dice, now: dice.choice(TEXTS),
    "limit_key": lambda dice, now: dice.choice(TEXTS),
    "idempotency_key": lambda dice, now: f"{dice.choice(TEXTS)} {dice.random()}",
    "cron_entry": lambda dice, now: dice.choice(TEXTS),
    "fire_at": lambda dice, now: now - timedelta(microseconds=dice.randrange(10**9)),
    "suspect_attempt": lambda dice, now: dice.randrange(1, 4),
    "deadline": lambda dice, now: now + timedelta(microseconds=dice.randrange(-(10**9), 10**10)),
    "expires_at": lambda dice, now: now + timedelta(microseconds=dice.randrange(-(10**9), 10**10)),
    "timeout_seconds": lambda dice, now: dice.random() * 1000,
    "attempt": lambda dice, now: dice.randrange(3),
    "flow": lambda dice, now: dice.choice([1, 1, 2, 3, 4, 5, 8, 16, 17, 32, 40, 64]),
}


def claim_all(db: Database) -> list[ClaimedJob]:
    lines: dict[claiming.LineKey, Line] = {False: Line(from_the_beginning(("default", 0)), 1000)}
    return claiming.claim_lines(db, lines, (), claim_id=uuid4(), database="eu", **TERMS).jobs


def claim_each(db: Database) -> list[ClaimedJob]:
    ids = Job.objects.order_by("run_at", "id").values_list("id", flat=True)
    terms = {**TERMS, "database": "eu"}
    return [taken for number in ids for taken in claiming.claim_one(db, number, claim_id=uuid4(), **terms).jobs]


def told(row: Job) -> dict[str, Any]:
    """Return what the claim must have said of a job, by its row behind the claim."""
    extras = {
        "limit_key": row.limit_key,
        "idempotency_key": row.idempotency_key,
        "cron_entry": row.cron_entry,
        "fire_at": row.fire_at,
        "suspect": True if row.suspect_attempt == row.attempt else None,
        "until": row.deadline and row.claimed_at and (row.deadline - row.claimed_at).total_seconds(),
        "expires": row.expires_at and row.claimed_at and (row.expires_at - row.claimed_at).total_seconds(),
        # Others than its parent's may count the end of one that others need, or that can be undone.
        "gate": None if not row.flow & FlowFlag.COUNTED else (row.parent_id or 0) if not row.flow & 6 else 0,
    }
    if row.attempt != 1:  # it has started before, or only its callback is left
        extras["expires"] = None
    plain = (
        "id", "queue", "priority", "run_at", "name", "attempt", "max_attempts", "timeout_seconds", "payload", "headers",
        "description", "ending", "ending_attempt", "error",
    )  # fmt: skip
    return {
        **{name: getattr(row, name) for name in plain},
        "claim_id": str(row.claim_id),
        "cancelled": row.cancel_requested_at is not None,
        "extras": {name: value for name, value in extras.items() if value is not None},
        "database": "eu",
    }


def said(taken: ClaimedJob) -> dict[str, Any]:
    """Return what the claim has said of a job, read as an executor reads it."""
    facts = taken._asdict()
    for name in ("payload", "headers"):
        facts[name] = None if facts[name] is None else json.loads(facts[name])
    extras = dict(facts["extras"] or {})
    if "fire_at" in extras:
        extras["fire_at"] = datetime.fromisoformat(extras["fire_at"])
    return {**facts, "extras": extras}


@pytest.mark.parametrize("db", ["worker", "django"])
@pytest.mark.parametrize("way", [claim_all, claim_each])
def test_a_claim_says_of_any_job_what_its_row_says(
    raw: RawDatabase,
    committed: None,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Database], list[ClaimedJob]],
    db: str,
) -> None:
    """P10: a worker sees nothing of a job but this, whatever combination of rare columns is set."""
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    ids = register(150)
    now = raw.value("SELECT statement_timestamp()")
    for number in ids:
        # Often one alone: nothing else must be what makes it come.
        names = set(dice.sample(sorted(RARE), dice.choice([0, 1, 1, 1, 2, 5, len(RARE)])))
        if "fire_at" in names:
            names.add("cron_entry")
        if "flow" in names:
            Job.objects.filter(pk=number).update(parent_id=dice.choice([None, 7]))
        Job.objects.filter(pk=number).update(**{name: RARE[name](dice, now) for name in sorted(names)})
    taken = way(raw if db == "worker" else on(connection.alias))
    assert [one.id for one in taken] == ids
    for one in taken:
        assert said(one) == told(job(one.id)), f"seed {seed}"


def test_nothing_rare_travels_with_a_plain_job(raw: RawDatabase) -> None:
    """Most jobs have none of it, and each column costs the server and the claim thread time for each of them."""
    seen: list[tuple[Any, ...]] = []

    class Seeing:
        def fetch(self, name: str, params: Params) -> Rows:
            rows = raw.fetch(name, params)
            seen.extend(rows)
            return rows

    register(3)
    [first, *_] = claim_all(Seeing())
    [(*_, headers, rare, descriptions, _)] = seen
    assert (headers, rare, descriptions) == ("\n\n", "\n\n", None)
    assert (first.headers, first.description, first.error, first.extras) == (None, "", "", None)
