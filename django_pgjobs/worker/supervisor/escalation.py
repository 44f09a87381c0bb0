"""In the supervisor: it leads a run up its ladder and decides how the run ends. Main thread only.

Up to the interrupt, only the job itself is stopped. SIGTERM and SIGKILL go to the whole group of its executor: its
neighbours are *collateral*, released uncharged if they fail because of it.
"""

from __future__ import annotations

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.execution.failed_attempts import NO_ATTEMPTS, NOT_RETRIED, RELEASE_REASON, TOO_LATE
from django_pgjobs.logs import log
from django_pgjobs.worker.shared.channel_messages import StopRun
from django_pgjobs.worker.shared.ladders import (
    CANCELLED,
    FLAG,
    INTERRUPT,
    LADDERS,
    MEMORY,
    RELEASED,
    SOFT,
    TERM,
    TIMEOUT,
    Stop,
)
from django_pgjobs.worker.shared.runs import ExecutorView, HeldRun
from django_pgjobs.worker.supervisor.executor_death import over_memory, timed_out
from django_pgjobs.worker.supervisor.executor_process import DRAINING, KILLED, READY, TERMINATING, ExecutorProcess

COLLATERAL = "collateral"
TAKEN_AWAY = "it was taken from this worker"


def lead(child: ExecutorProcess, now: float, checked_at: float) -> None:
    """Lead runs up their ladders: those whose time is up, and those with a request to stop by force.

    ``checked_at``: when the executor was last looked at.
    """
    spare(child)
    if not child.runs or child.state == KILLED:
        child.busy = 0
        return
    running = child.board.running()
    child.busy = len(running)
    child.learn_from_running(running, now)
    for number, started_ns in running.items():
        run = child.runs.get(number)
        if run is None:
            continue
        run.started_at = started_ns / 1e9
        stops_at = run.stops_at
        if stops_at is not None and now > stops_at and TIMEOUT not in run.stops:
            ran = stops_at - run.started_at
            log.warning("deadline passed, job is stopped seconds=%.3g pid=%d %s", ran, child.pid, run.job.facts)
            # Even after a pause of this process or of the machine, the rungs come one after the other.
            stop(run, TIMEOUT, TIMEOUT, max(stops_at, checked_at))
        elif run.job.extras is not None:
            interrupt_softly(run, child, now)
        if run.stops:
            advance(run, child, now)


def stop(run: HeldRun, cause: str, ladder: str, since: float) -> None:
    """Begin to stop a run, or stop it harder; do nothing if this is under way already."""
    known = run.stops.get(cause)
    if known is None or known.rungs != LADDERS[ladder]:
        run.stops = {**run.stops, cause: Stop(cause, LADDERS[ladder], since)}
        if run.child is not None:
            advance(run, run.child, since)


def interrupt_softly(run: HeldRun, child: ExecutorView, now: float) -> None:
    """Tell a run of its soft limit, once, when that has passed since its own code began.

    The job may catch the exception and continue.
    """
    soft = None if run.soft_run == run.run else run.job.soft_limit
    if soft is not None and (began_ns := child.board.begun(run.run)) and now > began_ns / 1e9 + soft:
        run.soft_run = run.run
        log.info("soft limit passed and raised seconds=%.3g pid=%d %s", soft, child.pid, run.job.facts)
        child.end.send(StopRun(run.run, INTERRUPT, SOFT, "", ""))


def advance(run: HeldRun, child: ExecutorView, now: float) -> None:
    """Take the rungs that are due. Signal a process only for a run that the board shows."""
    for each in run.stops.values():
        while (rung := each.next(now)) is not None:
            if rung in (FLAG, INTERRUPT):
                _order(run, child, each.cause, rung)
            elif run.run not in child.board.running():
                break
            else:
                _signal(run, child, each.cause, rung)
            each.taken += 1


def _order(run: HeldRun, child: ExecutorView, cause: str, rung: str) -> None:
    by, reason = (run.cancel_by, run.cancel_reason) if cause == CANCELLED else ("", TAKEN_AWAY)
    if rung == INTERRUPT:
        log.info("job is interrupted cause=%s pid=%d %s", cause, child.pid, run.job.facts)
    child.end.send(StopRun(run.run, rung, cause, by, reason))


def _signal(run: HeldRun, child: ExecutorView, cause: str, rung: str) -> None:
    child.culprits.setdefault(run.run, cause)
    if rung == TERM:
        if child.state in (READY, DRAINING):
            log.warning("job does not stop, executor terminated cause=%s pid=%d %s", cause, child.pid, run.job.facts)
            child.terminate()
    elif child.state != KILLED:
        log.warning("executor killed cause=%s pid=%d %s", cause, child.pid, run.job.facts)
        blame(child)
        child.kill()


def blame(child: ExecutorView) -> None:
    """Let each run that was being stopped by force answer for itself when its executor is killed."""
    for number, run in child.runs.items():
        forced = [each.cause for each in run.stops.values() if each.forces]
        if forced:
            child.culprits.setdefault(number, forced[0])


def spare(child: ExecutorView) -> None:
    """Let a terminated executor continue if the jobs that it was terminated for have ended."""
    if child.state == TERMINATING and not child.culprits:
        log.info("job has stopped, executor continues pid=%d", child.pid)
        child.state = DRAINING if child.drained else READY
        for run in child.runs.values():
            run.collateral = False


def judged(run: HeldRun, decision: Unwritten) -> Unwritten:
    """Return the decision to record for a run that was being stopped, or whose executor was terminated.

    The run ended first, so its success counts; a failure is attributed to the reason for the stop.
    """
    failure = _plain_failure(decision)
    if failure is None:
        return decision
    if TIMEOUT in run.stops:
        return timed_out(run, failure)
    if MEMORY in run.stops:
        return over_memory(run, failure)
    if RELEASED in run.stops:
        return decide.Released(RELEASE_REASON, failure)
    return decide.Released(COLLATERAL, failure) if run.collateral else decision


def _plain_failure(decision: Unwritten) -> Failure | None:
    """Return the failure of an attempt that just failed; what a job says by raising Abandon is no failure."""
    match decision:
        case decide.Retried(failure=failure):
            return failure
        case decide.Abandoned(reason=reason, failure=failure) if reason in (NO_ATTEMPTS, NOT_RETRIED, TOO_LATE):
            return failure
        case _:
            return None
