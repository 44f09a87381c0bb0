"""The words of ``wording`` as HTML: badges, times in the project's zone, blocks of text, tables, links.

Strangers may have written any text of a row. This module therefore bounds its length and escapes both HTML and the
invisible characters that browsers obey. For the same reason our pages import ``format_html`` from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.inspection.words import clock_time, grouped, name_of
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.wording import (
    SHOWN_CHARS,
    STATE_LABELS,
    json_text,
    label_of,
    parsed,
    seconds,
    until,
)
from django_pgjobs.serialization.escapes import visible


def format_html(template: str, *values: object, **named: object) -> SafeString:
    """Do as Django's, and also escape the invisible characters of unsafe text."""
    return html.format_html(template, *map(_seen, values), **{name: _seen(value) for name, value in named.items()})


def format_html_join(separator: str, template: str, rows: Iterable[tuple[object, ...]]) -> SafeString:
    """Do as Django's, with the same extra escape."""
    return html.format_html_join(separator, template, (tuple(map(_seen, row)) for row in rows))


def _seen(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, SafeString) else value


def person(by: str) -> SafeString | str:
    """Return who did something: *auth.User:1 anna* as the name alone, with the whole text as tooltip."""
    if not by:
        return "–"
    name = name_of(by)
    return format_html('<span title="{}">{}</span>', by[:500], name[:150]) if name else format_html("{}", by[:200])


def badge(state: str, word: object = None) -> SafeString:
    """A coloured badge for a state, labelled ``word`` or, by default, the job state's label."""
    shown = STATE_LABELS.get(state, state) if word is None else word
    return format_html('<span class="pgjobs-state pgjobs-{}">{}</span>', state, shown)


STATUSES: dict[str, tuple[str, object]] = {
    "on": ("succeeded", _("on")), "paused": ("parked", _("paused")), "missing": ("parked", _("missing")),
    "broken": ("abandoned", _("broken")), "off": ("parked", _("off")), "ended": ("cancelled", _("ended")),
}  # fmt: skip
"""The status of an entry → the state of a job that has its colour, and its word."""


def status_badge(entry: CronEntry) -> SafeString:
    """The status of a cron entry, in the colour of a state of jobs."""
    return badge(*STATUSES[entry.status])


def when(instant: datetime | None) -> SafeString | str:
    """An instant to the second, in the current zone."""
    return "–" if instant is None else _time(instant, clock_time(instant))


def _time(instant: datetime, text: str) -> SafeString:
    full = clock_time(instant)
    return format_html('<time datetime="{}" title="{}">{}</time>', instant.isoformat(), full, text)


def short(text: str, limit: int) -> SafeString | str:
    """The beginning of a text, with the whole text (bounded) as tooltip."""
    if len(text) <= limit:
        return visible(text)
    return format_html('<span title="{}">{}…</span>', text[:1000], text[:limit])


def below(first: object, second: object) -> SafeString:
    """Two lines in a cell of a list: the second is quiet, or left out if empty."""
    quiet = format_html('<br><span class="pgjobs-below">{}</span>', second) if second else ""
    return format_html("{}{}", first, quiet)


def block(text: str) -> SafeString:
    """A preformatted text, bounded in length."""
    if len(text) <= SHOWN_CHARS:
        return format_html('<pre class="pgjobs-text">{}</pre>', text)
    note = _("%(count)s characters; showing only the beginning") % {"count": grouped(len(text))}
    return format_html('<pre class="pgjobs-text">{}…</pre><p class="help">{}</p>', text[:SHOWN_CHARS], note)


def json_block(text: str | None) -> SafeString | str:
    """A JSON column that was read as text."""
    try:
        return block(json_text(parsed(text), len(text or "")))
    except UnreadablePayload:
        return block(text or "")


def link_to(text: object, url: str) -> Any:
    """A text as a link; as it is without a URL."""
    return format_html('<a href="{}">{}</a>', url, text) if url else text


