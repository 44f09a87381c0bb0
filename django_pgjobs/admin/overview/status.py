"""The banner and the tiles: whether anything is wrong, and the figures of all queues together."""

from __future__ import annotations

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _

from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.diagnosis.latest import total
from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible

FAILED_WITHIN = "1h"


def banner(seen: Seen) -> dict[str, object]:
    """Return the problems and notes with their links, or one calm sentence if there are neither."""
    found = seen.latest.problems
    shown = [{"text": visible(each.text[:500]), "url": _where(seen, each), "is_note": each.is_note} for each in found]
    return {"problems": shown, "calm": "" if found else _calm(seen)}


def _calm(seen: Seen) -> str:
    queues = seen.latest.figures["queues"]
    oldest = [each["oldest_ready_seconds"] for each in queues]
    waiting = max((age for age in oldest if age is not None), default=None)
    if waiting is not None:
        return _("All queues are served; the oldest due job waits %(time)s.") % {"time": seconds(waiting)}
    later = any(each["scheduled"] or any(each["held"].values()) for each in queues)
    return _("No due job waits.") if later else _("All queues are served, and no job waits.")


def _where(seen: Seen, problem: HealthProblem) -> str:
    """Return the list or the page that shows the problem, if the viewer may see it."""
    match problem.code:
        case "no_worker" | "latency" if problem.queue is not None:
            return seen.pages.jobs(state="ready", queue=problem.queue)
        case "overdue":
            return seen.pages.jobs(state="running")
        case "silent" | "lost" | "leader" if seen.may("view_heartbeat"):
            return seen.pages.page("heartbeat_changelist")
        case "crashed" | "suspects" if problem.worker and seen.may("view_heartbeat"):
            return seen.pages.page("heartbeat_change", problem.worker)
        case "cron" | "cron_missing" if seen.may("view_cronentry"):
            return seen.pages.page("cronentry_change", quote(problem.subject))
        case "paused" if not problem.list and seen.may("view_queuestate"):
            return seen.pages.page("queuestate_changelist", q=problem.subject.partition(":")[2])
        case "limit_set" if seen.may("view_limitoverride"):
            return seen.pages.page("limitoverride_changelist", q=problem.subject.partition(":")[2])
        case "waiting_for_event":
            return seen.pages.jobs(suspended=problem.code)
        case "abandoned":
            return seen.pages.jobs(state="abandoned", q=f"since:{FAILED_WITHIN}")
    if not problem.list:
        return ""
    parts = {"state": problem.list, "queue": problem.queue, "name": problem.name}
    return seen.pages.jobs(**{name: value for name, value in parts.items() if value})


def tiles(seen: Seen) -> dict[str, object]:
    """Return the figures of all queues, each with the list that it counts."""
    queues, workers = seen.latest.figures["queues"], seen.latest.figures["workers"]
    slots = _("of %(count)s threads") % {"count": grouped(workers["slots"])}
    failed = total(queues, "ended.abandoned")
    found = [
        (_("due"), "ready", *total(queues, "ready"), "", seen.pages.jobs(state="ready")),
        (_("running"), "running", *total(queues, "running"), slots, seen.pages.jobs(state="running")),
        (_("retrying"), "retrying", *total(queues, "retrying"), "", seen.pages.jobs(state="retrying")),
        (
            _("abandoned"), "abandoned", *failed, _("(failed for good) in the last hour"),
            seen.pages.jobs(state="abandoned", q=f"since:{FAILED_WITHIN}"),
        ),
        (_("parked"), "parked", *total(queues, "held.parked"), "", seen.pages.jobs(state="parked")),
        (_("limited"), "limited", *total(queues, "held.limited"), "", seen.pages.jobs(state="limited")),
        (_("paused"), "paused", *total(queues, "held.paused"), "", seen.pages.jobs(state="paused")),
        (
            _("blocked"), "blocked", *total(queues, "held.blocked"), _("by other jobs"),
            seen.pages.jobs(state="blocked"),
        ),
    ]  # fmt: skip
    names = ("label", "state", "jobs", "number", "note", "url")
    return {"tiles": [dict(zip(names, tile, strict=True)) for tile in found]}
