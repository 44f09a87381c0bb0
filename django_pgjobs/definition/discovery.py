"""The modules that a ``MODULES`` pattern names, and the jobs declared where no worker looks.

Every process of a project sets Django up in the same way, so a worker knows what that imports: ``jobs.py`` of each app,
the modules of ``MODULES``, and whatever these import. A job declared later, when a view, a command or a test imports
its module, is *late*: a worker may never import that module. The registry notes which names are late.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from os import scandir
from os.path import isdir
from pkgutil import get_importer, iter_modules
from typing import TYPE_CHECKING

from django.apps import apps

from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import log

if TYPE_CHECKING:
    from django_pgjobs.definition.cron_declaration import CronDeclaration
    from django_pgjobs.definition.policy import JobPolicy

OF_TESTS = re.compile(r"tests?|conftest|test_.*|.*_tests?")
"""Parts of the paths of modules that unittest or pytest collect; a job in one of them runs in tests only."""


# Patterns


def modules_of(pattern: str) -> list[str]:
    """Return the dotted paths of the modules that a pattern of ``MODULES`` names, sorted; none if there are none.

    Imports nothing: it looks into the folders of packages. ``*`` never stands for ``__main__``.
    """
    first, *parts = pattern.split(".")
    module = sys.modules.get(first)
    if module is not None:
        return sorted(_below(first, getattr(module, "__path__", None), parts))
    spec = find_spec(first)
    return [] if spec is None else sorted(_below(first, spec.submodule_search_locations, parts))


def _below(name: str, folders: Iterable[str] | None, parts: list[str]) -> Iterator[str]:
    if not parts:
        yield name
    if not parts or folders is None:
        return
    folders, part = list(folders), parts[0]
    named = [part]
    if "*" in part:
        listed = {each.name for each in iter_modules(folders)}
        if parts[1:]:  # a package without __init__.py, which iter_modules leaves out, has modules too
            listed |= {each.name for folder in folders if isdir(folder) for each in scandir(folder) if each.is_dir()}
        named = [each for each in listed if each.isidentifier() and fnmatchcase(each, part)]
    for last in named:
        found, within = _located(f"{name}.{last}", folders)
        if found and last != "__main__":
            yield from _below(f"{name}.{last}", within, parts[1:])


def _located(name: str, folders: Iterable[str]) -> tuple[bool, list[str]]:
    """Return whether a module is in one of these folders, and, of a package, the folders of its modules."""
    portions: list[str] = []  # of a package without __init__.py
    for folder in folders:
        finder = get_importer(folder)
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return True, list(spec.submodule_search_locations or ())
        portions += (spec and spec.submodule_search_locations) or ()
    return bool(portions), portions


# Jobs that workers do not find


def unfound_jobs() -> list[JobPolicy]:
    """Return the definitions of this process that the project's workers do not find, sorted by name."""
    return [definition for definition in registry.definitions() if _is_unfound(definition)]


def unfound_crons() -> list[tuple[CronDeclaration, str]]:
    """Return the cron entries outside of ``@job`` that the project's workers do not find, each with its module."""
    late = [entry for entry in registry.crons() if entry.name in registry.late_crons]
    if not late:
        return []
    modules = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    found = [(entry, modules.get(entry.location.rpartition(":")[0], "")) for entry in late]
    return [(entry, module) for entry, module in found if not _is_of_tests(module.split("."))]


def _is_unfound(definition: JobPolicy) -> bool:
    if definition.name not in registry.late or definition._front:  # a task is found by its path
        return False
    module = definition.__module__
    is_path = definition.name == f"{module}.{definition.__qualname__}"
    # Resolvers import jobs by path in executors; the supervisor, which admits jobs with limits, imports none.
    if registry.may_find_more and is_path and not definition._is_limited:
        return False
    return not _is_of_tests(module.split("."))


def _is_of_tests(parts: Iterable[str]) -> bool:
    return any(OF_TESTS.fullmatch(part) for part in parts)


def cure_of(module: str) -> str:
    """Return what to do so that workers find the jobs of ``module``."""
    setting = f'add "{module}" to PGJOBS["MODULES"]'
    within = [config.name for config in apps.get_app_configs() if f"{module}.".startswith(f"{config.name}.")]
    if not within:
        return f"Move it to jobs.py of an installed app, or {setting}."
    home = f"{max(within, key=len)}.jobs"
    return f"Move it to {home}, import {module} there, or {setting}."


def warn_of_unfound(definition: JobPolicy) -> None:
    """Log once in this process that workers do not find a late job which it registers."""
    if definition.name not in registry.late or definition.name in registry.judged:
        return
    registry.judged |= {definition.name}
    if _is_unfound(definition):
        module = definition.__module__
        log.warning(
            "registering a job that workers do not find, since they do not import its module name=%s module=%s: %s",
            definition.name, module, cure_of(module),
        )  # fmt: skip
