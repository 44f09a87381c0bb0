"""Read the headers of a row. Middleware and other writers of rows may have put anything there."""

from __future__ import annotations

import json

from django_pgjobs.states import TASK_HEADER


def inherited(text: str | None) -> str | None:
    """Return the headers, given as JSON, of what this package registers on behalf of a job with these."""
    try:
        headers = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(headers, dict):
        return None
    kept = {name: value for name, value in headers.items() if name != TASK_HEADER}
    return json.dumps(kept, ensure_ascii=False) if kept else None


def task_header(text: str | None) -> dict[str, object] | None:
    """Return what the front for ``django.tasks`` keeps in headers, given as JSON; None if there is no such object."""
    try:
        headers = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    kept = headers.get(TASK_HEADER) if isinstance(headers, dict) else None
    return kept if isinstance(kept, dict) else None
