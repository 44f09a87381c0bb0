"""Decides where each claim begins. Pure: no clock, no I/O.

A *pair* is a queue at one priority. Its *frontier* is the last (run_at, id) of the pair's latest claim. It is not the
highest one ever: rows that come in behind a maximum (late commits, releases) would wait forever. The statement starts
at the frontier, so the finished and running rows before it cost nothing, even while an open transaction keeps them.

In ``reach``: how a pair is scanned for jobs behind its frontier.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from django_pgjobs.store.claiming import ClaimedJob, LineKey, Spot
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.worker.threads.reach import FRONT, NEVER, FrontierKey, Reach, Visit
from django_pgjobs.worker.threads.tour import MANY_PAIRS, Tour

DRIFT = 0.02
"""A slower claim raises the known cost of quick ones by this share of the difference: the network may be slower now."""

_KEY, _ID = attrgetter("queue", "priority"), attrgetter("id")


@dataclass(slots=True)
class Frontier:
    """The pairs that a worker claims from, and how far each claim has come.

    ``walks_past``: it covers jobs of one colour only, among those of the other. ``serves_own``: it also has this
    package's own queue.
    """

    queues: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    paused: frozenset[str] = frozenset()
    walks_past: bool = False
    serves_own: bool = True
    reaches: dict[FrontierKey, Reach] = field(default_factory=dict)
    rotation: int = 0
    highest_id: int = 0
    quickest: float = math.inf
    order: list[list[FrontierKey]] = field(default_factory=list)
    tour: Tour = field(default_factory=Tour)

    @property
    def are_many(self) -> bool:
        """True if a tour leads claims past its pairs; else each claim scans all of them."""
        return len(self.reaches) > MANY_PAIRS

    @property
    def is_passed(self) -> bool:
        """True if claims have come past all pairs, with nothing left to be claimed at once."""
        return not self.are_many or self.tour.is_complete

    def of(self, line: LineKey) -> Frontier:
        """Return this for the line of all its queues, else a new one: of the other colour, or of one queue."""
        if line is False:
            return self
        if line is True:
            return replace(self, reaches={}, order=[], tour=Tour())
        return Frontier(frozenset({line[1]}), walks_past=self.walks_past, serves_own=line[1] == OWN_QUEUE)

    def serves(self, queue: str) -> bool:
        """Return whether this worker takes jobs of ``queue`` now: those of this package's own queue always."""
        if queue == OWN_QUEUE:
            return self.serves_own
        if queue in self.excluded or queue in self.paused:
            return False
        return self.queues is None or queue in self.queues

    def pause(self, queues: frozenset[str]) -> None:
        """Leave out these queues and drop their pairs: when one is resumed, they are read again."""
        if queues != self.paused:
            self.paused = queues
            self.replace(list(self.reaches))

    def learn(self, pairs: Iterable[FrontierKey]) -> None:
        """Add pairs that have new jobs; claims start at the beginning of a new one."""
        served = [pair for pair in pairs if self.serves(pair[0])]
        self._add(served)
        if self.are_many:
            self.tour.announce(served)

    def _add(self, pairs: Iterable[FrontierKey]) -> None:
        for pair in pairs:
            if pair not in self.reaches:
                self.reaches[pair] = Reach()
                group = next((group for group in self.order if self.are_many and group[0][1] == pair[1]), None)
                if group is None:
                    self.order = []
                else:
                    insort(group, pair)  # to sort all of them again would take long

    def replace(self, pairs: Iterable[FrontierKey]) -> None:
        """Replace the pairs by these, keeping the progress of each."""
        wanted = {pair for pair in pairs if self.serves(pair[0])}
        for pair in set(self.reaches) - wanted:
            del self.reaches[pair]
            self.order = []
        self._add(wanted)

    def scan_all(self) -> None:
        """Make the next claim scan every pair."""
        for reach in self.reaches.values():
            reach.scan_due = NEVER

    def scan_near(self) -> None:
        """Make the next claim scan a short way behind every frontier; of very many, behind announced ones."""
        for pair in self.tour.announced if self.are_many else self.reaches:
            if reach := self.reaches.get(pair):
                reach.near_due = reach.near_soonest

    def released(self, queues: Set[str] | None) -> None:
        """Learn that jobs of these queues, None for any, were released; they may lie anywhere behind a frontier."""
        if queues or queues is None:
            for (queue, _), reach in self.reaches.items():
                if queues is None or queue in queues:
                    reach.released()

    def admitted(self, pairs: Iterable[FrontierKey]) -> None:
        """Learn that jobs were admitted to these pairs: they may lie anywhere behind the frontiers."""
        for pair in pairs:
            if pair in self.reaches:
                self.reaches[pair].admitted()

    def scanned(self) -> float:
        """Return the instant since which nothing came in unseen: the oldest start of the last complete scans."""
        return min((reach.scanned for reach in self.reaches.values()), default=math.inf)

    def next_scan(self, since: float) -> float:
        """Return when the next scan is due among pairs without a complete scan ``since`` then."""
        due = min((reach.due for reach in self.reaches.values() if reach.scanned < since), default=math.inf)
        return max(due, self.tour.due) if self.are_many else due

    def plan(self, now: float) -> list[Visit]:
        """Return the visits of a claim: larger priorities first, queues of one priority in turn."""
        if not self.order:
            keys = sorted(self.reaches, key=lambda key: (-key[1], key[0]))
            self.order = [list(group) for _, group in groupby(keys, lambda key: key[1])]
        self.rotation += 1
        visits: list[Visit] = []
        if self.are_many:
            some = self.tour.keys(self.order, self.reaches, now, announced_first=self.rotation % 2 == 0)
            for key in some:
                visits += self.reaches[key].visits(key, now, self.highest_id)
            return visits
        for group in self.order:
            turn = self.rotation % len(group)
            for key in group[turn:] + group[:turn]:
                visits += self.reaches[key].visits(key, now, self.highest_id)
        return visits

    def saw(
        self,
        plan: Sequence[Visit],
        jobs: Sequence[ClaimedJob],
        limit: int,
        now: float,
        took: float,
        asked_at: datetime | None = None,
    ) -> None:
        """Learn from a claim of ``plan`` that returned ``jobs`` (in order) at ``now`` after ``took`` seconds.

        ``asked_at``: the start of the claim by the database's clock.
        """
        found: dict[FrontierKey, list[ClaimedJob]] = {}
        for key, some in groupby(jobs, _KEY):
            found.setdefault(key, []).extend(some)
        if jobs:
            self.highest_id = max(self.highest_id, max(map(_ID, jobs)))
        cost = took
        # Deduct the base cost of a claim, which is most of it if the server is far: only the rest is due to scans.
        took, quickest = max(0.0, took - self.quickest), min(took, self.quickest)
        self.quickest = quickest + DRIFT * took
        short = len(jobs) < limit
        yields = [_take(found.get((visit.pair.queue, visit.pair.priority), []), visit.pair.until) for visit in plan]
        seen_to = asked_at if self.walks_past else None
        # A full claim stopped at the last visit that gave a row; it did not reach the later ones.
        last = len(plan) - 1 if short else max((index for index, some in enumerate(yields) if some), default=-1)
        for index, visit in enumerate(plan[: last + 1]):
            reach = self.reaches[visit.pair.queue, visit.pair.priority]
            whole = short or index < last
            reach.saw(visit, yields[index], now, took, whole=whole, short=short, seen_to=seen_to)
        if self.are_many:
            scanned = [(visit.pair.queue, visit.pair.priority) for visit in plan[: last + 1]]
            self.tour.saw(self.order, scanned, now, cost, full=not short)

    def gave_up(self, plan: Sequence[Visit], now: float, took: float) -> None:
        """Learn that a claim of ``plan`` took too long: blame its scans, or the frontiers if it had none."""
        self.tour.gave_up()
        scans = [visit for visit in plan if visit.kind != FRONT]
        for visit in scans or plan:
            self.reaches[visit.pair.queue, visit.pair.priority].gave_up(visit, now, took)


def _take(jobs: list[ClaimedJob], until: Spot | None) -> list[ClaimedJob]:
    """Take a visit's jobs off those that its pair gave: a slice's end at its end, all others are the frontier's."""
    count = len(jobs) if until is None else sum((job.run_at, job.id) <= until for job in jobs)
    taken, jobs[:] = jobs[:count], jobs[count:]
    return taken
