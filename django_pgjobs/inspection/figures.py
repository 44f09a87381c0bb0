"""The figures of the queues: how many jobs wait, run and end, how late they are, and which workers serve them.

Each count runs along an index up to a bound, so that it costs the same with a million jobs; ``at_least`` names the
figures that reached the bound. A leader measures and stores them from time to time, so that no other process has to
count.
"""

from __future__ import annotations

from typing import Any

from django_pgjobs.states import OTHERS, Hold, Outcome
from django_pgjobs.store import claiming, counting, troubles
from django_pgjobs.store.counting import KnownWorker
from django_pgjobs.store.database import Database

MOST = 10_000
"""The bound of a count."""

MOST_MINUTES = 100_000
"""The bound of rows of minutes: one for each queue, name, outcome and release of a minute."""

SHARED = 10
"""All queues together count up to this many bounds of due jobs, and as many of later ones."""

LONGEST_NAME = 1000
"""The rows of workers are not checked: a longer name in them is of no queue, and in no index."""

ENDED_SECONDS = 3600.0
"""Jobs that ended within this time count by outcome."""


def measure(db: Database, *, silent_seconds: float, stale_seconds: float, most: int = MOST) -> dict[str, Any]:
    """Count, and return JSON values. Runs nine statements that only read; each sees what is committed by then."""
    workers = counting.list_workers(db, silent_seconds=silent_seconds, stale_seconds=stale_seconds)
    queues: dict[str, dict[str, object]] = {}
    for due in counting.count_due(db, most=most, budget=most * SHARED):
        found = _of(queues, due.queue)
        found |= {"ready": due.ready, "scheduled": due.scheduled, "oldest_ready_seconds": due.oldest_seconds}
        found["at_least"] += ["ready"] * due.more_ready + ["scheduled"] * due.more_scheduled
    pairs = claiming.list_pairs(db)
    for retrying in counting.count_retrying(db, pairs, most=max(min(most, most * SHARED // max(len(pairs), 1)), 1)):
        found = _of(queues, retrying.queue)
        found["retrying"] = retrying.jobs
        found["scheduled"] = max(found["scheduled"] - retrying.jobs, 0)
        found["at_least"] += ["retrying"] * retrying.more
    for running in counting.count_running(db, most=most):
        found = _of(queues, running.queue)
        found["running"] = running.jobs
        found["at_least"] += ["running"] * running.more
    _add_held(queues, troubles.count_held(db, troubles.list_held_pairs(db), most=most))
    _add_ended(queues, db, most)
    counted = {"ended_within_seconds": ENDED_SECONDS, "queues": list(queues.values())}
    return with_workers(counted, workers)


def with_workers(counted: dict[str, Any], workers: list[KnownWorker]) -> dict[str, object]:
    """Return the figures with these workers added: how many there are, and how many serve each queue."""
    queues = {found["queue"]: found for found in counted["queues"]}
    live = [worker for worker in workers if worker.live]
    for worker in live:
        for queue in worker.queues or ():
            if len(queue) <= LONGEST_NAME:
                _of(queues, queue)
    for queue, found in queues.items():
        found["workers"] = sum(worker.status == "running" and worker.serves(queue) for worker in live)
    return {
        **counted,
        "workers": {
            "live": len(live),
            "quiet": sum(worker.status == "quiet" for worker in live),
            "draining": sum(worker.status == "draining" for worker in live),
            "silent": sum(worker.status == "silent" for worker in workers),
            "slots": sum(worker.slots for worker in live),
            "running": sum(worker.running for worker in live),
        },
        "queues": [queues[queue] for queue in sorted(queues)],
    }


def _of(queues: dict[str, dict[str, object]], queue: str) -> dict[str, Any]:
    if queue not in queues:
        queues[queue] = {
            "queue": queue,
            "ready": 0,
            "scheduled": 0,
            "retrying": 0,
            "running": 0,
            "held": dict.fromkeys(map(str, Hold), 0),
            "ended": dict.fromkeys(map(str, Outcome), 0),
            "oldest_ready_seconds": None,
            "workers": 0,
            "at_least": [],
        }
    return queues[queue]


def _add_held(queues: dict[str, dict[str, object]], counted: list[troubles.HeldName]) -> None:
    for part in counted:
        found = _of(queues, part.queue)
        found["held"][part.hold] = part.jobs
        found["retrying"] += part.retrying
        found["at_least"] += [f"held.{part.hold}"] * part.more
        if part.more and part.retrying and "retrying" not in found["at_least"]:
            found["at_least"].append("retrying")


def _add_ended(queues: dict[str, dict[str, Any]], db: Database, most: int) -> None:
    """Add what ended lately, by the sums of the workers: exact, however many jobs there were, also deleted ones.

    Of abandoned jobs those are counted that are there still, as lists show them, up to the bound.
    """
    cut = False
    for part in troubles.count_minutes(db, seconds=ENDED_SECONDS, most=MOST_MINUTES):
        cut = cut or part.more or part.queue == OTHERS
        if part.queue != OTHERS or OTHERS in queues:
            _of(queues, part.queue)["ended"][part.kind] = part.jobs
    rows = counting.count_ended(db, [Outcome.ABANDONED], seconds=ENDED_SECONDS, most=most)
    if not any(part.more for part in rows):
        for found in queues.values():
            found["ended"][Outcome.ABANDONED.value] = 0
        for part in rows:
            _of(queues, part.queue)["ended"][part.kind] = part.jobs
    if cut:
        for found in queues.values():
            found["at_least"] += [f"ended.{outcome}" for outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED)]
