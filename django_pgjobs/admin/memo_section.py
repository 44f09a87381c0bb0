"""The sections of a job's page on what a durable function remembers, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import FactList, Pages, block, format_html, format_html_join, short, when
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.memos import remembered, result_of, standing
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import MemoKind
from django_pgjobs.store.memos import Suspension

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow

KINDS: dict[str, object] = {
    MemoKind.STEP.value: _("step"),
    MemoKind.SLEEP.value: _("sleep"),
    MemoKind.EVENT.value: _("event"),
    MemoKind.GATHER.value: _("gather"),
    MemoKind.VERSION.value: _("version"),
}

INLINE_CHARS = 80
"""Longer results are folded."""


def memo_rows(job: JobRow) -> tuple[list[dict[str, object]], str]:
    """Return the rows of the table of memos, latest first, and a remark on those left out."""
    found = remembered(job)
    rows = [
        {
            "name": short(memo.name_start, 120),
            "kind": KINDS.get(memo.kind, visible(memo.kind)),
            "standing": standing(memo, job),
            "until": when(memo.wake_at) if memo.finished_at is None and memo.wake_at and not job.outcome else "",
            "failures": grouped(memo.failures) if memo.failures else "",
            "began": when(memo.created_at),
            "took": seconds(memo.duration_seconds),
            "result": _result(result_of(memo, job, reveal=job.reveal)),
            "error": visible(memo.error_start),
            "undo": visible(memo.undo_name or ""),
        }
        for memo in found.memos
    ]
    more = _("and %(count)s before them") % {"count": grouped(found.more)} if found.more else ""
    return rows, more


def _result(text: str | Hidden) -> object:
    if isinstance(text, Hidden):
        return format_html('<span class="quiet">{}</span>', text.reason)
    if len(text) <= INLINE_CHARS and "\n" not in text:
        return format_html("<code>{}</code>", text) if text else ""
    return format_html("<details><summary>{}</summary>{}</details>", _("Show"), block(text))


def waiting_facts(waits_for: Suspension, pages: Pages) -> FactList:
    """Facts about what a suspended job waits for, and until when."""
    kind = capfirst(str(KINDS.get(waits_for.kind, waits_for.kind)))
    if waits_for.kind == MemoKind.GATHER:
        return [(kind, short(waits_for.name, 120)), (_("jobs"), _gathered(waits_for, pages))]
    until: dict[str, object] = {MemoKind.EVENT: _("at most until"), MemoKind.STEP: _("tried again at")}
    return [
        (kind, short(waits_for.event or waits_for.name, 120)),
        (until.get(waits_for.kind, _("until")), when(waits_for.wake_at)),
        (_("failures"), grouped(waits_for.failures) if waits_for.failures else None),
        (_("error"), block(waits_for.error) if waits_for.error else None),
    ]


def _gathered(waits_for: Suspension, pages: Pages) -> str | None:
    if waits_for.batch_id is None:
        return None
    counts = {"pending": grouped(waits_for.pending or 0), "total": grouped(waits_for.total or 0)}
    figures = _("%(pending)s of %(total)s have not ended") % counts
    links = ((pages.job(waits_for.batch_id), figures), (pages.members(waits_for.batch_id), _("all of them")))
    return format_html_join(", ", '<a href="{}">{}</a>', links)
