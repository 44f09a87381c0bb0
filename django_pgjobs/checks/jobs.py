"""Check the declarations of jobs and cron entries against the settings and for contradictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning

from django_pgjobs.checks.settings import valid_conf
from django_pgjobs.conf import Conf
from django_pgjobs.definition.discovery import cure_of, modules_of, unfound_crons, unfound_jobs
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob

OPTION_SETTINGS = (
    "BOUNDS['max_attempts']",
    "BOUNDS['timeout_seconds']",
    "BOUNDS['backoff_base_seconds']",
    "BOUNDS['backoff_factor']",
    "BOUNDS['key_pattern']",
)
"""Settings that restrict the declarations of jobs."""


def check_definitions(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that declarations agree with the settings and do not contradict themselves."""
    if (conf := valid_conf()) is None:
        return
    for definition in registry.definitions():
        yield from _check_definition(definition, conf)
    for entry in registry.crons():
        try:
            entry.declared()
        except InvalidJob as error:
            yield Error(str(error), hint="Correct the entry or the setting.", obj=entry, id="pgjobs.E017")


def check_modules(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that each pattern of ``MODULES`` names a module, and that workers find what this process declares."""
    if (conf := valid_conf()) is None:
        return
    for pattern in conf.modules:
        if not modules_of(pattern):
            yield Warning(
                f'PGJOBS["MODULES"] has {pattern!r}, which names no module.',
                hint="Write the dotted path of a module, or a pattern that fits one: * stands for any characters but "
                "a dot.",
                id="pgjobs.W013",
            )
    _import_views()
    for definition in unfound_jobs():
        yield _unfound(f"job {definition.name}", definition.func.__module__, definition)
    for entry, module in unfound_crons():
        yield _unfound(f"cron entry {entry.name}", module, entry)


def _unfound(what: str, module: str, declared: object) -> CheckMessage:
    return Warning(
        f"Workers do not find the {what}: its module {module} is imported neither by jobs.py of an app nor by "
        'PGJOBS["MODULES"].',
        hint=cure_of(module),
        obj=declared,
        id="pgjobs.W014",
    )


def _import_views() -> None:
    """Import what the project's URLs do, as Django's own checks, which may run later, do: views register jobs."""
    if root := getattr(settings, "ROOT_URLCONF", None):
        with suppress(Exception):  # Django's checks say what is wrong with it
            import_module(root)


def _check_definition(definition: JobPolicy, conf: Conf) -> Iterator[CheckMessage]:
    if conf.queues is not None and definition.queue not in conf.queues:
        yield Error(
            f"The job {definition.name} is declared with the queue {definition.queue!r}, which QUEUES does not allow.",
            hint=f'Add it to PGJOBS["QUEUES"], or declare one of: {", ".join(conf.queues)}.',
            obj=definition,
            id="pgjobs.E014",
        )
        return
    try:
        attempts = definition.max_attempts
    except InvalidJob as error:
        hint = f"Change the declaration, or the setting that forbids it: {', '.join(OPTION_SETTINGS)}."
        yield Error(str(error), hint=hint, obj=definition, id="pgjobs.E015")
        return
    yield from _check_retries(definition, attempts)
    yield from _check_limits(definition)


def _check_limits(definition: JobPolicy) -> Iterator[CheckMessage]:
    own, keyed = definition.limits.own, definition.limits.keyed
    if own is None or keyed is None:
        return
    if own.concurrency is not None and keyed.concurrency is not None and keyed.concurrency > own.concurrency:
        yield Warning(
            f"The job {definition.name} runs at most {own.concurrency} times at once, so its limit of "
            f"{keyed.concurrency} for each key can never be reached.",
            hint="Lower the limit that has a key, or raise the other.",
            obj=definition,
            id="pgjobs.W004",
        )
    # Do not compare the quotients: 60 a minute may be 60 in one second, which 2 a second for each key forbids.
    if own.rate is not None and keyed.rate is not None and keyed.rate > own.rate * math.ceil(keyed.per / own.per):
        yield Warning(
            f"The job {definition.name} starts at most {own.rate} times in {own.per:g} seconds, so its limit of "
            f"{keyed.rate} in {keyed.per:g} seconds for each key can never be reached.",
            hint="Lower the rate that has a key, or raise the other.",
            obj=definition,
            id="pgjobs.W004",
        )


def _check_retries(definition: JobPolicy, attempts: int) -> Iterator[CheckMessage]:
    retry_on, give_up_on = definition.retry_on, definition.give_up_on
    if attempts == 1 and definition._declares_rules:
        yield Warning(
            f"The job {definition.name} declares which errors to retry, but has only one attempt.",
            hint="Raise max_attempts, or remove retry_on and give_up_on.",
            obj=definition,
            id="pgjobs.W002",
        )
    if _gives_up_all(retry_on, give_up_on):
        yield Warning(
            f"The job {definition.name} is never retried: give_up_on takes every exception of its retry_on.",
            hint="give_up_on wins over retry_on; take the common exceptions out of it.",
            obj=definition,
            id="pgjobs.W003",
        )


def _gives_up_all(retry_on: object, give_up_on: object) -> bool:
    """Tell whether no exception can pass both rules, judging by types."""
    if not (isinstance(retry_on, tuple) and isinstance(give_up_on, tuple) and retry_on):
        return False
    return all(issubclass(kind, give_up_on) for kind in retry_on)
