"""Declarations of jobs, as lists and pages show them: by ``@job``, or by ``@task`` with an alias of ``TASKS``.

No column says so. A job's name leads to its definition, so a condition lists the names that this process knows. A row
has a header of its own only where it differs from its definition.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from django_pgjobs.definition.registry import registry
from django_pgjobs.serialization.headers import task_header
from django_pgjobs.states import TASK_FRONT, TASK_HEADER

JOB = "@job"

FRONTS: dict[str, str] = {"task": TASK_FRONT, "job": JOB}
"""Value of a search → the front."""

LONGEST_ALIAS = 200


class Front(NamedTuple):
    """The decorator of a job's definition, empty if it is not known, and the alias of ``TASKS``, empty without one."""

    declared: str
    alias: str

    def __str__(self) -> str:
        """*@task, alias mail*; empty for a plain ``@job``, which needs no mention."""
        if not self.alias:
            return TASK_FRONT if self.declared == TASK_FRONT else ""
        return f"{self.declared}, alias {self.alias}" if self.declared else f"alias {self.alias}"


def front_of(name: str, headers_text: str | None) -> Front:
    """Return the front of the job ``name``; ``headers_text`` is its headers as JSON. May import the job's module."""
    definition = registry.resolved(name)
    header = task_header(headers_text)
    if definition is not None and definition._is_built_in:
        return Front("", "")
    if definition is None:
        declared, own = "" if header is None else TASK_FRONT, ""
    else:
        declared, own = definition._front or JOB, definition._backend_alias
    alias = (header or {}).get("backend", own)
    return Front(declared, alias[:LONGEST_ALIAS] if isinstance(alias, str) else "")


def aliases() -> list[str]:
    """Return the aliases of the tasks that this process knows, sorted."""
    return sorted({definition._backend_alias for definition in registry.definitions()} - {""})


def has_front(word: str) -> Q:
    """Return the condition of jobs of a front, a key of ``FRONTS``; no job's, if this process knows no such job.

    A job whose name is not known is a task's if its header says so.
    """
    fronts = {name: definition._front or JOB for name in registry.names() if (definition := registry.find(name))}
    named = Q(name__in=sorted(name for name, front in fronts.items() if front == FRONTS[word]))
    if FRONTS[word] == JOB:
        return named
    return named | (Q(headers__has_key=TASK_HEADER) & ~Q(name__in=sorted(fronts)))


def has_alias(alias: str) -> Q:
    """Return the condition of jobs of an alias of ``TASKS``: by their header, or else by their definition's."""
    names = [name for name in registry.names() if (found := registry.find(name)) and found._backend_alias == alias]
    path = f"headers__{TASK_HEADER}__backend"
    return Q(**{path: alias}) | Q(**{f"{path}__isnull": True}, name__in=names)
