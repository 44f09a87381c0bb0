"""A finding as data, and how a probe is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from django_pgjobs.serialization.escapes import one_line


class Severity(StrEnum):
    """The harm: jobs do not run or are lost; they may be, some day; or it is good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: ``id`` for programs, what it is, why it matters, and what to type.

    ``where``: files and lines; ``database``: the alias.
    """

    id: str
    severity: Severity
    what: str
    why: str
    cure: str
    where: tuple[str, ...] = ()
    database: str = ""

    def fields(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {**asdict(self), "where": list(self.where)}


NOT_READ = "not_read"


def probed(name: str, probe: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a probe finds; if it fails, that, which keeps no other from looking."""
    found: list[Finding] = []
    try:
        for each in probe():
            found.append(each)  # one by one: what was found before it failed stays
    except Exception as error:
        what = f"The probe {name} could not look: {one_line(error)}"
        why = "Others have looked. This one needs a right, or a time when the database is less busy."
        found.append(Finding(NOT_READ, Severity.NOTE, what, why, "manage.py pgjobs doctor"))
    return found


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the most harmful first."""
    order = list(Severity)
    return sorted(findings, key=lambda each: order.index(each.severity))
