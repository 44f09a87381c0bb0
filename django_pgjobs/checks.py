"""System checks: what is wrong with a project's use of this app, said before a worker starts.

=============  =========================================================================================
pgjobs.E001    ``PGJOBS`` is not a dict
pgjobs.E002    ``PGJOBS`` has a key that is no setting
pgjobs.E003    a setting is of the wrong type
pgjobs.E004    a setting is out of its range
pgjobs.E005    ``LEASE_SECONDS`` is less than three times ``RENEW_SECONDS``
pgjobs.E006    ``STALE_SECONDS`` is not more than twice ``BEAT_SECONDS``
pgjobs.E007    ``RESCUE_GRACE_SECONDS`` leaves a job's own worker no time to end it
pgjobs.E008    a default is out of its bounds
pgjobs.E009    jobs are written to a database that is not PostgreSQL
pgjobs.E010    the database is used through psycopg2
pgjobs.E011    a path of ``MIDDLEWARE`` does not lead to a factory
pgjobs.E012    a foreign key to Job would stop pruning
pgjobs.E013    an index on Job holds or names a column that the claim changes
pgjobs.E014    a job is declared with a queue that ``QUEUES`` does not allow
pgjobs.E015    a job is declared with options that the settings do not allow
pgjobs.E016    a setting by queue names a queue that ``QUEUES`` does not allow
pgjobs.E018    a cron entry is declared with what the settings do not allow
pgjobs.W001    another app's ``runjobs`` command shadows ours
pgjobs.W002    a job declares retry options and ``max_attempts=1``
pgjobs.W003    every exception of a job's ``retry_on`` is one of its ``give_up_on``
pgjobs.W004    a job's limit of each key can never be reached, as the limit of the job is lower
=============  =========================================================================================

Every check is a generator under the tag ``pgjobs``; ``apps`` puts them in place by ``register_checks()``. A check
never queries a database: it judges by settings, models and declarations. One that needs valid settings is
silent while they are not, because E001 to E004 say so already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import connections, router
from django.db.models import F, ForeignKey, Index, Model, Q, UniqueConstraint
from django.utils.module_loading import import_string

from django_pgjobs import middleware
from django_pgjobs.conf import LADDER_SECONDS, Conf, get_conf, problems
from django_pgjobs.exceptions import InvalidJob

if TYPE_CHECKING:
    from django_pgjobs.definition.policy import JobPolicy

CHANGED_COLUMNS = frozenset(
    {
        "state",
        "claim_id",
        "claimed_at",
        "deadline_at",
        "worker",
        "attempt",
        "waited",
        "progress",
        "release_requested_at",
    }
)
"""Columns of Job that claim, release, progress and requests change; those writes must stay HOT."""

CHANGED_PREFIXES = ("ending", "cancel_")
"""Columns that begin like these change with them."""

OPTION_SETTINGS = (
    "MAX_ATTEMPTS_CEILING",
    "TIMEOUT_CEILING_SECONDS",
    "BACKOFF_BASE_CEILING_SECONDS",
    "BACKOFF_FACTOR_BOUNDS",
    "KEY_PATTERN",
)
"""Settings that say what a job may be declared with."""

Messages = Iterator[CheckMessage]


def register_checks() -> None:
    """Register every check of this module under the tag ``pgjobs``. Doing it twice changes nothing."""
    for check in CHECKS:
        register(check, "pgjobs")


# Settings


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """Each key of ``PGJOBS`` is a setting with a value it can have."""
    ids = {"dict": "pgjobs.E001", "unknown": "pgjobs.E002", "type": "pgjobs.E003", "range": "pgjobs.E004"}
    for problem in problems(getattr(settings, "PGJOBS", {})):
        yield Error(problem.message, hint=problem.hint, id=ids[problem.kind])


def check_relations(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """Settings that bound each other do."""
    if (conf := _conf()) is None:
        return
    if conf.lease_seconds < 3 * conf.renew_seconds:
        yield Error(
            f"PGJOBS: LEASE_SECONDS ({conf.lease_seconds:g}) is less than three times RENEW_SECONDS "
            f"({conf.renew_seconds:g}): one slow renewal would lose running jobs.",
            hint=f'Set "LEASE_SECONDS" to {3 * conf.renew_seconds:g} or more, or renew more often.',
            id="pgjobs.E005",
        )
    if conf.stale_seconds <= 2 * conf.beat_seconds:
        yield Error(
            f"PGJOBS: STALE_SECONDS ({conf.stale_seconds:g}) is not more than twice BEAT_SECONDS "
            f"({conf.beat_seconds:g}): one late heartbeat would show a living worker as gone.",
            hint=f'Set "STALE_SECONDS" to more than {2 * conf.beat_seconds:g}, or beat more often.',
            id="pgjobs.E006",
        )
    needed = LADDER_SECONDS + conf.callback_seconds
    if conf.rescue_grace_seconds <= needed:
        yield Error(
            f"PGJOBS: RESCUE_GRACE_SECONDS ({conf.rescue_grace_seconds:g}) is not more than the {LADDER_SECONDS:g} s "
            f"that stopping a job takes and CALLBACK_SECONDS ({conf.callback_seconds:g}) together: "
            "others would take a job that its own worker is just ending.",
            hint=f'Set "RESCUE_GRACE_SECONDS" to more than {needed:g}.',
            id="pgjobs.E007",
        )


def check_defaults(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """What a job gets without asking is what it may ask for."""
    if (conf := _conf()) is None:
        return
    pairs = (
        ("DEFAULT_MAX_ATTEMPTS", conf.default_max_attempts, "MAX_ATTEMPTS_CEILING", conf.max_attempts_ceiling),
        (
            "DEFAULT_TIMEOUT_SECONDS",
            conf.default_timeout_seconds,
            "TIMEOUT_CEILING_SECONDS",
            conf.timeout_ceiling_seconds,
        ),
        (
            "DEFAULT_BACKOFF's base",
            conf.default_backoff.base,
            "BACKOFF_BASE_CEILING_SECONDS",
            conf.backoff_base_ceiling_seconds,
        ),
        (
            "DEFAULT_BACKOFF's factor",
            conf.default_backoff.factor,
            "BACKOFF_FACTOR_BOUNDS' largest",
            conf.backoff_factor_bounds[1],
        ),
    )
    for name, value, ceiling_name, ceiling in pairs:
        if value is not None and value > ceiling:
            yield Error(
                f"PGJOBS: {name} ({value:g}) is above {ceiling_name} ({ceiling:g}).",
                hint=f"Lower {name} or raise {ceiling_name}.",
                id="pgjobs.E008",
            )
    factor, least = conf.default_backoff.factor, conf.backoff_factor_bounds[0]
    if factor < least:
        yield Error(
            f"PGJOBS: DEFAULT_BACKOFF's factor ({factor:g}) is below BACKOFF_FACTOR_BOUNDS' least ({least:g}).",
            hint="Raise DEFAULT_BACKOFF's factor or lower BACKOFF_FACTOR_BOUNDS' least.",
            id="pgjobs.E008",
        )


def check_named_queues(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """Queues that a setting names are queues that may be used; a slip would keep, delete or bound the wrong jobs."""
    conf = _conf()
    if conf is None or conf.queues is None:
        return
    named = {
        "RETENTION_HOURS": [queue for queue, _retention in conf.retention_hours.queues],
        "CAPACITY": conf.capacity.names(),
        "REGISTRATION_RATE": conf.registration_rate.names(),
        "QUEUE_LIMITS": conf.queue_limits.names(),
    }
    for setting, queues in named.items():
        for queue in queues:
            if queue not in conf.queues:
                yield Error(
                    f"PGJOBS: {setting} names the queue {queue!r}, which QUEUES does not allow.",
                    hint=f"Add it to QUEUES, or name one of: {', '.join(conf.queues)}.",
                    id="pgjobs.E016",
                )


def check_middleware(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """Each path of ``MIDDLEWARE`` leads to a factory."""
    conf = _conf()
    for path in conf.middleware if conf else ():
        try:
            middleware.load(path)
        except ImproperlyConfigured as error:
            yield Error(
                str(error),
                hint="Write the dotted path of a function or class that takes run and returns its replacement.",
                id="pgjobs.E011",
            )


def _conf() -> Conf | None:
    try:
        return get_conf()
    except ImproperlyConfigured:
        return None


# The database


def check_database(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """Jobs are written to PostgreSQL, through psycopg 3."""
    from django_pgjobs.models import Job  # here: models wait until Django is ready

    alias = router.db_for_write(Job)
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        yield Error(
            f"Jobs are written to the database {alias!r}, which is not PostgreSQL ({vendor}).",
            hint="Point that alias at PostgreSQL, or let a database router's db_for_write() send the app "
            '"pgjobs" to an alias that is. No PostgreSQL at hand? Install django-pgjobs[embedded] and write '
            "DATABASES = {'default': django_pgjobs.embedded.database()} for development and tests.",
            id="pgjobs.E009",
        )
    elif not _uses_psycopg3():
        yield Error(
            f"The database {alias!r} is used through psycopg2; jobs need psycopg 3.",
            hint='Install "psycopg[binary]": Django prefers it over psycopg2 for the whole project.',
            id="pgjobs.E010",
        )


def _uses_psycopg3() -> bool:
    return bool(import_string("django.db.backends.postgresql.psycopg_any.is_psycopg3"))


# Models


def check_foreign_keys(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """No constraint of any app keeps a finished job from being pruned.

    Pruning is one statement in the database: what Django would do by ``on_delete`` in Python does not happen there.
    """
    for field in _foreign_keys_to_job(app_configs):
        hint = "Give it db_constraint=False, or, from Django 6.1 on, on_delete=DB_CASCADE or DB_SET_NULL."
        if field.model._meta.auto_created:
            hint = "Give the ManyToManyField db_constraint=False."
        yield Error(
            f"{field.model._meta.label}.{field.name} is a foreign key to Job with a constraint in the database: "
            "a row that points to a finished job would stop pruning.",
            hint=f"{hint} Or store the job's id in a BigIntegerField.",
            obj=field,
            id="pgjobs.E012",
        )


def _foreign_keys_to_job(app_configs: Sequence[AppConfig] | None) -> Iterator[Any]:
    from django_pgjobs.models import Job  # here: models wait until Django is ready

    for app_config in apps.get_app_configs() if app_configs is None else app_configs:
        for model in app_config.get_models(include_auto_created=True):
            for field in model._meta.local_fields if model._meta.managed else ():
                if isinstance(field, ForeignKey) and _points_to(field, Job) and _stops_deletes(field):
                    yield field


def _points_to(field: Any, model: type[Model]) -> bool:
    return bool(field.remote_field.model._meta.concrete_model is model._meta.concrete_model)


def _stops_deletes(field: Any) -> bool:
    on_delete = field.remote_field.on_delete
    return bool(field.db_constraint) and not hasattr(on_delete, "on_delete_sql")


def check_indexes(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """No index on Job holds or names a column that the claim changes, whoever added it."""
    from django_pgjobs.models import Job  # here: models wait until Django is ready

    for name, columns in _indexed(Job):
        if changed := sorted(filter(_is_changed, columns)):
            yield Error(
                f"The index {name} of Job holds or names {', '.join(changed)}, which changes while a job runs: "
                "every claim would have to write to every index of the table.",
                hint="Drop that index; filter(state=…) is answered by the indexes that Job has.",
                obj=Job,
                id="pgjobs.E013",
            )


def _is_changed(column: str) -> bool:
    return column in CHANGED_COLUMNS or column.startswith(CHANGED_PREFIXES)


def _indexed(model: type[Model]) -> Iterator[tuple[str, set[str]]]:
    """(name, field names) of each index, unique constraint and indexed field."""
    options: Any = model._meta
    for index in [*options.indexes, *options.constraints]:
        if isinstance(index, (Index, UniqueConstraint)):
            yield index.name, set(_named_by(index))
    for field in options.local_concrete_fields:
        if (field.db_index or field.unique) and not field.primary_key:
            yield f"on {field.name}", {field.name}


def _named_by(index: Any) -> Iterator[str]:
    """Field names in columns, included columns, condition and expressions."""
    yield from (name.lstrip("-") for name in index.fields)
    yield from index.include or ()
    for part in (index.condition, *index.expressions):
        yield from _references(part)


def _references(part: Any) -> Iterator[str]:
    if issubclass(type(part), F):
        yield part.name.partition("__")[0]
    elif isinstance(part, Q):
        for child in part.children:
            if isinstance(child, tuple):
                yield child[0].partition("__")[0]
                yield from _references(child[1])
            else:
                yield from _references(child)
    elif hasattr(part, "get_source_expressions"):
        for source in part.get_source_expressions():
            yield from _references(source)


# Commands


def check_commands(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """``manage.py runjobs`` is ours; django-extensions has a command of that name."""
    ours = apps.get_app_config("pgjobs").name
    command: Any = get_commands().get("runjobs", ours)
    owner = command if isinstance(command, str) else type(command).__module__
    if owner != ours and not owner.startswith(f"{ours}."):
        yield Warning(
            f"The command runjobs of {owner} shadows the worker's.",
            hint=f'List "{ours}" before "{owner}" in INSTALLED_APPS, or start workers by "manage.py pgjobs run".',
            id="pgjobs.W001",
        )


# Jobs


def check_definitions(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Messages:
    """What jobs declare agrees with the settings and with itself."""
    from django_pgjobs.definition.registry import registry  # here for start-up time

    if (conf := _conf()) is None:
        return
    for definition in registry.definitions():
        yield from _check_definition(definition, conf)
    for entry in registry.crons():
        try:
            entry.declared()
        except InvalidJob as error:
            yield Error(str(error), hint="Mend the entry, or the setting.", obj=entry, id="pgjobs.E018")


def _check_definition(definition: JobPolicy, conf: Conf) -> Messages:
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


def _check_limits(definition: JobPolicy) -> Messages:
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
    # Not the quotients: 60 a minute may be 60 in one second, which 2 a second for each key forbids.
    if own.rate is not None and keyed.rate is not None and keyed.rate > own.rate * math.ceil(keyed.per / own.per):
        yield Warning(
            f"The job {definition.name} starts at most {own.rate} times in {own.per:g} seconds, so its limit of "
            f"{keyed.rate} in {keyed.per:g} seconds for each key can never be reached.",
            hint="Lower the rate that has a key, or raise the other.",
            obj=definition,
            id="pgjobs.W004",
        )


def _check_retries(definition: JobPolicy, attempts: int) -> Messages:
    retry_on, give_up_on = definition.retry_on, definition.give_up_on
    if attempts == 1 and (retry_on is not None or give_up_on is not None):
        yield Warning(
            f"The job {definition.name} says which errors are retried, but has only one attempt.",
            hint="Raise max_attempts, or leave out retry_on and give_up_on.",
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


def _gives_up_all(retry_on: Any, give_up_on: Any) -> bool:
    """Whether no exception can pass both rules, as far as types tell."""
    if not (isinstance(retry_on, tuple) and isinstance(give_up_on, tuple) and retry_on):
        return False
    return all(issubclass(kind, give_up_on) for kind in retry_on)


CHECKS: tuple[Callable[..., Iterable[CheckMessage]], ...] = (
    check_settings, check_relations, check_defaults, check_named_queues, check_middleware, check_database,
    check_foreign_keys, check_indexes, check_commands, check_definitions,
)  # fmt: skip
