"""Where each claim begins. Pure: no clock, no I/O.

A *pair* is a queue at one priority. Its *frontier* is the last (run_at, id) of the latest claim of that pair, not of
the highest: rows that come in behind it (late commits, releases) would wait for ever behind a maximum. The statement
starts there, so finished and running rows before it cost nothing even while an open transaction keeps them alive.

What lies behind is found by *scans*. A *near* scan begins up to a minute before the frontier, every second. A *full*
one begins at the beginning: next 20 durations after the last, at once after a claim that found little. While that is
cheap it is one claim. When it is not, it goes in *slices*, claimed before the frontier in the same statement: what is
left up to the frontier is halved so often that a slice stays short. A slice that was given up is halved further. A pair
is due until a claim has really visited it.

What a limit admits may lie anywhere behind the frontier, so an admission has all of that looked at before the frontier
in the same statement, which stays where it is. Again only 20 durations later, and not while scans go in slices: then
these and the near ones have to do.

Released jobs may lie there too, as many as were claimed. Whoever releases announces it, and is believed at once: a
*hurried* scan begins, however soon after the last, anew if one was under way, and its slices take half of the time. The
next such one comes 4 durations later at the earliest, so that nobody else has to wait for those who release all the
time.

Where the code has jobs of both colours, there is a frontier for each, which *walks past* the jobs of the other. Many
may stand there and nothing for this one. So a visit that came to the end moves the frontier up to when it looked, by
the database's clock, less a moment for commits under way, which near scans look behind; these pause for 20 durations
then, whatever is announced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from django_pgjobs.store.statements import ClaimedJob, Pair, Spot

BEGINNING: Spot = (datetime(1, 1, 1, tzinfo=UTC), 0)
LATEST: Spot = (datetime(9999, 12, 31, tzinfo=UTC), 0)
"""A frontier in the future, be it this or one from before the clock was set back: the claim begins seconds ago."""

SCAN_FACTOR = 20.0
SCAN_FLOOR_SECONDS = 1.0
HURRY_FACTOR = 4.0
ADMITTED_SECONDS = 0.02
"""How long after a look at what was admitted the next one comes at least."""

NEAR_SECONDS = 60.0
NEAREST_SECONDS = 1.0
"""How far before the frontier a near scan begins, and how far at least where that has become dear."""

COMMIT_SECONDS = 0.05
"""How far before where a walk has ended the next one begins. At 10,000 registrations/s it passes 500 of them again."""

DEAR_SECONDS = 0.1
CHEAP_SECONDS = 0.05
"""A claim with a scan in it that takes so much longer than others makes the next slice smaller; or less, larger."""

DRIFT = 0.02
"""By how much of the difference a slower claim corrects what is known of quick ones: the way may have become long."""

MOST_HALVINGS = 100

NEVER = -math.inf
SAME_INSTANT = timedelta(microseconds=1)

FRONT, NEAR, SLICE, REST, ADMITTED = "front", "near", "slice", "rest", "let_in"

Key = tuple[str, int]


class Visit(NamedTuple):
    """One stretch of a claim: a pair from a spot on, and what for. ``rest`` is a scan and the frontier in one."""

    pair: Pair
    kind: str


def halfway(low: Spot, high: Spot, highest_id: int) -> Spot:
    """Return a spot between two: half the time or, within one instant, half the ids away from ``low``."""
    if high[0] - low[0] > SAME_INSTANT:
        return low[0] + (high[0] - low[0]) / 2, 0
    if high[0] > low[0]:
        return low[0], max(highest_id, low[1])
    return low[0], low[1] + (high[1] - low[1]) // 2


@dataclass(slots=True)
class Reach:
    """How far one pair has been claimed and scanned. Instants are the caller's seconds."""

    at: Spot = BEGINNING
    near_due: float = NEVER
    near_soonest: float = NEVER
    near_seconds: float = NEAR_SECONDS
    scan_due: float = NEVER
    admitted_due: float = math.inf
    soonest: float = NEVER
    """When something was admitted: when to look for that, and when that may be done again after a dear scan."""

    scanned_to: Spot = BEGINNING
    halvings: int = 0
    began: float = NEVER
    scanned: float = NEVER
    """When the scan under way began, and when the last complete one had begun."""

    behind: bool = False
    hurried: bool = False
    hurry_due: float = NEVER
    spent: float = 0.0
    """Whether something was released, a hurried scan is under way, when one may begin, and what this one took."""

    @property
    def due(self) -> float:
        """When the next scan begins or goes on."""
        return min(self.scan_due, self.hurry_due) if self.behind and not self.hurried else self.scan_due

    def visits(self, key: Key, now: float, highest_id: int) -> Iterator[Visit]:
        """Where the next claim begins in this pair: a slice that is due before the frontier, or all in one."""
        end = BEGINNING
        if now >= self.due:
            if self.behind and not self.hurried and now >= self.hurry_due:
                self.behind, self.hurried, self.spent = False, True, 0.0
                self.scanned_to, self.scan_due = BEGINNING, now
            if self.scanned_to == BEGINNING:
                self.began = now
            end = self.at
            for _ in range(self.halvings):
                end = halfway(self.scanned_to, end, highest_id)
            if self.scanned_to < end < self.at:
                yield Visit(Pair(*key, *self.scanned_to, until=end), SLICE)
            else:
                yield Visit(Pair(*key, *min(self.scanned_to, self.at)), REST)
                return
        elif now >= self.admitted_due and self.at > BEGINNING:
            end = self.at
            yield Visit(Pair(*key, *BEGINNING, until=end), ADMITTED)
        if now >= self.near_due and self.at > BEGINNING:
            near = self.at[0] - min(timedelta(seconds=self.near_seconds), self.at[0] - BEGINNING[0]), 0
            # Not into the slice: a row that is found twice would make a full claim look short.
            yield Visit(Pair(*key, *max(near, end)), NEAR)
        else:
            yield Visit(Pair(*key, *self.at), FRONT)

    def saw(
        self,
        visit: Visit,
        jobs: Sequence[ClaimedJob],
        now: float,
        took: float,
        *,
        whole: bool,
        short: bool,
        seen_to: datetime | None = None,
    ) -> None:
        """Learn from a visit: ``whole`` if nothing is left there, ``short`` if the whole claim found too little.

        ``seen_to`` is up to where it walked past what is not for it.
        """
        last = (jobs[-1].run_at, jobs[-1].id) if jobs else None
        pause = SCAN_FACTOR * took
        if visit.kind != FRONT:
            self.soonest = now + max(ADMITTED_SECONDS, pause)
        if visit.kind == ADMITTED:
            self.admitted_due = math.inf if whole else self.soonest
            self._weigh_scan(took)
            return
        if visit.kind == SLICE:
            self.scanned_to = (visit.pair.until if whole else last) or self.scanned_to
            # Until all was seen once nobody knows where the work is: half the time may go into finding it.
            hurried = self.hurried or self.scanned == NEVER
            self.spent += took
            self.scan_due = now + (took if hurried else pause) if whole else now
            self._weigh_scan(took)
            return
        if visit.kind == REST:
            # Cut short, it goes on at the frontier, which moves back to where this claim ended.
            self.scanned_to, self.scan_due = BEGINNING, now + max(0.0 if short else SCAN_FLOOR_SECONDS, pause)
            self.scanned = self.began if whole else self.scanned
            if self.hurried:
                self.hurried, self.hurry_due = False, now + HURRY_FACTOR * (self.spent + took)
            self._weigh_scan(took)
        if visit.kind == NEAR:
            if took > DEAR_SECONDS:
                self.near_seconds = max(NEAREST_SECONDS, self.near_seconds / 2)
            elif took < CHEAP_SECONDS:
                self.near_seconds = min(NEAR_SECONDS, self.near_seconds * 2)
        if visit.kind != FRONT:
            self.near_due = now + max(SCAN_FLOOR_SECONDS, pause)
            self.near_soonest = NEVER if seen_to is None else now + pause
        if last is not None:
            self.at = last
        if whole and seen_to is not None:
            self.at = max(last or BEGINNING, (seen_to - timedelta(seconds=COMMIT_SECONDS), 0))

    def admitted(self) -> None:
        """Something was admitted, perhaps behind the frontier: look there as soon as may be."""
        if not self.halvings:
            self.admitted_due = min(self.admitted_due, self.soonest)

    def released(self) -> None:
        """Something was released that may lie anywhere behind the frontier: scan as soon as may be."""
        self.behind = True

    def gave_up(self, visit: Visit, now: float, took: float) -> None:
        """Learn that a claim with this visit in it took too long: what it looked for is looked for in smaller parts."""
        self.soonest, self.admitted_due = now + SCAN_FACTOR * took, math.inf
        if visit.kind == ADMITTED:
            self._weigh_scan(took)
        elif visit.kind == NEAR:
            self.near_seconds, self.near_due = NEAREST_SECONDS, now + SCAN_FACTOR * took
        elif visit.kind == FRONT or self.at == BEGINNING:
            # Nobody has come through here for long. What is new is claimed meanwhile, the rest scanned in slices.
            self.at, self.scan_due = LATEST, now
        else:
            self.scan_due = now + SCAN_FACTOR * DEAR_SECONDS  # what the smaller slice may take at most
        if visit.kind in {SLICE, REST}:
            self.spent += took
            self._weigh_scan(took)

    def _weigh_scan(self, took: float) -> None:
        if took > DEAR_SECONDS:
            self.halvings = min(MOST_HALVINGS, self.halvings + math.ceil(math.log2(took / DEAR_SECONDS)))
        elif took < CHEAP_SECONDS:
            self.halvings = max(0, self.halvings - 1)


