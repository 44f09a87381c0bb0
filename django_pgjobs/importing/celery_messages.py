"""The source in Celery's broker: how a message of protocol 2 tells of a task, and where kombu keeps it in Redis."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.importing.bridged import celery_project
from django_pgjobs.importing.brokers import Broker, BrokerMessage, MessageKey
from django_pgjobs.importing.sources import UNREADABLE, Waiting

PRIORITIES = range(10)

EMBEDDED = ("callbacks", "errbacks", "chain")

VALUES: Mapping[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda parts: UUID(**parts) if isinstance(parts, Mapping) else UUID(parts),
    "bytes": str.encode,
    "base64": base64.b64decode,
}
"""The values that kombu's JSON writes as a dict of ``__type__`` and ``__value__``."""


# A message


def of_message(
    headers: Mapping[str, Any], properties: Mapping[str, Any], body: bytes, kind: str, queue: str
) -> Waiting:
    """Return the task of a message. Raises one of ``UNREADABLE``."""
    if "task" not in headers:
        raise ValueError("it is no message of Celery's protocol 2")
    found = Waiting(str(headers["id"]), str(headers["task"]))
    found.priority = int(properties.get("priority") or 0)
    if kind != "application/json" or headers.get("compression"):
        found.unreadable = f"its arguments are no plain JSON: {headers.get('compression') or kind}"
        return found
    text = body.decode()
    expires = headers.get("expires")
    _, _, embedded = raw = json.loads(text)
    if expires is not None and _instant(expires) < datetime.now(UTC):
        found.unreadable = "it has expired: a worker there drops it"
    elif embedded.get("chord") or found.name == "celery.chord_unlock":
        found.unreadable = "it is of a chord, whose tasks are counted there"
    elif (call := celery_project().waiting(dict(headers), dict(properties), raw, queue)) is not None:
        call.priority = found.priority
        return call
    elif follow := [each for each in EMBEDDED if embedded.get(each)]:
        found.unreadable = f"it has {', '.join(follow)}, which only the bridge for Celery can call"
    found.args, found.kwargs, _ = json.loads(text, object_hook=_value)
    found.queue = "" if queue == celery_project().default_queue else queue
    found.attempts = int(headers.get("retries") or 0)
    if headers.get("eta"):
        found.options["run_at"] = _instant(headers["eta"])
    if expires is not None:
        found.options["expires"] = _instant(expires)
    found.lost = ["time limits"] if any(headers.get("timelimit") or ()) else []
    return found


def unread(headers: Any, error: Exception) -> Waiting:
    """Return the little that is known of a message that cannot be read."""
    known = headers if isinstance(headers, Mapping) else {}
    reason = f"cannot be read: {str(error) or type(error).__name__}"
    return Waiting(str(known.get("id") or ""), str(known.get("task") or ""), unreadable=reason)


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _value(stored: dict[str, Any]) -> Any:
    return VALUES[stored["__type__"]](stored["__value__"]) if stored.keys() == {"__type__", "__value__"} else stored


# Redis: a list for each queue and priority, and a hash with a sorted set for the messages that workers have


def _queues(client: Any) -> set[str]:
    return {*celery_project().queues, *(parts[2] for _, parts in _bindings(client))}


def _keys(client: Any, own: str) -> list[MessageKey]:
    project = celery_project()
    lists = [
        MessageKey(f"{project.prefix}{queue}{f'{project.sep}{priority}' if priority else ''}", queue, "RPUSH")
        for priority in PRIORITIES
        for queue in sorted(_queues(client))
        if not queue.endswith(".pidbox") and not queue.startswith("celeryev")
    ]
    with client.pipeline(transaction=False) as pipe:
        for origin in lists:
            pipe.exists(origin.key, own + origin.key)
        there = pipe.execute()
    return [
        *(origin for origin, found in zip(lists, there, strict=True) if found),
        MessageKey(project.prefix + UNACKED_INDEX),
    ]


UNACKED, UNACKED_INDEX, BINDING = "unacked", "unacked_index", "_kombu.binding."


