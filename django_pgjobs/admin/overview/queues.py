"""The queues: what waits, runs and ended in each, for how long, who serves it, and its last hour as a line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from django_pgjobs.admin.overview.drawing import sparkline
from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.definition.declared_limits import numbers
from django_pgjobs.diagnosis.health import paused_queues
from django_pgjobs.diagnosis.latest import total
from django_pgjobs.inspection.liveness import is_awaited
from django_pgjobs.presentation.wording import STATE_LABELS, seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store import limiting
from django_pgjobs.store import numbers as sums
from django_pgjobs.store.limiting import Override

MOST = 50
"""Number of queues that the page shows, those with problems and the most due jobs first."""

MINUTES = 60
MOST_DEPTHS = 10_000


def queues(seen: Seen) -> dict[str, Any]:
    """Return a row for each queue."""
    found = seen.latest.figures["queues"]
    paused = paused_queues(seen.using)
    limits = {each.name: each for each in limiting.read_limits(seen.db) if each.kind == "queue"}
    found = sorted(found, key=lambda each: (-each["ready"], each["queue"]))
    lines = _lines(seen) if found else {}
    return {
        "queues": [
            {
                **_row(seen, each, lines.get(each["queue"], []), each["queue"] in paused),
                "limit": _limit(limits.get(each["queue"])),
                "limit_url": _limit_url(seen, each["queue"], is_set=each["queue"] in limits),
            }
            for each in found[:MOST]
        ],
        "more": max(len(found) - MOST, 0),
    }


def _row(seen: Seen, found: Mapping[str, Any], line: list[int], paused: bool) -> dict[str, object]:
    queue, pages = found["queue"], seen.pages
    oldest = found["oldest_ready_seconds"]
    since = {"queue": queue, "q": "since:1h"}

    def jobs(path: str) -> str:
        return total([found], path)[1]

    return {
        "name": visible(queue),
        "url": pages.jobs(queue=queue),
        "due": jobs("ready"),
        "due_url": pages.jobs(state="ready", queue=queue),
        "oldest": "–" if oldest is None else seconds(oldest),
        "running": jobs("running"),
        "running_url": pages.jobs(state="running", queue=queue),
        "held": [
            (jobs(f"held.{hold}"), STATE_LABELS[hold], pages.jobs(state=hold, queue=queue))
            for hold, number in found["held"].items()
            if number
        ],
        "succeeded": jobs("ended.succeeded"),
        "succeeded_url": pages.jobs(state="succeeded", **since),
        "abandoned": jobs("ended.abandoned"),
        "abandoned_url": pages.jobs(state="abandoned", **since),
        "failing": found["ended"]["abandoned"] > 0,
        "workers": found["workers"],
        "unserved": not found["workers"] and bool(found["ready"]) and not paused and is_awaited(oldest or 0.0),
        "line": sparkline(line, _("Due jobs of %(queue)s in the last hour") % {"queue": visible(queue)}),
        "paused": paused,
        "steer_url": _steer_url(seen, queue, paused),
    }


def _limit(override: Override | None) -> str:
    return "" if override is None else numbers(override.concurrency, override.rate, override.per)


def _limit_url(seen: Seen, queue: str, *, is_set: bool) -> str:
    if not seen.may("limit_queue"):
        return ""
    if is_set and seen.may("view_limitoverride"):
        return seen.pages.page("limitoverride_changelist", q=queue)
    return seen.pages.page("limitoverride_add", kind="queue", name=queue)


def _steer_url(seen: Seen, queue: str, paused: bool) -> str:
    if paused:
        return seen.pages.page("queuestate_changelist", q=queue) if seen.may_resume else ""
    return seen.pages.page("queuestate_add", kind="queue", name=queue) if seen.may("pause_queue") else ""


def _lines(seen: Seen) -> dict[str, list[int]]:
    """Return the due jobs of each queue in the minutes of the last hour."""
    depths = sums.read_depths(seen.db, step=60, buckets=MINUTES, most=MOST_DEPTHS)
    last = int(seen.latest.now.timestamp()) // 60
    lines: dict[str, list[int]] = defaultdict(lambda: [0] * MINUTES)
    for depth in depths:
        at = MINUTES - 1 - (last - depth.at // 60)
        if 0 <= at < MINUTES:
            lines[depth.queue][at] = depth.ready
    return lines
