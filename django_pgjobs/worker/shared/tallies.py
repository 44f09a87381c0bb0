"""Attempts that a worker has ended, added up by queue, name and outcome: for the numbers over time and for metrics.

The supervisor's main thread adds, a batch of ends at a time. Other threads read what was added since they read last.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.states import OTHERS, Ended
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import ExpiredJob, Rescued
from django_pgjobs.values.histogram import BOUNDS, COUNTS
from django_pgjobs.worker.shared.runs import HeldRun

MOST_NAMES = 200
MOST_QUEUES = 100
MOST_PAIRS = 500
"""Maximum number of pairs of a queue and a name: each is a histogram of 29 lines for every scrape, in the process that
renews leases."""

MOST_CHARS = 200


class TallyKey(NamedTuple):
    """The key of a tally."""

    queue: str
    name: str
    outcome: str


class Tally:
    """Number of attempts that ended, and histograms and sums of their waits and durations, in seconds.

    It only grows. A lost attempt is counted among ``jobs`` alone.
    """

    __slots__ = ("jobs", "run_histogram", "run_seconds", "wait_histogram", "wait_seconds")

    def __init__(self) -> None:
        self.jobs = 0
        self.run_seconds = self.wait_seconds = 0.0
        self.run_histogram = [0] * COUNTS
        self.wait_histogram = [0] * COUNTS

    def copy(self) -> Tally:
        """Return one with the same figures."""
        new = Tally()
        new.jobs, new.run_seconds, new.wait_seconds = self.jobs, self.run_seconds, self.wait_seconds
        new.run_histogram, new.wait_histogram = self.run_histogram.copy(), self.wait_histogram.copy()
        return new

    def add(self, other: Tally) -> None:
        """Add the figures of another one."""
        self.jobs += other.jobs
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        self.run_histogram = list(map(int.__add__, self.run_histogram, other.run_histogram))
        self.wait_histogram = list(map(int.__add__, self.wait_histogram, other.wait_histogram))

    def since(self, earlier: Tally | None) -> Tally:
        """Return what has been added since the figures of ``earlier``."""
        new = self.copy()
        if earlier is not None:
            new.jobs -= earlier.jobs
            new.run_seconds -= earlier.run_seconds
            new.wait_seconds -= earlier.wait_seconds
            new.run_histogram = list(map(int.__sub__, self.run_histogram, earlier.run_histogram))
            new.wait_histogram = list(map(int.__sub__, self.wait_histogram, earlier.wait_histogram))
        return new


class Tallies:
    """All tallies of a worker since it started; ``knows``: whether this code defines a name."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self.knows = knows
        self.tallies: dict[TallyKey, Tally] = {}
        self.queues: set[str] = set()
        self.names: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.rescued = {"lost": 0, "timeout": 0}
        self.lost = 0
        self.claims = self.jobs_claimed = 0
        self._found: dict[str, dict[tuple[str, str], Tally]] = {outcome.value: {} for outcome in Ended}

    def stored(self, kind: EndKind, ends: Sequence[tuple[HeldRun, End, object]]) -> None:
        """Add ends of one kind that have been stored. Called for each batch."""
        if kind.alike:
            self._add(kind.outcome, ends)
            return
        for end in ends:
            if (outcome := _outcome_of(kind, *end[:2])) is not None:
                self._add(outcome, [end])

    def _add(self, outcome: str, ends: Iterable[tuple[HeldRun, End, object]]) -> None:
        # Every job passes here: sorted figures are counted by the bucket, at half the cost of one search for each.
        alike: dict[tuple[str, str, datetime | None], list[tuple[HeldRun, End, object]]] = {}
        for entry in ends:
            run = entry[0]
            job = run.job
            alike.setdefault((job.queue, job.name, run.claim.scanned_at), []).append(entry)
        found = self._found[outcome]
        for (queue, name, scanned_at), entries in alike.items():
            tally = found.get((queue, name)) or self._find(queue, name, outcome)
            tally.jobs += len(entries)
            timed = [
                (seconds, run.job.run_at)
                for run, end, _ in entries
                if (seconds := run.duration if end.seconds is None else end.seconds) is not None
            ]
            tally.run_seconds += _count(tally.run_histogram, [seconds for seconds, _ in timed])
            if scanned_at is not None:
                waited = [(scanned_at - run_at).total_seconds() for _, run_at in timed]
                tally.wait_seconds += _count(tally.wait_histogram, waited)

    def claimed(self, jobs: int) -> None:
        """Add a claim that found so many jobs."""
        self.claims += 1
        self.jobs_claimed += jobs

    def were_rescued(self, jobs: Sequence[Rescued]) -> None:
        """Add attempts that other workers have lost, and this one has ended."""
        for job in jobs:
            self.rescued[job.cause] = self.rescued.get(job.cause, 0) + 1
            if not job.ending:
                self._find(job.queue, job.name, job.outcome or Ended.RETRIED.value).jobs += 1

    def expired(self, jobs: Sequence[ExpiredJob]) -> None:
        """Add jobs that the leader has cancelled, since they did not start in time."""
        for job in jobs:
            if job.ended:
                self._find(job.queue, job.name, Ended.CANCELLED.value).jobs += 1

    def add(self, other: Tallies) -> None:
        """Add what another home has counted."""
        for key, tally in other.read().items():
            self._find(*key).add(tally)
        self.lost += other.lost
        self.claims += other.claims
        self.jobs_claimed += other.jobs_claimed
        for cause, jobs in other.rescued.copy().items():
            self.rescued[cause] = self.rescued.get(cause, 0) + jobs

    def read(self) -> dict[TallyKey, Tally]:
        """Return copies of all tallies; for other threads."""
        return {key: tally.copy() for key, tally in self.tallies.copy().items()}

    def _find(self, queue: str, name: str, outcome: str) -> Tally:
        in_queue = _bounded(queue, self.queues, MOST_QUEUES)
        of_name = _bounded(name, self.names, MOST_NAMES) if self.knows(name) else OTHERS
        if (in_queue, of_name) not in self.pairs:
            if len(self.pairs) >= MOST_PAIRS:
                of_name = OTHERS
            self.pairs.add((in_queue, of_name))
        key = TallyKey(in_queue, of_name, outcome)
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally()
        if key.queue == queue and key.name == name:
            self._found[outcome][queue, name] = tally
        return tally


