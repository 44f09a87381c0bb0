"""System checks of an app of Celery: they name what a job cannot have, before a worker starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from celery import Task, signals
from celery.worker.request import Request
from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning

from django_pgjobs.celery_bridge.beat import problems
from django_pgjobs.celery_bridge.bridges import Bridge
from django_pgjobs.celery_bridge.definitions import CELERYS_OWN

OF_WORKERS = (
    "worker_init", "worker_process_init", "worker_process_shutdown", "worker_ready", "worker_shutdown",
    "worker_shutting_down", "celeryd_init", "task_received",
)  # fmt: skip


def check(bridge: Bridge) -> Iterator[CheckMessage]:
    """Yield what is wrong. Queries nothing."""
    app = bridge.app
    if not apps.is_installed("django_pgjobs"):
        return
    for what, hint in (*_of_app(app), *_of_queues(bridge), *_of_tasks(bridge)):
        yield Error(f"Celery app {app.main!r}: {what}", hint=hint, id="pgjobs.E026")
    for name, why in problems(bridge):
        yield Error(
            f"Celery app {app.main!r}: schedule {name!r} cannot be fired: {why}.",
            hint="Take it out of beat_schedule, or leave all of it to celery beat: install(app) without beat=True.",
            id="pgjobs.E027",
        )
    for name in OF_WORKERS:
        receivers = [receiver for _, receiver in getattr(signals, name).receivers]
        if bridge.takes_all and [each for each in receivers if not _is_celerys(each)]:
            yield Warning(
                f"The signal {name} has receivers, and only Celery's own workers send it.",
                hint="Do it in ready() of an AppConfig: executors set Django up.",
                id="pgjobs.W018",
            )
    steps = sorted(str(getattr(step, "__name__", step)) for each in app.steps.values() for step in each)
    if bridge.takes_all and steps:
        yield Warning(
            f"Celery app {app.main!r} has boot steps ({', '.join(steps)}), and only Celery's own workers take them.",
            hint="Do in ready() of an AppConfig what they do, such as connecting receivers: executors set Django up.",
            id="pgjobs.W018",
        )


def _of_app(app: Any) -> Iterator[tuple[str, str]]:
    if app.conf.task_serializer != "json":
        yield (
            f"task_serializer is {app.conf.task_serializer!r}, and a job keeps its arguments as JSON.",
            "Pass primary keys instead of objects, and set task_serializer to 'json'.",
        )
    if app.conf.task_protocol != 2:
        yield "task_protocol is 1, which only Celery 3 needed.", "Remove the setting."


def _of_queues(bridge: Bridge) -> Iterator[tuple[str, str]]:
    for queue in bridge.app.amqp.queues.values():
        kind = queue.exchange.type if queue.exchange else "direct"
        if kind != "direct" and (bridge.takes_all or bridge.takes("", queue=queue.name)):
            yield (
                f"queue {queue.name!r} has a {kind} exchange, and a job goes to the one queue that is named.",
                "Call a task for each queue that should get the message, or leave these tasks to the broker: "
                "install(app, tasks=[…]).",
            )


def _of_tasks(bridge: Bridge) -> Iterator[tuple[str, str]]:
    for name, task in sorted(bridge.app.tasks.items()):
        if name.startswith(CELERYS_OWN) or not bridge.takes(name):
            continue
        if task.serializer not in (None, "json"):
            yield f"task {name!r} has the serializer {task.serializer!r}, and a job is JSON.", "Pass primary keys."
        if task.rate_limit:
            yield (
                f"task {name!r} has rate_limit={task.rate_limit!r}, which holds in each of Celery's workers.",
                "Remove it, and limit its queue in all workers together by PGJOBS['QUEUE_LIMITS'].",
            )
        if task.Request not in (Task.Request, "celery.worker.request:Request", Request):
            yield f"task {name!r} has a Request of its own, which only Celery's workers make.", "Use the task's hooks."


def _is_celerys(receiver: Any) -> bool:
    found = receiver() if isinstance(receiver, ref) else receiver
    return found is None or str(getattr(found, "__module__", "")).partition(".")[0] == "celery"
