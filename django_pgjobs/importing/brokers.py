"""Take the jobs that wait in Redis, and return those that no worker has started.

Redis and the database share no transaction, so a batch goes in four steps: move its messages to keys of our own, where
no worker of theirs looks; register them and note their ids, in one transaction; commit; delete them from our keys. What
dies between two steps is finished by the next run, before its own first: a message in our keys whose id is noted has
come, another one goes back. The transaction holds a lock from before the move, so that no run takes the messages of
one that is at work for those of one that has died.

The way back is alike: the transaction that deletes the job turns its note into one that its message has to go back, and
Redis remembers which of these it has, until that note is gone.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.importing import taking
from django_pgjobs.importing.judging import judge
from django_pgjobs.importing.sources import Waiting, storable
from django_pgjobs.importing.taking import Fate, ImportTally, ReportFates, UndoneImport, fate_of
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.store.database import Database, Params, Rows, at_read_committed, on
from django_pgjobs.store.importing import Imported
from django_pgjobs.store.moving import commit_durably, lock_moving

OURS, BACK = "pgjobs:taking:", "!"
"""Beginnings: of the keys of messages that are being taken, of the source and run of notes of those that go back."""

MOVE = """
local scored, moved = redis.call('TYPE', KEYS[1]).ok == 'zset', {}
for at = 3, #ARGV do
  if scored then
    local score = redis.call('ZSCORE', KEYS[1], ARGV[at])
    if score then
      redis.call('ZREM', KEYS[1], ARGV[at])
      redis.call('ZADD', KEYS[2], score, ARGV[at])
      moved[#moved + 1] = at - 3
    end
  elseif redis.call('LREM', KEYS[1], ARGV[2], ARGV[at]) == 1 then
    redis.call(ARGV[1], KEYS[2], ARGV[at])
    moved[#moved + 1] = at - 3
  end
end
return moved
"""
"""Moves messages from a key to another, those that are there, and returns their numbers."""

SETTLE = """
local remove = redis.call('TYPE', KEYS[1]).ok == 'zset' and {'ZREM', KEYS[1]} or {'LREM', KEYS[1], 1}
for at = 1, #ARGV, 2 do
  remove[#remove + 1] = ARGV[at]
  if redis.call(unpack(remove)) == 1 and ARGV[at + 1] ~= '' then redis.call('DEL', ARGV[at + 1]) end
  remove[#remove] = nil
end
"""
"""Deletes messages from our key, and the hashes of those that were there: another process may have done so before."""

RETURN = """
if redis.call('SADD', KEYS[2], ARGV[1]) == 1 then
  if ARGV[3] == '' then redis.call(ARGV[4], KEYS[1], ARGV[2]) else redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2]) end
  if #ARGV > 4 then redis.call('HSET', KEYS[3], unpack(ARGV, 5)) end
end
"""
"""Lets a message wait again, unless it does so already, with the fields of its hash."""


class MessageKey(NamedTuple):
    """A list or a sorted set of messages; ``push``: the command that adds one at the end where workers take them."""

    key: str
    queue: str = ""
    push: str = "LPUSH"


@dataclass(eq=False, slots=True)
class BrokerMessage:
    """A message: its bytes, its score in a sorted set, the job in it, and the hash that belongs to it."""

    member: bytes
    score: float | None
    found: Waiting
    hash_key: str = ""
    fields: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broker:
    """A queue in Redis. ``keys``: the keys of its messages; ``read``: the messages of these members.

    ``url``: its broker, if the project says it; ``before``: a step before anything is taken.
    """

    name: str
    queue: str
    keys: Callable[[Any], list[MessageKey]]
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


def keys_of(client: Any, start: str) -> list[str]:
    """Return the keys that start so, also those of which all messages are being taken."""
    found = [key.decode(errors="replace") for own in ("", OURS) for key in client.scan_iter(f"{own}{start}*")]
    return sorted({key.removeprefix(OURS) for key in found})


def take_messages(broker: Broker, url: str, using: str, *, apply: bool, report: ReportFates) -> ImportTally:
    """Take all that waits in Redis; without ``apply`` only say what would be taken. Raises as ``taking.take``."""
    taking.check_commits(using)
    tally = ImportTally(secrets.token_hex(4))
    with _connected(url) as client:
        if apply:
            _finish(broker, client, using)
            if broker.before is not None:
                broker.before(client)
        for origin in broker.keys(client):
            start, done = 0, False
            while not done:
                with locked(using, apply=apply):
                    messages = _read(broker, client, origin, origin.key, start, taking.BATCH)
                    fates, taken = _batch(broker, client, origin, messages, using, tally.run if apply else None)
                _settle(client, origin, taken)
                start += len(fates) - len(taken)
                done = len(messages) < taking.BATCH
                tally.add(fates)
                report(fates)
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


def _read(broker: Broker, client: Any, origin: MessageKey, key: str, start: int, most: int) -> list[BrokerMessage]:
    """Return the next messages, in the order in which workers take them."""
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
    moved = set(_move(client, origin, [messages[at] for at in wanted], take=True))
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


def _move(client: Any, origin: MessageKey, messages: Sequence[BrokerMessage], *, take: bool) -> list[BrokerMessage]:
    """Move these messages to our key, or back to where workers take the next; return those that were there.

    Our key has them in the order of theirs.
    """
    if not messages:
        return []
    first = origin.push == "LPUSH"
    keys, order, push = [origin.key, OURS + origin.key], list(messages), "RPUSH" if first else "LPUSH"
    if not take:
        keys, order, push = keys[::-1], order[::-1], origin.push
    numbers = client.eval(MOVE, 2, *keys, push, 1 if first else -1, *(each.member for each in order))
    return [order[number] for number in numbers]


def _settle(client: Any, origin: MessageKey, taken: Sequence[BrokerMessage]) -> None:
    """Delete messages that have come from our key, with their hashes."""
    if not taken:
        return
    parts = [part for each in taken for part in (each.member, each.hash_key)]
    client.eval(SETTLE, 1, OURS + origin.key, *parts)


def _finish(broker: Broker, client: Any, using: str) -> int:
    """Finish what a run has left that has died: messages in our keys, and those to go back, whose number it returns."""
    with locked(using):
        for origin in broker.keys(client):
            messages = _read(broker, client, origin, OURS + origin.key, 0, 1 << 30)
            known = _noted(broker, messages, using)
            _settle(client, origin, [each for each in messages if each.found.id in known])
            _move(client, origin, [each for each in messages if each.found.id not in known], take=False)
    with locked(using):
        notes = list(ImportNote.objects.using(using).filter(source=BACK + broker.name).order_by("-job_id"))
        for note in notes:
            stored: dict[str, Any] = note.original or {}
            keys = (stored["key"], OURS + note.run, stored["hash"])
            fields = [base64.b64decode(part) for part in stored["fields"]]
            score = "" if stored["score"] is None else repr(stored["score"])
            member = base64.b64decode(stored["member"])
            client.eval(RETURN, 3, *keys, note.source_id, member, score, stored["push"], *fields)
        ImportNote.objects.using(using).filter(source=BACK + broker.name).delete()
    if runs := {OURS + note.run for note in notes}:
        client.delete(*runs)
    return len(notes)


def undo_messages(
    broker: Broker, url: str, run: str, using: str, *, apply: bool, report: Callable[[Sequence[Imported]], None]
) -> UndoneImport:
    """``taking.undo`` for messages of Redis."""
    with _connected(url) as client:
        return undo_by(lambda: _finish(broker, client, using), broker.name, run, using, apply=apply, report=report)


def undo_by(
    finish: Callable[[], int],
    source: str,
    run: str,
    using: str,
    *,
    apply: bool,
    report: Callable[[Sequence[Imported]], None],
) -> UndoneImport:
    """``taking.undo`` where the way back is noted first, and ``finish`` brings what is noted there."""

    def put_back(db: Database, params: Params) -> Rows:
        notes = ImportNote.objects.using(using).filter(source=source, run=run, source_id__in=params["ids"])
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