class Counts(Protocol):
    """A home."""

    tallies: Tallies


C = TypeVar("C", bound=Counts)


class TalliesOfHomes(Generic[C]):
    """Sum of what the homes of a worker have counted, also those that have left.

    To Prometheus a counter that falls is a restart.
    """

    def __init__(self, homes: list[C]) -> None:
        self.homes = homes
        self.lock = threading.Lock()
        self.gone = Tallies(_was_judged)

    def remove(self, home: C) -> None:
        """Take a home from the list, and keep what it has counted."""
        with self.lock:
            self.homes.remove(home)
            self.gone.add(home.tallies)

    def total(self) -> Tallies:
        """Return the sum; for other threads."""
        total = Tallies(_was_judged)
        with self.lock:
            for each in (self.gone, *(home.tallies for home in self.homes)):
                total.add(each)
        return total


def _was_judged(name: str) -> bool:
    """Return True: each home has asked whether its code defines a name."""
    return True


def _count(histogram: list[int], seconds: list[float]) -> float:
    """Add figures to a histogram, and return their sum."""
    seconds.sort()
    at = 0
    while at < len(seconds):
        bucket = bisect_left(BOUNDS, seconds[at])
        end = bisect_right(seconds, BOUNDS[bucket], at) if bucket < len(BOUNDS) else len(seconds)
        histogram[bucket] += end - at
        at = end
    return sum(seconds)


def _bounded(word: str, known: set[str], most: int) -> str:
    if word in known:
        return word
    if len(known) >= most or len(word) > MOST_CHARS or not word.isprintable():
        return OTHERS
    known.add(word)
    return word


def _outcome_of(kind: EndKind, run: HeldRun, end: End) -> str | None:
    """Return how the attempt ended whose end was stored; None if none has ended with it."""
    if kind.final:
        return end.outcome or None
    if not kind.requeues or run.job.ending is not None or end.cause is None:
        return None
    return (end.failure is not None and kind.failed) or kind.outcome
