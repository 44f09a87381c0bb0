"""A job's facts in words, for the admin and the shell: labels, durations, JSON, arguments by name.

Rows are untrusted: every writer of the table can write anything into it. Malformed values never raise here.
Callers escape: HTML for the admin, control characters for the shell.
"""

from __future__ import annotations

import inspect
import json
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from django.template.defaultfilters import filesizeformat
from django.utils.timesince import timeuntil
from django.utils.translation import gettext_lazy as _

from django_pgjobs import states
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.models import Job
from django_pgjobs.presentation.sight import Fact, Hidden, hidden_names, may_see
from django_pgjobs.serialization import payload

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import StackRow

STATE_LABELS: dict[str, Any] = {
    "scheduled": _("scheduled"),
    "retrying": _("retrying"),
    "expired": _("expired"),
    "silent": _("worker silent"),
    "lost": _("lost"),
    **dict(Job.State.choices),
}
"""State or label → the word that people see."""

STACK_PROBLEMS: dict[str, object] = {
    "outside": _("It ran no code of its own at that moment."),
    "silent": _("Its executor did not answer in time: code in C may hold the interpreter."),
}
"""Why there is no stack, by code."""

SHOWN_CHARS = 10_000
"""Number of characters of one value to show."""

REVIVED_CHARS = 65_536
"""Up to this size, show stored values as registered (a date, not its tag)."""

_ANY = inspect.signature(lambda *args, **kwargs: None)


def size(number: int) -> str:
    """Format bytes in a suitable unit: 3.2 MB."""
    return filesizeformat(number).replace("\xa0", " ")


def label_of(job: Any) -> str:
    """Return state or label of a job whose query added ``now``, the database's clock, and ``fate``."""
    return getattr(job, "fate", "") or states.label(job.state, job.run_at, job.attempt, job.now)


def problem_of_stack(row: StackRow, job: Job) -> str:
    """Return why a request for a stack has none; empty if it has. ``row``: see ``stacks_of``."""
    if row.answered_at is not None:
        return str(STACK_PROBLEMS.get(row.code, row.code))
    if job.claim_id == row.claim_id and not job.outcome:
        return str(_("Not answered yet."))
    return str(_("The attempt ended before its worker answered."))


def until(instant: datetime, now: datetime) -> str:
    """Return *in 5 minutes* for a future instant."""
    return str(_("in %(time)s") % {"time": timeuntil(instant, now)}) if instant > now else ""


def seconds(duration: float | None) -> str:
    """Return a duration in a suitable unit."""
    if duration is None:
        return "–"
    if not isfinite(duration):
        return str(duration)  # of a row that others have written
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 120 else f"{minutes} min {rest:02} s"


def exactly(duration: float) -> str:
    """Return a duration in its largest exact unit: 90 s, 90 min, 36 h, 7 days. Stored, so not translated."""
    for unit, name in ((86_400, "day"), (3600, "h"), (60, "min")):
        count, rest = divmod(duration, unit)
        if count and not rest:
            return f"{count:.0f} {name}{'s' if name == 'day' and count > 1 else ''}"
    return f"{duration:.0f} s" if duration == int(duration) else f"{duration:g} s"


def parsed(text: str | None) -> Any:
    """Return the value of a JSON text from the database. Raises ``UnreadablePayload``."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(str(error)) from error


def json_text(value: object, size: int = 0) -> str:
    """Return a stored value as indented JSON; ``size`` is the length of its JSON text."""
    try:
        shown = payload.revive(value) if size <= REVIVED_CHARS else value
    except UnreadablePayload:
        shown = value
    try:
        return json.dumps(shown, indent=2, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(_("(cannot be shown)"))


def arguments(name: str, text: str, *, reveal: bool) -> list[tuple[str, str]] | Hidden:
    """Return (name, value) of each argument of the job ``name``; ``text`` is its payload as JSON.

    Without ``reveal``, sensitive arguments are hidden. The same goes for all arguments if this process does not know
    the definition or the payload is malformed: then there is no telling which ones are sensitive.
    """
    definition = registry.resolved(name)
    if definition is None and not reveal:
        return Hidden(_("Hidden: this process does not know the job, so it cannot tell which arguments are sensitive."))
    try:
        args, kwargs = _taken_apart(text)
    except UnreadablePayload:
        malformed = _("Hidden: django-pgjobs did not write this payload.")
        return [(str(_("not a payload")), text)] if reveal else Hidden(malformed)
    signature = definition._signature if definition else _ANY
    shown = payload.redact(signature, args, kwargs, hidden_names(definition, reveal=reveal))
    return [(key, _argument(value, len(text))) for key, value in shown.items()]


def result(name: str, text: str, *, reveal: bool) -> str | Hidden:
    """Return the result of a job ``name`` as it is stored; ``Hidden`` if it may contain what its arguments contain."""
    return text if may_see(Fact.RESULT, name, reveal=reveal) else Hidden(_("hidden"))


def _argument(value: object, size: int) -> str:
    return payload.HIDDEN if value == payload.HIDDEN else json_text(value, size)


def _taken_apart(text: str) -> tuple[list[object], dict[str, object]]:
    stored = parsed(text)
    if not isinstance(stored, dict) or not stored.keys() <= {"args", "kwargs"}:
        raise UnreadablePayload
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UnreadablePayload
    return args, kwargs


def links_of(chain_text: str, exception: str, message: str) -> list[tuple[str, str]]:
    """Return (exception, message) of a failure and its causes, the raised exception first."""
    try:
        chain = parsed(chain_text)
    except UnreadablePayload:
        chain = None
    pairs = [link for link in chain if isinstance(link, list) and len(link) == 2] if isinstance(chain, list) else []
    return [(str(kind)[:200], str(text)[:2000]) for kind, text in pairs[:20]] or [(exception[:200], message[:2000])]
