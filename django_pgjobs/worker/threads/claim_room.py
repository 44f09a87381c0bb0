"""The room that the main thread has for more jobs from the claim thread. Callers hold the claim thread's lock.

If the code has ``async def`` jobs, there are two colours of room: the loop's (True) and the threads' (False). A claim
takes room at once; the main thread accounts for it only after it has read the message about the claim.

A claim asks for jobs by *lines*: one for each colour and, of each colour, one for each queue that has places of its
own. The places bound what those ask for, on top of the room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from django_pgjobs.store.claiming import ClaimedJob, LineKey, on_loop
from django_pgjobs.values.by_queue import EVERY_OTHER

_NAME = attrgetter("name")


class ClaimRoom:
    """``wanted`` jobs for each colour, ``most`` in all; ``unadopted`` are claimed, but main has not read of them yet.

    ``slots``: how many jobs of a queue that has places, or of all others together, may be claimed; as many as there is
    room for if it is not there. A line is ``dry`` if a claim found fewer jobs there than it asked for, and claims have
    scanned all of its pairs.
    """

    def __init__(self, async_names: frozenset[str] = frozenset(), queues: Collection[str] = ()) -> None:
        self.async_names = async_names
        self.queues = frozenset(queues)
        colours = (False, True) if async_names else (False,)
        lines: list[LineKey] = [*colours, *((colour, queue) for queue in sorted(self.queues) for colour in colours)]
        self.wanted = dict.fromkeys(colours, 0)
        self.unadopted = dict.fromkeys(colours, 0)
        self.most: int | None = None
        self.slots: dict[str, int] = {}
        self.unadopted_of: dict[str, int] = {}
        self.dry = dict.fromkeys(lines, False)
        self.turn = 0

    def offer(self, threads: int, loop: int, most: int | None, slots: Mapping[str, int] | None = None) -> None:
        """Record the room that main has, including room for jobs it has not read of yet."""
        self.most = None if most is None else max(0, most - sum(self.unadopted.values()))
        for is_async, room in ((False, threads), (True, loop)):
            if is_async in self.wanted:
                self.wanted[is_async] = room - self.unadopted[is_async]
        if slots is not None:
            self.slots = {group: room - self.unadopted_of.get(group, 0) for group, room in slots.items()}

    def close(self) -> None:
        """Take nothing more."""
        self.wanted = dict.fromkeys(self.wanted, 0)

    def is_full(self, queue: str) -> bool:
        """Return whether the places of a queue are taken."""
        return self.slots.get(self.group(queue), 1) <= 0

    def group(self, queue: str) -> str:
        """Return whose places jobs of a queue take: its own, or those of all others together."""
        return queue if queue in self.queues else EVERY_OTHER

    def has_slots(self, line: LineKey) -> bool:
        """Return whether the places of a line let it have jobs, if there were threads or a loop for them."""
        return self.slots.get(_group(line), 1) > 0

    def of(self, line: LineKey) -> int:
        """Return how many jobs a line has room for."""
        room = self.wanted[on_loop(line)]
        return min(room, self.slots.get(_group(line), room)) if self.slots else room

    def asked(self) -> dict[LineKey, int]:
        """Return how many jobs the next claim asks each line for.

        Lines of one colour share its room, and lines of one queue its slots. A line that is dry has jobs at any moment,
        so it is asked for one at least, too: what is claimed beyond the room waits a moment, or goes back. Where
        ``most`` bounds them all, the first lines get theirs: each is the first in turn.
        """
        if not self.queues:
            return {line: room for line, room in self.wanted.items() if room > 0}
        self.turn += 1
        loop_first = self.turn % 2 == 1
        most = {line: room for line in self.dry if (room := self.of(line)) > 0}
        full = {line: room for line, room in most.items() if not self.dry[line]}
        for group, room in self.slots.items():
            both = sorted((line for line in full if _group(line) == group), key=on_loop, reverse=loop_first)
            full |= _shared({line: full[line] for line in both}, room)
        asked = {line: 1 for line in most if self.dry[line]}
        for is_async, room in self.wanted.items():
            some = {line: n for line, n in full.items() if n > 0 and on_loop(line) == is_async}
            asked |= {line: max(1, n) for line, n in _shared(some, room).items()}
        lines = sorted(asked, key=list(self.dry).index)
        first = self.turn // 2 % max(len(lines), 1)  # each line is it at both values of ``loop_first``
        return {line: asked[line] for line in (*lines[first:], *lines[:first])}

    def is_free(self) -> bool:
        """Return whether there is any room."""
        if self.most is not None and self.most <= 0:
            return False
        rooms = map(self.of, self.dry) if self.slots else self.wanted.values()
        return any(room > 0 for room in rooms)

    def may_find_more(self) -> bool:
        """Return whether there is room for jobs that the last claim left because there was none."""
        found_before = any(not dry and self.of(line) > 0 for line, dry in self.dry.items())
        return found_before and self.is_free()

    def asks_again(self, lines: Iterable[LineKey], *, expects: bool) -> bool:
        """Return whether to claim again at once from these lines; ``expects``: more jobs may be ready."""
        if self.may_find_more():
            return True
        # Without room a claim waits for room; if nothing is left, also for jobs that become due.
        return expects if self.is_free() else not all(self.dry[line] for line in lines)

    def took(self, jobs: list[ClaimedJob]) -> None:
        """Record claimed jobs, of which main has not read yet."""
        for line, some in self.by_line(jobs).items():
            colour = on_loop(line)
            self.wanted[colour] = max(0, self.wanted[colour] - len(some))
            self.unadopted[colour] += len(some)
            if (group := _group(line)) in self.slots:
                self.slots[group] -= len(some)
                self.unadopted_of[group] = self.unadopted_of.get(group, 0) + len(some)
        self.most = None if self.most is None else self.most - len(jobs)

    def adopted(self, jobs: Iterable[ClaimedJob]) -> None:
        """Record that main has read of these jobs; its reports of room count them from now on."""
        for line, some in self.by_line(jobs).items():
            self.unadopted[on_loop(line)] -= len(some)
            if (group := _group(line)) in self.unadopted_of:
                self.unadopted_of[group] -= len(some)

    def by_line(self, jobs: Iterable[ClaimedJob]) -> dict[LineKey, list[ClaimedJob]]:
        """Group jobs by the line from which the statement took them."""
        jobs = list(jobs)
        if not self.queues:
            if not self.async_names:
                return {False: jobs}
            if self.async_names.isdisjoint(map(_NAME, jobs)):
                return {False: jobs, True: []}
        lines: dict[LineKey, list[ClaimedJob]] = {line: [] for line in self.dry}
        for job in jobs:
            is_async = job.ending is None and job.name in self.async_names
            lines[(is_async, job.queue) if job.queue in self.queues else is_async].append(job)
        return lines


def _group(line: LineKey) -> str:
    """Return the queue whose places a line has: its own, or those of all others together."""
    return EVERY_OTHER if isinstance(line, bool) else line[1]


def _shared(wanted: Mapping[LineKey, int], room: int) -> dict[LineKey, int]:
    """Share room between lines evenly, to none more than it wants; what is left over goes to the first."""
    got = dict.fromkeys(wanted, 0)
    left = max(room, 0)
    for count, (line, most) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
        got[line] = min(most, math.ceil(left / (len(wanted) - count)))
        left -= got[line]
    return got
