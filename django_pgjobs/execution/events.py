"""The one place that names events, for logs and signals.

Two sides: ``started``, ``idempotency_hit`` and ``ended`` are sent in the executor while the job's thread still runs;
``finished``, ``retried``, ``lost`` and ``rescued`` after the durable write, so never for a write that was rolled
back. A log line is a fixed phrase, then ``name=… job=… attempt=… claim=… queue=…`` in this order. Lines for every job
go to ``django_pgjobs.jobs``, which ``runjobs`` keeps quiet by default, so that they cost nothing at full speed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from django_pgjobs import clock, logs, signals
from django_pgjobs.decisions import Decision, InDoubt
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends.kinds import OUTCOMES as OUTCOMES
from django_pgjobs.logs import Facts, facts_of_attempt, log, safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import kind_of, text_of
from django_pgjobs.states import Outcome

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.execution.prepared import Prepared
    from django_pgjobs.logs import AttemptFacts

jobs_log = safe_logger("django_pgjobs.jobs")

FINISHED, RETRIED, LOST, RESCUED = "finished", "retried", "lost", "rescued"

WRITES = (RETRIED, LOST, RESCUED)
"""Durable writes that receivers may want: these, and ends by their outcome."""

_SIGNALS = {
    FINISHED: signals.job_finished,
    RETRIED: signals.job_retried,
    LOST: signals.lease_lost,
    RESCUED: signals.job_rescued,
}


_OF_COMPENSATIONS = (signals.compensation_completed, signals.compensation_failed)

REPEAT_SECONDS = 60.0
"""Shortest interval between two lines about parked jobs or dropped results of one name: there may be many."""

_logged: dict[tuple[str, str], float] = {}


def facts(job: AttemptFacts) -> Facts:
    """Return the facts that every line about an attempt carries; the job's description, if any, comes last."""
    # A context always knows its alias, a claimed job only where there is more than one to tell.
    database = getattr(job, "database", "") if isinstance(job, tuple) else ""
    about = (job.name, job.id, job.attempt, job.max_attempts, job.claim_id, job.queue)
    known = facts_of_attempt(*about, database=database)
    return logs.facts("%s description=%s", known, job.description) if job.description else known


def parked(job: AttemptFacts, why: str) -> None:
    """Log that this code cannot run a job, at most once a minute for each name."""
    if _is_due("parked", job.name):
        log.warning("job parked %s: %s", facts(job), one_line(why))


def result_dropped(name: str, job_id: int, why: str) -> None:
    """Log that a job succeeds without its result, which cannot be stored; at most once a minute for each name."""
    if _is_due("dropped", name):
        log.warning("result dropped, the job succeeds without one name=%s job=%d: %s", name, job_id, one_line(why))


def _is_due(what: str, name: str) -> bool:
    now = clock.monotonic()
    if now < _logged.get((what, name), float("-inf")) + REPEAT_SECONDS:
        return False
    _logged[what, name] = now
    return True


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, … 11th, …"""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def executor_started(database: str, threads: int, async_slots: int) -> None:
    """Send ``executor_started``: this process is about to run jobs."""
    signals.executor_started.send_robust(None, database=database, threads=threads, async_slots=async_slots)


def executor_stopping(reason: str) -> None:
    """Send ``executor_stopping``: this process runs no more jobs and is about to exit."""
    signals.executor_stopping.send_robust(None, reason=reason)


def started(prepared: Prepared) -> None:
    """Log and signal that an attempt begins; called in its own thread. Raises nothing."""
    if jobs_log.isEnabledFor(logging.INFO):
        again = f"{ordinal(prepared.job.attempt)} attempt to " if prepared.job.attempt > 1 else ""
        run_at = prepared.job.run_at.astimezone(UTC).isoformat(timespec="milliseconds")
        jobs_log.info("START %srun %s run_at=%s", again, facts(prepared.job), run_at)
    if signals.job_started.receivers:
        _send(signals.job_started, prepared.definition, context=prepared.context)
    if signals.compensation_started.receivers and (target := prepared.job.target) is not None:
        _send(
            signals.compensation_started, None, target_id=target, job_id=prepared.job.id, attempt=prepared.job.attempt
        )


def idempotency_hit(definition: object, context: JobContext, key: str, first_id: int) -> None:
    """Log and signal that an attempt returns an earlier job's result without a call; called in its own thread."""
    if context.is_compensation:
        return  # C69
    if jobs_log.isEnabledFor(logging.INFO):
        jobs_log.info("HIT result of job %d key=%s %s", first_id, key, facts(context))
    if signals.idempotency_hit.receivers:
        _send(signals.idempotency_hit, definition, context=context, idempotency_key=key, first_job_id=first_id)


