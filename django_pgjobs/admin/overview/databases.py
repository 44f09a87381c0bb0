"""All databases on one page: their sums, and a row for each with its figures, or with why it gives none.

They are asked side by side, within two seconds in all: one that is down or frozen is a red row, and holds no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.translation import ngettext

from django_pgjobs.admin.databases import ask
from django_pgjobs.admin.display import Pages
from django_pgjobs.admin.overview.status import FAILED_WITHIN
from django_pgjobs.diagnosis.latest import latest, total
from django_pgjobs.inspection.liveness import is_awaited
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store.asking import Reply
from django_pgjobs.store.database import on

COUNTED = {"due": "ready", "running": "running", "succeeded": "ended.succeeded", "abandoned": "ended.abandoned"}
"""Figure of a row → its path in the figures of a queue."""


class DatabaseFigures(NamedTuple):
    """The figures of one database; ``problems`` without notes. ``leader``: who counted them, None without one."""

    queues: list[dict[str, Any]]
    workers: int
    problems: int
    leader: str | None
    age_seconds: float

    @property
    def oldest(self) -> float | None:
        """For how long its oldest due job has waited."""
        ages = [each["oldest_ready_seconds"] for each in self.queues]
        return max((age for age in ages if age is not None), default=None)


def counted(alias: str) -> DatabaseFigures:
    """Return the figures of a database."""
    found = latest(on(alias), alias)
    problems = sum(not each.is_note for each in found.problems)
    live = found.figures["workers"]["live"]
    return DatabaseFigures(found.figures["queues"], live, problems, found.measured_by, found.age_seconds)


def all_databases(request: HttpRequest, site: str, aliases: Sequence[str]) -> dict[str, Any]:
    """Return the rows and the sums."""
    replies: list[Reply[DatabaseFigures]] = ask(aliases, counted)
    answers = [reply.answer for reply in replies if reply.answer is not None]
    missing = len(replies) - len(answers)
    words = ngettext("without %(count)s that gives no answer", "without %(count)s that give no answer", missing)
    return {
        "rows": [_row(Pages(site, reply.alias), reply) for reply in replies],
        "sums": _figures([queue for each in answers for queue in each.queues], None),
        "oldest": _span(max((each.oldest for each in answers if each.oldest is not None), default=None)),
        "workers": grouped(sum(each.workers for each in answers)),
        "without": words % {"count": missing} if missing else "",
        "names_leaders": request.user.has_perm("pgjobs.view_heartbeat"),
    }


def _row(pages: Pages, reply: Reply[DatabaseFigures]) -> dict[str, object]:
    found = {"name": visible(reply.alias), "url": pages.page("overview_changelist")}
    if reply.trouble is not None or reply.answer is None:
        return {**found, "trouble": visible(reply.trouble.text[:500]) if reply.trouble else ""}
    answer = reply.answer
    problems = ngettext("%(count)s problem", "%(count)s problems", answer.problems)
    return {
        **found,
        "problems": problems % {"count": grouped(answer.problems)} if answer.problems else "",
        "figures": _figures(answer.queues, pages),
        "oldest": _span(answer.oldest),
        "workers": grouped(answer.workers),
        "unserved": not answer.workers and answer.oldest is not None and is_awaited(answer.oldest),
        "leader": visible((answer.leader or "")[:200]) or "–",
        "age": seconds(answer.age_seconds) if answer.leader else "",
    }


def _figures(queues: list[dict[str, object]], pages: Pages | None) -> list[dict[str, object]]:
    lists: dict[str, dict[str, str]] = {
        "due": {"state": "ready"}, "running": {"state": "running"},
        "succeeded": {"state": "succeeded", "q": f"since:{FAILED_WITHIN}"},
        "abandoned": {"state": "abandoned", "q": f"since:{FAILED_WITHIN}"},
    }  # fmt: skip
    found = []
    for name, path in COUNTED.items():
        jobs, number = total(queues, path)
        url = pages.jobs(**lists[name]) if pages else ""
        found.append({"number": number, "url": url, "bad": name == "abandoned" and jobs > 0})
    return found


def _span(age: float | None) -> str:
    return "–" if age is None else seconds(age)
