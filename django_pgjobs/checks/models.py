"""Check that no model of the project blocks pruning, and no index on Job makes claims expensive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error
from django.db.models import F, ForeignKey, Index, Model, Q, UniqueConstraint

from django_pgjobs.models import Job

CHANGED_COLUMNS = frozenset(
    {
        "state",
        "claim_id",
        "claimed_at",
        "overdue_at",
        "worker",
        "attempt",
        "waited",
        "progress",
        "release_requested_at",
    }
)
"""Columns of a Job that claims, releases, progress and requests change, computed or stored; those writes must stay
HOT."""

CHANGED_PREFIXES = ("ending", "cancel_")
"""Prefixes of further columns that change with them."""


def check_foreign_keys(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that no constraint of any app keeps a finished job from being pruned.

    Pruning is one statement in the database, so Django's ``on_delete`` actions in Python do not run.
    """
    for field in _foreign_keys_to_job(app_configs):
        hint = "Give it db_constraint=False, or, from Django 6.1 on, on_delete=DB_CASCADE or DB_SET_NULL."
        if field.model._meta.auto_created:
            hint = "Give the ManyToManyField db_constraint=False."
        yield Error(
            f"{field.model._meta.label}.{field.name} is a foreign key to Job with a constraint in the database: "
            "a row that points to a finished job would block pruning.",
            hint=f"{hint} Or store the job's id in a BigIntegerField.",
            obj=field,
            id="pgjobs.E012",
        )


def _foreign_keys_to_job(app_configs: Sequence[AppConfig] | None) -> Iterator[Any]:
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


def check_indexes(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that no index on Job, from any app, holds or names a column that claims change."""
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
    """Yield (name, field names) of each index, unique constraint and indexed field."""
    options: Any = model._meta
    for index in [*options.indexes, *options.constraints]:
        if isinstance(index, (Index, UniqueConstraint)):
            yield index.name, set(_named_by(index))
    for field in options.local_concrete_fields:
        if (field.db_index or field.unique) and not field.primary_key:
            yield f"on {field.name}", {field.name}


def _named_by(index: Any) -> Iterator[str]:
    """Yield the field names in columns, included columns, condition and expressions."""
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
