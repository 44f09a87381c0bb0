"""Memos and waits of a durable function, for its page and for the shell."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from django.db.models import TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Left
from django.utils.translation import gettext_lazy as _

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.fields import LATEST_FIRST
from django_pgjobs.models import EventState, Job, Memo
from django_pgjobs.presentation.sight import Fact, Hidden, may_see
from django_pgjobs.presentation.wording import json_text, parsed
from django_pgjobs.states import FlowFlag, MemoKind, Outcome
from django_pgjobs.store import memos
from django_pgjobs.store.database import on
from django_pgjobs.store.memos import Suspension

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable

    from django_pgjobs.presentation.job_rows import MemoRow

MOST = 200
"""Number of memos that are shown, the latest ones."""

RESULT_CHARS = 4000
"""Number of characters of a result that are read: a job may remember a thousand, of a megabyte each."""


class Remembered(NamedTuple):
    """The latest memos of a job, latest first, and how many there are before them."""

    memos: list[MemoRow]
    more: int


def remembered(job: Job) -> Remembered:
    """Return what a job remembers, results as text; no query for one that remembers nothing."""
    if not job.flow & FlowFlag.REMEMBERS:
        return Remembered([], 0)
    every = Memo.objects.using(job._state.db).filter(job_id=job.pk)
    texts: dict[str, Combinable] = {
        "result_text": Left(Cast("result", TextField()), RESULT_CHARS + 1),
        "undo_name": Left(KeyTextTransform("name", "undo"), 200),
        "error_start": Left("error", 2000),
        "name_start": Left("name", 500),
        "event_start": Left("event", 500),
    }
    rows = every.annotate(**texts).defer("result", "undo", "error", "name", "event").order_by(LATEST_FIRST)
    memos = cast("list[MemoRow]", list(rows[: MOST + 1]))
    return Remembered(memos[:MOST], every.count() - MOST if len(memos) > MOST else 0)


def suspension(job: Job) -> Suspension | None:
    """Return what a suspended job waits for; None for one that runs, has ended or waits for nothing."""
    if not job.flow & FlowFlag.REMEMBERS or job.outcome or job.ending or job.claim_id:
        return None
    return memos.read_suspension(on(job._state.db or "default"), job.pk)


def awaited(job_id: int, using: str | None) -> str | None:
    """Return the stored name of the unsent event that a job waits for; None if there is none."""
    found = Memo.objects.using(using).filter(
        job_id=job_id, kind=MemoKind.EVENT, finished_at=None, wake_at__isnull=False, event__isnull=False
    )
    name = found.order_by(LATEST_FIRST).values_list("event", flat=True).first()
    if name is None or EventState.objects.using(using).filter(pk=name, sent_at__isnull=False).exists():
        return None
    return name


def standing(memo: MemoRow, job: Job) -> object:
    """Return how far a memo is, in a word or two; its ``wake_at`` says until when."""
    if memo.finished_at is not None:
        if not memo.error_start:
            return _("done")
        return _("timed out") if memo.kind == MemoKind.EVENT else _("failed")
    if job.outcome:
        return _("not finished")
    words: dict[str, object] = {
        MemoKind.STEP: _("is tried again"),
        MemoKind.SLEEP: _("sleeps"),
        MemoKind.EVENT: _("waits"),
    }
    return words.get(memo.kind, _("waits"))


def result_of(memo: MemoRow, job: Job, *, reveal: bool) -> str | Hidden:
    """Return what a memo keeps as text, at most ``RESULT_CHARS``; empty for nothing.

    ``sight`` says whether it is hidden. A gather shows how its jobs ended: they have own pages.
    """
    text: str | None = memo.result_text
    if text is None:
        return ""
    if memo.kind == MemoKind.GATHER:
        return _gathered(text)
    fact = Fact.EVENT_PAYLOAD if memo.kind == MemoKind.EVENT else Fact.STEP_RESULT
    if memo.kind != MemoKind.VERSION and not may_see(fact, job.name, reveal=reveal):
        return Hidden(_("hidden"))
    if len(text) > RESULT_CHARS:
        return f"{text[:RESULT_CHARS]}…"
    try:
        return json_text(parsed(text), len(text))
    except UnreadablePayload:
        return text


def _gathered(text: str) -> str:
    """*3 succeeded, 1 abandoned*; empty while they run, or if there are too many to count here."""
    try:
        members = json.loads(text)["members"]
        ends = Counter(str(member[0]) for member in members)
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return ", ".join(f"{ends[outcome]} {outcome}" for outcome in Outcome if ends[outcome])
