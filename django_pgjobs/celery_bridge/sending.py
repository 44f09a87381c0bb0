"""Store a message of Celery as a job, in the caller's transaction.

A call with the id of the task that runs here is that task again: ``retry`` and ``replace`` make it. It waits for the
end of the run, which decides whether the row continues with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import signals
from celery.app.task import Context
from celery.utils.time import maybe_make_aware
from django.core.exceptions import ImproperlyConfigured
from kombu.exceptions import EncodeError
from kombu.utils.uuid import uuid

from django_pgjobs.celery_bridge import messages
from django_pgjobs.celery_bridge.calls import CeleryCall, running
from django_pgjobs.celery_bridge.definitions import attempts_of, definition_of, limits_of
from django_pgjobs.exceptions import InvalidJob

SMALLER_FIRST = ("redis", "rediss", "sentinel")
"""Brokers for which 0 is the highest priority."""

LEAST_EXPIRY = 0.001


def queue_of(amqp: Any, options: Mapping[str, Any]) -> str:
    """Return the name of the queue that these options of a call lead to. Raises ``ImproperlyConfigured``."""
    queue, exchange, key = (options.get(name) for name in ("queue", "exchange", "routing_key"))
    wanted = getattr(exchange, "name", exchange)
    if wanted and key:  # which Celery follows though a queue be named
        for each in amqp.queues.values():
            if each.exchange.name == wanted and each.exchange.type == "direct" and each.routing_key == key:
                return str(each.name)
        raise ImproperlyConfigured(
            f"exchange={wanted!r}, routing_key={key!r} leads to no queue by a direct exchange: add it to task_queues"
        )
    if queue is None:
        queue = key if exchange is not None and key else amqp.default_queue
    return str(getattr(queue, "name", queue))


def send(app: Any, name: str, message: Any, queue: str, countdown: float | None, options: dict[str, Any]) -> None:
    """Store this message, with the signals that Celery sends around it."""
    headers, properties, body, _ = message
    headers |= options.get("headers") or {}
    if (serializer := options.get("serializer") or app.conf.task_serializer) != "json":
        raise EncodeError(f"{name}: a job keeps its arguments as JSON, not by the serializer {serializer!r}")
    properties |= {key: options[key] for key in ("priority", "expiration") if options.get(key) is not None}
    signals.before_task_publish.send(
        sender=name, body=body, exchange="", routing_key=queue, declare=[], headers=headers,
        properties=properties, retry_policy=options.get("retry_policy") or {},
    )  # fmt: skip
    call = call_of(app, name, headers, properties, body, queue, countdown)
    run = running.get()
    if run is not None and headers["id"] == run.id:
        run.again.append(call)
    elif run is None or not run.has_called(call):
        try:
            call.register()
        except InvalidJob as error:
            if run is None or not run.hands_on(call):
                raise
            # The run has succeeded, and Celery would hand on what no row holds.
            args, kwargs, embedded = body
            request = Context({**headers, **embedded, "args": args, "kwargs": kwargs})
            app.backend.mark_as_failure(request.id, error, request=request)
            return
    signals.after_task_publish.send(sender=name, body=body, headers=headers, exchange="", routing_key=queue)


def call_of(
    app: Any, name: str, headers: Any, properties: Any, body: Any, queue: str, countdown: float | None
) -> CeleryCall:
    """Return the call that a message of protocol 2 is. Changes nothing."""
    args, kwargs, embedded = body
    if embedded["callbacks"]:  # so that a second run of this task finds that the first has called them
        embedded = {**embedded, "callbacks": [_named(each) for each in embedded["callbacks"]]}
    priority = properties.get("priority")
    made = messages.made(headers, embedded, priority)
    if headers.get("ignore_result") is False and app.tasks[name].ignore_result:
        made["ignore_result"] = False
    message, args, kwargs = messages.packed([made, list(args), dict(kwargs)])
    options: dict[str, Any] = {"queue": queue, "max_attempts": attempts_of(app, name, headers.get("retries") or 0)}
    if priority:
        options["priority"] = priority_of(app, priority)
    if any(headers.get("timelimit") or ()):
        hard, soft = headers["timelimit"]
        options["timeout"] = limits_of(app, name, hard, soft)
    start: dict[str, Any] = {}
    if countdown:
        start["delay"] = max(countdown, 0.0)
    elif headers.get("eta"):
        start["run_at"] = maybe_make_aware(datetime.fromisoformat(headers["eta"]), app.timezone)
    expires: dict[str, Any] = {}
    if (seconds := properties.get("expiration")) is not None:
        # Seconds from now, where ours are from the start of the job.
        at = maybe_make_aware(datetime.fromisoformat(headers["expires"]), app.timezone) if start else None
        expires["expires"] = max(float(seconds), LEAST_EXPIRY) if at is None else at
    return CeleryCall(definition_of(app, name), message, args, kwargs, options, start, expires)


def _named(signature: Any) -> Any:
    """Return a signature with an id for its task."""
    options = signature.get("options") or {}
    if signature.get("subtask_type") or options.get("task_id"):
        return signature
    return {**signature, "options": {**options, "task_id": uuid()}}


def priority_of(app: Any, priority: int) -> int:
    """Return the priority of a job for that of a message."""
    url = str(app.conf.broker_write_url or app.conf.broker_url or "")
    return -priority if url.partition("://")[0].partition("+")[0] in SMALLER_FIRST else priority
