"""Permissions to see: the one table of what the permission ``view_payload`` covers, and the answers that every door
asks.

The doors are the pages, the search, the forms and the shell, which shows what a user without the permission sees. A
test walks all of them. The docs print this table.
"""

from __future__ import annotations

from enum import StrEnum
from inspect import Parameter
from typing import NamedTuple

from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry

PERMISSION = "pgjobs.view_payload"


class Fact(StrEnum):
    """A fact that a door may show, find or let people write."""

    ARGUMENT = "an argument of a job or a cron entry"
    FOUND = "jobs found by an argument (`arg.name:value`)"
    WRITTEN = "arguments of a schedule, in its form, and those that override a cron entry's"
    RESULT = "the result of a job"
    STEP_RESULT = "the result of a step"
    LINES = "the lines that a job logs"
    EVENT_PAYLOAD = "the payload of an event, on its page and among what a job remembers"
    OPEN = (
        "names, keys, limit keys, tags, descriptions, progress, headers, options, errors, tracebacks, notices, "
        "metrics, sizes"
    )


class Without(StrEnum):
    """Treatment of a fact without the permission."""

    EACH = "hidden if `sensitive` names it; all are if this process does not know the job or they do not fit it"
    FINDS = "as far as they are shown"
    ALL_OR_NONE = "hidden if the job has `sensitive` arguments, or this process does not know it"
    NOT_WRITTEN = "not written if the job has `sensitive` arguments"
    NEVER = "hidden"
    ALWAYS = "shown: code puts no secret there; a template that names a `sensitive` argument is refused"


TABLE: dict[Fact, Without] = {
    Fact.ARGUMENT: Without.EACH,
    Fact.FOUND: Without.FINDS,
    Fact.WRITTEN: Without.NOT_WRITTEN,
    Fact.RESULT: Without.ALL_OR_NONE,
    Fact.STEP_RESULT: Without.ALL_OR_NONE,
    Fact.LINES: Without.ALL_OR_NONE,
    Fact.EVENT_PAYLOAD: Without.NEVER,
    Fact.OPEN: Without.ALWAYS,
}


class Hidden(NamedTuple):
    """The reason why something is hidden."""

    reason: object


def may_see(fact: Fact, job_name: str, *, reveal: bool) -> bool:
    """Return whether a fact of this job as a whole may be shown, or written; ``reveal``: to users with the
    permission."""
    rule = TABLE[fact]
    if reveal or rule is Without.ALWAYS:
        return True
    if rule is Without.NEVER:
        return False
    definition = registry.resolved(job_name)
    return definition is not None and not definition.sensitive


def hidden_names(definition: JobPolicy | None, *, reveal: bool) -> frozenset[str]:
    """Return the names of arguments to hide, for ``redact``."""
    return frozenset() if reveal or definition is None else definition.sensitive


BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def findable(definition: JobPolicy, name: str, *, reveal: bool) -> tuple[bool, int | None]:
    """Return whether a search by this argument finds jobs of this definition by keyword, and by which position, if any.

    By none that ``redact`` hides. Of a definition with sensitive arguments ``fits_the_function`` must hold, too, for a
    position: those of older code are hidden.
    """
    parameters = list(definition._signature.parameters.values())
    positions = {each.name: position for position, each in enumerate(parameters) if each.kind in BY_POSITION}
    hidden = hidden_names(definition, reveal=reveal)
    if not hidden:
        return True, positions.get(name)
    named = {each.name for each in parameters if each.kind in BY_NAME}
    return name in named - hidden, None if name in hidden else positions.get(name)
