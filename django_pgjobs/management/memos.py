"""The part of ``pgjobs show`` about a durable function: its memos, what it undoes, and what undoes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django_pgjobs.management import output
from django_pgjobs.presentation.flow import Surroundings, Undone
from django_pgjobs.presentation.memos import result_of, standing
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import label_of, seconds
from django_pgjobs.serialization.escapes import one_line


def fields_of_memo(memo: Any, job: Any) -> dict[str, Any]:
    """Return a memo as JSON fields; its result only if nothing of it may be sensitive."""
    result = result_of(memo, job, reveal=False)
    names = ("kind", "failures", "wake_at", "created_at", "finished_at", "duration_seconds")
    return {
        "name": memo.name_start,
        "event": memo.event_start,
        **{name: getattr(memo, name) for name in names},
        "error": memo.error_start,
        "result": None if isinstance(result, Hidden) else _value(result),
        "result_hidden": isinstance(result, Hidden),
        "undo": memo.undo_name,
    }


def _value(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def memo_lines(memo: Any, job: Any) -> Iterator[str]:
    """Yield a memo in lines: *step charge: done at 2030-01-31 03:00:00, took 1.5 s*, then error and result."""
    words = f"{memo.kind} {one_line(memo.name_start)}: {standing(memo, job)}"
    if memo.finished_at is not None:
        words += f" at {output.instant(memo.finished_at)}"
        words += "" if memo.duration_seconds is None else f", took {seconds(memo.duration_seconds)}"
    elif memo.wake_at is not None and not job.outcome:
        words += f" until {output.instant(memo.wake_at)}"
    yield output.plain(words + (f", failures: {memo.failures}" if memo.failures else ""))
    result = result_of(memo, job, reveal=False)
    for text in (memo.error_start, "" if isinstance(result, Hidden) else result):
        yield from (f"  {line}" for line in output.block(text) if text)


def fields_of_undoing(around: Surroundings) -> dict[str, Any]:
    """Return what the job undoes, and what undoes it, as JSON fields."""
    undoing = [Undone("", around.undo)] if around.undo is not None else []
    return {
        "target": None if around.target is None else _fields_of(around.target),
        "compensations": [_fields_of(each) for each in undoing + around.compensations],
        "more_compensations": around.more_compensations,
    }


def _fields_of(undone: Undone) -> dict[str, Any]:
    job = undone.job
    return {"id": job.pk, "name": job.name, "state": job.state, "step": undone.step}


def undoing_facts(around: Surroundings) -> Iterator[tuple[str, str]]:
    """Yield the same as names and texts."""
    if around.target is not None:
        yield "undoes", _words_of(around.target)
    if around.undo is not None:
        yield "undone by", _words_of(Undone("", around.undo))
    more = [f"and {around.more_compensations} more"] if around.more_compensations else []
    yield "parts undone", "\n".join([*map(_words_of, around.compensations), *more])


def _words_of(undone: Undone) -> str:
    step = f", step {one_line(undone.step)}" if undone.step else ""
    return f"{one_line(undone.job.name)} #{undone.job.pk} {label_of(undone.job)}{step}"