def ended(prepared: Prepared, decision: Decision, error: BaseException | None) -> None:
    """Log and signal that an attempt has ended, before its outcome is stored; called in its own thread.

    Raises nothing.
    """
    if isinstance(decision, InDoubt):
        decision = decision.otherwise
    if jobs_log.isEnabledFor(logging.INFO):
        outcome, seconds, about = decision.outcome, clock.monotonic() - prepared.began, facts(prepared.job)
        if error is None:
            jobs_log.info("END outcome=%s seconds=%.4f %s", outcome, seconds, about)
        else:
            why = f"{kind_of(error)}: {text_of(error)}"
            jobs_log.info("END outcome=%s seconds=%.4f %s: %s", outcome, seconds, about, why)
    if signals.attempt_ended.receivers:
        _send(signals.attempt_ended, prepared.definition, context=prepared.context, decision=decision, exception=error)


def _send(signal: Signal, sender: object, **fields: object) -> None:
    """Send to receivers that may raise anything: ``send_robust`` catches subclasses of ``Exception`` only."""
    try:
        signal.send_robust(sender, **fields)
    except BaseException:
        log.exception("receiver failed name=%s", getattr(sender, "name", None))


def step_refused(about: Facts) -> None:
    """Log that a job cannot become its next step; ``about``: the facts of the finished one."""
    log.error("job abandoned %s: its key is taken in the queue of its next step", about)


def add_listener(receiver: Callable[..., object], wants: Callable[[str], bool]) -> None:
    """Have ``receiver`` called for ends, as one of ``job_finished``, while ``wants(outcome)`` says so.

    For a front whose own receivers are always there but seldom do anything: without interest no end costs more than
    before. See ``signals.EndSignal.add_listener``. Repeatable.
    """
    signals.job_finished.add_listener(receiver, wants)


def interest() -> frozenset[str]:
    """Return which durable writes receivers here want now: outcomes of ends, and ``RETRIED``, ``LOST`` …"""
    found = {what for what in WRITES if _SIGNALS[what].receivers}
    if any(signal.receivers for signal in _OF_COMPENSATIONS):
        return frozenset([*found, *OUTCOMES])
    return frozenset([*found, *filter(signals.job_finished.is_wanted, OUTCOMES)])


def kind_of_event(what: str, fields: dict[str, Any]) -> str:
    """Return which word of ``interest()`` stands for this write."""
    return fields["outcome"] if what == FINISHED else what


def is_wanted(what: str, fields: dict[str, object]) -> bool:
    """Return whether a receiver here wants this write."""
    return kind_of_event(what, fields) in interest()


def stored(what: str, fields: dict[str, Any]) -> None:
    """Call the receivers for one durable or refused write; ``fields`` are the signal's keyword arguments."""
    if fields.get("retry_at"):
        fields = {**fields, "retry_at": datetime.fromisoformat(fields["retry_at"])}  # it came through a frame
    sender, target = registry.resolved(fields["name"]), fields.pop("target_id", None)
    if what == FINISHED:
        fields["by_worker"] = True
    _SIGNALS[what].send_robust(sender, **fields)
    if what == FINISHED and target is not None:
        about = {"target_id": target, "job_id": fields["job_id"]}
        if fields["outcome"] == Outcome.SUCCEEDED:
            signals.compensation_completed.send_robust(None, **about)
        else:
            signals.compensation_failed.send_robust(None, **about, outcome=fields["outcome"], error=fields["error"])
