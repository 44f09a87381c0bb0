"""``manage.py pgjobs show`` and ``why``: all facts about one job, and why it does not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.inspection import why
from django_pgjobs.inspection.words import Reason, by_whom
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.batches import fields_of_undoing, undoing_facts
from django_pgjobs.management.output import Options
from django_pgjobs.models import Heartbeat, Job, Step
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation.flow import Surroundings, surroundings
from django_pgjobs.presentation.fronts import front_of
from django_pgjobs.presentation.job_rows import ATTEMPTS, finished_steps, latest_attempts, peaks_of, step_at, with_texts
from django_pgjobs.presentation.memos import Remembered, remembered, result_of, standing, suspension
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import SHOWN_CHARS, arguments, label_of, links_of, parsed, seconds
from django_pgjobs.presentation.wording import result as result_shown
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import acting
from django_pgjobs.store.database import at_read_committed, on

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgjobs.presentation.job_rows import JobRow, MemoRow

ACTIONS = 25
"""Number of actions that ``show`` prints, latest first."""

VIA_WORDS = {"admin": "in the admin", "shell": "in the shell", "code": "in code"}
"""``via`` of an action, in words."""

FIELDS = (
    "id", "name", "queue", "state", "outcome", "priority", "attempt", "max_attempts", "description", "created_at",
    "run_at", "ready_at", "claimed_at", "overdue_at", "finished_at", "timeout_seconds", "duration_seconds", "error",
    "hold", "hold_reason", "ending", "ending_attempt", "cancel_requested_at", "cancel_mode", "cancel_by",
    "cancel_reason", "release_requested_at", "key", "key_scope", "idempotency_key", "limit_key", "sequence",
    "cron_entry", "fire_at", "claim_id", "tags", "deadline", "expires_at",
)  # fmt: skip
"""Columns that become fields of the JSON unchanged."""

EXIT_HELP = "Exit status: 0, or 1 if there is no such job."


def add_subcommands(subcommands: object) -> None:
    """Declare ``show`` and ``why``."""
    text = "Show one job: state and reason, times, arguments, result, operators' actions, finished steps, and attempts."
    perform = databases.on_one(show_job, steers=False)
    parser = filters.declare(subcommands, "show", perform, text, description=f"{text} {EXIT_HELP}")
    filters.add_job(parser)
    text = "Show at most N attempts that did not succeed, latest first (default: %(default)s)."
    parser.add_argument("--attempts", metavar="N", type=filters.number, default=ATTEMPTS, help=text)
    text = "Explain in a sentence why a job does not run, or what happens to it, and what to do."
    perform = databases.on_one(show_why, steers=False)
    filters.add_job(filters.declare(subcommands, "why", perform, text, description=f"{text} {EXIT_HELP}"))


def show_why(command: BaseCommand, options: Options) -> None:
    """Print the reason; exit with 1 if there is no such job."""
    found = _reason(options["id"], filters.database_of(options))
    fields = {"id": options["id"], **_fields_of_reason(found)}
    where = output.ref(options["id"], "")
    output.answer(command, options, fields, [output.plain(f"{where}: {found}" if ":" in where else str(found))])
    output.exit_if(found.code == "unknown")


def show_job(command: BaseCommand, options: Options) -> None:
    """Print all facts; exit with 1 if there is no such job."""
    using = filters.database_of(options)
    reason = _reason(options["id"], using)
    with at_read_committed(using):
        job = _read(options["id"], using)
        if job is None:
            output.fail(command, str(why.unknown(options["id"])))
        steps = finished_steps(job)
        attempts = _attempts(job, steps, options["attempts"])
        actions, execution, memos = _actions(job), _execution(job), remembered(job)
        waits_for, around = suspension(job), surroundings(job)
    fields = {
        **_fields_of(job),
        **execution,
        "why": _fields_of_reason(reason),
        "actions": actions,
        **fields_of_undoing(around),
        "waits_for": None if waits_for is None else waits_for._asdict(),
        "memos": [_fields_of_memo(memo, job) for memo in memos.memos],
        "more_memos": memos.more,
        "steps": [_fields_of_step(step) for step in steps],
        "attempts": attempts,
    }
    lines = chain(_lines(job, reason, execution, around, actions), _history_lines(job, memos, steps, attempts))
    output.answer(command, options, fields, lines)


def _reason(job_id: int, using: str) -> Reason:
    with at_read_committed(using):
        return why.of(job_id, using)


def _fields_of_reason(reason: Reason) -> dict[str, str]:
    return {"code": reason.code, "text": reason.text, "advice": reason.advice}


def _read(job_id: int, using: str) -> JobRow | None:
    return with_texts(Job.objects.using(using)).filter(pk=job_id).first()


def _execution(job: Job) -> dict[str, object]:
    """Return the fields about the worker that has the job, or had it last."""
    using = job._state.db
    claims = Claim.objects.using(using).filter(claim_id=job.claim_id) if job.claim_id else ()
    lease = next((claim for claim in claims if job.pk in claim.job_ids), None)
    worker = lease.worker if lease else job.worker
    beat = Heartbeat.objects.using(using).filter(pk=worker).first() if worker else None
    return {
        "lease_expires_at": lease.lease_expires_at if lease else None,
        "worker": worker,
        "worker_name": beat.name if beat else None,
        "worker_state": beat.state if beat else None,
        "worker_last_beat_at": beat.last_beat_at if beat else None,
    }


def _actions(job: JobRow) -> list[dict[str, object]]:
    """Return the operators' actions on the job as JSON fields, latest first."""
    return [
        {
            "id": each.id,
            "acted_at": each.acted_at,
            "verb": each.verb,
            "mode": each.mode,
            "via": each.via,
            "by": each.acted_by,
            "reason": each.reason,
            "changed": each.changed,
            "filter": each.asked,
            "subject": each.subject,
        }
        for each in acting.list_actions(on(str(job._state.db)), job.pk, limit=ACTIONS)
    ]


