"""One list of what keeps jobs from running or makes them fail: for the overview, lists, ``pgjobs check`` and notices.

A *problem* needs action; a *note* says what is so on purpose, or may be: a page beside one is not calm.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.db.models.functions import Left, Now

from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import holdups
from django_pgjobs.diagnosis.problem import MANY, NAMED, HealthProblem, Limits
from django_pgjobs.inspection import liveness
from django_pgjobs.inspection.words import span
from django_pgjobs.models import CronEntry, QueueState
from django_pgjobs.store import counting, installation
from django_pgjobs.store.counting import KnownWorker
from django_pgjobs.store.database import Database
from django_pgjobs.store.schemas import UNLED_SECONDS

LEADER_SECONDS = 30.0
"""Time that may pass without a leader; an election takes a while."""

OVERDUE_SECONDS = 30.0
"""Time for which a lease may be expired: workers check every two seconds, except for ten seconds after they connect."""

SAMPLED = 100
"""Number of due jobs of each queue and priority to read for the longest wait."""

SHARED = 20


def problems(db: Database, using: str, limits: Limits) -> list[HealthProblem]:
    """Return problems, then notes. ``db`` and the alias ``using`` are one connection. Reads at bounded cost."""
    workers = known_workers(db)
    found = [
        *_of_queues(db, using, limits, workers),
        *_of_workers(workers, limits),
        *_of_upkeep(db),
        *_of_installation(db),
        *_of_crons(using),
        *holdups.problems(db, using, limits),
    ]
    return sorted(found, key=lambda each: each.is_note)


def _of_installation(db: Database) -> Iterator[HealthProblem]:
    """Yield that the database is a copy, which no worker serves."""
    if refusal := installation.read(db, get_conf().environment).refusal():
        yield HealthProblem("copied", refusal)


def known_workers(db: Database) -> list[KnownWorker]:
    """Return the workers that have not stopped."""
    conf = get_conf()
    return counting.list_workers(db, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds)


def paused_queues(using: str) -> set[str]:
    """Return the queues that are paused now."""
    return paused_names(using, "queue")


def paused_names(using: str, kind: str) -> set[str]:
    """Return the queues, or with kind *job* the jobs, that are paused now."""
    return set(QueueState.objects.using(using).current().filter(kind=kind).values_list("name", flat=True))


def _of_queues(db: Database, using: str, limits: Limits, workers: list[KnownWorker]) -> Iterator[HealthProblem]:
    """Yield queues whose due jobs have no worker or wait too long; paused queues wait on purpose."""
    paused = paused_queues(using)
    for due in counting.count_due(db, most=SAMPLED, budget=MANY * SHARED):
        if due.oldest_seconds is None or due.queue in paused or due.queue not in (limits.queues or [due.queue]):
            continue
        served = any(each.status in ("running", liveness.QUIET) and each.serves(due.queue) for each in workers)
        if not served and liveness.is_awaited(due.oldest_seconds):
            words = f"Queue {due.queue} has due jobs, but no worker that serves it was heard from lately."
            yield HealthProblem("no_worker", words, due.queue, due.queue)
        if due.oldest_seconds > limits.max_latency:
            words = f"The oldest due job of queue {due.queue} has waited for {span(due.oldest_seconds)}"
            yield HealthProblem("latency", f"{words}, more than {span(limits.max_latency)}.", due.queue, due.queue)


def _of_workers(workers: list[KnownWorker], limits: Limits) -> Iterator[HealthProblem]:
    """Yield silent workers; with ``--max-lost`` also too many lost ones."""
    queues = limits.queues
    ours = [worker for worker in workers if queues is None or any(map(worker.serves, queues))]
    for worker in ours:
        if worker.status == liveness.SILENT:
            beat_age = span(worker.beat_age_seconds)
            yield HealthProblem(
                "silent",
                f"Worker {worker.name} was last heard from {beat_age} ago, and has not stopped.",
                subject=worker.name,
            )
        if worker.status == liveness.QUIET:
            yield _of_quiet(worker)
        yield from _of_executors(worker, limits)
    if (most := limits.max_lost) is not None:
        since = limits.since
        lost = [each for each in ours if each.status == liveness.LOST and each.beat_age_seconds <= since]
        if len(lost) > most:
            names = ", ".join(each.name for each in lost[:NAMED])
            yield HealthProblem(
                "lost", f"{len(lost)} of the workers heard from within {span(since)} are lost: {names}."
            )


def _of_quiet(worker: KnownWorker) -> HealthProblem:
    """Return the note that an operator keeps a worker from claiming."""
    by = f", asked by {worker.control_by[:100]}" if worker.control_by else ""
    since = f" {span(worker.control_seconds)} ago" if worker.control_seconds is not None else ""
    why = f": {worker.control_reason[:200]}" if worker.control_reason else "."
    words = f"Worker {worker.name} is quiet{by}{since}, and claims nothing{why}"
    return HealthProblem("quiet", words, subject=worker.name, is_note=True, worker=worker.id)


def _of_executors(worker: KnownWorker, limits: Limits) -> Iterator[HealthProblem]:
    """Yield what a worker tells of executors that died, and of the jobs that run apart since."""
    if worker.died_seconds is not None and worker.died_seconds <= limits.since:
        words = f"An executor of worker {worker.name} died {span(worker.died_seconds)} ago: {worker.death}"
        yield HealthProblem("crashed", words, subject=worker.name, worker=worker.id)
    if worker.live and worker.suspect_seconds is not None:
        ids = ", ".join(f"#{each}" for each in worker.suspect_ids[:NAMED])
        words = f"Worker {worker.name} has run suspects alone for {span(worker.suspect_seconds)}"
        words += f", since an executor died with them: {ids}. Others start beside them after a while."
        yield HealthProblem("suspects", words, subject=worker.name, is_note=True, worker=worker.id)


def _of_crons(using: str) -> Iterator[HealthProblem]:
    """Yield broken cron entries, unless they are paused, and missing ones."""
    resting = Q(paused_at__isnull=False) & (Q(paused_until=None) | Q(paused_until__gt=Now()))
    broken = CronEntry.objects.using(using).exclude(broken="").exclude(resting).order_by("name")
    for name, why in broken.values_list("name", Left("broken", 200))[:NAMED]:
        yield HealthProblem("cron", f"Cron entry {name} is broken and does not fire: {why}", subject=name)
    missing = CronEntry.objects.using(using).filter(missing_since__isnull=False, origin=CronEntry.Origin.CODE)
    for name in missing.order_by("name").values_list("name", flat=True)[:NAMED]:
        words = f"Cron entry {name} is missing and does not fire: no worker's code declares it any more."
        yield HealthProblem("cron_missing", words, subject=name)


def _of_upkeep(db: Database) -> Iterator[HealthProblem]:
    """Yield overdue rescues and a missing leader."""
    if overdue := counting.count_overdue(db, seconds=OVERDUE_SECONDS, most=MANY):
        many = f"{overdue} batches" if overdue < MANY else f"{MANY} batches or more"
        yield HealthProblem(
            "overdue", f"{many} of claimed jobs should have been rescued more than {OVERDUE_SECONDS:g} s ago."
        )
    leader = counting.read_leader(db)
    if leader is None:
        yield HealthProblem("leader", "No worker has ever led: is one running? Without a leader nothing is pruned.")
    elif leader[1] < -(LEADER_SECONDS + 2 * UNLED_SECONDS * liveness.sleeps()):
        yield HealthProblem(
            "leader", f"No worker has led for {span(-leader[1])}; the last leader was {leader[0]}. Is a worker running?"
        )
