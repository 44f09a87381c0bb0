"""A task of Celery as a job definition of its own, by the task's name: made at its first use."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from celery import signals
from celery.exceptions import Retry

from django_pgjobs.celery_bridge import running
from django_pgjobs.celery_bridge.bridges import bridge_of, bridges
from django_pgjobs.celery_bridge.messages import MESSAGE
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition, job
from django_pgjobs.serialization.failures import OUR_FILES

MOST_ATTEMPTS = 100
"""Attempts of one row; a task that retries more often continues with a next step."""

CELERYS_OWN = "celery."

LOOSE = inspect.signature(lambda *args, **kwargs: None)

OUR_FILES.add(__file__)

_defining = threading.RLock()
_made: dict[tuple[int, str], tuple[Any, JobDefinition[..., Any]]] = {}


def definition_of(app: Any, name: str) -> JobDefinition[..., Any]:
    """Return the definition of a task of this app. Raises ``NotRegistered`` if it has none of this name."""
    task = app.tasks[name]
    with _defining:
        known = _made.get((id(app), name))
        if known is None or known[0] is not task or registry.find(name) is not known[1]:
            known = _made[id(app), name] = task, _define(app, task)
        return known[1]


def resolver(name: str) -> JobDefinition[..., Any] | None:
    """Return the definition of the task of this name, if an app has it."""
    for bridge in bridges():
        if name in bridge.app.tasks:
            return definition_of(bridge.app, name)
    return None


def discover(app: Any) -> None:
    """Import the modules of an app's tasks as Celery's worker does, and make what is in them known."""
    with _without_fixup(app):
        app.loader.import_default_modules()
    for name in sorted(app.tasks):
        definition_of(app, name)


@contextmanager
def _without_fixup(app: Any) -> Any:
    # Before the modules of tasks, Celery sets Django up, which is doing just that, and runs the system checks.
    fixups = [each for each in app._fixups if hasattr(each, "on_import_modules")]
    for each in fixups:
        signals.import_modules.disconnect(each.on_import_modules, sender=app)
    try:
        yield
    finally:
        for each in fixups:
            signals.import_modules.connect(each.on_import_modules, sender=app)


def _define(app: Any, task: Any) -> JobDefinition[..., Any]:
    # The loss of a whole worker repeats a late task; running.py may refuse to if only its process has died.
    late = bool(task.acks_late) if task.acks_late is not None else bool(app.conf.task_acks_late)
    made = job(
        name=task.name,
        queue=_queue_of(app, task.name),
        max_attempts=attempts_of(app, task.name, 0),
        timeout=limits_of(app, task.name, None, None),
        takes_context=False,
        retry_on=(Retry,),
        backoff=running.delay_of,
        on_crash="retry" if late or running.outlives_death(task) else "abandon",
        schedulable=not task.name.startswith(CELERYS_OWN),
    )(_body(app, task))
    made.on_cancel(lambda context, *args, **kwargs: running.revoked(app, context, args, kwargs))
    made.on_abandon(lambda context, *args, **kwargs: running.abandoned(app, context, args, kwargs))
    return made


def _body(app: Any, task: Any) -> Callable[..., Any]:
    """Return a function that stands where the task's own does, for the names and places that people see.

    ``is_left()``: whether its plain calls go to the broker, or are Celery's own.
    """

    def body(*args: Any, **kwargs: Any) -> Any:
        return running.run(app, args, kwargs)

    body.is_left = lambda: (  # type: ignore[attr-defined]
        task.name.startswith(CELERYS_OWN) or not bridge_of(app).takes(task.name, queue=_queue_of(app, task.name))
    )
    body.__name__ = body.__qualname__ = task.name.rpartition(".")[2] or "task"
    body.__module__, body.__doc__ = task.__module__, task.__doc__
    body.__wrapped__, body.__signature__ = inspect.unwrap(task.run), _signature(task)  # type: ignore[attr-defined]
    return body


def _signature(task: Any) -> inspect.Signature:
    """Return the signature of a task and the message beside it; without ``typing`` Celery checks no arguments."""
    parameters = list((inspect.signature(task.run) if task.typing else LOOSE).parameters.values())
    at = len(parameters) - any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    parameters.insert(at, inspect.Parameter(MESSAGE, inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(parameters)


def placeholders(definition: JobDefinition[..., Any]) -> dict[str, None]:
    """Return something for each argument that a call must have: for a job that never runs its task."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(definition.func).parameters.items()
    return {name: None for name, each in parameters if each.kind in named and each.default is each.empty}


def _queue_of(app: Any, name: str) -> str:
    """Return the queue that routes lead a task to; the default one if that is an exchange."""
    found = app.amqp.router.route({}, name).get("queue") or app.amqp.default_queue
    return str(getattr(found, "name", found))


def attempts_of(app: Any, name: str, retries: int) -> int:
    """Return the attempts of a row for a task that was retried so often."""
    most = app.tasks[name].max_retries
    # Celery itself counts the retries. Two at least, since one would say that there are none.
    return MOST_ATTEMPTS if most is None else min(max(most - retries + 1, 2), MOST_ATTEMPTS)


def limits_of(app: Any, name: str, hard: float | None, soft: float | None) -> Any:
    """Return the timeout of a task whose call names these limits."""
    task = app.tasks[name]
    hard = hard or task.time_limit or app.conf.task_time_limit
    soft = soft or task.soft_time_limit or app.conf.task_soft_time_limit
    return hard if soft is None or (hard is not None and soft >= hard) else (soft, hard)
