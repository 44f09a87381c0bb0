"""The workers: how each does, how much of it is in use, and what it runs now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from django_pgjobs.admin.display import badge
from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.inspection.liveness import STATUS_LABELS
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.fleet import listed_workers, running_jobs
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store.explaining import RunningJob

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import WorkerRow

MOST = 20
MOST_JOBS = 5
"""Number of a worker's jobs that the page names."""


def workers(seen: Seen) -> dict[str, object]:
    """Return a row for each worker that has not stopped, the latest heartbeat first."""
    found = list(listed_workers(seen.using)[: MOST + 1])
    shown = found[:MOST]
    running = running_jobs(seen.db, shown, most=MOST_JOBS + 1)
    return {"workers": [_row(seen, beat, running[beat.pk]) for beat in shown], "more": len(found) > MOST}


def _row(seen: Seen, beat: WorkerRow, jobs: list[RunningJob]) -> dict[str, object]:
    slots = beat.processes * beat.threads
    return {
        "name": visible(beat.name[:200]),
        "url": seen.pages.page("heartbeat_change", beat.pk),
        "status": badge(beat.status, STATUS_LABELS.get(beat.status, beat.status)),
        "leads": beat.leads,
        "beat": _("%(time)s ago") % {"time": seconds(beat.beat_age.total_seconds())},
        "running": beat.running,
        "slots": max(slots, 1),
        "use": _("%(running)s of %(slots)s") % {"running": grouped(beat.running), "slots": grouped(slots)},
        "places": visible(", ".join(f"{name}: {most}" for name, most in beat.slots_of_queues.items())[:200]),
        "release": visible(beat.release[:100]) or "–",
        "jobs": [
            {
                "id": job.id,
                "shown": seen.pages.shown(job.id),
                "url": seen.pages.job(job.id),
                "name": visible(job.name),
                "since": seconds(job.running_seconds),
            }
            for job in jobs[:MOST_JOBS]
        ],
        "more": len(jobs) > MOST_JOBS,
        "more_url": seen.pages.jobs(state="running", q=f"worker:{beat.pk}"),
    }
