"""The progress of claims and scans in one pair of queue and priority. Pure: no clock, no I/O.

*Scans* find the jobs behind the frontier. A *near* scan starts up to a minute before the frontier, every second. A
*full* scan starts at the beginning: 20 durations after the last one, or at once after a claim that found little. A
cheap full scan is one claim. An expensive one goes in *slices*, which the statement claims before the frontier: it
halves the rest up to the frontier until a slice is short. A slice that was given up is halved further. A pair is due
until a claim has really visited it.

Admitted jobs may lie anywhere behind the frontier. After an admission the statement therefore covers all of that before
the frontier, which does not move. It does so again only 20 durations later, and not while scans go in slices: then
slices and near scans must suffice.

Released jobs may lie there too, as many as were claimed. The releasing process announces them, and the claimer acts at
once: a *hurried* scan starts, however soon after the last; it restarts one under way, and its slices take half of the
time. The next hurried scan starts 4 durations later at the earliest, so that constant releases delay no other claim.

If the code has jobs of both colours, each colour has a frontier, which *walks past* jobs of the other. There may be
many of those and none of its own. A visit that reached the end therefore moves the frontier to the time of the visit by
the database's clock, less a moment for commits under way, which near scans cover; near scans then pause for 20
durations, regardless of announcements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django_pgjobs.store.claiming import ClaimedJob, Pair, Spot

BEGINNING: Spot = (datetime(1, 1, 1, tzinfo=UTC), 0)
LATEST: Spot = (datetime(9999, 12, 31, tzinfo=UTC), 0)
"""From a future frontier (this one, or one from before the clock was set back) a claim starts seconds ago instead."""

SCAN_FACTOR = 20.0
SCAN_FLOOR_SECONDS = 1.0
HURRY_FACTOR = 4.0
ADMITTED_SECONDS = 0.02
"""The least pause between two scans for admitted jobs."""

NEAR_SECONDS = 60.0
NEAREST_SECONDS = 1.0
"""Distance before the frontier at which a near scan starts, and the least distance once that is expensive."""

COMMIT_SECONDS = 0.05
"""Distance before the end of a walk at which the next one starts. At 10,000 registrations/s it repeats 500 of them."""

DEAR_SECONDS = 0.1
CHEAP_SECONDS = 0.05
"""Time by which a claim with a scan must be slower than others to shrink the next slice; if less, the slice grows."""

MOST_HALVINGS = 100

NEVER = -math.inf
SAME_INSTANT = timedelta(microseconds=1)

FRONT, NEAR, SLICE, REST, ADMITTED = "front", "near", "slice", "rest", "admitted"

FrontierKey = tuple[str, int]


class Visit(NamedTuple):
    """One stretch of a claim: a pair from a spot on, and its purpose. ``rest`` is a scan and the frontier in one."""

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
    """Progress of claims and scans of one pair. Instants are in the caller's seconds."""

    at: Spot = BEGINNING
    near_due: float = NEVER
    near_soonest: float = NEVER
    near_seconds: float = NEAR_SECONDS
    scan_due: float = NEVER
    admitted_due: float = math.inf
    soonest: float = NEVER
    """After an admission: when to look for that, and when that may be done again after a dear scan."""

    scanned_to: Spot = BEGINNING
    halvings: int = 0
    began: float = NEVER
    scanned: float = NEVER
    """The start of the scan under way, and the start of the last complete one."""

    behind: bool = False
    hurried: bool = False
    hurry_due: float = NEVER
    spent: float = 0.0
    """After a release: whether there was one, a hurried scan is under way, when one may begin, and what this one
    took."""

    @property
    def due(self) -> float:
        """Time at which the next scan starts or continues."""
        return min(self.scan_due, self.hurry_due) if self.behind and not self.hurried else self.scan_due

    def visits(self, key: FrontierKey, now: float, highest_id: int) -> Iterator[Visit]:
        """Return where the next claim starts in this pair: a due slice before the frontier, or all in one."""
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
            # Not into the slice: a row found twice would make a full claim look short.
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
            # Before the first full pass it is not known where the work is: finding it may take half of the time.
            hurried = self.hurried or self.scanned == NEVER
            self.spent += took
            self.scan_due = now + (took if hurried else pause) if whole else now
            self._weigh_scan(took)
            return
        if visit.kind == REST:
            # A scan cut short continues at the frontier, which moves back to the end of this claim.
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
        """Learn of an admission, perhaps behind the frontier: scan there as soon as allowed."""
        if not self.halvings:
            self.admitted_due = min(self.admitted_due, self.soonest)

    def released(self) -> None:
        """Learn of a release, anywhere behind the frontier: scan as soon as allowed."""
        self.behind = True

    def gave_up(self, visit: Visit, now: float, took: float) -> None:
        """Learn that a claim with this visit took too long: look for the same in smaller parts."""
        self.soonest, self.admitted_due = now + SCAN_FACTOR * took, math.inf
        if visit.kind == ADMITTED:
            self._weigh_scan(took)
        elif visit.kind == NEAR:
            self.near_seconds, self.near_due = NEAREST_SECONDS, now + SCAN_FACTOR * took
        elif visit.kind == FRONT or self.at == BEGINNING:
            # No claim has come through here for long. Claim new jobs in the meantime, and scan the rest in slices.
            self.at, self.scan_due = LATEST, now
        else:
            self.scan_due = now + SCAN_FACTOR * DEAR_SECONDS  # the most that the smaller slice may take
        if visit.kind in {SLICE, REST}:
            self.spent += took
            self._weigh_scan(took)

    def _weigh_scan(self, took: float) -> None:
        if took > DEAR_SECONDS:
            self.halvings = min(MOST_HALVINGS, self.halvings + math.ceil(math.log2(took / DEAR_SECONDS)))
        elif took < CHEAP_SECONDS:
            self.halvings = max(0, self.halvings - 1)
