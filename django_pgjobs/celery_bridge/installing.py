"""``install``: Celery's app publishes into PostgreSQL, reads results there and revokes there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.core.checks import register as register_check
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.celery_bridge.bridges import Bridge, add, bridges
from django_pgjobs.definition.registry import registry
from django_pgjobs.importing import bridged

ROOM = "django_pgjobs.celery_bridge"


def install(app: Any, tasks: Iterable[str] = ("*",), queues: Iterable[str] = (), *, beat: bool = False) -> None:
    """Store the calls of this app's tasks as jobs, and let our workers run them.

    ``tasks``: patterns of names, such as ``"shop.*"``, and ``queues`` patterns of queues; a call that matches neither
    goes to Celery's broker as before. Workers of ours run stored jobs of all tasks, whatever the patterns say, so an
    empty ``tasks`` is the way back. ``beat``: fire ``beat_schedule``, too; then stop ``celery beat``. Repeatable: the
    last call counts. Raises ``TypeError`` for a pattern that is no list, ``ImproperlyConfigured`` for a second app.
    """
    if isinstance(tasks, str) or isinstance(queues, str):
        raise TypeError("install() takes lists of patterns: tasks=['shop.*']")
    app = getattr(app, "_get_current_object", lambda: app)()
    if others := [bridge.app.main for bridge in bridges() if bridge.app is not app]:
        raise ImproperlyConfigured(
            f"install() takes one app of Celery, and has {others[0]!r}: a row names its task, such as one by "
            "@shared_task, and not its app"
        )
    add(Bridge(app, tuple(tasks), tuple(queues), beat))
    app.amqp_cls = f"{ROOM}.amqp:JobsAMQP"
    app.control_cls = f"{ROOM}.control:JobsControl"
    app.backend_cls = f"{ROOM}.results:JobResults"
    for name in ("amqp", "control"):
        vars(app).pop(name, None)  # made already, by the former classes
    app._backend_cache = None
    vars(app._local).pop("backend", None)
    register_check(_check, "pgjobs")
    registry.add_resolver(_resolver)
    registry.add_discovery(_discover)
    bridged.known[ROOM] = _project
    if apps.ready:
        _discover()


def _check(**_: object) -> list[CheckMessage]:
    from django_pgjobs.celery_bridge.checks import check  # here for start-up time

    return [message for bridge in bridges() for message in check(bridge)]


def _resolver(name: str) -> Any:
    from django_pgjobs.celery_bridge.definitions import resolver  # here for start-up time

    return resolver(name)


def _project() -> Any:
    from django_pgjobs.celery_bridge.waiting import project  # here for start-up time

    return project()


def _discover() -> None:
    from django_pgjobs.celery_bridge.definitions import discover  # here for start-up time

    for bridge in bridges():
        discover(bridge.app)
        if bridge.beat:
            from django_pgjobs.celery_bridge.beat import declare  # here for start-up time

            declare(bridge)
