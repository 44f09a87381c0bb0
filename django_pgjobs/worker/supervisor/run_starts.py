"""The starts of runs: which jobs wait for an executor, and which must not start any more. Main thread only, no I/O.

A job that was claimed, a run that comes back without having started, and a callback once the end before it is written:
each is dispatched, or ends, is released or held here.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import finalise
from django_pgjobs.ends.kinds import CALLBACK_STARTS
from django_pgjobs.logs import log
from django_pgjobs.states import CALLBACK_OF, EXPIRED
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.worker.shared.ladders import LOST
from django_pgjobs.worker.shared.runs import FRESH_SECONDS, HeldRun
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.run_ends import RunEnds
from django_pgjobs.worker.threads.finaliser import Finaliser

_SIZE = attrgetter("size")

NO_ROOM_SECONDS = 2.0
"""Time that a job waits here for room before another worker may have it."""


class RunStarts:
    """Nothing starts while ``draining``, nor what ``pauses`` cover, nor what an operator's limit does not count yet."""

    def __init__(self, dispatcher: Dispatcher, finaliser: Finaliser, ends: RunEnds) -> None:
        self.dispatcher = dispatcher
        self.finaliser = finaliser
        self.ends = ends
        self.draining = False
        self.pauses = Pauses()

    def claimed(self, runs: list[HeldRun]) -> None:
        """Start jobs of one claim."""
        if self.draining:
            self.ends.release(runs)
            return
        jobs = [run.job for run in runs]
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
        if job.idempotency_key is not None:
            run.remembers = self.finaliser.writer.remembers = True
        if (gate := finalise.gate_of(job.extras)) is not None:
            run.gate, self.finaliser.counts = gate, True
        if (
            run.size > claiming.MOST_CHARS
            or (job.ending is not None and job.ending not in CALLBACK_OF)
            or not isinstance((job.extras or {}).get("options"), dict | None)
        ):
            # No registration and no statement of ours writes such a row.
            log.error("job cannot be run as it is and is parked %s", run.job.facts)
            why = "Its headers or options are too long, or its ending is not known."
            self.ends.decided(run, decide.Parked(why, _fingerprint(job)), None)
            return False
        run.alone = job.ending is None and job.is_suspect
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
            run.job.facts,
        )
        self.ends.callback_ended(run)
        return False

    def callbacks(self, runs: list[HeldRun]) -> None:
        """Start callbacks whose job has an end that is written."""
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

    def again(self, *runs: HeldRun) -> None:
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
        stale = self.dispatcher.withdraw(lambda run: run.job.ending is None and not run.alone and run.since < late)
        if stale and self.dispatcher.slots:
            self.dispatcher.slots.waited(stale, NO_ROOM_SECONDS)
        self.ends.release(stale)

    def pause(self, pauses: Pauses, executors: Iterable[ExecutorProcess]) -> None:
        """Start no more paused or uncounted jobs: ask executors to release them, and hold those that wait here."""
        self.pauses = pauses
        if pauses:
            self.dispatcher.release_unstarted(executors, self._is_paused)
            for run in self.dispatcher.withdraw(self._is_paused):
                self.again(run)

    def may_start(self, run: HeldRun) -> bool:
        """Return whether neither a drain nor a pause keeps this run from its start."""
        return not (self.draining or self._is_paused(run))

    def _is_paused(self, run: HeldRun) -> bool:
        return self.pauses.cover(run.job.queue, run.job.name) or self._is_uncounted(run.job)

    def _is_uncounted(self, job: ClaimedJob) -> bool:
        counts = job.ending is None and self.pauses.must_count(job.queue, job.name, job.limit_key)
        return counts and registry.find(job.name) is not None  # or no worker would ever admit it

    def _release_or_hold(self, run: HeldRun) -> None:
        """Release a run of a paused queue, which no claim reads; hold one of a paused name, or it is claimed again."""
        job = run.job
        if job.queue in self.pauses.queues:
            self.ends.release([run])
        elif job.name in self.pauses.names:
            self.ends.decided(run, decide.Held(self.pauses.names[job.name]), None)
        else:
            self.ends.decided(run, decide.Held("", limited=True), None)


def _fingerprint(job: ClaimedJob) -> str:
    definition = registry.find(job.name)
    return definition._fingerprint if definition else ""