def _bindings(client: Any) -> list[tuple[str, list[str]]]:
    """Return the exchanges, and of each queue there the routing key, a pattern and its name."""
    project = celery_project()
    start = f"{project.prefix}{BINDING}"
    found = []
    for key in client.scan_iter(f"{start}*"):
        for member in client.smembers(key):
            parts = member.decode(errors="replace").split(project.sep)
            if len(parts) == 3:
                found.append((key.decode(errors="replace").removeprefix(start), parts))
    return found


def _read(client: Any, origin: MessageKey, members: Sequence[tuple[bytes, float | None]]) -> list[BrokerMessage]:
    if not origin.key.endswith(UNACKED_INDEX) or not members:
        return [BrokerMessage(member, score, _of_redis(member, origin.queue)) for member, score in members]
    stored = client.hmget(celery_project().prefix + UNACKED, [member for member, _ in members])
    held = [
        BrokerMessage(member, score, _of_redis(_held(data), ""))
        for (member, score), data in zip(members, stored, strict=True)
        if data is not None
    ]
    for each in held:
        each.found.unreadable = "a worker there has it: stop the workers, and if one was killed, add --unacked"
    return held


def _held(data: bytes) -> bytes:
    """Return the message in what kombu keeps of one that a worker has."""
    try:
        return json.dumps(json.loads(data)[0]).encode()
    except UNREADABLE:
        return data


def _of_redis(data: bytes, queue: str) -> Waiting:
    headers: Any = {}
    try:
        raw = json.loads(data)
        headers, properties, body = raw["headers"], raw["properties"], raw["body"]
        base = properties.get("body_encoding") == "base64"
        found = of_message(
            headers, properties, base64.b64decode(body) if base else body.encode(), raw["content-type"], queue
        )
    except UNREADABLE as error:
        found = unread(headers, error)
    found.id = found.id or hashlib.sha1(data, usedforsecurity=False).hexdigest()
    found.priority = -found.priority  # 0 comes first there
    return found


RESTORE = """
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[3] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('RPUSH', KEYS[3], ARGV[4])
end
"""
"""Lets a worker's message wait again, if no other worker has got it since it was read: that has another instant."""


def _restore(client: Any) -> None:
    """Let the messages of killed workers wait again, as kombu does after its visibility timeout.

    They are read before the look for workers: a living worker that had one by then is seen, by its wait for messages or
    by its remote control, and what a worker gets that starts after the look is none of them.
    """
    project = celery_project()
    unacked, index = project.prefix + UNACKED, project.prefix + UNACKED_INDEX
    with client.pipeline() as pipe:
        pipe.zrevrange(index, 0, -1, withscores=True)  # the first of them comes next to the workers' end
        pipe.hgetall(unacked)
        tags, held = pipe.execute()
    _check_workers(client)
    queues = _queues(client)
    bound = {(exchange, parts[0]): parts[2] for exchange, parts in _bindings(client)}
    for tag, score in tags:
        if (data := held.get(tag)) is None:
            continue
        try:
            raw, exchange, key = json.loads(data)
            priority = int(raw["properties"].get("priority") or 0)
        except UNREADABLE:
            continue
        if (name := bound.get((exchange, key), key)) not in queues:  # of a queue that is gone, or behind a pattern
            continue
        steps = [step for step in (0, 3, 6, 9) if step <= priority] or [0]
        queue = f"{project.prefix}{name}{f'{project.sep}{steps[-1]}' if steps[-1] else ''}"
        client.eval(RESTORE, 3, unacked, index, queue, tag, repr(score), data, json.dumps(raw))


def _check_workers(client: Any) -> None:
    """Raise ``InvalidJob`` if a worker or a monitor is connected to this database of Redis."""
    db = int(client.connection_pool.connection_kwargs.get("db") or 0)
    if any(
        int(each["db"]) == db and (int(each.get("psub", 0)) or each.get("cmd") == "brpop")
        for each in client.client_list()
    ):
        raise InvalidJob("A worker or a monitor of Celery is connected to this Redis: stop it, or leave out --unacked.")


CELERY = Broker("celery", "celery", _keys, _read, lambda: celery_project().url)

CELERY_UNACKED = replace(CELERY, before=_restore)
