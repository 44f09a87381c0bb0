"""The jobs that this worker holds: where each is, and how it ends. Main thread only, no I/O.

Each held job is in exactly one place: waiting in the dispatcher, outstanding at one executor, or ending in the
finaliser (``run_ends``). A run ends in exactly one of ``Succeeded``, ``Done``, ``RunsReleased`` or the death of its
executor. Requests (cancel, release) reach a job wherever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import finalise, lines
from django_pgjobs.ends.callbacks import CALLBACK_OF, CALLBACK_STARTS
from django_pgjobs.ends.kinds import MARK, SUCCESS, EndKind
from django_pgjobs.execution import events
from django_pgjobs.execution.idempotency import key_of
from django_pgjobs.logs import safe_logger
from django_pgjobs.states import EXPIRED, CancelMode
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import End, ReleasedJob, Rescheduled, SteppedJob
from django_pgjobs.store.keeping import Flag
from django_pgjobs.store.memos import SuspendedJob
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns
from django_pgjobs.worker.shared.decision_codec import unpack_decision
from django_pgjobs.worker.shared.ladders import CANCELLED, LADDERS, LOST, RELEASED, TIMEOUT
from django_pgjobs.worker.shared.runs import ENDING, FRESH_SECONDS, WAITING, HeldRun, RunTable, facts
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher, is_suspect
from django_pgjobs.worker.supervisor.escalation import judged, stop
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.run_ends import RunEnds
from django_pgjobs.worker.supervisor.run_events import EventSender, event_of_end
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import StoredEnd

log = safe_logger("django_pgjobs")

_SIZE = attrgetter("size")

NO_ROOM_SECONDS = 2.0
"""Time that a job waits here for room before another worker may have it."""

RELEASES_LOGGED = 3
"""A job released this often, uncharged, may never end: it is too long for the drain, or has bad neighbours."""


class HeldJobs:
    """Decides what becomes of held jobs.

    ``wake_for`` wakes the claim thread for a (queue, priority) that has become ready; ``notify`` sends signals of
    durable writes; ``draining`` says whether nothing may start any more; ``tallies`` adds up what has ended.
    """

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
        self.tallies = tallies
        self.dispatcher = dispatcher
        self.finaliser = finaliser
        self.wake_for = wake_for
        self.notify = notify
        self.ends = RunEnds(table, finaliser, notify)
        self.draining = False
        self.pauses = Pauses()
        self.with_on_success = frozenset(n for n in registry.names() if registry.get(n).on_success_func is not None)

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
        if self.draining:
            self.ends.release(runs)
            return
        if (
            self.pauses
            or [job for job in jobs if job.ending is not None or job.cancelled or job.extras is not None]
            or max(map(_SIZE, runs)) > claiming.MOST_CHARS
        ):
            runs = [run for run in runs if self._begin(run)]
            self.dispatcher.suspect([run for run in runs if run.alone], clock.monotonic())
            runs = [run for run in runs if not run.alone]
        self.dispatcher.add(runs, clock.monotonic())

    def _begin(self, run: HeldRun) -> bool:
        """Decide what to do with a claimed job; return whether it needs an executor."""
        job = run.job
        if key_of(job.extras) is not None:
            run.remembers = self.finaliser.writer.remembers = True
        if (gate := finalise.gate_of(job.extras)) is not None:
            run.gate, self.finaliser.counts = gate, True
        if (
            run.size > claiming.MOST_CHARS
            or (job.ending is not None and job.ending not in CALLBACK_OF)
            or not isinstance((job.extras or {}).get("options"), dict | None)
        ):
            # No registration and no statement of ours writes such a row.
            log.error("job cannot be run as it is and is parked %s", facts(run))
            why = "Its headers or options are too long, or its ending is not known."
            self.ends.decided(run, decide.Parked(why, _fingerprint(job)), None)
            return False
        run.alone = job.ending is None and is_suspect(job.extras)
        if job.ending is not None:
            run.becomes_callback(job.ending)
            if run.gate is not None and registry.find(job.name) is None and registry.learned(job.name) is None:
                # Jobs that wait for it need not wait for code that has the callback.
                self.ends.callback_ended(run)
                return False
        elif job.cancelled:
            run.cancelled = True
            self.ends.decided(run, decide.Cancelled(), None)
            return False
        elif job.expires is not None and clock.monotonic() >= job.expires:
            self.ends.decided(run, decide.Cancelled(EXPIRED), None)
            return False
        if self._is_paused(run):
            self._release_or_hold(run)
            return False
        if job.ending is None or job.ending_attempt == 1:
            return True
        if job.ending_attempt <= CALLBACK_STARTS:
            # It, or a neighbour, has ended its process before: alone, no other job's end hits it.
            self.dispatcher.suspect([run], clock.monotonic())
            return False
        log.error(
            "callback lost %d processes or workers, the job ends without it callback=%s %s",
            CALLBACK_STARTS,
            run.kind,
            facts(run),
        )
        self.ends.callback_ended(run)
        return False

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
            self._take_successes(child, child.remove_many(runs[: len(seconds)]), seconds, results)

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
            child.add(*(run for run, _, _ in left if run is not None))  # those behind one that failed
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
            if run is None or not run.is_async:
                child.learn(seconds, 1)
            else:
                child.done += 1
            if run is not None:
                self._ended(run, decision, seconds)

    def unstarted(self, child: ExecutorProcess, numbers: list[int]) -> None:
        """Take runs that an executor released before their start."""
        self._redispatch(*(run for number in numbers if (run := child.remove(number)) is not None))

    def progress(self, child: ExecutorProcess, number: int, progress: dict[str, Any]) -> None:
        """Take the progress of a running job."""
        run = child.runs.get(number)
        if run is not None:
            self.finaliser.report(*run.fence, json.dumps(progress))

    def settle(self, death: Death) -> None:
        """Decide on every run of a dead executor."""
        self._redispatch(*death.unstarted)
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
            elif self.draining or self._is_paused(run) or run.released or run.cancelled or LOST in run.stops:
                run.alone = True
                self._redispatch(run)
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
            log.error("job abandoned, its attempt ended with its executor %s: %s", facts(run), words)
        else:
            log.warning("attempt ended with its executor %s: %s", facts(run), words)
        if run.job.ending is None or isinstance(decision, decide.Released):
            self.ends.decided(run, decision, death.seconds.get(run.run))
        elif death.culprits.get(run.run) == TIMEOUT:
            log.error("callback was stopped at its time limit callback=%s %s", run.kind, facts(run))
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

    def _redispatch(self, *runs: HeldRun) -> None:
        """Release or end runs that never started, or dispatch them again."""
        again = [run for run in runs if not self._is_decided(run)]
        now = clock.monotonic()
        # Suspects sent together come back together: their return proves nothing.
        self.dispatcher.suspect([run for run in again if run.alone], now)
        self.dispatcher.add([run for run in again if not run.alone], now)

    def _is_decided(self, run: HeldRun) -> bool:
        """End, release or hold a free run that must not be dispatched; return whether it did."""
        if LOST in run.stops:
            self.ends.taken_away(run, "start the job")
        elif self.draining or run.released:
            self.ends.release([run])
        elif run.cancelled and run.job.ending is None:
            self.ends.decided(run, decide.Cancelled(run.cancel_reason), None)
        elif self._is_paused(run):
            self._release_or_hold(run)
        else:
            return False
        return True

    def release_stale(self, now: float) -> None:
        """Release jobs that waited long for room: another worker may have some.

        Callbacks stay, and so do suspects: claimed again, they would run in company once more.
        """
        late = now - NO_ROOM_SECONDS
        self.ends.release(
            self.dispatcher.withdraw(lambda run: run.job.ending is None and not run.alone and run.since < late)
        )

    # From an operator

    def pause(self, pauses: Pauses, executors: Iterable[ExecutorProcess]) -> None:
        """Start no more paused jobs: ask executors to release them, and release or hold those that wait here."""
        self.pauses = pauses
        if pauses:
            self.dispatcher.release_unstarted(executors, self._is_paused)
            for run in self.dispatcher.withdraw(self._is_paused):
                self._redispatch(run)

    def _is_paused(self, run: HeldRun) -> bool:
        return self.pauses.cover(run.job.queue, run.job.name)

    def _release_or_hold(self, run: HeldRun) -> None:
        """Release a run of a paused queue, which no claim reads; hold one of a paused name, or it is claimed again."""
        job = run.job
        if job.queue in self.pauses.queues:
            self.ends.release([run])
        else:
            self.ends.decided(run, decide.Held(self.pauses.names[job.name]), None)

    # From the finaliser

    def stored(self, kind: EndKind, entries: Sequence[StoredEnd]) -> None:
        """Take ends that have been flushed."""
        if lines.are_wanted():
            _log_ends(kind, entries)
        if kind is MARK:
            for run, end, _ in entries:
                run.duration = end.seconds
                # Use the written end: the finaliser may have turned another one into a cancel or an abandon.
                run.error = end.failure.summary if end.failure else ""
                run.becomes_callback(end.outcome)
            self._start_callbacks([run for run, _, _ in entries])
            return
        self.tallies.stored(kind, entries)
        self.ends.flushed([run for run, _, _ in entries])
        if kind.final:
            self.table.ended += len(entries)
        else:
            for run, _, row in entries:
                if isinstance(row, Rescheduled | ReleasedJob):
                    self.wake_for((row.queue, row.priority))
                if isinstance(row, SuspendedJob | SteppedJob) and row.priority is not None:
                    self.wake_for((row.queue, row.priority))
                if isinstance(row, SteppedJob) and row.refused:
                    events.step_refused(facts(run))
                if isinstance(row, ReleasedJob) and row.times >= RELEASES_LOGGED:
                    log.warning("job was released while it ran, once more times=%d %s", row.times, facts(run))
        if kind.signals:
            self.notify(lambda: [event_of_end(kind, run, end, row) for run, end, row in entries], kind.signals)

    def _start_callbacks(self, runs: list[HeldRun]) -> None:
        now = clock.monotonic()
        for run in runs:
            run.fresh_until = now + FRESH_SECONDS
        if self.draining:
            self.ends.release(runs)
            return
        paused = [run for run in runs if self._is_paused(run)] if self.pauses else []
        for run in paused:
            self._release_or_hold(run)
        self.dispatcher.add([run for run in runs if run not in paused] if paused else runs, now)

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
            self._redispatch(run)
        elif run.child is not None:
            if cause not in run.stops:
                run.child.end.send(ReleaseRuns([run.run]))
            stop(run, cause, ladder, clock.monotonic())


def _log_ends(kind: EndKind, entries: Sequence[StoredEnd]) -> None:
    for run, end, row in entries:
        if not (isinstance(row, SteppedJob) and row.refused):
            lines.stored(kind, end, row, facts(run), run.duration if end.seconds is None else end.seconds)


def _is_atomic(run: HeldRun) -> bool:
    definition = registry.find(run.job.name)
    return "atomic" in (registry.learned(run.job.name) or ()) if definition is None else definition.atomic


def _strength(mode: str) -> int:
    return list(CancelMode).index(CancelMode(mode)) if mode in list(CancelMode) else -1


def _fingerprint(job: ClaimedJob) -> str:
    definition = registry.find(job.name)
    return definition.fingerprint if definition else ""
