"""The plans that ``using`` makes for one definition, remembered: most calls name the same few queues and priorities.

Loaded at the first ``using``, since most processes that declare jobs register without options.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple

from django.apps import apps

from django_pgjobs.definition import queue_names
from django_pgjobs.definition.options import BYPASSED, OPTION_OF, Plan, checked_register_options
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import facts
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.definition.policy import JobPolicy

STEADY = frozenset({"queue", "priority", "timeout", "max_attempts", "database", "on_crash", "memory"})
"""Options whose values many calls share. Their checks ask neither the clock nor another option."""

PLAIN = frozenset({str, int, float, NoneType, timedelta})
"""The types of values to remember a plan by: equal values of one of them mean the same."""

MOST = 256
"""Maximum number of plans that a definition remembers; beyond it, it drops them all. A project may have a queue for
each customer."""


WITH_BYPASS = frozenset({"bypass", "queue", "timeout", "description"})
"""Options that still apply to a job that bypasses the queue."""


class Variant(NamedTuple):
    """The effect of options of ``using``: the checked fields of the plan that they set, and the whole plan."""

    fields: Mapping[str, object]
    plan: Plan


class Plans:
    """The plans of one definition beside its own. Thread-safe: a plan is found beside the own one it was made from."""

    def __init__(self, definition: JobPolicy) -> None:
        self._definition = definition
        self._known: tuple[Plan | None, dict[tuple[object, ...], Variant]] = (None, {})

    def of(self, given: Mapping[str, object]) -> Variant:
        """Return what ``using(**given)`` makes. Never blocks; repeatable. Raises ``InvalidJob``, ceilings included."""
        own = self._definition._plan
        steady, others = _parted(given)
        variant = self._steady(own, steady) if steady else Variant({}, own)
        return made(self._definition, variant.fields, others) if others else variant

    def _steady(self, own: Plan, given: Mapping[str, object]) -> Variant:
        made_from, known = self._known
        if made_from is not own:  # the settings have changed
            known = {}
            self._known = own, known
        # Not by equality alone: 1 == True == 1.0, and only one of them is a priority.
        at = tuple([(option, value.__class__, value) for option, value in given.items()])
        variant = known.get(at)
        if variant is None:
            variant = made(self._definition, {}, given)
            if apps.ready:  # before, the notice of a misspelt queue waits for the other modules of jobs
                if len(known) >= MOST:
                    known.clear()
                known[at] = variant
        return variant


def made(definition: JobPolicy, before: Mapping[str, object], given: Mapping[str, object]) -> Variant:
    """Return what ``using(**given)`` makes of the checked fields ``before``. Raises ``InvalidJob``."""
    try:
        _check_bypass({**before, **given})
        fields = {**before, **checked_register_options(given)}
        plan = definition._plan.changed(fields)
    except InvalidOption as error:
        raise InvalidJob(f"job {definition.name!r}: {error}") from None
    if "queue" in given:
        queue_names.notice(plan.queue, facts("name=%s", definition.name), plan.conf)
    return Variant(fields, plan)


def _check_bypass(given: Mapping[str, object]) -> None:
    """Refuse options that mean nothing for a job that runs at once, once, and is not stored."""
    for option, value in given.items() if given.get("bypass") is True else ():
        if option not in WITH_BYPASS and value is not None:
            raise InvalidOption(f"{OPTION_OF.get(option, option)} and bypass exclude each other: {BYPASSED}")


def _parted(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the options to remember a plan by, and the others; among these all, if they must be checked together."""
    steady: dict[str, object] = {}
    others: dict[str, object] = {}
    for option, value in given.items():
        if option in STEADY and value.__class__ in PLAIN:
            steady[option] = value
        else:
            others[option] = value
    return ({}, dict(given)) if others.get("bypass") is True else (steady, others)
