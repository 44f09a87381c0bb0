"""Find the tasks of installed apps, so that a process knows them before it sees a row of theirs.

A supervisor imports no code of the project once it runs, so what it should know must be known by then: cron entries,
limits, which tasks are async, how long to wait after a kill. Web processes hide sensitive arguments by it.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule

from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.tasks.definitions import resolver
from django_pgjobs.tasks.families import FAMILY, InvalidTask, is_task
from django_pgjobs.tasks.settings import options_of, our_aliases

MODULE = "tasks"


def discover() -> None:
    """Import the ``tasks`` module of every installed app, and make the tasks of our aliases in it known.

    An ``ImportError`` in a module of a third party is a warning: it may be about another queue, which is not installed.
    Every other error propagates. Repeatable.
    """
    import_module(f"{FAMILY}.checks")  # the backport's own app does, which nothing else needs
    ours = our_aliases()
    for alias in ours:
        options_of(alias)  # raises for all of them before the first definition is made
    for module in _modules() if ours else ():
        found = [value for value in vars(module).values() if is_task(value) and value.backend in ours]
        for path in dict.fromkeys(task.module_path for task in found):
            try:
                resolver(path)
            except (InvalidTask, ImportError) as error:
                log.warning("a task has another name than its function module=%s: %s", module.__name__, error)


def _modules() -> Iterator[ModuleType]:
    for app_config in apps.get_app_configs():
        module = app_config.module
        if module is None or module.__name__ == "django_pgjobs" or not module_has_submodule(module, MODULE):
            continue
        name = f"{module.__name__}.{MODULE}"
        try:
            yield import_module(name)
        except ImportError as error:
            if not _is_of_others(app_config):
                raise
            log.warning("tasks of an app cannot be imported module=%s: %s", name, one_line(str(error)))


def _is_of_others(app_config: AppConfig) -> bool:
    """Return whether an app is installed as a package, and so is not the project's own."""
    of_packages = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    return any(Path(app_config.path).is_relative_to(folder) for folder in of_packages)