def _fields_of_step(step: Step) -> dict[str, object]:
    names = ("name", "queue", "attempt", "worker_name", "finished_at", "duration_seconds")
    return {name: getattr(step, name) for name in names}


def _fields_of_memo(memo: MemoRow, job: JobRow) -> dict[str, object]:
    """Return a memo as JSON fields; its result only if nothing of it may be sensitive."""
    result = result_of(memo, job, reveal=False)
    names = ("kind", "failures", "wake_at", "created_at", "finished_at", "duration_seconds")
    return {
        "name": memo.name_start,
        "event": memo.event_start,
        **{name: getattr(memo, name) for name in names},
        "error": memo.error_start,
        "result": _value(result) if result and not isinstance(result, Hidden) else None,
        "result_hidden": isinstance(result, Hidden),
        "undo": memo.undo_name,
    }


def _attempts(job: JobRow, steps: list[Step], most: int) -> list[dict[str, object]]:
    """Return the attempts that did not succeed as JSON fields, latest first."""
    names = ("cause", "worker_name", "release", "started_at", "ended_at", "duration_seconds")
    peaks = peaks_of(job)
    return [
        {
            "number": row.number,
            "name": step_at(job, steps, row.ended_at),
            **{name: getattr(row, name) for name in names},
            "chain": [
                {"exception": kind, "message": text}
                for kind, text in links_of(row.chain_text, row.exception, row.words)
            ],
            "traceback": row.trace,
            "peak_megabytes": peaks.get(row.number, (None, None))[1],
        }
        for row in latest_attempts(job, most)
    ]


def _fields_of(job: JobRow) -> dict[str, object]:
    found = {column: getattr(job, column) for column in FIELDS}
    shown = arguments(job.name, job.payload_text, reveal=False)
    known = None if isinstance(shown, Hidden) else {name: _value(text) for name, text in shown}
    result = _result(job)
    front = front_of(job.name, job.headers_text)
    return {
        **found,
        "front": front.declared,
        "alias": front.alias,
        "label": label_of(job),
        "arguments": known,
        "arguments_hidden": str(shown.reason) if isinstance(shown, Hidden) else "",
        "headers": _stored(job.headers_text),
        "result": None if isinstance(result, Hidden) else _stored(result),
        "result_hidden": isinstance(result, Hidden),
        "progress": _stored(job.progress_text),
        "options": _stored(job.options_text),
        "memory": _memory(job),
    }


def _memory(job: JobRow) -> dict[str, int] | None:
    """Return the memory of the process of the latest attempt, if that was measured."""
    peak = peaks_of(job).get(job.attempt)
    return peak and {"start_megabytes": peak[0], "peak_megabytes": peak[1]}


def _result(job: JobRow) -> str | Hidden | None:
    return None if job.result_text is None else result_shown(job.name, job.result_text, reveal=False)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _stored(text: str | None) -> object:
    try:
        value = parsed(text)
        json.dumps(value)
    except (UnreadablePayload, ValueError, RecursionError):
        return text
    return value


# As text


def _lines(
    job: JobRow,
    reason: Reason,
    execution: dict[str, object],
    around: Surroundings,
    actions: list[dict[str, object]],
) -> Iterator[str]:
    yield output.plain(f"{output.ref(job.pk)} {job.name}")
    facts = [*_facts(job, reason, execution), *undoing_facts(around)]
    yield from output.facts((name, value) for name, value in facts if value not in ("", None))
    yield from _arguments_lines(job)
    yield from map(_action_line, actions)