@dataclass(slots=True)
class Frontier:
    """The pairs a worker claims from, and how far each has been claimed.

    ``walks_past`` says that it is for the jobs of one colour only, among those of the other.
    """

    queues: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    paused: frozenset[str] = frozenset()
    walks_past: bool = False
    reaches: dict[Key, Reach] = field(default_factory=dict)
    rotation: int = 0
    highest_id: int = 0
    quickest: float = math.inf
    order: list[list[Key]] = field(default_factory=list)

    def serves(self, queue: str) -> bool:
        """Whether this worker takes jobs of ``queue`` now."""
        if queue in self.excluded or queue in self.paused:
            return False
        return self.queues is None or queue in self.queues

    def pause(self, queues: frozenset[str]) -> None:
        """Claim nothing from these queues, and forget their pairs: when one goes on they are learnt anew."""
        if queues != self.paused:
            self.paused = queues
            self.replace(list(self.reaches))

    def learn(self, pairs: Iterable[Key]) -> None:
        """Add pairs; a new one is claimed from its beginning."""
        for pair in pairs:
            if pair not in self.reaches and self.serves(pair[0]):
                self.reaches[pair] = Reach()
                self.order = []

    def replace(self, pairs: Iterable[Key]) -> None:
        """Know just these pairs, keeping how far each had been claimed."""
        wanted = {pair for pair in pairs if self.serves(pair[0])}
        for pair in set(self.reaches) - wanted:
            del self.reaches[pair]
            self.order = []
        self.learn(wanted)

    def scan_all(self) -> None:
        """Make the next claim scan every pair."""
        for reach in self.reaches.values():
            reach.scan_due = NEVER

    def scan_near(self) -> None:
        """Make the next claim look behind every frontier, not far."""
        for reach in self.reaches.values():
            reach.near_due = reach.near_soonest

    def released(self, queues: Set[str] | None) -> None:
        """Learn that jobs of these queues, None for any, were released; they may lie anywhere behind a frontier."""
        if queues or queues is None:
            for (queue, _), reach in self.reaches.items():
                if queues is None or queue in queues:
                    reach.released()

    def admitted(self, pairs: Iterable[Key]) -> None:
        """Learn that jobs were admitted to these pairs: they may lie anywhere behind the frontiers."""
        for pair in pairs:
            if pair in self.reaches:
                self.reaches[pair].admitted()

    def scanned(self) -> float:
        """Return since when nothing can have come in unseen: when the oldest of the last complete scans began."""
        return min((reach.scanned for reach in self.reaches.values()), default=math.inf)

    def next_scan(self, since: float) -> float:
        """Return when the next scan is due of a pair that has not been scanned completely ``since``."""
        return min((reach.due for reach in self.reaches.values() if reach.scanned < since), default=math.inf)

    def plan(self, now: float) -> list[Visit]:
        """Return where to claim from: larger priorities first, queues of one priority in turn."""
        if not self.order:
            keys = sorted(self.reaches, key=lambda key: (-key[1], key[0]))
            self.order = [list(group) for _, group in groupby(keys, lambda key: key[1])]
        self.rotation += 1
        visits: list[Visit] = []
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

        ``asked_at`` is when it was asked by the database's clock.
        """
        found: dict[Key, list[ClaimedJob]] = {}
        before, some = None, []
        for job in jobs:
            if (key := (job.queue, job.priority)) != before:
                before, some = key, found.setdefault(key, [])
            some.append(job)
        if jobs:
            self.highest_id = max(self.highest_id, max([job.id for job in jobs]))
        # What a claim takes anyhow, on a long way to the server most of it, is not what its scans take.
        took, quickest = max(0.0, took - self.quickest), min(took, self.quickest)
        self.quickest = quickest + DRIFT * took
        short = len(jobs) < limit
        yields = [_take(found.get((visit.pair.queue, visit.pair.priority), []), visit.pair.until) for visit in plan]
        seen_to = asked_at if self.walks_past else None
        # A full claim stopped at the last visit that gave a row; it did not come to those behind it.
        last = len(plan) - 1 if short else max((index for index, some in enumerate(yields) if some), default=-1)
        for index, visit in enumerate(plan[: last + 1]):
            reach = self.reaches[visit.pair.queue, visit.pair.priority]
            whole = short or index < last
            reach.saw(visit, yields[index], now, took, whole=whole, short=short, seen_to=seen_to)

    def gave_up(self, plan: Sequence[Visit], now: float, took: float) -> None:
        """Learn that a claim of ``plan`` took too long: scans are to blame, or the frontiers if there was none."""
        scans = [visit for visit in plan if visit.kind != FRONT]
        for visit in scans or plan:
            self.reaches[visit.pair.queue, visit.pair.priority].gave_up(visit, now, took)


def _take(jobs: list[ClaimedJob], until: Spot | None) -> list[ClaimedJob]:
    """Take a visit's jobs off those that its pair gave: a slice's end at its end, all others are the frontier's."""
    count = len(jobs) if until is None else sum((job.run_at, job.id) <= until for job in jobs)
    taken, jobs[:] = jobs[:count], jobs[count:]
    return taken
