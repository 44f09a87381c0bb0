"""The cron entries: the next 24 hours of each on a strip, its last jobs as dots, and its expression in words."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.contrib.admin.utils import quote
from django.db.models import F
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from django_pgjobs.admin.display import format_html, format_html_join, status_badge
from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.models import CronEntry
from django_pgjobs.models.crons import aware
from django_pgjobs.presentation.schedules import meaning
from django_pgjobs.presentation.wording import STATE_LABELS, until
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.crons import JSON_COLUMNS
from django_pgjobs.store import scheduling
from django_pgjobs.store.scheduling import FiredJob

MOST = 20
FIRES = 100
"""Number of fires that a strip draws one by one; more follow too close upon each other to be told apart."""

JOBS = 10
DAY = timedelta(days=1)


def crons(seen: Seen) -> dict[str, object]:
    """Return a row for each entry: those that are broken, then by their next fires."""
    entries = CronEntry.objects.using(seen.using).defer(*JSON_COLUMNS)
    broken = list(entries.exclude(broken="").order_by("name")[:MOST])
    rest = entries.filter(broken="").order_by(F("next_fire_at").asc(nulls_last=True), "name")[: MOST + 1]
    found = [*broken, *rest]
    shown = found[:MOST]
    jobs: dict[str, list[FiredJob]] = defaultdict(list)
    for job in scheduling.list_fired(seen.db, [entry.pk for entry in shown], most=JOBS) if shown else ():
        jobs[job.cron_entry].append(job)
    return {
        "entries": [_row(seen, entry, jobs[entry.pk]) for entry in shown],
        "more": len(found) > MOST,
        "all_url": seen.pages.page("cronentry_changelist"),
    }


def _row(seen: Seen, entry: CronEntry, jobs: list[FiredJob]) -> dict[str, object]:
    now = aware(seen.latest.now)
    # A rare one may fire once in years: only the first fire beyond the strip is looked for.
    fires = [aware(fire) for fire in entry.next_fires(FIRES + 1, until=now + DAY)] if entry.status == "on" else []
    return {
        "name": visible(entry.name),
        "url": seen.pages.page("cronentry_change", quote(entry.pk)),
        "status": status_badge(entry),
        "why": visible(entry.broken)[:200],
        "expression": visible(entry.effective_expression),
        "words": meaning(entry),
        "next": until(fires[0], now) if fires else "–",
        "strip": _strip([fire for fire in fires if fire <= now + DAY], now),
        "dots": [{"state": job.state, "url": seen.pages.job(job.id), "title": _title(seen, job)} for job in jobs],
    }


def _title(seen: Seen, job: FiredJob) -> str:
    return f"#{seen.pages.shown(job.id)} {STATE_LABELS.get(job.state, '')}"


def _strip(fires: list[datetime], now: datetime) -> SafeString:
    """Draw the next 24 hours: a line for each fire, or one block if they are too many to tell apart."""
    more = len(fires) > FIRES
    positions = [max((fire - now) / DAY * 240, 0.0) for fire in (fires[:1] if more else fires)]
    drawn: SafeString
    if more:
        drawn = format_html(
            '<rect x="{}" y="3" width="{}" height="14"/>', f"{positions[0]:.1f}", f"{240 - positions[0]:.1f}"
        )
    else:
        drawn = format_html_join(
            "", '<line x1="{}" x2="{}" y1="3" y2="17"/>', ((f"{x:.1f}", f"{x:.1f}") for x in positions)
        )
    title = ngettext("%(count)s fire within 24 hours", "%(count)s fires within 24 hours", len(fires))
    title %= {"count": f"{FIRES}+" if more else len(fires)}
    return format_html(
        '<svg class="pgjobs-strip" viewBox="0 0 240 20" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<title>{}</title><line class="pgjobs-floor" x1="0" x2="240" y1="18" y2="18"/>{}</svg>',
        title, title, drawn,
    )  # fmt: skip
