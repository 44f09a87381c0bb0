"""The jobs that this worker holds: where each is, and how it ends. Main thread only, no I/O.

Each held job is in exactly one place: waiting in the dispatcher, outstanding at one executor, or ending in the
finaliser; ``run_starts`` and ``run_ends`` bring it there. A run ends in exactly one of ``Successes``, ``Decided``,
``RunsReleased`` or the death of its executor. Requests (cancel, release) reach a job wherever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import finalise
from django_pgjobs.ends.kinds import MARK, SUCCESS, EndKind
from django_pgjobs.logs import log, speaking_of
from django_pgjobs.states import CancelMode
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Flag
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns
from django_pgjobs.worker.shared.decision_codec import unpack_decision
from django_pgjobs.worker.shared.ladders import CANCELLED, LADDERS, LOST, RELEASED, TIMEOUT
from django_pgjobs.worker.shared.runs import ENDING, FRESH_SECONDS, WAITING, HeldRun, RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher
from django_pgjobs.worker.supervisor.escalation import judged, stop
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.run_ends import RunEnds
from django_pgjobs.worker.supervisor.run_events import EventSender
from django_pgjobs.worker.supervisor.run_starts import RunStarts
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import StoredEnd

Report = TypeVar("Report")


class HeldJobs:
    """Decides what becomes of held jobs, by what their executors, operators and other workers have done to them."""

    def __init__(
        self,
        table: RunTable,
        dispatcher: Dispatcher,
        finaliser: Finaliser,
        *,
        wake_for: Callable[[tuple[str, int]], None],
        notify: EventSender,
        tallies: Tallies,
    ) -> None:
        self.table = table
        self.dispatcher = dispatcher
        self.finaliser = finaliser
        self.wake_for = wake_for
        self.ends = RunEnds(table, finaliser, wake_for=wake_for, notify=notify, tallies=tallies)
        self.starts = RunStarts(dispatcher, finaliser, self.ends)
        known = {name for name in registry.names() if registry.get(name)._on_success_func is not None}
        self.with_on_success = frozenset(known | registry.learned_with("on_success"))

    @property
    def holds_any(self) -> bool:
        """True while there is a job that has not ended."""
        return bool(self.table.held)

    # From the claim thread

    def adopt(self, asked_at: float, jobs: Sequence[ClaimedJob], scanned_at: datetime | None = None) -> None:
        """Take over what a claim returned."""
        # Rescued from this worker and claimed by it again: from here on only the newer run would be found.
        held = self.table.held
        before = [held[job.id] for job in jobs if job.id in held]
        runs = self.table.adopt(asked_at, jobs, scanned_at)
        for run in before:
            # The transaction of an atomic job may just have made the next step; if not, its own fence refuses it.
            if run.job.ending is not None or not _is_atomic(run):
                self._taken_away(run)
        self.starts.claimed(runs)

    # From executors

    def succeeded(self, child: ExecutorProcess, runs: list[int], micros: list[int], results: list[str | None]) -> None:
        """Take successes of one executor, many at once: their runs, the µs of each, and its return value."""
        if not len(runs) == len(micros) == len(results) or set(map(type, runs)) - {int}:
            raise ValueError("no columns of runs, times and results")
        seconds: list[float] = []
        try:
            seconds.extend(took / 1e6 for took in micros)
        finally:
            # An unreadable one, and what follows it, stays until the executor dies.
            removed = child.remove_many(runs[: len(seconds)])
            self.dispatcher.count(removed, -1)
            self._take_successes(child, removed, seconds, results)

    def _take_successes(
        self, child: ExecutorProcess, runs: list[HeldRun | None], seconds: list[float], results: list[str | None]
    ) -> None:
        entries: list[tuple[HeldRun, End]] = []
        on_loop, on_loop_took = 0, 0.0
        with_callback = self.with_on_success
        left = zip(runs, seconds, results, strict=False)
        try:
            for run, took, result in left:
                if run is None:
                    continue
                if run.is_async:
                    on_loop, on_loop_took = on_loop + 1, on_loop_took + took
                job = run.job
                if job.ending is None and LOST not in run.stops and not (with_callback and job.name in with_callback):
                    run.state = ENDING
                    entries.append((run, End(job.id, job.claim_id, took, result)))
                else:
                    self._ended(run, decide.Succeeded(result), took)
        finally:
            back = [run for run, _, _ in left if run is not None]  # those behind one that failed
            child.add(*back)
            self.dispatcher.count(back, 1)
            if entries:
                self.finaliser.put_many(SUCCESS, entries)
        child.done += on_loop
        child.learn(sum(seconds) - on_loop_took, len(runs) - on_loop)

    def learn(self, name: str, traits: list[str]) -> None:
        """Take what an executor says of a job that this process does not know, before any end of such a job."""
        if registry.find(name) is None:
            registry.learn(name, traits)
            if "on_success" in traits:
                self.with_on_success |= {name}

    def done(self, child: ExecutorProcess, items: list[list[Any]]) -> None:
        """Take outcomes of one executor, of any kind."""
        for number, seconds, *packed in items:
            decision = unpack_decision(packed)
            run = child.remove(number)
            self.dispatcher.count([run], -1)
            if run is None or not run.is_async:
                child.learn(seconds, 1)
            else:
                child.done += 1
            if run is not None:
                self._ended(run, decision, seconds)

    def unstarted(self, child: ExecutorProcess, numbers: list[int]) -> None:
        """Take runs that an executor released before their start."""
        runs = [run for number in numbers if (run := child.remove(number)) is not None]
        self.dispatcher.count(runs, -1)
        self.starts.again(*runs)

    def progress(self, child: ExecutorProcess, number: int, progress: dict[str, object]) -> None:
        """Take the progress of a running job."""
        run = child.runs.get(number)
        if run is not None:
            self.finaliser.report(*run.fence, json.dumps(progress))

    def keep_peak(self, run: HeldRun, peaks: str) -> None:
        """Keep the memory that the attempts of a running job took."""
        self.finaliser.report(*run.fence, peaks=peaks)

    def logged(self, child: ExecutorProcess, number: int, lines: list[list[object]]) -> None:
        """Take lines that a running job has logged."""
        run = child.runs.get(number)
        if run is not None:
            first, run.logged = not run.logged, True
            self.finaliser.log(*run.fence, lines, first=first)

    def settle(self, death: Death, *, by_itself: bool = False) -> None:
        """Decide on every run of a dead executor; ``by_itself``: take note of its death."""
        if by_itself:
            self.table.deaths.add(death.failure().message, [run.job for run in (*death.charged, *death.suspects)])
        self.dispatcher.count(death.runs, -1)
        self.starts.again(*death.unstarted)
        for run in (*death.charged, *death.collateral, *death.suspects):
            run.in_doubt = run.job.ending is None and _is_atomic(run)
        for run, decision in death.decisions():
            if LOST in run.stops:
                self.ends.taken_away(run, "record how it ended")
            else:
                self._ended_by_death(run, decision, death)
        suspects = []
        for run in death.suspects:
            if run.job.ending is None and LOST not in run.stops:
                self.table.deaths.note(run.job, death.failure(), death.seconds.get(run.run))
            if run.job.ending is not None and LOST not in run.stops:
                self.ends.callback_died(run, death.failure())
            elif run.released or run.cancelled or LOST in run.stops or not self.starts.may_start(run):
                run.alone = True
                self.starts.again(run)
            elif run.in_doubt:
                # Only the statement that releases it can tell whether its transaction had been committed.
                run.alone = True
                self.ends.release([run])
            else:
                suspects.append(run)
        if suspects:
            log.warning("executor died with jobs in company, each half runs again by itself jobs=%d", len(suspects))
            # Those that started last first: the others have survived for longer, some of them apart.
            suspects.sort(key=lambda run: death.seconds.get(run.run, 0.0))
            self.dispatcher.halve(suspects, clock.monotonic(), after=death.application_name)

    def _ended_by_death(self, run: HeldRun, decision: Unwritten, death: Death) -> None:
        failure: decide.Failure | None = getattr(decision, "failure", None)
        words = failure.message if failure else str(decision)
        if run.job.ending is None and not run.cancelled and isinstance(decision, decide.Abandoned):
            log.error("job abandoned, its attempt ended with its executor %s: %s", run.job.facts, words)
        else:
            log.warning("attempt ended with its executor %s: %s", run.job.facts, words)
        if run.job.ending is None or isinstance(decision, decide.Released):
            self.ends.decided(run, decision, death.seconds.get(run.run))
        elif death.culprits.get(run.run) == TIMEOUT:
            log.error("callback was stopped at its time limit callback=%s %s", run.kind, run.job.facts)
            self.ends.callback_ended(run)
        else:
            self.ends.callback_died(run, failure or decide.Failure("", ""))

    # Ends

    def _ended(self, run: HeldRun, decision: Decision, seconds: float) -> None:
        if isinstance(decision, decide.InDoubt):
            run.in_doubt, decision = True, decision.otherwise
        if isinstance(decision, decide.Committed):
            self._committed(run, decision, seconds)  # by its fence: other values of its claim may differ
        elif isinstance(decision, decide.Lost) or LOST in run.stops:
            self.ends.taken_away(run, "record how it ended")
        elif run.job.ending is None:
            self.ends.decided(run, judged(run, decision), seconds)
        elif isinstance(decision, decide.Succeeded):
            self.ends.callback_ended(run)
        else:
            self.ends.decided(run, decision, seconds)

    def _committed(self, run: HeldRun, decision: decide.Committed, seconds: float) -> None:
        """Take an end that the job's own transaction has written."""
        run.state, run.child = ENDING, None
        kind, end = finalise.atomic_end_of(decision, *run.fence, seconds)
        if self.finaliser.writer.freed is not None and run.job.extras:
            self.finaliser.writer.freed()
        self.stored(kind, [(run, end, None)])
        if decision.step_in is not None:
            self.wake_for(decision.step_in)  # it may have a delay, which no notification announces

    # From the finaliser

    def stored(self, kind: EndKind, entries: Sequence[StoredEnd]) -> None:
        """Take ends that have been flushed."""
        self.ends.stored(kind, entries)
        if kind is MARK:
            self.starts.callbacks([run for run, _, _ in entries])

    # From the keep thread

    def fresh(self, asked_at: float, ids: set[int], flags: list[Flag]) -> None:
        """Record that at ``asked_at`` the claims of ``ids`` held, except the flagged ones."""
        flagged = {(flag.id, flag.claim_id): flag for flag in flags}
        for job_id in ids:
            run = self.table.held.get(job_id)
            if run is None:
                continue
            flag = flagged.get(run.fence)
            if flag is None or not flag.lost:
                run.fresh_until = max(run.fresh_until, asked_at + FRESH_SECONDS)
            if flag is not None and run.state != ENDING:
                self._flag(run, flag)

    def _flag(self, run: HeldRun, flag: Flag) -> None:
        if flag.lost:
            self._taken_away(run)
        elif run.job.ending is not None:
            return
        elif flag.cancelled and (not run.cancelled or _strength(flag.mode) > _strength(run.cancel_mode)):
            run.cancelled, run.cancel_mode, run.cancel_by, run.cancel_reason = True, flag.mode, flag.by, flag.reason
            self._stop(run, CANCELLED, flag.mode if flag.mode in LADDERS else CancelMode.ASK)
        elif flag.released and not run.released:
            run.released = True
            self._stop(run, RELEASED, RELEASED)

    def _taken_away(self, run: HeldRun) -> None:
        if run.state == WAITING:
            self.dispatcher.withdraw(lambda other: other is run)
            self.ends.taken_away(run, "start the job")
        else:
            self._stop(run, LOST, LOST)

    def _stop(self, run: HeldRun, cause: str, ladder: str) -> None:
        """Bring a request to a job: before its start the job ends here; a running one is led up a ladder.

        The executor releases the run or, having started it, sets its flag: it obeys frames in order.
        """
        if run.state == WAITING:
            self.dispatcher.withdraw(lambda other: other is run)
            self.starts.again(run)
        elif run.child is not None:
            if cause not in run.stops:
                run.child.end.send(ReleaseRuns([run.run]))
            stop(run, cause, ladder, clock.monotonic())


