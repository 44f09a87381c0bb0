"""The SQL ceiling: claim and finalise by the worker's own statements, batch 500, two connections, no Python work.

Two threads as in the supervisor: one claims, the other finalises the claimed jobs. No Python code can be faster.
"""

from __future__ import annotations

import queue
import threading
import time
from uuid import uuid4

from django_pgjobs.store import claiming, finalising
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.frontier import Frontier

BATCH = 500

Batches = queue.Queue[tuple[str, list[ClaimedJob]] | None]


def drain(pairs: list[tuple[str, int]]) -> float:
    """Claim and finalise all ready jobs; return the seconds from the first claim to the last end.

    Connecting, and the last claim, which finds nothing, do not count.
    """
    claimer = WorkerConnection("default", "ceiling claim", statement_seconds=60, durable=False)
    finaliser = WorkerConnection("default", "ceiling finalise", statement_seconds=60)
    claimed: Batches = queue.Queue(4)
    ended: list[float] = []
    finisher = threading.Thread(target=_finalise, args=(finaliser, claimed, ended))
    finisher.start()
    began = time.perf_counter()
    _claim(claimer, pairs, claimed)
    finisher.join()
    claimer.close()
    finaliser.close()
    return max(ended, default=began) - began


def _claim(db: WorkerConnection, pairs: list[tuple[str, int]], claimed: Batches) -> None:
    frontier, worker = Frontier(), uuid4()
    frontier.learn(pairs)
    while True:
        began = time.perf_counter()
        plan, claim_id = frontier.plan(began), uuid4()
        jobs = claiming.claim_jobs(
            db,
            [visit.pair for visit in plan],
            claim_id=claim_id,
            worker=worker,
            limit=BATCH,
            lease_seconds=60,
            allowance_seconds=5,
            grace_seconds=30,
        )
        now = time.perf_counter()
        frontier.saw(plan, jobs, BATCH, now, now - began)
        if not jobs and frontier.scanned() >= began:
            break
        if jobs:
            claimed.put((str(claim_id), jobs))
    claimed.put(None)


def _finalise(db: WorkerConnection, claimed: Batches, ended: list[float]) -> None:
    author = Author(uuid4())
    while (batch := claimed.get()) is not None:
        claim_id, jobs = batch
        finalising.finalise_success_fast(db, [End(job.id, claim_id, 0.0, result=str(job.id)) for job in jobs], author)
        finalising.delete_claims(db, [claim_id])
        ended.append(time.perf_counter())
