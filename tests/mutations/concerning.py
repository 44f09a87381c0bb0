"""Which end-to-end tests concern which module, for the round ``workers``: all of them would take a night."""

from __future__ import annotations

from pathlib import Path

from tests.mutations.faults import Fault

EVERYDAY = "failures stopping times"

BY_MODULE = {
    "admitter": "limits",
    "audit": "leaders",
    "board": "deaths ladder orphans",
    "channel": "failures batches deaths",
    "channel_messages": "failures batches deaths",
    "cancelling": "cancelling times",
    "claim_room": "batches times",
    "claimer": "times batches rescuing",
    "claims_in_doubt": "rescuing outages",
    "cleanup": "hygiene hostile",
    "command_line": "entry booting",
    "connection": "outages rescuing hygiene",
    "cron_firing": "cron leaders",
    "decision_codec": "failures hostile",
    "dispatcher": "suspects batches deaths",
    "duties": "leaders retention",
    "end_writer": "atomic atomic_crashes failures",
    "escalation": "ladder cancelling deaths",
    "event_loop": "hostile damaged_loop failures cancelling",
    "executor_death": "deaths suspects",
    "executor_liveness": "deaths booting",
    "executor_pool": "deaths booting recycling",
    "executor_process": "deaths recycling booting",
    "expiry": "retention idempotency",
    "failed_attempts": "failures deaths",
    "finaliser": "batches in_flight rescuing failures",
    "frontier": "times batches",
    "handover": "events leaving",
    "held_jobs": "cancelling rescuing deaths stopping",
    "identity": "booting outages",
    "inbox": "stopping",
    "inbox_messages": "stopping rescuing pausing",
    "interrupts": "ladder hygiene",
    "job_threads": "hostile ladder hygiene",
    "ladders": "ladder",
    "leader": "leaders",
    "lease_guard": "orphans stopping",
    "lease_keeper": "rescuing cancelling pausing outages",
    "lifecycle": "leaving stopping",
    "listener": "times outages",
    "logs": "events alerting stopping",
    "loop": "outages stopping",
    "main": "bypassing leaving failures ladder",
    "maintainer": "leaders shell",
    "orphan": "orphans",
    "outbox": "batches failures",
    "prepare": "events idempotency failures",
    "process": "booting stopping",
    "pruning": "retention",
    "raising": "ladder hygiene",
    "ready_hints": "times limits stopping",
    "recycling": "recycling deaths",
    "rescue": "rescuing leaders deaths",
    "run_ends": "cancelling rescuing deaths stopping",
    "run_events": "events rescuing",
    "run_groups": "batches failures rescuing",
    "run_queue": "batches stopping rescuing",
    "run_starts": "cancelling pausing suspects rescuing",
    "runs": "rescuing cancelling",
    "safe_points": "ladder hygiene",
    "signal_relay": "events leaving",
    "signal_sender": "events leaving",
    "soft_limits": "times",
    "statistics": "shell",
    "supervisor": "stopping booting pausing",
    "template": "template",
    "unparking": "alerting failures pausing",
    "vacuum": "retention",
    "watchdog": "orphans",
}

BY_FOLDER = {
    "celery_bridge": "celery", "checks": "booting", "diagnosis": "shell", "doctor": "doctor",
    "execution": "failures durable atomic flows step_machines",
    "flows": "flows durable", "inspection": "shell", "management": "shell", "metrics": "metrics numbers",
    "notifying": "notices", "registering": "flows idempotency", "running": "booting entry",
    "steering": "cancelling pausing bulk", "store": "failures rescuing flows", "tasks": "tasks tasks_apart",
    "telemetry": "tracing libraries",
}  # fmt: skip

BY_WORD = {
    "admi": "limits", "blockers": "limits", "limited": "limits", "starts": "limits",
    "cancel": "cancelling", "claim": "rescuing", "cron": "cron", "key": "idempotency", "pause": "pausing",
    "paused": "pausing", "unpause": "pausing", "prun": "retention", "delete": "retention", "rescue": "rescuing",
    "term": "leaders", "vacuum": "retention", "finalise": "failures batches", "retry": "failures",
    "result": "idempotency", "step": "step_machines step_machines_apart",
}  # fmt: skip


def concerning(fault: Fault, root: Path) -> list[str]:
    """Return the end-to-end test files that concern what this fault is in."""
    stem = Path(fault.file).stem
    if fault.file.endswith(".py"):
        names = (BY_MODULE.get(stem) or BY_FOLDER.get(Path(fault.file).parent.name, EVERYDAY)).split()
    else:
        found = [files for word, files in BY_WORD.items() if any(part.startswith(word) for part in stem.split("_"))]
        names = list(dict.fromkeys(" ".join(found or [EVERYDAY]).split()))
    return [name for name in (f"tests/e2e/test_{name}.py" for name in names) if (root / name).is_file()]
