"""Messages that wait in the broker of a bridged app, for ``pgjobs import celery``: each as the job of its call."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from celery.utils.time import maybe_make_aware
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.celery_bridge import messages, sending
from django_pgjobs.celery_bridge.bridges import bridges
from django_pgjobs.importing.bridged import NO_PROJECT, CeleryProject
from django_pgjobs.importing.sources import Waiting


def project() -> CeleryProject | None:
    """Return the bridged app as an import sees it."""
    app = next((bridge.app for bridge in bridges()), None)
    if app is None:
        return None
    given = app.conf.broker_transport_options or {}
    queues = [str(name) for name in app.amqp.queues]
    prefix, sep = str(given.get("global_keyprefix") or ""), str(given.get("sep") or NO_PROJECT.sep)
    return CeleryProject(_url(app), prefix, sep, queues, str(app.amqp.default_queue.name), _waiting)


def _url(app: Any) -> str:
    """Return the broker's URL, the first of several, in the words of Redis' own client."""
    given = app.conf.broker_read_url or app.conf.broker_url or ""
    url = str(given[0] if isinstance(given, list | tuple) and given else given).partition(";")[0]
    url = re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda found: found[0][5:].lower(), url)
    return url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")


def _waiting(headers: dict[str, Any], properties: dict[str, Any], body: list[Any], queue: str) -> Waiting | None:
    name = headers["task"]
    bridge = next((each for each in bridges() if name in each.app.tasks), None)
    if bridge is None:
        return None
    if not bridge.takes(name, body[1], queue):
        return Waiting(headers["id"], name, unreadable="the patterns of install() leave it to the broker")
    try:
        call = sending.call_of(bridge.app, name, headers, {"priority": properties.get("priority")}, body, queue, None)
    except ImproperlyConfigured as error:
        return Waiting(headers["id"], name, unreadable=str(error))
    options = {**call.options, **call.start, "tags": [messages.tag_of(headers["id"])]}
    options.pop("priority", None)
    if headers.get("expires"):
        options["expires"] = maybe_make_aware(datetime.fromisoformat(headers["expires"]), bridge.app.timezone)
    kwargs = {**call.kwargs, messages.MESSAGE: call.message}
    return Waiting(headers["id"], name, call.args, kwargs, options=options)
