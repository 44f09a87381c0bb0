"""Which end-to-end tests concern which module, for the round ``workers``: all of them would take a night."""

from __future__ import annotations

from pathlib import Path

from tests.mutations.faults import Fault

EVERYDAY = "failures stopping times"

BY_MODULE = {
    "acking": "batches in_flight rescuing failures",
    "admitting": "limits",
    "audit": "leaders",
    "board": "deaths ladder orphans",
    "buffers": "batches stopping rescuing",
    "channel": "failures batches deaths",
    "children": "deaths recycling booting",
    "claiming": "times batches rescuing",
    "connection": "outages rescuing hygiene",
    "crew": "deaths booting recycling",
    "crons": "cron leaders",
    "deaths": "deaths suspects",
    "decided": "failures hostile",
    "delicate": "ladder hygiene",
    "dispatching": "suspects batches deaths",
    "duties": "leaders retention",
    "entry": "entry booting",
    "eventloop": "hostile damaged_loop failures cancelling",
    "executor": "bypassing leaving failures ladder",
    "forgetting": "retention idempotency",
    "frontier": "times batches",
    "guarding": "orphans stopping",
    "handover": "events leaving",
    "holding": "cancelling rescuing deaths stopping",
    "hygiene": "hygiene hostile",
    "identity": "booting outages",
    "inbox": "stopping",
    "interrupting": "ladder hygiene",
    "jobthreads": "hostile ladder hygiene",
    "keeping": "rescuing cancelling pausing outages",
    "ladders": "ladder",
    "leader": "leaders",
    "leaving": "leaving stopping",
    "listening": "times outages",
    "logs": "events alerting stopping",
    "loop": "outages stopping",
    "maintaining": "leaders shell",
    "measuring": "shell",
    "memory": "deaths",
    "orphaning": "orphans",
    "outbox": "batches failures",
    "parking": "alerting failures",
    "preparing": "events idempotency failures",
    "process": "booting stopping",
    "pruning": "retention",
    "recycling": "recycling",
    "rescue": "rescuing leaders deaths",
    "resuming": "pausing",
    "runs": "rescuing cancelling",
    "stacks": "ladder deaths",
    "stopping": "ladder cancelling deaths",
    "supervisor": "stopping booting pausing",
    "telling": "events leaving",
    "untold": "events leaving",
    "vacuuming": "retention",
    "watchdog": "orphans",
}

BY_WORD = {
    "admi": "limits", "blockers": "limits", "limited": "limits", "starts": "limits", "let": "limits",
    "cancel": "cancelling", "claim": "rescuing", "cron": "cron", "key": "idempotency", "pause": "pausing",
    "paused": "pausing", "unpause": "pausing", "prun": "retention", "delete": "retention", "rescue": "rescuing",
    "term": "leaders", "vacuum": "retention", "finalise": "failures batches", "retry": "failures",
    "result": "idempotency",
}  # fmt: skip


def concerning(fault: Fault, root: Path) -> list[str]:
    """Return the end-to-end test files that concern what this fault is in."""
    stem = Path(fault.file).stem
    if fault.file.endswith(".py"):
        names = BY_MODULE.get(stem, EVERYDAY).split()
    else:
        found = [files for word, files in BY_WORD.items() if any(part.startswith(word) for part in stem.split("_"))]
        names = list(dict.fromkeys(" ".join(found or [EVERYDAY]).split()))
    return [name for name in (f"tests/e2e/test_{name}.py" for name in names) if (root / name).is_file()]