def _history_lines(
    job: JobRow, memos: Remembered, steps: list[Step], attempts: list[dict[str, object]]
) -> Iterator[str]:
    for memo in memos.memos:
        yield from _memo_lines(memo, job)
    if memos.more:
        yield f"and {memos.more} before them"
    yield from map(_step_line, steps)
    for attempt in attempts:
        yield from _attempt_lines(attempt, whole=attempt is attempts[0], named=bool(steps))


def _facts(job: JobRow, reason: Reason, execution: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "state", label_of(job) + (f", then {job.ending}" if job.ending and not job.outcome else "")
    yield "why", str(reason)
    yield "front", str(front_of(job.name, job.headers_text))
    yield "description", job.description
    yield "queue", f"{job.queue}, priority {job.priority}"
    yield "attempt", f"{job.attempt} of {job.max_attempts}"
    # Otherwise they belong to a past claim.
    claimed = ("claimed_at",) if job.claim_id or job.outcome else ()
    overdue = ("overdue_at",) if job.claim_id and not job.outcome else ()
    instants = ("created_at", "run_at", "ready_at", *claimed, *overdue, "finished_at", "fire_at", "deadline")
    for column in (*instants, "expires_at"):
        yield column.replace("_", " "), _instant(getattr(job, column))
    yield "took", "" if job.duration_seconds is None else seconds(job.duration_seconds)
    memory = _memory(job)
    yield "memory", memory and "{start_megabytes} MB at the start, at most {peak_megabytes} MB".format(**memory)
    yield "timeout", "unlimited" if job.timeout_seconds is None else seconds(job.timeout_seconds)
    for column in ("key", "idempotency_key", "limit_key", "sequence", "cron_entry", "claim_id"):
        yield column.replace("_", " ").removesuffix(" id"), getattr(job, column)
    yield "options", _bounded(job.options_text)
    yield "tags", ", ".join(map(str, job.tags))
    yield "lease", _instant(execution["lease_expires_at"])
    yield "worker", execution["worker_name"] or execution["worker"]
    yield "progress", _bounded(job.progress_text)
    yield "headers", _bounded(job.headers_text)
    result = _result(job)
    yield "result", result.reason if isinstance(result, Hidden) else _bounded(result)
    yield "error", _bounded(job.error)


def _instant(value: datetime | None) -> str:
    return output.instant(value) if value is not None else ""


def _bounded(text: str | None) -> str:
    if text is None or len(text) <= SHOWN_CHARS:
        return text or ""
    return f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"


def _arguments_lines(job: JobRow) -> Iterator[str]:
    shown = arguments(job.name, job.payload_text, reveal=False)
    if isinstance(shown, Hidden):
        yield from output.facts([("arguments", shown.reason)])
        return
    yield "arguments:" if shown else "arguments:     none"
    yield from (f"  {line}" for line in output.facts((name, _bounded(text)) for name, text in shown))


def _action_line(action: dict[str, Any]) -> str:
    mode = f" ({action['mode'] or action['subject']})" if action["mode"] or action["subject"] else ""
    by, where = by_whom(action["by"]), VIA_WORDS.get(action["via"], action["via"])
    chosen_by = f" ({action['filter']})" if action["filter"] else ""
    many = f", one of {action['changed']}" if action["changed"] != 1 or chosen_by else ""
    reason = f": {action['reason']}" if action["reason"] else ""
    what = f"action {action['id']}: {action['verb']}{mode} at {output.instant(action['acted_at'])}"
    return output.plain(one_line(f"{what}{by}, {where}{many}{chosen_by}{reason}"))


def _memo_lines(memo: MemoRow, job: JobRow) -> Iterator[str]:
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


def _step_line(step: Step) -> str:
    took = "" if step.duration_seconds is None else f", took {seconds(step.duration_seconds)}"
    worker = f" on {step.worker_name}" if step.worker_name else ""
    return output.plain(f"step {one_line(step.name)} finished at {output.instant(step.finished_at)}{worker}{took}")


def _attempt_lines(attempt: dict[str, Any], *, whole: bool, named: bool) -> Iterator[str]:
    took = "" if attempt["duration_seconds"] is None else f", took {seconds(attempt['duration_seconds'])}"
    worker = f" on {attempt['worker_name']}" if attempt["worker_name"] else ""
    release = f", release {attempt['release']}" if attempt["release"] else ""
    name = f" of {one_line(attempt['name'])}" if named else ""
    head = f"attempt {attempt['number']}{name} {attempt['cause']} at {output.instant(attempt['ended_at'])}"
    peak = "" if attempt["peak_megabytes"] is None else f", peak {attempt['peak_megabytes']} MB"
    yield output.plain(f"{head}{worker}{release}{took}{peak}")
    for link in attempt["chain"]:
        yield from (f"  {line}" for line in output.block(": ".join(filter(None, link.values()))))
    if whole and attempt["traceback"]:
        yield from (f"  | {line}" for line in output.block(attempt["traceback"].rstrip()))
