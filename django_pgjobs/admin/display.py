"""What ``wording`` says of a job as HTML: badges, times in the project's zone, blocks of text, tables.

Whatever comes from a row is text of strangers: it is bounded in length and escaped, HTML as well as what a browser
obeys and nobody sees. So our pages take ``format_html`` from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils import html, timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.presentation.wording import SHOWN_CHARS, STATE_LABELS, grouped, json_text, parsed, seconds
from django_pgjobs.serialization.escapes import visible

_USER = re.compile(r"\w+\.\w+:\S+ (.+)", re.DOTALL)


def format_html(template: str, *values: Any, **named: Any) -> SafeString:
    """As Django's; of a text that is not safe what nobody sees is escaped too."""
    return html.format_html(template, *map(_seen, values), **{name: _seen(value) for name, value in named.items()})


def format_html_join(separator: str, template: str, rows: Iterable[tuple[Any, ...]]) -> SafeString:
    """As Django's; likewise."""
    return html.format_html_join(separator, template, (tuple(map(_seen, row)) for row in rows))


def _seen(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, SafeString) else value


def person(by: str) -> SafeString | str:
    """Who did something: of *auth.User:1 anna* the name, with all of it as its tooltip."""
    if not by:
        return "–"
    user = _USER.fullmatch(by)
    return format_html('<span title="{}">{}</span>', by[:500], user[1][:150]) if user else format_html("{}", by[:200])


def badge(state: str, word: Any = None) -> SafeString:
    """The state as a word in its colour: the word for a job in that state, or ``word``."""
    shown = STATE_LABELS.get(state, state) if word is None else word
    return format_html('<span class="pgjobs-state pgjobs-{}">{}</span>', state, shown)


def when(instant: datetime | None) -> SafeString | str:
    """An instant to the second, in the current zone."""
    return "–" if instant is None else _time(instant, f"{_local(instant):%Y-%m-%d %H:%M:%S}")


def briefly(instant: datetime, now: datetime) -> SafeString:
    """The same in a list: today's instants as a time of day, others to the minute."""
    local = _local(instant)
    return _time(instant, f"{local:%H:%M:%S}" if local.date() == _local(now).date() else f"{local:%Y-%m-%d %H:%M}")


def _local(instant: datetime) -> datetime:
    return timezone.localtime(instant) if timezone.is_aware(instant) else instant


def _time(instant: datetime, text: str) -> SafeString:
    full = f"{_local(instant):%Y-%m-%d %H:%M:%S}"
    return format_html('<time datetime="{}" title="{}">{}</time>', instant.isoformat(), full, text)


def short(text: str, limit: int) -> SafeString | str:
    """The beginning of a text, with the whole (bounded) as its tooltip."""
    if len(text) <= limit:
        return visible(text)
    return format_html('<span title="{}">{}…</span>', text[:1000], text[:limit])


def below(first: Any, second: Any) -> SafeString:
    """Two lines of a list's cell, the second one quiet, and left out if it is empty."""
    quiet = format_html('<br><span class="pgjobs-below">{}</span>', second) if second else ""
    return format_html("{}{}", first, quiet)


def block(text: str) -> SafeString:
    """A text as it is, bounded in length."""
    if len(text) <= SHOWN_CHARS:
        return format_html('<pre class="pgjobs-text">{}</pre>', text)
    note = _("%(count)s characters; only the beginning is shown") % {"count": grouped(len(text))}
    return format_html('<pre class="pgjobs-text">{}…</pre><p class="help">{}</p>', text[:SHOWN_CHARS], note)


def json_block(text: str | None) -> SafeString | str:
    """A JSON column read as text."""
    try:
        return block(json_text(parsed(text), len(text or "")))
    except UnreadablePayload:
        return block(text or "")


def table_of(rows: Iterable[tuple[Any, Any]]) -> SafeString:
    """Names and values, as they are; a value that is no safe text is escaped."""
    body = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', rows)
    return format_html('<table class="pgjobs-facts"><tbody>{}</tbody></table>', body)


def progress_bar(text: str) -> SafeString:
    """A bar and the message; what is no progress of ours is shown as JSON."""
    try:
        progress = parsed(text)
        n, total, message = progress["n"], progress.get("total"), str(progress.get("message") or "")[:200]
        amount = f"{float(n):g} / {float(total):g}" if total else f"{float(n):g}"
        share = min(max(float(n) / float(total), 0), 1) if total else 0
    except (UnreadablePayload, TypeError, LookupError, AttributeError, ArithmeticError, ValueError):
        return block(text)
    bar = format_html('<progress value="{}" max="1"></progress> ', f"{share:.3f}") if total else ""
    return format_html("{}{} {}", bar, amount, message)


def ago(instant: datetime | None, now: datetime) -> SafeString | str:
    """How long something has been so: *40 s*, with the instant as its tooltip."""
    return "–" if instant is None else _time(instant, seconds((now - instant).total_seconds()))
