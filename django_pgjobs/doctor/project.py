"""Probes of the project itself: its settings, its code and what this process has loaded."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from textwrap import dedent

from django.apps import apps
from django.core.checks import ERROR, run_checks

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.doctor.finding import Finding, Severity
from django_pgjobs.worker.supervisor.template import obstacle as obstacle

NOT_FORKED = ("cupy", "grpc", "jax", "pycuda", "tensorflow")
"""Libraries that start threads of their own, or hold a device, which no copy of a process has."""

OF_THE_PROCESS = {
    "os.chdir", "os.umask", "os.putenv", "os.environ.update", "os.environ.setdefault", "os.environ.pop",
    "locale.setlocale", "signal.signal", "socket.setdefaulttimeout", "time.tzset", "random.seed",
    "decimal.setcontext",
}  # fmt: skip
"""Calls that change something for all jobs of a process."""


def checks() -> Iterator[Finding]:
    """Yield what the system checks of this package say, those for deployments too."""
    for found in run_checks(include_deployment_checks=True):
        if found.id and found.id.startswith("pgjobs.") and not found.is_silenced():
            is_error = found.level >= ERROR
            yield Finding(
                found.id,
                Severity.ERROR if is_error else Severity.WARNING,
                found.msg,
                "No worker starts with it." if is_error else "Nothing stops because of it: it shows itself late.",
                found.hint or "manage.py check",
            )


def fork(obstacle: str) -> Iterator[Finding]:
    """Yield why executors are no copies of one template, or had better be none; ``obstacle``: that of this process."""
    if not get_conf().executor_template or sys.platform != "linux":
        return
    off = 'PGJOBS = {"EXECUTOR_TEMPLATE": False}'
    if obstacle:
        what, _, cure = obstacle.rpartition("; ")
        yield Finding(
            "fork",
            Severity.WARNING,
            f"Executors cannot be forked from a template: {what or cure}.",
            "Each imports the project itself, so a worker needs more memory and starts more slowly.",
            cure if what else off,
        )
    if loaded := [name for name in NOT_FORKED if name in sys.modules]:
        yield Finding(
            "fork_unsafe",
            Severity.WARNING,
            f"The project imports {', '.join(loaded)}, which may not survive a fork.",
            "Executors are forked from a process that has imported it: their jobs may hang or crash there.",
            f"{off}, or import it in the jobs that need it",
        )


def own_definitions() -> list[JobPolicy]:
    """Return the jobs of the project's code, without tasks that Celery's workers run."""
    found = [each for each in registry.definitions() if not each._is_built_in]
    return [each for each in found if not getattr(each.func, "is_left", bool)()]


def shared_state() -> Iterator[Finding]:
    """Yield the jobs whose functions change what the other jobs of their process see."""
    if get_conf().threads == 1:
        return
    for definition in own_definitions():
        function = inspect.unwrap(definition.func)
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        names = frozenset(name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)
        if changed := dict(_changed(tree, names)):
            file = inspect.getsourcefile(function)
            yield Finding(
                "shared_state",
                Severity.WARNING,
                f"Job {definition.name} changes what it shares with others: {', '.join(changed)}.",
                "Jobs of one process run at once in threads: each sees what the other has set.",
                f"manage.py runjobs --queues {definition.queue} --threads 1 --async-slots 1",
                where=tuple(f"{file}:{first + line - 1}" for line in changed.values()),
            )


def _changed(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield what the code changes for its whole process, and where; ``names``: its globals. Beneath a lock nothing."""
    if isinstance(node, ast.With) and any("lock" in ast.unparse(item.context_expr).lower() for item in node.items):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
        yield f"the global {node.id}", node.lineno
    elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in OF_THE_PROCESS:
        yield f"{name}()", node.lineno
    elif (
        isinstance(node, ast.Subscript)
        and not isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value) == "os.environ"
    ):
        yield "os.environ", node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _changed(child, names)


def kept_connections() -> Iterator[Finding]:
    """Yield the aliases whose connections are closed after each job."""
    closed: set[str] = apps.get_app_config("pgjobs").closed_at_once  # type: ignore[attr-defined]
    for alias in sorted(closed):
        yield Finding(
            "conn_max_age",
            Severity.WARNING,
            f'CONN_MAX_AGE of DATABASES["{alias}"] is 0.',
            "Each job that queries it opens a connection, at the price of many queries. dj-database-url writes the 0.",
            f'DATABASES["{alias}"]["CONN_MAX_AGE"] = 60',
        )


PROBES: dict[str, Callable[[], Iterable[Finding]]] = {
    "checks": checks,
    "shared_state": shared_state,
    "conn_max_age": kept_connections,
}
"""Name → a probe of the project, beside ``fork``."""
