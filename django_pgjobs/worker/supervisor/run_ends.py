"""The ends of runs: their decisions go to the finaliser, and no job is dropped before it answers.

A job is dropped once its end is flushed or known to be lost. With the last job of a claim, the claim's row goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Unwritten
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import END, MARK, RETRY, EndKind
from django_pgjobs.execution import events
from django_pgjobs.logs import log
from django_pgjobs.states import Cause
from django_pgjobs.store.finalising import End, ReleasedJob, Rescheduled, SteppedJob
from django_pgjobs.store.memos import SuspendedJob
from django_pgjobs.worker.shared.runs import ENDING, HeldRun, RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.escalation import TAKEN_AWAY
from django_pgjobs.worker.supervisor.run_events import EventSender, event_of_end, event_of_loss
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import RefusedEnd, StoredEnd

RELEASES_LOGGED = 3
"""A job released this often, uncharged, may never end: it is too long for the drain, or has bad neighbours."""


class RunEnds:
    """Main thread only, no I/O.

    ``wake_for`` wakes the claim thread for a (queue, priority) that has become ready; ``notify`` sends signals of
    durable writes; ``tallies`` adds up what has ended.
    """

    def __init__(
        self,
        table: RunTable,
        finaliser: Finaliser,
        *,
        wake_for: Callable[[tuple[str, int]], None],
        notify: EventSender,
        tallies: Tallies,
    ) -> None:
        self.table = table
        self.finaliser = finaliser
        self.wake_for = wake_for
        self.notify = notify
        self.tallies = tallies
        self.last_removed = 0.0

    # Decided

    def decided(self, run: HeldRun, decision: Unwritten, seconds: float | None) -> None:
        """Queue the statement that writes ``decision``; any end but success of a cancelled job is a cancel."""
        if run.cancelled and run.job.ending is None and not isinstance(decision, decide.Succeeded | decide.Cancelled):
            failure, cause = getattr(decision, "failure", None), getattr(decision, "cause", Cause.RELEASED)
            decision = decide.Cancelled("", failure, cause)
        kind, end = finalise.end_of(decision, *run.fence, run.job.name, seconds)
        # The next worker must know: in company the job might kill others too.
        end.suspect = run.alone and run.job.ending is None
        self._write(kind, run, end)

    def release(self, runs: list[HeldRun]) -> None:
        """Release jobs that never started, uncharged."""
        for run in runs:
            self.decided(run, decide.Released("not started"), None)

    def callback_ended(self, run: HeldRun) -> None:
        """Write the end that was marked before the callback."""
        self._write(END, run, finalise.after_callback(*run.fence, run.job.ending or ""))

    def callback_died(self, run: HeldRun, failure: decide.Failure) -> None:
        """Make it claimable again: claims count the starts, so a job that kills its process ends at last."""
        self._write(RETRY, run, End(*run.fence, 0.0, cause="crashed", failure=failure))

    def _write(self, kind: EndKind, run: HeldRun, end: End) -> None:
        run.state, run.child = ENDING, None
        self.finaliser.put(kind, run, end)

    # Dropped

    def stored(self, kind: EndKind, entries: Sequence[StoredEnd]) -> None:
        """Take ends that are durable; one that was marked has its callback to come."""
        if kinds.lines_are_wanted():
            _log_ends(kind, entries)
        if kind is MARK:
            for run, end, _ in entries:
                run.duration = end.seconds
                # Use the written end: the finaliser may have turned another one into a cancel or an abandon.
                run.error = end.failure.summary if end.failure else ""
                run.becomes_callback(end.outcome)
            return
        self.tallies.stored(kind, entries)
        self._drop([run for run, _, _ in entries])
        if kind.final:
            self.table.ended += len(entries)
        else:
            for run, end, row in entries:
                if isinstance(row, Rescheduled | ReleasedJob):
                    self.wake_for((row.queue, row.priority))
                if isinstance(row, SuspendedJob | SteppedJob) and row.priority is not None:
                    self.wake_for((row.queue, row.priority))
                if isinstance(row, SteppedJob) and row.refused:
                    events.step_refused(run.job.facts)
                # One that releases itself has stored how far it is.
                by_itself = end.failure is not None and not end.failure.kind
                if isinstance(row, ReleasedJob) and row.times >= RELEASES_LOGGED and not by_itself:
                    log.warning("job was released while it ran, once more times=%d %s", row.times, run.job.facts)
        if kind.signals:
            self.notify(lambda: [event_of_end(kind, run, end, row) for run, end, row in entries], kind.signals)

    def _drop(self, runs: list[HeldRun]) -> None:
        finished = self.table.remove(runs)
        if finished:
            self.finaliser.delete(finished)
        self.last_removed = clock.monotonic()

    def lost(self, refused: list[RefusedEnd]) -> None:
        """Drop jobs whose claim is no longer ours; their rows did not change."""
        for run, action, reason in refused:
            log.warning(
                "lease lost, nothing of the job was changed %s: could not %s, %s", run.job.facts, action, reason
            )
        self._drop([run for run, _, _ in refused])
        self.notify(lambda: [event_of_loss(*each) for each in refused], (events.LOST,))

    def taken_away(self, run: HeldRun, action: str) -> None:
        """Drop a job that another worker took, before anything was written."""
        self.lost([(run, action, TAKEN_AWAY)])


def _log_ends(kind: EndKind, entries: Sequence[StoredEnd]) -> None:
    for run, end, row in entries:
        if not (isinstance(row, SteppedJob) and row.refused):
            kinds.log_stored(kind, end, row, run.job.facts, run.duration if end.seconds is None else end.seconds)
