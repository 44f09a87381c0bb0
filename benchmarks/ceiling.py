"""The SQL ceiling: claim and finalise by the worker's own statements, batch 500, two connections, no Python work.

Two threads as in the supervisor: one claims, the other finalises what was claimed. What no Python code can beat.
"""

from __future__ import annotations

import queue
import threading
import time
from uuid import uuid4

from django_pgjobs import store
from django_pgjobs.worker.connection import WorkerConnection
from django_pgjobs.worker.frontier import Frontier

BATCH = 500


def drain(pairs: list[tuple[str, int]]) -> float:
    """Claim and finalise all that is ready; return the seconds it took."""
    claimed: queue.Queue[tuple[str, list[store.ClaimedJob]] | None] = queue.Queue(4)
    finisher = threading.Thread(target=_finalise, args=(claimed,))
    began = time.perf_counter()
    finisher.start()
    _claim(pairs, claimed)
    finisher.join()
    return time.perf_counter() - began


def _claim(pairs: list[tuple[str, int]], claimed: queue.Queue[tuple[str, list[store.ClaimedJob]] | None]) -> None:
    db = WorkerConnection("default", "ceiling claim", statement_seconds=60, durable=False)
    frontier, worker = Frontier(), uuid4()
    frontier.learn(pairs)
    while True:
        began = time.perf_counter()
        plan, claim_id = frontier.plan(began), uuid4()
        jobs = store.claim_jobs(
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
        if not jobs and frontier.swept() >= began:
            break
        if jobs:
            claimed.put((str(claim_id), jobs))
    claimed.put(None)
    db.close()


def _finalise(claimed: queue.Queue[tuple[str, list[store.ClaimedJob]] | None]) -> None:
    db = WorkerConnection("default", "ceiling finalise", statement_seconds=60)
    author = store.Author(uuid4())
    while (batch := claimed.get()) is not None:
        claim_id, jobs = batch
        store.finalise_success(db, [store.End(job.id, claim_id, 0.0, result=str(job.id)) for job in jobs], author)
        store.delete_claims(db, [claim_id])
    db.close()
