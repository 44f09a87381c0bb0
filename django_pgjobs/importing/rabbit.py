"""Take the messages of Celery that wait in RabbitMQ, and return those that no worker has started.

RabbitMQ has no place of ours to move a message to, but keeps what a connection has got and not acknowledged, and gives
it out again when the connection ends. A batch is therefore got, registered with its notes, committed, and then
acknowledged.
After a death between the last two its messages come again, marked so, and their ids are noted: they are acknowledged.
A worker of Celery would run them before that, so nothing is taken, or goes back, while a queue has consumers.
A message that is left is never acknowledged, and waits again in its position when the run ends.

The way back is that of ``brokers``. RabbitMQ remembers it by a message in a queue of ours, which one transaction there
publishes together with the others. It is whole unless RabbitMQ itself dies in that commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.importing import taking
from django_pgjobs.importing.bridged import celery_project
from django_pgjobs.importing.brokers import BACK, OURS, locked, undo_by
from django_pgjobs.importing.celery_messages import CELERY, of_message, unread
from django_pgjobs.importing.judging import Judged, judge
from django_pgjobs.importing.sources import UNREADABLE, Waiting
from django_pgjobs.importing.taking import Fate, ImportTally, ReportFates, UndoneImport, fate_of
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.store.database import at_read_committed, on
from django_pgjobs.store.importing import Imported
from django_pgjobs.store.moving import commit_durably

RABBIT = "celery-rabbitmq"
"""The source in the notes."""

COUNTS = ("x-delivery-count", "x-acquired-count")
"""Headers by which a quorum queue says how often it has given a message out: they are not of the message."""

OFTEN = 10
"""From so many deliveries on it is said of a message that is left: at 20 RabbitMQ drops it, unless told otherwise."""


def is_rabbit(url: str) -> bool:
    """Return True for the URL of a RabbitMQ."""
    return url.partition("://")[0] in ("amqp", "amqps", "pyamqp")


class _Got(NamedTuple):
    """A message that this connection has: the job in it, and what it takes to publish it again."""

    tag: int
    again: bool
    times: int
    found: Waiting
    original: dict[str, Any]


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """Connect to this RabbitMQ by Celery's own client. Raises ``InvalidJob``."""
    try:
        from kombu import Connection  # here: only who imports from it has its client
    except ImportError:
        raise InvalidJob("To read RabbitMQ the client of Celery is needed: pip install kombu") from None
    connection = Connection(url, connect_timeout=10)
    try:
        connection.connect()
        yield connection
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise InvalidJob(f"RabbitMQ: {error}. The reported jobs are done: run the same command again.") from error
    finally:
        connection.release()


def take_from_rabbit(url: str, using: str, *, apply: bool, report: ReportFates) -> ImportTally:
    """Take all that waits in RabbitMQ; without ``apply`` only say what would be taken. Raises as ``taking.take``."""
    taking.check_commits(using)
    tally = ImportTally(secrets.token_hex(4))
    ids: set[str] = set()
    with _connected(url) as connection:
        found = {each: _consumers(connection, each) for each in celery_project().queues}
        queues = {each: count for each, count in found.items() if count is not None}
        if apply:
            _check_consumers(queues)
            _finish(connection, using)
        channel = connection.channel()
        channel.tx_select()
        for queue in queues:
            done = False
            while not done:
                got = list(_get(channel, queue))
                done = len(got) < taking.BATCH
                with at_read_committed(using):
                    if apply:
                        commit_durably(on(using))
                    fates, settled = _batch(got, ids, using, tally.run if apply else None)
                _acknowledge(channel, settled)
                tally.add(fates)
                report(fates)
    if apply:
        taking.log_import(RABBIT, tally)
    return tally


def _consumers(connection: Any, queue: str) -> int | None:
    """Return the number of workers that take from this queue, None if it is not there."""
    try:
        found: int = connection.channel().queue_declare(queue, passive=True).consumer_count
    except connection.channel_errors:
        return None
    return found


def _check_consumers(queues: Mapping[str, int | None]) -> None:
    if busy := [name for name, count in queues.items() if count]:
        raise InvalidJob(f"Workers of Celery take from {', '.join(busy)}: stop them, then run the same command again.")


def _check_there(queues: Mapping[str, int | None]) -> None:
    if gone := [name for name, count in queues.items() if count is None]:
        raise InvalidJob(
            f"RabbitMQ has no queue {', '.join(gone)}: declare it as it was, then run the same command again."
        )


def _acknowledge(channel: Any, settled: Sequence[_Got]) -> None:
    """Acknowledge these messages, and wait until RabbitMQ has done so."""
    for each in settled:
        channel.basic_ack(each.tag)
    if settled:
        channel.tx_commit()


def _get(channel: Any, queue: str) -> Iterator[_Got]:
    for _ in range(taking.BATCH):
        if (message := channel.basic_get(queue)) is None:
            return
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
        properties = {name: value for name, value in message.properties.items() if value is not None}
        headers = dict(message.headers or {})
        times = max(int(headers.pop(name, 0)) for name in COUNTS)
        if "application_headers" in properties:
            properties["application_headers"] = headers
        found = _read(headers, properties, body, queue)
        original = {"queue": queue, "body": base64.b64encode(body).decode(), "properties": properties}
        info = message.delivery_info
        yield _Got(
            info["delivery_tag"], bool(info["redelivered"]), times, found, json.loads(json.dumps(original, default=str))
        )


