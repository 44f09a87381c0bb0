"""The sources in Redis: how RQ, huey and django-q2 store a job that waits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_pgjobs.importing.brokers import Broker, BrokerMessage, MessageKey, keys_of
from django_pgjobs.importing.celery_messages import CELERY
from django_pgjobs.importing.pickles import inflate, read_pickle
from django_pgjobs.importing.sources import UNREADABLE, Waiting, of_q2, storable

Members = Sequence[tuple[bytes, float | None]]

# RQ: lists and sorted sets of ids, and a hash for each

DUE_SECONDS = 60.0
"""A scheduler of RQ may have read what is due by then, and then moves it whether it is there or not."""


def _rq(kind: str) -> str:
    return f"{os.environ.get('RQ_KEY_PREFIX', 'rq')}:{kind}:"


def _keys_of_rq(client: Any, own: str) -> list[MessageKey]:
    keys = sorted(key.decode(errors="replace") for key in client.smembers(_rq("queues")[:-1]))
    found = [MessageKey(key, key.removeprefix(_rq("queue"))) for key in keys]
    for start in (_rq("scheduled"), _rq("deferred")):
        found += [MessageKey(key, key.removeprefix(start)) for key in keys_of(client, own, start)]
    return found


def _read_rq(client: Any, origin: MessageKey, members: Members) -> list[BrokerMessage]:
    ids = [member.decode(errors="backslashreplace") for member, _ in members]
    with client.pipeline(transaction=False) as pipe:
        for each in ids:
            pipe.hgetall(f"{origin.at}{_rq('job')}{each}")
            pipe.exists(f"{_rq('job')}{each}:dependents")
        pipe.exists(_rq("scheduler-lock") + origin.queue)
        *answers, scheduler = pipe.execute(raise_on_error=False)  # a key may be of another type
    messages = []
    for number, (member, score) in enumerate(members):
        fields, needed = answers[2 * number], answers[2 * number + 1]
        fields = fields if isinstance(fields, dict) else {}
        found = _of_rq(fields, score)
        found.id, found.queue = ids[number], origin.queue
        if ids[number].encode() != member:
            found.unreadable = "its id cannot be stored"
        elif origin.key.startswith(_rq("deferred")):
            found.unreadable = "it waits for another job there"
        elif needed:
            found.unreadable = "another job waits for it there"
        elif score is not None and scheduler and score < time.time() + DUE_SECONDS:
            found.unreadable = "it is due, and its scheduler moves it to its queue: run the command again"
        key = _rq("job") + ids[number]
        messages.append(BrokerMessage(member, score, found, key, fields, f"{key}:dependents"))
    return messages


def _of_rq(fields: Mapping[bytes, bytes], start: float | None) -> Waiting:
    try:
        data = fields[b"data"]
        data = inflate(data) if data[:1] == b"\x78" else data
        func, instance, args, kwargs = json.loads(data) if data[:1] == b"[" else read_pickle(data)
        found = Waiting("", str(func), args, kwargs)
        if start is not None:
            found.options["run_at"] = datetime.fromtimestamp(start, UTC)
        if instance is not None:
            found.unreadable = "it is a method of an object"
    except UNREADABLE as error:
        return Waiting("", unreadable=f"cannot be read: {error}" if fields else "its hash is gone")
    words = {b"success_callback_name": "callbacks", b"failure_callback_name": "callbacks", b"meta": "meta"}
    words |= {b"ttl": "ttl", b"rate_limit_key": "rate limit"}
    found.lost = sorted({word for name, word in words.items() if fields.get(name)})
    if fields.get(b"repeats_left"):
        found.unreadable = "it repeats there"
    return found


# huey: a list or a sorted set of messages by priority, and another by their instants


def _keys_of_huey(client: Any, own: str) -> list[MessageKey]:
    starts = [f"huey.{kind}." for kind in ("redis", "schedule")]
    return [MessageKey(key, push="RPUSH") for start in starts for key in keys_of(client, own, start)]


def _read_huey(client: Any, origin: MessageKey, members: Members) -> list[BrokerMessage]:
    _, kind, name = origin.key.split(".", 2)
    messages = []
    for member, score in members:
        by_priority = kind == "redis" and score is not None
        try:
            found = _of_huey(member[8:] if by_priority else member)
            found.priority = -int(score) if by_priority and score is not None else found.priority
        except UNREADABLE as error:
            found = Waiting(member[:40].hex(), unreadable=f"cannot be read: {error}")
        messages.append(BrokerMessage(member, score, storable(found, member)))
    with client.pipeline(transaction=False) as pipe:
        for each in messages:
            for key in (f"r:{each.found.id}", f"rt:{each.found.name}"):
                pipe.hexists(f"huey.results.{name}", key)
                pipe.exists(f"huey.r.{name}.{key}")
        answers = pipe.execute()
    for number, each in enumerate(messages):
        if any(answers[4 * number : 4 * number + 4]):
            each.found.unreadable = "it is revoked there"
    return messages


class _Task:
    """The message of huey in a pickle: a tuple, whose later fields older releases do not have."""

    __slots__ = ("parts",)

    def __new__(cls, *parts: object) -> _Task:
        made = super().__new__(cls)
        made.parts = dict(zip(FIELDS, parts, strict=False))
        return made

    parts: dict[str, Any]

    def __setstate__(self, state: object) -> None:
        raise ValueError("has a state")


FIELDS = (
    "id", "name", "eta", "retries", "retry_delay", "priority", "args", "kwargs", "on_complete", "on_error", "expires",
    "expires_resolved", "timeout", "chord_config", "retry_backoff",
)  # fmt: skip


def _of_huey(data: bytes) -> Waiting:
    if data[:1] in (b"\x1f", b"\x78"):
        data = inflate(data)
    stored = read_pickle(data, {("huey.registry", "Message"): _Task})
    if not isinstance(stored, _Task):
        raise ValueError("it is no message of huey")
    task = stored.parts
    priority = int(task["priority"] or 0)
    found = Waiting(str(task["id"]), str(task["name"]), task["args"], task["kwargs"], priority=priority)
    if task["eta"] is not None:
        found.options["run_at"] = _instant(task["eta"])
    if task.get("expires_resolved") is not None:
        found.options["expires"] = _instant(task["expires_resolved"])
    if any(task.get(each) for each in ("on_complete", "on_error", "chord_config")):
        found.unreadable = "it has other tasks that follow it there"
    return found


def _instant(eta: datetime) -> datetime:
    """huey takes what is naive for UTC, or for local time if it is told so."""
    given = getattr(settings, "HUEY", None)
    utc = given.get("utc", True) if isinstance(given, Mapping) else getattr(given, "utc", True)
    return eta if eta.tzinfo else eta.replace(tzinfo=UTC if utc else ZoneInfo(settings.TIME_ZONE))


# django-q2: lists of signed packages


def _keys_of_q2(client: Any, own: str) -> list[MessageKey]:
    return [MessageKey(key) for key in keys_of(client, own, "django_q:") if key.endswith(":q")]


def _read_q2(client: Any, origin: MessageKey, members: Members) -> list[BrokerMessage]:
    messages = []
    for member, score in members:
        try:
            found = of_q2(origin.key.removeprefix("django_q:").removesuffix(":q"), member.decode())
        except UNREADABLE as error:
            found = Waiting(member[-40:].hex(), unreadable=f"cannot be read: {error}")
        messages.append(BrokerMessage(member, score, found))
    return messages


BROKERS: Mapping[str, Broker] = {
    each.name: each
    for each in (
        Broker("rq", "default", _keys_of_rq, _read_rq),
        Broker("huey", "default", _keys_of_huey, _read_huey),
        Broker("django-q2-redis", "default", _keys_of_q2, _read_q2),
        CELERY,
    )
}
