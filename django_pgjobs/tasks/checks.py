"""Check an alias of ``TASKS`` that is ours; Django asks each backend. The table of ids is that of ``checks``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_pgjobs.conf import Conf, get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.states import TASK_FRONT, Outcome
from django_pgjobs.tasks.families import BaseTaskBackend
from django_pgjobs.tasks.settings import (
    AliasOptions,
    given_options,
    given_tasks,
    is_pattern,
    our_aliases,
    read_options,
)

OF_ALIAS = "TASKS[{!r}]"


def check_alias(backend: BaseTaskBackend) -> Iterator[CheckMessage]:
    """Yield what is wrong with one alias. Asks no database; imports what the alias names."""
    where = OF_ALIAS.format(backend.alias)
    if not apps.is_installed("django_pgjobs"):
        yield Error(
            f"{where} names a backend of django_pgjobs, which is no installed app.",
            hint='Add "django_pgjobs" to INSTALLED_APPS.',
            id="pgjobs.E020",
        )
        return
    options, problems = read_options(backend.options)
    for problem in problems:
        yield Error(
            f"{where}: {problem.message}",
            hint="The reference of tasks lists the keys of OPTIONS and their values.",
            id="pgjobs.E022",
        )
    yield from _check_database(where, options)
    if _all_readable():
        yield from _check_paths(where, options)
    params = given_tasks().get(backend.alias)
    if isinstance(params, Mapping) and "ENQUEUE_ON_COMMIT" in {*params, *options_given(params)}:
        yield Warning(
            f"{where} has ENQUEUE_ON_COMMIT, which does nothing.",
            hint="Remove it: a job is part of the transaction that enqueues it, so a rollback leaves none.",
            id="pgjobs.W012",
        )
    if (conf := _valid_conf()) is not None:
        yield from _check_queues(where, backend, conf)
        yield from _check_retention(where, backend, conf)


def options_given(params: Mapping[str, object]) -> Mapping[str, object]:
    """Return ``OPTIONS`` of an alias, empty if they are no dict."""
    given = params.get("OPTIONS", {})
    return given if isinstance(given, Mapping) else {}


def _all_readable() -> bool:
    """Return whether OPTIONS of all aliases of ours are valid: before they are, no path leads to a task."""
    return not any(read_options(given_options(alias))[1] for alias in our_aliases())


def _valid_conf() -> Conf | None:
    try:
        return get_conf()
    except ImproperlyConfigured:
        return None  # E001 to E004 say what is wrong


def _check_database(where: str, options: AliasOptions) -> Iterator[CheckMessage]:
    alias = options.database
    if alias is None:
        return
    if alias not in connections.settings:
        yield Error(
            f"{where}: OPTIONS['DATABASE'] is {alias!r}, and DATABASES has no such alias"
            f"{did_you_mean(alias, connections.settings)}.",
            hint="Name an alias of DATABASES, or leave DATABASE out: then a database router decides.",
            id="pgjobs.E021",
        )
    elif connections[alias].vendor != "postgresql":
        yield Error(
            f"{where}: OPTIONS['DATABASE'] is {alias!r}, which is not PostgreSQL ({connections[alias].vendor}).",
            hint="Jobs are in PostgreSQL only.",
            id="pgjobs.E021",
        )


def _check_paths(where: str, options: AliasOptions) -> Iterator[CheckMessage]:
    patterns = [pattern for pattern, _ in options.patterns]
    named = [("TASKS", path) for path in (*options.exact, *patterns)]
    named += [("ALIASES", path) for path in options.renamed.values()]
    for key, path in named:
        if not _leads_to_a_task(path):
            yield Warning(
                f"{where}: OPTIONS[{key!r}] names {path!r}, and this process knows no such task.",
                hint="Correct the path, or remove it. A task is at the path of its function, such as shop.tasks.send.",
                id="pgjobs.W009",
            )


def _leads_to_a_task(path: str) -> bool:
    if is_pattern(path):
        tasks = (definition.name for definition in registry.definitions() if definition._front == TASK_FRONT)
        return any(fnmatchcase(name, path) for name in tasks)
    return registry.resolved(path) is not None


def _check_queues(where: str, backend: BaseTaskBackend, conf: Conf) -> Iterator[CheckMessage]:
    missing = sorted(backend.queues - set(conf.queues)) if conf.queues is not None else []
    if missing:
        yield Warning(
            f"{where} allows the queues {', '.join(missing)}, which PGJOBS['QUEUES'] does not.",
            hint='A task needs its queue in both: add them to PGJOBS["QUEUES"], or set "QUEUES" of the alias. '
            'Without "QUEUES" an alias allows the queue "default" alone; [] allows all.',
            id="pgjobs.W010",
        )


def _check_retention(where: str, backend: BaseTaskBackend, conf: Conf) -> Iterator[CheckMessage]:
    queues = sorted(backend.queues) or ["*"]
    at_once = [queue for queue in queues if conf.retention.of(queue).seconds(Outcome.SUCCEEDED) == 0]
    if at_once:
        yield Warning(
            f"{where}: jobs of the queues {', '.join(at_once)} are deleted as they succeed, so there are no "
            "results of their tasks to get.",
            hint='Keep them for a while by PGJOBS["RETENTION"], or silence this if no code asks for results.',
            id="pgjobs.W011",
        )
