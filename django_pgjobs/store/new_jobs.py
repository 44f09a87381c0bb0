"""The rows that registrations write, as they come from above: one, many that are alike, and all of a call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple, overload

from django_pgjobs.states import Rule


class NewJob(NamedTuple):
    """The row that a registration writes: ``payload`` and ``headers`` as JSON text, durations in seconds, UTC instants.

    The fields from ``limit_key`` to ``waits`` are those that few jobs have; a new one needs its column in the
    three statements that write them. ``on_conflict`` is not stored: it says what the caller does if the key is taken.
    """

    name: str
    payload: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    headers: str | None = None
    description: str = ""
    run_at: datetime | None = None
    delay_seconds: float | None = None
    limit_key: str | None = None
    key: str | None = None
    key_scope: str = ""
    window_seconds: float | None = None
    """Goes with the scope ``window``."""
    idempotency_key: str | None = None
    cron_entry: str | None = None
    fire_at: datetime | None = None
    tags: tuple[str, ...] = ()
    deadline: datetime | None = None
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    """Counted from the start that the registration asks for; only one of the two is set."""
    options: dict[str, object] | None = None
    flow: int = 0
    parent_id: int | None = None
    target_id: int | None = None
    """The job that it undoes, or a part of."""
    sequence: str | None = None
    waits: bool = False
    """True if it waits until its gate opens."""
    on_conflict: str = "existing"
    needs: tuple[tuple[int, Rule], ...] = ()
    """The jobs that it needs, and which end of each: links and its gate say so."""
    id: int | None = None
    """Its id, if ``reserve_ids`` has taken one for it."""

    @property
    def wakes(self) -> tuple[str, int | None]:
        """Its (queue, priority), to wake the workers that claim it; a priority of None wakes the queue's admitters."""
        return self.queue, self.priority if self.limit_key is None else None

    @property
    def is_plain(self) -> bool:
        """True if it starts at once and has only arguments, as most jobs."""
        return self[_PLAIN] == _ALL_PLAIN

    @property
    def is_special(self) -> bool:
        """True if it has a key, a limit, a tag or another value that few jobs have: its own statement writes it."""
        return self[SPECIAL] != _NONE_SPECIAL

    @property
    def is_in_flow(self) -> bool:
        """True if it waits for others, or others for it."""
        return self.flow != 0 or self.waits


_PLAIN = slice(NewJob._fields.index("headers"), NewJob._fields.index("waits") + 1)
_ALL_PLAIN = NewJob("", "")[_PLAIN]
SPECIAL = slice(NewJob._fields.index("limit_key"), NewJob._fields.index("waits") + 1)
_NONE_SPECIAL = NewJob("", "")[SPECIAL]
_UNKNOWN = ("window_seconds", "expires_at", "expires_seconds", "waits")
SPECIAL_COLUMNS = tuple(name for name in NewJob._fields[SPECIAL] if name not in _UNKNOWN)
"""The columns that few jobs have and whose values the registration knows: the database computes the expiry."""


class NewJobs(NamedTuple):
    """Jobs that differ only in payloads and keys: the first job, the payloads of all, and the keys where it has one."""

    first: NewJob
    payloads: Sequence[str]
    keys: Sequence[str | None] = ()
    idempotency_keys: Sequence[str | None] = ()

    @classmethod
    def of(cls, job: NewJob) -> NewJobs:
        """Return one job alone."""
        return cls(job, (job.payload,))

    def job(self, at: int) -> NewJob:
        """Return the job at this position."""
        if not at:
            return self.first
        new = self.first._replace(payload=self.payloads[at])
        if not self.keys:
            return new
        return new._replace(key=self.keys[at], idempotency_key=self.idempotency_keys[at])


class NewJobList(Sequence[NewJob]):
    """All jobs of some ``NewJobs`` by their positions, each made when it is asked for."""

    def __init__(self, groups: Sequence[NewJobs]) -> None:
        self.groups = groups
        self._ends = list(accumulate(len(some.payloads) for some in groups))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[NewJob]: ...
    def __getitem__(self, at: int | slice) -> NewJob | Sequence[NewJob]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        group = bisect_right(self._ends, at)
        return self.groups[group].job(at - (self._ends[group - 1] if group else 0))

    def only(self, positions: Sequence[int]) -> Sequence[NewJobs]:
        """Return the jobs at these positions, ascending."""
        return self.groups if len(positions) == len(self) else [NewJobs.of(self[at]) for at in positions]
