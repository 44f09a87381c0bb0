"""Signal receivers that note what they hear, and what the database says of the job at that moment."""

from __future__ import annotations

import os
import time
from typing import Any

from django_pgjobs import signals
from django_pgjobs.execution import events
from django_pgjobs.models import Job
from tests.e2e import stage

SLOW_SECONDS = 1.0
"""How long the start of a job takes whose name says so."""


def connect() -> None:
    signals.job_started.connect(on_started)
    signals.idempotency_hit.connect(on_hit)
    signals.attempt_ended.connect(on_ended)
    signals.job_finished.connect(on_finished)
    signals.job_retried.connect(on_retried)
    signals.job_rescued.connect(on_rescued)
    signals.lease_lost.connect(on_lost)
    signals.compensation_started.connect(on_compensation_started)
    signals.compensation_completed.connect(on_compensation_completed)
    signals.compensation_failed.connect(on_compensation_failed)


def add_listener() -> None:
    """Hear of ends by a listener, which wants abandoned ones, and all while the gate ``hear-all`` is open."""
    events.add_listener(on_finished, lambda outcome: outcome == "abandoned" or stage.here().is_open("hear-all"))


def on_started(context: Any, **_: Any) -> None:
    if context.name.endswith("starts_slowly"):
        time.sleep(SLOW_SECONDS)
    stage.here().note("signal", context.id, "started", context.attempt)
    stage.here().note("facts", context.id, "started", context.executor)


def on_hit(context: Any, idempotency_key: str, first_job_id: int, **_: Any) -> None:
    stage.here().note("signal", context.id, "hit", idempotency_key, first_job_id)


def on_ended(context: Any, decision: Any, exception: BaseException | None, **_: Any) -> None:
    stage.here().note("signal", context.id, "ended", type(decision).__name__, type(exception).__name__)


def on_finished(job_id: int, outcome: str, **facts: Any) -> None:
    stage.here().note("facts", job_id, "finished", facts["executor"], facts["duration"], facts["queue"], facts["error"])
    found = Job.objects.filter(pk=job_id).first()
    stage.here().note("signal", job_id, "finished", outcome, found.state if found else "gone")
    if stage.here().is_open("receiver-fails"):
        raise SystemExit("a receiver that leaves")
    if stage.here().is_open(f"receiver-crashes-{job_id}") and stage.here().count("signal", job_id, "finished") == 1:
        os._exit(9)


def on_retried(job_id: int, attempt: int, delay: float, **facts: Any) -> None:
    again = facts["retry_at"]
    stage.here().note(
        "facts", job_id, "retried", facts["executor"], facts["duration"], again and again.isoformat(), facts["error"]
    )
    stage.here().note("signal", job_id, "retried", attempt, delay, Job.objects.get(pk=job_id).state)


def on_rescued(job_id: int, cause: str, outcome: str, queue: str, attempt: int, **_: Any) -> None:
    stage.here().note("signal", job_id, "rescued", cause, attempt, queue, outcome or "ready")


def on_lost(job_id: int, action: str, reason: str, **facts: Any) -> None:
    stage.here().note("facts", job_id, "lost", facts["executor"], facts["claim_id"], facts["attempt"], reason)
    stage.here().note("signal", job_id, "lost", action, reason)


def on_compensation_started(sender: Any, **facts: Any) -> None:
    _note_compensation("compensation.started", sender, facts)


def on_compensation_completed(sender: Any, **facts: Any) -> None:
    _note_compensation("compensation.completed", sender, facts)


def on_compensation_failed(sender: Any, **facts: Any) -> None:
    _note_compensation("compensation.failed", sender, facts)


def _note_compensation(what: str, sender: Any, facts: dict[str, Any]) -> None:
    """Note all that the signal says, by name."""
    said = {name: value for name, value in facts.items() if name != "signal"}
    words = [f"{name}={value}" for name, value in sorted({**said, "sender": sender}.items())]
    stage.here().note("signal", facts["job_id"], what, *words)
