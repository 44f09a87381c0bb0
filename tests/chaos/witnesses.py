"""What is known of a run of workers: the words of four witnesses, the books at the end, and a verdict's form.

Instants are seconds of the wall clock, which on one machine is the database's too. ``history`` compares them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"

CRASH = "crash"
FREEZE = "freeze"
KILL = "kill"
LEAVE = "leave"
"""A worker was asked to go: it may go without a last word to the database."""
OUTAGES = (CRASH, "restart", "blackhole", "refuse", "delay", "throttle", "lock", "freeze", "cut", "terminate")
"""Faults during which nobody can be expected to recover anything in time."""

SKEW_SECONDS = 0.05
"""What two instants taken by different processes may differ by."""

TELLING_SECONDS = 1.0
"""Within which the outcome of a body that wrote its last line has surely left its process."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What the producer did: ``fate`` is unknown if the answer to its COMMIT was lost."""

    key: str
    fate: str = COMMITTED


@dataclass(slots=True)
class Execution:
    """One start of a job's function or callback. ``how`` is empty if it never came to an end line."""

    key: str
    job: int
    claim: str
    attempt: int
    pid: int
    started: float
    last_seen: float
    part: str = "body"
    how: str = ""
    worker: int = 0
    """The process above its own."""


@dataclass(frozen=True, slots=True)
class Change:
    """A job row after an insert or an update."""

    at: float
    job: int
    key: str
    claim: str | None = None
    attempt: int = 0
    max_attempts: int = 5
    outcome: str | None = None
    ending: str | None = None
    hold: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A ledger row after an insert or an update."""

    at: float
    claim: str
    expires: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A kept attempt. An *uncharged* one tells of an executor's death; its claim is nobody's."""

    job: int
    claim: str
    number: int
    cause: str
    ended: float = 0.0
    seconds: float | None = None
    uncharged: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done on purpose, from when to when, to which processes (empty: to all)."""

    kind: str
    begin: float
    end: float
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """A job row at the end."""

    job: int
    key: str
    state: str
    outcome: str | None
    attempt: int
    max_attempts: int


@dataclass
class History:
    """Everything that is known."""

    registrations: list[Registration] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    claims_left: list[str] = field(default_factory=list)
    processes_left: list[str] = field(default_factory=list)
    connections_left: list[str] = field(default_factory=list)
    reopened: Counter[int] = field(default_factory=Counter)
    """How often an operator's retry was asked for, by job id."""
    revivable: frozenset[int] = frozenset()
    """Jobs that waited for others: a retry of those has them wait again."""
    remembering: frozenset[int] = frozenset()
    """Durable functions, whose attempts are counted anew when they have got on."""
    forged: frozenset[int] = frozenset()
    """Jobs whose rows somebody has written or deleted by hand."""
    healed_at: float | None = None
    recovery_seconds: float = 2.0
    """What may pass between the end of a lease and the rescue while nothing is the matter."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    kind: str
    key: str
    job: int | None
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key or '-'} (job {self.job or '-'}) {self.words}"


@dataclass
class Report:
    """What was counted and what was found."""

    counts: dict[str, int] = field(default_factory=dict)
    recovery_seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    stories: dict[int, list[str]] = field(default_factory=dict)
    """What all witnesses say of the jobs of the first violations, in the order of time."""

    @property
    def kinds(self) -> Counter[str]:
        """How many violations of each kind."""
        return Counter(violation.kind for violation in self.violations)

    def __str__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        lines = [f"{counts} slowest_rescue={self.recovery_seconds:.2f}s violations={len(self.violations)}"]
        lines += [f"  {violation}" for violation in self.violations[:50]]
        if len(self.violations) > 50:
            lines.append(f"  … {dict(self.kinds)}")
        for job, story in self.stories.items():
            lines += [f"  of job {job}:", *(f"    {line}" for line in story)]
        return "\n".join(lines)