def table_of(rows: Iterable[tuple[object, object]]) -> SafeString:
    """A table of names and values; values that are not safe text are escaped."""
    body = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', rows)
    return format_html('<table class="pgjobs-facts"><tbody>{}</tbody></table>', body)


FactList = list[tuple[object, object]]
"""Labels and values of a table; a value that is None is left out."""


def facts_table(facts: FactList) -> SafeString | str:
    """A table of our own facts, their labels capitalised; nothing without a fact."""
    given = [(capfirst(str(label)), value) for label, value in facts if value is not None]
    return table_of(given) if given else ""


def progress_bar(text: str) -> SafeString:
    """A progress bar and its message; unknown formats appear as JSON."""
    try:
        progress = parsed(text)
        n, total, message = progress["n"], progress.get("total"), str(progress.get("message") or "")[:200]
        amount = f"{float(n):g} / {float(total):g}" if total else f"{float(n):g}"
        share = min(max(float(n) / float(total), 0), 1) if total else 0
        if not message and (left := progress.get("left")) is not None:
            message = str(_("%(time)s left") % {"time": seconds(float(left))})
    except (UnreadablePayload, TypeError, LookupError, AttributeError, ArithmeticError, ValueError):
        return block(text)
    bar = format_html('<progress value="{}" max="1"></progress> ', f"{share:.3f}") if total else ""
    return format_html("{}{} {}", bar, amount, message)


def relative(instant: datetime, now: datetime) -> SafeString:
    """The time until an instant or since: *in 5 minutes*, *40.0 s ago*, with the instant as tooltip."""
    since = (now - instant).total_seconds()
    return _time(instant, until(instant, now) if since < 0 else str(_("%(time)s ago") % {"time": seconds(since)}))


def ago(instant: datetime | None, now: datetime) -> SafeString | str:
    """The time since an instant: *40 s*, with the instant as tooltip."""
    return "–" if instant is None else _time(instant, seconds((now - instant).total_seconds()))


class Pages(NamedTuple):
    """The addresses of our pages on the admin site of the page that links to them.

    ``database``: the alias of the rows, if several databases are served.
    """

    site: str
    database: str = ""

    def page(self, view: str, /, *args: object, **query: Any) -> str:
        """Return the URL of a page; ``view``: its name without *pgjobs_*, ``args`` as they stand in the URL.

        The first of them is the id of a row.
        """
        if self.database and args:
            args = (f"{quote(self.database)}:{args[0]}", *args[1:])
        elif self.database:
            query = {"database": self.database, **query}
        url = reverse(f"admin:pgjobs_{view}", args=args, current_app=self.site)
        return f"{url}?{urlencode(query)}" if query else url

    def shown(self, row_id: object) -> str:
        """Return the id of a row for people: *17*, or *eu1:17*."""
        return f"{self.database}:{row_id}" if self.database else str(row_id)

    def job(self, job_id: int) -> str:
        """Return the URL of a job's page."""
        return self.page("job_change", job_id)

    def jobs(self, **filters: object) -> str:
        """Return the URL of the list of jobs that match the filters."""
        return self.page("job_changelist", **filters)

    def members(self, batch_id: int, total: int = 0, **filters: str) -> str:
        """Return the URL of the list of a batch's members; ``total``: how many it has, so that all are looked at."""
        far = {"reach": "far"} if filters and total > reach.NEAR else {}
        return self.jobs(batch=batch_id, **filters, **far)

    def link(self, job: Job) -> str:
        """A link to a job, with its description and state."""
        link = link_to(f"{job.name} #{self.shown(job.pk)}", self.job(job.pk))
        about = format_html(" {}", short(job.description, 60)) if job.description else ""
        return format_html("{}{} {}", link, about, badge(label_of(job)))

    def links(self, jobs: Sequence[Job]) -> str:
        """Links to jobs, one a line."""
        return format_html_join("", "<div>{}</div>", ((self.link(each),) for each in jobs))
