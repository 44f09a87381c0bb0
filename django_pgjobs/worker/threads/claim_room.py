"""The room that the main thread has for more jobs from the claim thread. Callers hold the claim thread's lock.

If the code has ``async def`` jobs, there are two *lines* of room: the loop's (True) and the threads' (False). A claim
takes room at once; the main thread accounts for it only after it has read the message about the claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from django_pgjobs.store.claiming import ClaimedJob

_NAME = attrgetter("name")


class ClaimRoom:
    """``wanted`` jobs for each line, ``most`` in all; ``unadopted`` are claimed, but main has not read of them yet.

    A line is ``dry`` if a claim found fewer jobs there than it asked for, and claims have scanned all of its pairs.
    """

    def __init__(self, async_names: frozenset[str] = frozenset()) -> None:
        self.async_names = async_names
        lines = (False, True) if async_names else (False,)
        self.wanted = dict.fromkeys(lines, 0)
        self.unadopted = dict.fromkeys(lines, 0)
        self.most: int | None = None
        self.dry = dict.fromkeys(lines, False)

    def offer(self, threads: int, loop: int, most: int | None) -> None:
        """Record the room that main has, including room for jobs it has not read of yet."""
        self.most = None if most is None else max(0, most - sum(self.unadopted.values()))
        for is_async, room in ((False, threads), (True, loop)):
            if is_async in self.wanted:
                self.wanted[is_async] = room - self.unadopted[is_async]

    def close(self) -> None:
        """Take nothing more."""
        self.wanted = dict.fromkeys(self.wanted, 0)

    def is_free(self) -> bool:
        """Return whether there is any room."""
        return any(wanted > 0 for wanted in self.wanted.values()) and (self.most is None or self.most > 0)

    def may_find_more(self) -> bool:
        """Return whether there is room for jobs that the last claim left because there was none."""
        found_before = any(wanted > 0 and not self.dry[is_async] for is_async, wanted in self.wanted.items())
        return found_before and self.is_free()

    def asks_again(self, lines: Iterable[bool], *, expects: bool) -> bool:
        """Return whether to claim again at once from these lines; ``expects``: more jobs may be ready."""
        if self.may_find_more():
            return True
        # Without room a claim waits for room; if nothing is left, also for jobs that become due.
        return expects if self.is_free() else not all(self.dry[is_async] for is_async in lines)

    def took(self, jobs: list[ClaimedJob]) -> None:
        """Record claimed jobs, of which main has not read yet."""
        for is_async, some in self.by_line(jobs).items():
            self.wanted[is_async] = max(0, self.wanted[is_async] - len(some))
            self.unadopted[is_async] += len(some)
        self.most = None if self.most is None else self.most - len(jobs)

    def adopted(self, jobs: Iterable[ClaimedJob]) -> None:
        """Record that main has read of these jobs; its reports of room count them from now on."""
        for is_async, some in self.by_line(jobs).items():
            self.unadopted[is_async] -= len(some)

    def by_line(self, jobs: Iterable[ClaimedJob]) -> dict[bool, list[ClaimedJob]]:
        """Group jobs by the line from which the statement took them."""
        jobs = list(jobs)
        if not self.async_names:
            return {False: jobs}
        if self.async_names.isdisjoint(map(_NAME, jobs)):
            return {False: jobs, True: []}
        lines: dict[bool, list[ClaimedJob]] = {False: [], True: []}
        for job in jobs:
            lines[job.ending is None and job.name in self.async_names].append(job)
        return lines