class HeldByHome:
    """Held jobs of a worker for several databases: what executors report goes to the home of the run it is about.

    A run's number says which it is; the number of a job is known to its own home only. ``homes``: by alias.
    """

    def __init__(self, homes: Mapping[str, HeldJobs]) -> None:
        self.homes = homes

    @property
    def holds_any(self) -> bool:
        """True while there is a job that has not ended."""
        return any(home.holds_any for home in self.homes.values())

    def succeeded(self, child: ExecutorProcess, runs: list[int], micros: list[int], results: list[str | None]) -> None:
        """Take successes of one executor, many at once, in columns."""
        rows = zip(runs, micros, results, strict=True)
        for home, some in self._by_home(child, ((row[0], row) for row in rows)):
            home.succeeded(child, *map(list, zip(*some, strict=True)))

    def done(self, child: ExecutorProcess, items: list[list[Any]]) -> None:
        """Take outcomes of one executor, of any kind."""
        for home, some in self._by_home(child, ((item[0], item) for item in items)):
            home.done(child, some)

    def unstarted(self, child: ExecutorProcess, numbers: list[int]) -> None:
        """Take runs that an executor released before their start."""
        for home, some in self._by_home(child, ((number, number) for number in numbers)):
            home.unstarted(child, some)

    def progress(self, child: ExecutorProcess, number: int, progress: dict[str, object]) -> None:
        """Take the progress of a running job."""
        for home, _ in self._by_home(child, [(number, number)]):
            home.progress(child, number, progress)

    def logged(self, child: ExecutorProcess, number: int, lines: list[list[object]]) -> None:
        """Take lines that a running job has logged."""
        for home, _ in self._by_home(child, [(number, number)]):
            home.logged(child, number, lines)

    def learn(self, name: str, traits: list[str]) -> None:
        """Take what an executor says of a job that this process does not know."""
        for home in self.homes.values():
            home.learn(name, traits)

    def keep_peak(self, run: HeldRun, peaks: str) -> None:
        """Keep the memory that the attempts of a running job took."""
        self.homes[run.job.database].keep_peak(run, peaks)

    def settle(self, death: Death, *, by_itself: bool = False) -> None:
        """Decide on every run of a dead executor, each home on its own."""
        for alias, home in self.homes.items():
            with speaking_of(alias):
                home.settle(death.of_home(alias), by_itself=by_itself)

    def _by_home(
        self, child: ExecutorProcess, reports: Iterable[tuple[int, Report]]
    ) -> Iterator[tuple[HeldJobs, list[Report]]]:
        """Yield reports by the home of the run that each is about; those of unknown runs are about nothing any more."""
        found: dict[str, list[Report]] = {}
        for number, report in reports:
            if (run := child.runs.get(number)) is not None:
                found.setdefault(run.job.database, []).append(report)
        for alias, some in found.items():
            with speaking_of(alias):
                yield self.homes[alias], some


def _is_atomic(run: HeldRun) -> bool:
    definition = registry.find(run.job.name)
    return "atomic" in (registry.learned(run.job.name) or ()) if definition is None else definition.atomic


def _strength(mode: str) -> int:
    return list(CancelMode).index(CancelMode(mode)) if mode in list(CancelMode) else -1
