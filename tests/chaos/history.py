"""The history checker: what happened, by id, and what of it must not have. Pure: no database, no clock, no process.

A *history* is four witnesses and the books at the end. The producer says what it registered and whether that
committed; the jobs say when they started and ended, in a journal outside the database; a trigger's audit says every
change of a job row and every lease, by the database's clock; the nemesis says what it did to whom. The end: rows,
attempts, claims, processes and connections that are left. ``check`` compares them.

What excuses what is written down here once: an overlap is excused when the first lease had expired by the database's
clock before the job was taken away, when the first claim was lost in a server crash (then no audit row has it), or
when its worker was frozen. A body that ran without being charged is excused when it was killed, when it snoozed, when
its attempt is kept as released, or when its claim was lost in a crash.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from tests.chaos.witnesses import (
    COMMITTED,
    CRASH,
    FREEZE,
    KILL,
    LEAVE,
    OUTAGES,
    ROLLED_BACK,
    SKEW_SECONDS,
    TELLING_SECONDS,
    UNKNOWN,
    Attempt,
    Change,
    Execution,
    Fault,
    History,
    Lease,
    Registration,
    Report,
    Row,
    Violation,
)

__all__ = [
    "COMMITTED",
    "CRASH",
    "FREEZE",
    "KILL",
    "LEAVE",
    "OUTAGES",
    "ROLLED_BACK",
    "SKEW_SECONDS",
    "TELLING_SECONDS",
    "UNKNOWN",
    "Attempt",
    "Change",
    "Execution",
    "Fault",
    "History",
    "Lease",
    "Registration",
    "Report",
    "Row",
    "Violation",
    "check",
]


TOLD = 3
"""Of how many jobs a report tells all."""

OURS = "pgjobs."
"""How the jobs of the package itself are called; nothing in the journal tells of their runs."""


def check(history: History) -> Report:
    """Compare the witnesses and report."""
    return Checker(history).report()


class Checker:
    """One comparison; each method yields the violations of one promise."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.rows = {row.key: row for row in history.rows}
        self.runs: dict[str, list[Execution]] = defaultdict(list)
        for execution in sorted(history.executions, key=lambda e: e.started):
            self.runs[execution.key].append(execution)
        self.changes: dict[int, list[Change]] = defaultdict(list)
        for change in history.changes:
            self.changes[change.job].append(change)
        for changes in self.changes.values():
            changes.sort(key=lambda c: c.at)
        self.leases: dict[str, list[Lease]] = defaultdict(list)
        for lease in sorted(history.leases, key=lambda each: each.at):
            self.leases[lease.claim].append(lease)
        self.kept = {(attempt.job, attempt.claim): attempt for attempt in history.attempts if not attempt.uncharged}
        self.deaths = [attempt for attempt in history.attempts if attempt.uncharged]
        self.known_claims = {(c.job, c.claim) for c in history.changes if c.claim}
        self.slowest = 0.0
        self.excused: Counter[str] = Counter()

    def report(self) -> Report:
        """Check everything."""
        checks = (
            self.lost, self.phantoms, self.ends, self.ends_without_work, self.overlaps, self.same_claim,
            self.bodies_of_the_ending,
            self.arithmetic, self.unaccounted, self.beyond_maximum, self.false_deaths, self.unknown_deaths,
            self.slow_rescues, self.progress, self.leftovers,
        )  # fmt: skip
        violations = [violation for promise in checks for violation in promise()]
        jobs = list(dict.fromkeys(violation.job for violation in violations if violation.job is not None))
        return Report(self._counts(), self.slowest, violations, {job: self._story(job) for job in jobs[:TOLD]})

    def _story(self, job: int) -> list[str]:
        """Return what all witnesses say of a job, and the faults that struck its processes, in the order of time."""
        runs = [run for run in self.history.executions if run.job == job]
        pids = {run.pid for run in runs} | {run.worker for run in runs}
        said: list[tuple[float, Any]] = [(change.at, change) for change in self.changes[job]]
        said += [(run.started, run) for run in runs]
        said += [(attempt.ended, attempt) for attempt in self.history.attempts if attempt.job == job]
        said += [(fault.begin, fault) for fault in self.history.faults if not fault.pids or pids & fault.pids]
        own = [at for at, each in said if not isinstance(each, Fault)] or [0.0]
        first, last = min(own), max(own)
        near = [(at, each) for at, each in said if first - TELLING_SECONDS <= at <= last + TELLING_SECONDS]
        return [f"{at:.3f} {each}" for at, each in sorted(near, key=lambda one: one[0])]

    def _counts(self) -> dict[str, int]:
        history = self.history
        fates = Counter(registration.fate for registration in history.registrations)
        outcomes = Counter(row.outcome or row.state for row in history.rows)
        causes = Counter(f"{a.cause}{'_uncharged' if a.uncharged else ''}" for a in history.attempts)
        return {
            "registered": fates[COMMITTED],
            "rolled_back": fates[ROLLED_BACK],
            "unknown": fates[UNKNOWN],
            "rows": len(history.rows),
            **{name: outcomes[name] for name in sorted(outcomes)},
            "starts": len(history.executions),
            **{f"attempts_{cause}": causes[cause] for cause in sorted(causes)},
            "faults": len(history.faults),
            **{f"excused_{why}": count for why, count in sorted(self.excused.items())},
        }

    # No loss, no phantom

    def lost(self) -> Iterator[Violation]:
        """Each committed registration has reached an end."""
        for registration in self.history.registrations:
            row = self.rows.get(registration.key)
            if row is None:
                if registration.fate == COMMITTED:
                    yield Violation("lost", registration.key, None, "was committed and has no row")
            elif row.outcome is None:
                yield Violation("stranded", row.key, row.job, f"is still {row.state} at the end")

    def phantoms(self) -> Iterator[Violation]:
        """Nothing ran, and nothing is there, that was rolled back or never registered."""
        fates = {registration.key: registration.fate for registration in self.history.registrations}
        for key in [*self.runs, *(key for key in self.rows if key not in self.runs)]:
            # What a job has registered on behalf of itself is known by its key and more.
            known = key if key in fates else key.partition("/")[0]
            if fates.get(known, ROLLED_BACK) == ROLLED_BACK:
                what = "ran" if key in self.runs else "has a row"
                why = "was rolled back" if known in fates else "was never registered"
                yield Violation("phantom", key, self._job(key), f"{what} though it {why}")

    def _job(self, key: str) -> int | None:
        if key in self.rows:
            return self.rows[key].job
        return self.runs[key][0].job if key in self.runs else None

    # One effective end

    def ends(self) -> Iterator[Violation]:
        """A job ends once, and once more for each retry an operator asked for; an end is never overwritten."""
        for job, changes in self.changes.items():
            reopened = 0
            if job in self.history.forged:
                continue
            for before, after in pairwise(changes):
                if before.outcome is None or before.outcome == after.outcome:
                    continue
                if after.outcome is None:
                    reopened += 1
                else:
                    words = f"ended {before.outcome}, then {after.outcome}"
                    yield Violation("double end", after.key, job, words)
            if reopened > self.history.reopened[job] and job not in self.history.revivable:
                words = f"was open again {reopened} times, asked for {self.history.reopened[job]} times"
                yield Violation("double end", changes[0].key, job, words)

    def ends_without_work(self) -> Iterator[Violation]:
        """A success is written under the claim of an execution that returned."""
        returned = {(e.job, e.claim) for e in self.history.executions if e.part == "body" and e.how == "returned"}
        for job, changes in self.changes.items():
            for before, after in pairwise(changes):
                ended = before.outcome is None and after.outcome == "succeeded"
                if ended and (job, after.claim) not in returned and not after.key.startswith(OURS):
                    words = f"succeeded under claim {after.claim}, under which nothing returned"
                    yield Violation("end without work", after.key, job, words)

    # No overlap

    def overlaps(self) -> Iterator[Violation]:
        """Two bodies of one job run at once only where that is excused."""
        for key, runs in self.runs.items():
            for first, second in pairwise(run for run in runs if run.part == "body"):
                if second.started >= first.last_seen:
                    continue
                excuse = self._excuse(first, second)
                if excuse:
                    self.excused[excuse] += 1
                    continue
                words = (
                    f"claim {second.claim} (pid {second.pid}) started {first.last_seen - second.started:.3f} s before "
                    f"claim {first.claim} (pid {first.pid}) was last seen"
                )
                yield Violation("overlap", key, first.job, words)

    def _excuse(self, first: Execution, second: Execution) -> str:
        if first.claim == second.claim:
            return ""
        if self._lost_in_crash(first):
            return "crash"
        taken = self._taken_at(first.job, first.claim)
        lease = self._last_lease(first.claim, taken)
        if taken is not None and lease is not None and lease.expires <= taken + SKEW_SECONDS:
            return "expired"
        return "frozen" if self._during(FREEZE, first.started, second.started, first.pid) else ""

    def _lost_in_crash(self, run: Execution) -> bool:
        """Its claim stands nowhere, and the server has crashed since: the claim's commit was not on disk."""
        if (run.job, run.claim) in self.known_claims:
            return False
        return any(fault.kind == CRASH and fault.end >= run.started for fault in self.history.faults)

    def _taken_at(self, job: int, claim: str) -> float | None:
        """When the row stopped carrying this claim."""
        had = False
        for change in self.changes[job]:
            if change.claim == claim:
                had = True
            elif had:
                return change.at
        return None

    def _last_lease(self, claim: str, before: float | None) -> Lease | None:
        leases = [lease for lease in self.leases[claim] if before is None or lease.at <= before]
        return leases[-1] if leases else None

    def _during(self, kind: str, begin: float, end: float, pid: int | None = None) -> bool:
        return any(
            fault.kind == kind and fault.begin <= end and fault.end >= begin and (not fault.pids or pid in fault.pids)
            for fault in self.history.faults
        )

    # Attempts accounted

    def same_claim(self) -> Iterator[Violation]:
        """Under one claim a body starts again only if its process died before it could tell of the time before."""
        for key, runs in self.runs.items():
            seen: dict[tuple[str, int, str], Execution] = {}
            for run in runs:  # by job, too: one claim may hold both that a gather has registered under a key
                before = seen.get((run.part, run.job, run.claim))
                if before is not None and before.how and run.part == "body" and not self._killed_at_end(before):
                    words = f"ran twice under claim {run.claim}, the first time it {before.how}"
                    yield Violation("ran twice", key, run.job, words)
                elif before is not None and before.pid == run.pid and run.part == "body":
                    words = f"started twice under claim {run.claim} in process {run.pid}"
                    yield Violation("ran twice", key, run.job, words)
                seen[run.part, run.job, run.claim] = run

    def bodies_of_the_ending(self) -> Iterator[Violation]:
        """Of a job that was claimed for its callback only, the body does not start."""
        callback_only = {
            (job, after.claim)
            for job, changes in self.changes.items()
            for before, after in pairwise(changes)
            if before.claim is None and after.claim is not None and after.ending
        }
        for run in self.history.executions:
            if run.part == "body" and (run.job, run.claim) in callback_only:
                words = f"its body started under claim {run.claim}, which was for its callback only"
                yield Violation("body in the ending", run.key, run.job, words)

    def _killed_at_end(self, run: Execution) -> bool:
        """Whether its process was killed so soon after its last line that it may not have told how it ended."""
        return any(
            fault.kind == KILL
            and run.pid in fault.pids
            and -SKEW_SECONDS <= fault.begin - run.last_seen <= TELLING_SECONDS
            for fault in self.history.faults
        )

    def arithmetic(self) -> Iterator[Violation]:
        """A claim adds one to the attempts, giving back takes one off, and a step forward all; nothing else does."""
        for job, changes in self.changes.items():
            for before, after in pairwise(changes):
                step = after.attempt - before.attempt
                if before.claim is None and after.claim is not None:
                    allowed: tuple[int, ...] = (0,) if before.ending else (1,)
                elif before.claim is not None and after.claim is None:
                    allowed = (0, -1, -before.attempt) if job in self.history.remembering else (0, -1)
                else:
                    allowed = (0,)
                if step not in allowed:
                    words = f"attempt {before.attempt} became {after.attempt}"
                    yield Violation("attempt arithmetic", after.key, job, words)

    def unaccounted(self) -> Iterator[Violation]:
        """Every body that came to its end was charged, kept as released, or snoozed, or its claim lost in a crash."""
        given_back = self._given_back()
        for run in self.history.executions:
            if run.part != "body" or run.how in ("", "snoozed", "suspended"):
                continue
            fence = (run.job, run.claim)
            if fence not in self.known_claims:
                if not self._lost_in_crash(run):
                    words = f"{run.how} under claim {run.claim}, which no row ever had"
                    yield Violation("unaccounted attempt", run.key, run.job, words)
                else:
                    self.excused["claim_lost"] += 1
            elif fence in given_back and fence not in self.kept and not self._killed_at_end(run):
                words = f"{run.how} under claim {run.claim}, which was given back uncharged"
                yield Violation("unaccounted attempt", run.key, run.job, words)

    def _given_back(self) -> set[tuple[int, str]]:
        """Claims whose attempt was taken off again."""
        return {
            (job, before.claim)
            for job, changes in self.changes.items()
            for before, after in pairwise(changes)
            if before.claim is not None and after.claim is None and after.attempt < before.attempt
        }

    def beyond_maximum(self) -> Iterator[Violation]:
        """No row's attempt, and no number of bodies that came to an end, is beyond the maximum."""
        for job, changes in self.changes.items():
            worst = max(changes, key=lambda c: c.attempt - c.max_attempts)
            if worst.attempt > worst.max_attempts:
                words = f"attempt {worst.attempt} of {worst.max_attempts}"
                yield Violation("beyond maximum", worst.key, job, words)
        charges = self.known_claims - self._given_back()
        charged: dict[int, set[str]] = defaultdict(set)
        for run in self.history.executions:
            if run.part == "body" and run.how and (run.job, run.claim) in charges:
                charged[run.job].add(run.claim)
        # By ids: a gather that is taken up again registers another job with the key of one that failed.
        for row in self.history.rows:
            # A durable function that has got on begins to count again.
            claims = charged[row.job]
            if row.job in self.history.remembering:
                claims = claims & self._since_none(row.job)
            count = len(claims)
            if count > row.max_attempts:
                words = f"came to an end under {count} charged claims of {row.max_attempts}"
                yield Violation("beyond maximum", row.key, row.job, words)

    def _since_none(self, job: int) -> set[str]:
        """Return the claims that a job has had since its row last said that no attempt was charged."""
        claims: set[str] = set()
        for change in self.changes[job]:
            if change.attempt == 0:
                claims.clear()
            elif change.claim is not None:
                claims.add(change.claim)
        return claims

    def false_deaths(self) -> Iterator[Violation]:
        """An uncharged crash tells of a body that had begun under that number and never came to its end, each of one.

        A body that had run for an instant only may not have written its first line.
        """
        died = Counter((run.job, run.attempt) for run in self.history.executions if self._died(run))
        noted = Counter((a.job, a.number) for a in self.deaths if (a.seconds or 0.0) >= TELLING_SECONDS)
        ours = {row.job for row in self.history.rows}
        for (job, number), count in noted.items():
            if job in ours and count > died[job, number]:
                words = f"{count} uncharged crashes of attempt {number}, and {died[job, number]} bodies died"
                yield Violation("false crash", self.changes[job][0].key if job in self.changes else "", job, words)

    def _died(self, run: Execution) -> bool:
        return not run.how or self._killed_at_end(run)

    def unknown_deaths(self) -> Iterator[Violation]:
        """A body that died and began again under its claim left an uncharged crash, if its worker could write it."""
        noted = Counter((a.job, a.number) for a in self.deaths)
        for key, runs in self.runs.items():
            again: Counter[tuple[int, int]] = Counter()
            for first, second in pairwise(run for run in runs if run.part == "body"):
                same = (first.claim, first.worker) == (second.claim, second.worker)
                if not same or not first.worker or first.pid == second.pid:
                    continue
                if self._died(first) and not self._may_be_silent(first, second):
                    again[first.job, first.attempt] += 1
            for (job, number), count in again.items():
                if count > noted[job, number]:
                    words = f"died {count} times in attempt {number}, uncharged, and {noted[job, number]} are known"
                    yield Violation("unknown crash", key, job, words)

    def _may_be_silent(self, first: Execution, second: Execution) -> bool:
        """Its worker was killed or left before it wrote, or the server crashed behind the write."""
        return any(
            (fault.kind in (KILL, LEAVE) and first.worker in fault.pids and fault.end >= first.last_seen)
            or (fault.kind == CRASH and first.last_seen <= fault.end <= second.started + TELLING_SECONDS)
            for fault in self.history.faults
        )

    # Recovery, progress, nothing left

    def slow_rescues(self) -> Iterator[Violation]:
        """What is lost is taken back soon after its lease, unless the way to the database was troubled."""
        lost = {(a.job, a.claim) for a in self.history.attempts if a.cause == "lost"}
        for job, claim in lost:
            taken = self._taken_at(job, claim)
            lease = self._last_lease(claim, taken)
            if taken is None or lease is None:
                continue
            waited = taken - lease.expires
            if any(self._during(kind, lease.expires - 1, taken) for kind in OUTAGES):
                continue
            self.slowest = max(self.slowest, waited)
            if waited > self.history.recovery_seconds:
                words = f"was rescued {waited:.2f} s after its lease had ended"
                yield Violation("slow recovery", self.changes[job][0].key, job, words)

    def progress(self) -> Iterator[Violation]:
        """Something ended after everything was healed."""
        healed = self.history.healed_at
        if healed is None:
            return
        ends = (changes[-1].at for changes in self.changes.values() if changes[-1].outcome is not None)
        if self.changes and not any(at >= healed for at in ends):
            yield Violation("no progress", "", None, "nothing ended after the last fault was healed")

    def leftovers(self) -> Iterator[Violation]:
        """No process, no connection, no claim is left of workers that are gone."""
        history = self.history
        yield from _left("orphan process", history.processes_left)
        yield from _left("leaked connection", history.connections_left)
        yield from _left("claim left", history.claims_left)


def _left(kind: str, names: Iterable[str]) -> Iterator[Violation]:
    for name in names:
        yield Violation(kind, "", None, name)
