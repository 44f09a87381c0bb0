"""A job's facts as people read them: words, times in the project's zone, JSON, arguments by name.

Whatever comes from a row is text of strangers: it is escaped (``format_html``), bounded in length, and may be
malformed, since anybody who can write the table can write anything into it. Nothing here raises for that.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timeuntil
from django.utils.translation import gettext_lazy as _

from django_pgjobs import payload, states
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.models import Job
from django_pgjobs.registry import registry

STATE_LABELS: dict[str, Any] = {"scheduled": _("scheduled"), "retrying": _("retrying"), **dict(Job.State.choices)}
"""State or label → the word people are shown."""

SHOWN_CHARS = 10_000
"""How much of one value is shown."""

REVIVED_CHARS = 65_536
"""Up to this size stored values are shown as they were given (a date, not its tag)."""

_ANY = inspect.signature(lambda *args, **kwargs: None)


class Hidden(NamedTuple):
    """Why arguments are not shown."""

    reason: Any


def grouped(number: int) -> str:
    """10000 as 10,000, in the reader's language."""
    return formats.number_format(number, force_grouping=True)


def label_of(job: Any) -> str:
    """State or label of a job that was read with ``now``, the database's clock."""
    return states.label(job.state, job.run_at, job.attempt, job.now)


def badge(state: str) -> SafeString:
    """The state as a word in its colour."""
    return format_html('<span class="pgjobs-state pgjobs-{}">{}</span>', state, STATE_LABELS.get(state, state))


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


def seconds(duration: float | None) -> str:
    """A duration in the unit that suits it."""
    if duration is None:
        return "–"
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 120 else f"{minutes} min {rest:02} s"


def until(instant: datetime, now: datetime) -> str:
    """*in 5 minutes*, for an instant to come."""
    return str(_("in %(time)s") % {"time": timeuntil(instant, now)}) if instant > now else ""


def short(text: str, limit: int) -> SafeString | str:
    """The beginning of a text, with the whole (bounded) as its tooltip."""
    if len(text) <= limit:
        return text
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


def parsed(text: str | None) -> Any:
    """The value of a JSON text from the database. Raises ``UnreadablePayload``."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(str(error)) from error


def json_text(value: Any, size: int = 0) -> str:
    """A stored value, indented; ``size`` is that of its JSON text."""
    try:
        shown = payload.revive(value) if size <= REVIVED_CHARS else value
    except UnreadablePayload:
        shown = value
    try:
        return json.dumps(shown, indent=2, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(_("(cannot be shown)"))


def json_block(text: str | None) -> SafeString | str:
    """A JSON column read as text."""
    try:
        return block(json_text(parsed(text), len(text or "")))
    except UnreadablePayload:
        return block(text or "")


def arguments(name: str, text: str, *, reveal: bool) -> list[tuple[str, str]] | Hidden:
    """(name, value) of each argument of the job ``name`` from its payload as JSON text.

    Without ``reveal`` what the definition calls sensitive is hidden, and all of it where this process does not
    know the definition or the payload is malformed: nobody can tell then what is sensitive.
    """
    definition = registry.find(name)
    if definition is None and not reveal:
        return Hidden(_("Hidden: this process does not know the job, so it cannot tell which arguments are sensitive."))
    try:
        args, kwargs = _taken_apart(text)
    except UnreadablePayload:
        malformed = _("Hidden: this is no payload that django-pgjobs writes.")
        return [(str(_("not a payload")), text)] if reveal else Hidden(malformed)
    signature = definition.signature if definition else _ANY
    sensitive = frozenset() if reveal or definition is None else definition.sensitive
    shown = payload.redact(signature, args, kwargs, sensitive)
    return [(key, _argument(value, len(text))) for key, value in shown.items()]


def _argument(value: Any, size: int) -> str:
    return payload.HIDDEN if value == payload.HIDDEN else json_text(value, size)


def _taken_apart(text: str) -> tuple[list[Any], dict[str, Any]]:
    stored = parsed(text)
    if not isinstance(stored, dict) or not stored.keys() <= {"args", "kwargs"}:
        raise UnreadablePayload
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UnreadablePayload
    return args, kwargs


def table_of(rows: Iterable[tuple[Any, Any]]) -> SafeString:
    """Names and values, as they are; a value that is no safe text is escaped."""
    body = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td></tr>', rows)
    return format_html('<table class="pgjobs-facts"><tbody>{}</tbody></table>', body)


def progress_bar(text: str) -> SafeString:
    """A bar and the message; what is no progress of ours is shown as JSON."""
    try:
        told = parsed(text)
        n, total, message = told["n"], told.get("total"), str(told.get("message") or "")[:200]
        said = f"{float(n):g} / {float(total):g}" if total else f"{float(n):g}"
        share = min(max(float(n) / float(total), 0), 1) if total else 0
    except (UnreadablePayload, TypeError, LookupError, AttributeError, ArithmeticError, ValueError):
        return block(text)
    bar = format_html('<progress value="{}" max="1"></progress> ', f"{share:.3f}") if total else ""
    return format_html("{}{} {}", bar, said, message)


def links_of(chain_text: str, exception: str, message: str) -> list[tuple[str, str]]:
    """(exception, message) of a failure and its causes, the raised one first."""
    try:
        chain = parsed(chain_text)
    except UnreadablePayload:
        chain = None
    pairs = [link for link in chain if isinstance(link, list) and len(link) == 2] if isinstance(chain, list) else []
    return [(str(kind)[:200], str(text)[:2000]) for kind, text in pairs[:20]] or [(exception[:200], message[:2000])]
