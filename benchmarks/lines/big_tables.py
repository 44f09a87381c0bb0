"""Claims and ends on a table with millions of rows, in turns with a table that has nothing but what is claimed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from uuid import uuid4

from benchmarks import tables
from benchmarks.figures import Figure, Result, at_most, percentile
from benchmarks.plan import Plan
from django_pgjobs.store import claiming, finalising
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.frontier import Frontier

TITLE = "Millions of rows"
BATCH = 100
PAIR = ("default", 0)


def measure(plan: Plan) -> Result:
    """Seed both tables, then claim and finalise alternately."""
    rows = plan.count(2_000_000, least=20_000)
    turns = min(200, rows // BATCH // 2) if plan.quick else 400
    tables.empty("small")
    tables.seed(turns * BATCH * 2, alias="small")
    tables.vacuum("small")
    tables.empty()
    for kind in ("finished", "ready", "future"):
        tables.seed(max(rows, turns * BATCH * 2) if kind == "ready" else rows, kind=kind)
    tables.vacuum()
    plan.server.settle()
    small, big = Claimer("small"), Claimer("default")
    try:
        for _ in range(turns):
            small.turn()
            big.turn()
    finally:
        small.close()
        big.close()
    shape = tables.shape()
    tables.empty()
    tables.empty("small")
    figures = []
    for name, text in (("claims", "claim"), ("ends", "finalise")):
        few, many = getattr(small, name), getattr(big, name)
        p99 = percentile(few, 0.99), percentile(many, 0.99)
        figures += [
            Figure(f"{name}_empty_p99", f"{text} of {BATCH}, empty table, p99", p99[0] * 1000, "ms"),
            Figure(f"{name}_big_p99", f"{text} of {BATCH}, big table, p99", p99[1] * 1000, "ms"),
            Figure(
                f"{name}_p50_ratio",
                f"{text}: big ÷ empty, p50",
                percentile(many, 0.5) / percentile(few, 0.5),
                "×",
            ),
            Figure(
                f"{name}_p99_ratio",
                f"{text}: big ÷ empty, p99",
                p99[1] / p99[0],
                "×",
                at_most(2.0) if name == "claims" else None,
            ),
        ]
    note = f"{rows:,} ready + {rows:,} future + {rows:,} finished rows against none, {turns} turns each"
    return Result(figures, note, raw={"shape": shape})


@dataclass(slots=True)
class Claimer:
    """Claims from one table as a worker does, and ends at once what it claimed; notes how long both take."""

    alias: str
    claims: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    frontier: Frontier = field(default_factory=Frontier)
    on: WorkerConnection = field(init=False)
    author: Author = field(default_factory=lambda: Author(uuid4()))

    def __post_init__(self) -> None:
        self.on = WorkerConnection(self.alias, "benchmark", statement_seconds=60, durable=False)
        self.frontier.learn([PAIR])

    def turn(self) -> None:
        """Claim a batch and end it."""
        began = time.perf_counter()
        plan, claim_id = self.frontier.plan(began), uuid4()
        jobs = claiming.claim_jobs(
            self.on,
            [visit.pair for visit in plan],
            claim_id=claim_id,
            worker=self.author.worker,
            limit=BATCH,
            lease_seconds=60,
            allowance_seconds=5,
            grace_seconds=30,
        )
        claimed = time.perf_counter()
        self.claims.append(claimed - began)
        self.frontier.saw(plan, jobs, BATCH, claimed, claimed - began)
        ends = [End(job.id, str(claim_id), 0.0, result="7") for job in jobs]
        finalising.finalise_success_fast(self.on, ends, self.author)
        self.ends.append(time.perf_counter() - claimed)
        finalising.delete_claims(self.on, [str(claim_id)])

    def close(self) -> None:
        """Disconnect."""
        self.on.close()