def _read(headers: dict[str, Any], properties: dict[str, Any], body: bytes, queue: str) -> Waiting:
    try:
        found = of_message(headers, properties, body, properties.get("content_type") or "", queue)
    except (AttributeError, *UNREADABLE) as error:
        found = unread(headers, error)
    found.id = found.id or hashlib.sha1(body, usedforsecurity=False).hexdigest()
    return found


def _batch(got: Sequence[_Got], ids: set[str], using: str, run: str | None) -> tuple[list[Fate], list[_Got]]:
    """Register these messages, with a run; return their fates, and those to acknowledge. ``ids``: those seen before."""
    known = _noted(got, using)
    come = _come(got, known)
    rest = [each for each in got if each not in come]
    for each in rest:
        if (note := known.get(each.found.id)) is not None:
            each.found.former = note.job_id
        elif each.found.id in ids:
            each.found.unreadable = "another message has its id"
        ids.add(each.found.id)
    judged = [judge(each.found, CELERY.queue, using) for each in rest]
    job_ids: list[int | None] = [None] * len(rest)
    if run is not None:
        job_ids = taking.registered(judged, using)
        pairs = [(each, job_id) for each, job_id in zip(rest, job_ids, strict=True) if job_id is not None]
        ImportNote.objects.using(using).bulk_create(
            ImportNote(source=RABBIT, source_id=each.found.id, job_id=job_id, run=run, original=each.original)
            for each, job_id in pairs
        )
        come += [each for each, _ in pairs]
    fates = [_fate(each, said, job) for each, said, job in zip(rest, judged, job_ids, strict=True)]
    return fates, come if run is not None else []


def _fate(each: _Got, said: Judged, job_id: int | None) -> Fate:
    fate = fate_of(each.found, said, job_id)
    if not fate.is_left or each.times < OFTEN:
        return fate
    often = f"RabbitMQ has given it out {each.times} times, and may drop it after more"
    return fate._replace(reason=f"{fate.reason}; {often}")


def _noted(got: Sequence[_Got], using: str) -> dict[str, ImportNote]:
    notes = ImportNote.objects.using(using).filter(source=RABBIT, source_id__in=[each.found.id for each in got])
    return {note.source_id: note for note in notes}


def _come(got: Sequence[_Got], known: Mapping[str, ImportNote]) -> list[_Got]:
    """Return those that a run which has died has committed, and not acknowledged."""
    return [
        each
        for each in got
        if each.again and (note := known.get(each.found.id)) is not None and note.original == each.original
    ]


def _settle(connection: Any, run: str, using: str) -> None:
    """Acknowledge what is here in the queues of a run: if it died, its messages would wait twice after an undo."""
    notes = ImportNote.objects.using(using).filter(source=RABBIT, run=run)
    names: list[str] = sorted(set(notes.values_list("original__queue", flat=True)))
    queues = {each: _consumers(connection, each) for each in names}
    _check_consumers(queues)
    _check_there(queues)
    for queue in names:
        channel = connection.channel()
        channel.tx_select()
        done = False
        while not done:
            got = list(_get(channel, queue))
            done = len(got) < taking.BATCH
            _acknowledge(channel, _come(got, _noted(got, using)))
        channel.close()


def _finish(connection: Any, using: str) -> int:
    """Publish what an undo has noted to go back; return the number."""
    with locked(using):
        notes = list(ImportNote.objects.using(using).filter(source=BACK + RABBIT).order_by("run", "job_id"))
        runs = {run: list(each) for run, each in groupby(notes, lambda note: note.run)}
        for run, back in runs.items():
            _publish(connection, OURS + run, back)
        ImportNote.objects.using(using).filter(source=BACK + RABBIT).delete()
    for run in runs:
        connection.channel().queue_delete(OURS + run)
    return len(notes)


def _publish(connection: Any, mark: str, notes: Sequence[ImportNote]) -> None:
    """Publish those of these messages that no earlier try has, of which ``mark`` tells."""
    channel = connection.channel()
    channel.queue_declare(mark, durable=True, auto_delete=False)
    done: set[str] = set()
    while (found := channel.basic_get(mark)) is not None:
        done.update(json.loads(found.body))
    missing = [note for note in notes if note.source_id not in done]
    names = sorted({(note.original or {})["queue"] for note in missing})
    _check_there({each: _consumers(connection, each) for each in names})  # RabbitMQ drops what no queue is there for
    channel.tx_select()
    for note in missing:
        original: dict[str, Any] = note.original or {}
        stored = dict(original["properties"])
        given = [stored.pop(name, None) for name in ("priority", "content_type", "content_encoding")]
        headers, body = stored.pop("application_headers", None), base64.b64decode(original["body"])
        made = channel.prepare_message(body, *given, headers, stored)
        channel.basic_publish(made, exchange="", routing_key=original["queue"])
    memory = json.dumps([note.source_id for note in missing]).encode()
    made = channel.prepare_message(memory, properties={"delivery_mode": 2})
    channel.basic_publish(made, exchange="", routing_key=mark)
    channel.tx_commit()


def undo_to_rabbit(
    url: str, run: str, using: str, *, apply: bool, report: Callable[[Sequence[Imported]], None]
) -> UndoneImport:
    """``taking.undo`` for what has come from RabbitMQ. Its messages go to the ends of their queues."""
    with _connected(url) as connection:
        if apply:
            _settle(connection, run, using)
        return undo_by(lambda: _finish(connection, using), RABBIT, run, using, apply=apply, report=report)
