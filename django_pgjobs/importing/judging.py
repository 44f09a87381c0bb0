"""Judge a job of another queue: the row to register here, what differs from there, or why it is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_pgjobs.definition.keys import OnConflict
from django_pgjobs.definition.options import Plan
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import PRIORITIES
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.importing.sources import UNREADABLE, Waiting
from django_pgjobs.registering.encode import Row, new_job
from django_pgjobs.values.built_in import is_built_in


class Judged(NamedTuple):
    """The row to register, or why there is none; ``differences``: what is not as it was in the other queue."""

    row: Row | None
    differences: list[str]
    reason: str = ""
    key: tuple[str, str | None] = ("", None)
    """Its queue, and the key that it takes there."""


def judge(found: Waiting, default_queue: str, using: str) -> Judged:
    """Judge a job of another queue; ``default_queue``: what that calls the queue of a job that names none."""
    differences = [f"without its {each}" for each in found.lost]
    if found.former is not None:
        return Judged(None, differences, f"was imported before, as job {found.former}")
    if found.unreadable:
        return Judged(None, differences, found.unreadable)
    try:
        definition = definition_of(found.name)
        options = _options(definition, found, default_queue, differences)
        return judge_call(definition, options, found.args, found.kwargs, using)._replace(differences=differences)
    except (InvalidJob, UnknownJob, *UNREADABLE) as error:
        return Judged(None, differences, str(error))


def definition_of(name: str) -> Any:
    """Return the job of this name. Raises ``UnknownJob``, and ``InvalidJob`` for a job of this package."""
    if is_built_in(name):
        raise InvalidJob(f"{name!r} is a name of this package's own jobs")
    return registry.resolve(name)


def judge_call(
    definition: Any, options: dict[str, Any], args: Sequence[object], kwargs: dict[str, Any], using: str
) -> Judged:
    """Judge a call with these options of ``using``: it never replaces a job here. Raises what ``register`` raises."""
    definition._fits(*args, **kwargs)
    plan = check_plan(definition, options, using)
    if plan.key is not None and plan.on_conflict != OnConflict.EXISTING:
        plan = plan.changed({"on_conflict": OnConflict.EXISTING, "key_scope": plan.scope})
    row = Row(definition, plan, tuple(args), kwargs)
    new = new_job(row, None)
    return Judged(row, [], key=(new.queue, new.key))


def check_plan(definition: Any, options: dict[str, Any], using: str) -> Plan:
    """Return the plan of calls with these options. Raises ``InvalidJob`` if they go to another database."""
    plan: Plan = definition._plan_with(**options)
    if plan.database not in (None, using):
        raise InvalidJob(f"its jobs go to database {plan.database!r}")
    return plan


def _options(definition: Any, found: Waiting, default_queue: str, differences: list[str]) -> dict[str, Any]:
    options = dict(found.options)
    if found.queue == default_queue:
        if definition.queue != default_queue:
            differences.append(f"queue {definition.queue}, not {default_queue}")
    elif found.queue:
        options["queue"] = found.queue
    options["priority"] = min(max(found.priority, PRIORITIES[0]), PRIORITIES[-1])
    if options["priority"] != found.priority:
        differences.append(f"priority {options['priority']}, not {found.priority}")
    if found.attempts:
        options["max_attempts"] = max(1, definition.max_attempts - found.attempts)
        differences.append(f"{options['max_attempts']} attempts left, after {found.attempts} there")
    return options
