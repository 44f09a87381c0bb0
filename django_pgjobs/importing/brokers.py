"""Take the jobs that wait in Redis, and return those that no worker has started.

Redis and the database share no transaction, so a batch goes in four steps: move its messages to keys of our own, where
no worker of theirs looks; register them and note their ids, in one transaction; commit; delete them from our keys. What
dies between two steps is finished by the next run, before its own first: a message in our keys whose id is noted has
come, another one goes back. The transaction holds a lock from before the move, so that no run takes the messages of
one that is at work for those of one that has died. Our keys name the database, as another one knows neither its notes
nor its lock.

A hash that belongs to a message moves with it, in the same step, if it is still the one that was judged: what a
producer writes under the same id from then on is of another message.

The way back is alike: the transaction that deletes the job turns its note into one that its message has to go back, and
Redis remembers which of these it has, until that note is gone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.importing import taking
from django_pgjobs.importing.judging import judge
from django_pgjobs.importing.moves import MOVE, RETURN, SETTLE
from django_pgjobs.importing.sources import Waiting, storable
from django_pgjobs.importing.taking import Fate, ImportTally, ReportFates, UndoneImport, fate_of
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.store import installation
from django_pgjobs.store.database import Database, Params, Rows, at_read_committed, on
from django_pgjobs.store.importing import Imported
from django_pgjobs.store.moving import commit_durably, lock_moving

OURS, BACK = "pgjobs:taking:", "!"
"""Beginnings: of the keys of messages that are being taken, of the source and run of notes of those that go back."""

CHANGED = "it has changed there, or another job waits for it since: run the command again"


class MessageKey(NamedTuple):
    """A list or a sorted set of messages; ``push``: the command that adds one at the end where workers take them.

    ``own``: the beginning of the keys where this database has what it is taking; ``at``: where to read, there or not.
    """

    key: str
    queue: str = ""
    push: str = "LPUSH"
    own: str = ""
    at: str = ""


@dataclass(eq=False, slots=True)
class BrokerMessage:
    """A message: its bytes, its score in a sorted set, the job in it, and the hash that belongs to it.

    ``needed_key``: a key that is there while another message waits for it.
    """

    member: bytes
    score: float | None
    found: Waiting
    hash_key: str = ""
    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    needed_key: str = ""


@dataclass(frozen=True, slots=True)
class Broker:
    """A queue in Redis. ``keys``: the keys of its messages, by ``own`` too; ``read``: the messages of these members.

    ``url``: its broker, if the project says it; ``before``: a step before anything is taken.
    """

    name: str
    queue: str
    keys: Callable[[Any, str], list[MessageKey]]
    read: Callable[[Any, MessageKey, Sequence[tuple[bytes, float | None]]], list[BrokerMessage]]
    url: Callable[[], str] = str
    before: Callable[[Any], None] | None = None


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """Connect to this Redis by its client, whose package only an import needs. Raises ``InvalidJob``."""
    try:
        import redis  # here: only who imports from it has its client
    except ImportError:
        raise InvalidJob("To read Redis its client is needed: pip install redis") from None
    try:
        client = redis.Redis.from_url(url)
    except ValueError as error:
        raise InvalidJob(f"{error}") from None
    try:
        yield client
    except redis.RedisError as error:
        raise InvalidJob(f"Redis: {error}. The reported jobs are done: run the same command again.") from error
    finally:
        client.close()


def keys_of(client: Any, own: str, start: str) -> list[str]:
    """Return the keys that start so, also those of which all messages are being taken."""
    return sorted(
        {key.decode(errors="replace").removeprefix(at) for at in ("", own) for key in client.scan_iter(f"{at}{start}*")}
    )


def beginning(using: str) -> str:
    """Return the beginning of the keys where this database, and no other, has the messages that it is taking."""
    now = installation.read(on(using), get_conf().environment).now
    known = json.dumps([now.system, now.database, now.table, now.environment])
    return f"{OURS}{hashlib.sha256(known.encode()).hexdigest()[:16]}:"


def _origins(broker: Broker, client: Any, using: str) -> list[MessageKey]:
    own = beginning(using)
    return [origin._replace(own=own) for origin in broker.keys(client, own)]


def take_messages(broker: Broker, url: str, using: str, *, apply: bool, report: ReportFates) -> ImportTally:
    """Take all that waits in Redis; without ``apply`` only say what would be taken. Raises as ``taking.take``."""
    taking.check_commits(using)
    tally = ImportTally(secrets.token_hex(4))

    def show(fates: Sequence[Fate]) -> None:
        tally.add(fates)
        report(fates)

    with _connected(url) as client:
        if apply:
            _finish(broker, client, using)
            if broker.before is not None:
                broker.before(client)
        for origin in _origins(broker, client, using):
            if not apply:
                show(_half_way(broker, client, origin, using))
            start, done = 0, False
            while not done:
                with locked(using, apply=apply):
                    messages = _read(broker, client, origin, start, taking.BATCH)
                    fates, taken = _batch(broker, client, origin, messages, using, tally.run if apply else None)
                _settle(client, origin, taken)
                start += len(fates) - len(taken)
                done = len(messages) < taking.BATCH
                show(fates)
    if apply:
        taking.log_import(broker.name, tally)
    return tally


@contextmanager
def locked(using: str, *, apply: bool = True) -> Iterator[None]:
    """Run the block in a transaction; with ``apply`` it is the only one of its kind, and commits to the disk."""
    with at_read_committed(using):
        if apply:
            lock_moving(on(using))
            commit_durably(on(using))
        yield


def _read(broker: Broker, client: Any, origin: MessageKey, start: int, most: int) -> list[BrokerMessage]:
    """Return the next messages, in the order in which workers take them."""
    key = origin.at + origin.key
    kind = client.type(key)
    if kind == b"zset":
        members = client.zrange(key, start, start + most - 1, withscores=True)
    elif kind != b"list":  # a key of another purpose, or none
        members = []
    elif origin.push == "LPUSH":
        members = [(member, None) for member in client.lrange(key, start, start + most - 1)]
    else:
        members = [(member, None) for member in reversed(client.lrange(key, -start - most, -start - 1))]
    messages = broker.read(client, origin, members)
    for each in messages:
        storable(each.found, each.member)
        if "\0" in origin.key:
            each.found.unreadable = "the name of its key cannot be stored"
    return messages


def _read_own(broker: Broker, client: Any, origin: MessageKey) -> list[BrokerMessage]:
    """Return the messages in our key."""
    return _read(broker, client, origin._replace(at=origin.own), 0, 1 << 30)


def _half_way(broker: Broker, client: Any, origin: MessageKey, using: str) -> list[Fate]:
    """Return what would become of the messages that a run has left in our key that has died."""
    messages = _read_own(broker, client, origin)
    known = _noted(broker, messages, using)
    return _batch(broker, client, origin, [each for each in messages if each.found.id not in known], using, None)[0]


def _batch(
    broker: Broker, client: Any, origin: MessageKey, messages: Sequence[BrokerMessage], using: str, run: str | None
) -> tuple[list[Fate], list[BrokerMessage]]:
    """Register these messages, with a run; return their fates, and those that have come."""
    known = _noted(broker, messages, using)
    ids: set[str] = set()
    for each in messages:
        each.found.former = known.get(each.found.id)
        if each.found.id in ids:
            each.found.unreadable = "another message has its id"
        ids.add(each.found.id)
    judged = [judge(each.found, broker.queue, using) for each in messages]
    if run is None:
        return [fate_of(*pair) for pair in zip([each.found for each in messages], judged, strict=True)], []
    wanted = [at for at, said in enumerate(judged) if said.row is not None]
    moved, changed = _move(client, origin, [messages[at] for at in wanted], take=True)
    judged = [
        said._replace(row=None, reason=CHANGED) if each in changed else said
        for each, said in zip(messages, judged, strict=True)
    ]
    # A message that a worker there has taken since is not told, as none is that it took before.
    stay = [at for at, said in enumerate(judged) if said.row is None or messages[at] in moved]
    messages, judged = [messages[at] for at in stay], [judged[at] for at in stay]
    try:
        job_ids = taking.registered(judged, using)
        pairs = [(each, job_id) for each, job_id in zip(messages, job_ids, strict=True) if job_id is not None]
        ImportNote.objects.using(using).bulk_create(_note(broker, origin, *pair, run) for pair in pairs)
    except BaseException:
        _move(client, origin, [each for each in messages if each in moved], take=False)  # nothing will be committed
        raise
    taken = [each for each, _ in pairs]
    _move(client, origin, [each for each in messages if each in moved - set(taken)], take=False)
    found = [each.found for each in messages]
    return [fate_of(*each) for each in zip(found, judged, job_ids, strict=True)], taken


def _noted(broker: Broker, messages: Sequence[BrokerMessage], using: str) -> dict[str, int | None]:
    ids = [each.found.id for each in messages]
    notes = ImportNote.objects.using(using).filter(source=broker.name, source_id__in=ids)
    return dict(notes.values_list("source_id", "job_id"))


def _note(broker: Broker, origin: MessageKey, message: BrokerMessage, job_id: int, run: str) -> ImportNote:
    fields = [_text(part) for pair in message.fields.items() for part in pair]
    original = {
        "key": origin.key, "push": origin.push, "member": _text(message.member), "score": message.score,
        "hash": message.hash_key, "fields": fields,
    }  # fmt: skip
    return ImportNote(source=broker.name, source_id=message.found.id, job_id=job_id, run=run, original=original)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _move(
    client: Any, origin: MessageKey, messages: Sequence[BrokerMessage], *, take: bool
) -> tuple[set[BrokerMessage], set[BrokerMessage]]:
    """Move these messages to our key, or back to where workers take the next.

    Return those that were there, and those that stay as they are not what was read. Our key has them in the order of
    theirs.
    """
    if not messages:
        return set(), set()
    first = origin.push == "LPUSH"
    keys, order, push = [origin.key, origin.own + origin.key], list(messages), "RPUSH" if first else "LPUSH"
    if not take:
        keys, order, push = keys[::-1], order[::-1], origin.push
    parts: list[Any] = []
    for each in order:
        hashes = [each.hash_key, _own_hash(origin, each)]
        read = [part for pair in each.fields.items() for part in pair] if take else []
        parts += [each.member, *(hashes if take else hashes[::-1]), each.needed_key, len(read), *read]
    answers = client.eval(MOVE, 2, *keys, push, 1 if first else -1, *parts)
    moved, changed = ({order[number] for number in numbers} for numbers in answers)
    return moved, changed


def _own_hash(origin: MessageKey, message: BrokerMessage) -> str:
    return origin.own + message.hash_key if message.hash_key else ""


def _settle(client: Any, origin: MessageKey, taken: Sequence[BrokerMessage]) -> None:
    """Delete messages that have come from our key, with their hashes."""
    if not taken:
        return
    parts = [part for each in taken for part in (each.member, _own_hash(origin, each))]
    client.eval(SETTLE, 1, origin.own + origin.key, *parts)


def _finish(broker: Broker, client: Any, using: str) -> int:
    """Finish what a run has left that has died: messages in our keys, and those to go back, whose number it returns."""
    own = beginning(using)
    with locked(using):
        for origin in _origins(broker, client, using):
            messages = _read_own(broker, client, origin)
            known = _noted(broker, messages, using)
            _settle(client, origin, [each for each in messages if each.found.id in known])
            _move(client, origin, [each for each in messages if each.found.id not in known], take=False)
    with locked(using):
        notes = list(ImportNote.objects.using(using).filter(source=BACK + broker.name).order_by("-job_id"))
        for note in notes:
            stored: dict[str, Any] = note.original or {}
            keys = (stored["key"], own + note.run, stored["hash"])
            fields = [base64.b64decode(part) for part in stored["fields"]]
            score = "" if stored["score"] is None else repr(stored["score"])
            member = base64.b64decode(stored["member"])
            client.eval(RETURN, 3, *keys, note.source_id, member, score, stored["push"], *fields)
        ImportNote.objects.using(using).filter(source=BACK + broker.name).delete()
    if runs := {own + note.run for note in notes}:
        client.delete(*runs)
    return len(notes)


def undo_messages(
    broker: Broker, url: str, run: str, using: str, *, apply: bool, report: Callable[[Sequence[Imported]], None]
) -> UndoneImport:
    """``taking.undo`` for messages of Redis."""
    with _connected(url) as client:

        def free(notes: Sequence[ImportNote]) -> list[ImportNote]:
            """Leave out those under whose id a producer has written another message since."""
            with client.pipeline(transaction=False) as pipe:
                for note in notes:
                    pipe.exists((note.original or {})["hash"])
                return [note for note, taken in zip(notes, pipe.execute(), strict=True) if not taken]

        finish = partial(_finish, broker, client, using)
        return undo_by(finish, broker.name, run, using, apply=apply, report=report, free=free)


def undo_by(
    finish: Callable[[], int],
    source: str,
    run: str,
    using: str,
    *,
    apply: bool,
    report: Callable[[Sequence[Imported]], None],
    free: Callable[[Sequence[ImportNote]], list[ImportNote]] = list,
) -> UndoneImport:
    """``taking.undo`` where the way back is noted first, and ``finish`` brings what is noted there.

    ``free`` returns those that can go back.
    """

    def put_back(db: Database, params: Params) -> Rows:
        notes = free(list(ImportNote.objects.using(using).filter(source=source, run=run, source_id__in=params["ids"])))
        back = [
            ImportNote(source=BACK + each.source, source_id=each.source_id, job_id=each.job_id, run=BACK + run,
                       original=each.original)
            for each in notes
        ]  # fmt: skip
        ImportNote.objects.using(using).bulk_create(back)
        commit_durably(db)
        return [(each.source_id,) for each in back]

    finished = finish() if apply else 0
    if finished and not ImportNote.objects.using(using).filter(run=run).exists():
        return UndoneImport(finished)
    done = taking.undo(run, using, apply=apply, report=report, put_back=put_back)
    if apply:
        finish()
    done.returned += finished
    return done


def source_of(run: str, using: str) -> str:
    """Return the source of a run, also of one whose jobs are all on their way back; empty if there is none."""
    notes = ImportNote.objects.using(using).filter(run__in=[run, BACK + run])
    return (notes.values_list("source", flat=True).first() or "").removeprefix(BACK)
