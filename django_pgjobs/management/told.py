"""Prints problems and notes, for ``check``, ``top`` and ``stats`` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.management import output


def as_json(found: Sequence[HealthProblem]) -> dict[str, Any]:
    """Return problems and notes as JSON values."""
    values = [(each.is_note, {"code": each.code, "queue": each.queue, "text": each.text}) for each in found]
    return {
        "problems": [value for is_note, value in values if not is_note],
        "notes": [value for is_note, value in values if is_note],
    }


def lines_of(found: Sequence[HealthProblem]) -> list[str]:
    """Return a line for each problem, or *healthy*; then one for each note."""
    problems = [output.plain(f"{each.code}: {each.text}") for each in found if not each.is_note] or ["healthy"]
    return [*problems, *(output.plain(f"note: {each.code}: {each.text}") for each in found if each.is_note)]
