"""The walks of a running job, each through many rows, behind a cursor that the job's own row keeps.

The job's own connection writes a cursor together with the progress, fenced: once a second, and when the job stops. With
``atomic`` it is the last statement in the transaction of a batch. The row is locked from there to the COMMIT, so a
claim that was lost takes nothing with it, and what a batch has done is there exactly if its cursor is. The next run
reads the cursor under the same lock, so it never overtakes a COMMIT that the server has not finished.

When the job is to stop, a walk ends its batch early, writes the cursor, and releases the job: ``JobSuspended``
leaves the body, as it does for a sleep.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections, transaction

from django_pgjobs import clock
from django_pgjobs.exceptions import InvalidJob, RolledBack, UnstorableResult, WorkerStopping
from django_pgjobs.execution.atomic_end import check_committable, one_transaction
from django_pgjobs.execution.memos import Memos
from django_pgjobs.execution.sources import OTHERWISE, Source, source_of
from django_pgjobs.execution.suspending import Suspending
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import decode_result, encode_result
from django_pgjobs.store.atomic import IDLE_TIMEOUT
from django_pgjobs.store.database import on
from django_pgjobs.store.memos import Cursors, read_cursors, write_cursor
from django_pgjobs.values.call_options import EachOptions

if TYPE_CHECKING:
    from django_pgjobs.execution.naming import Names

OUR_FILES.add(__file__)

T = TypeVar("T")

KEEP_SECONDS = 1.0

KEY_BYTES = 200
"""Maximum length of a key, as JSON text."""

MOST_CURSORS = 25

ROOM = 600
"""Maximum length of the options of a job with its cursors, as JSON text: a claim reads ``OPTION_BYTES`` at most, and
counts them as the server stores them, which takes half as much again."""

LEFT = (
    "The job has left context.each(…, atomic=True), {name!r}, in the middle of a batch, by break, return or an error "
    "that it caught: the effects of that batch are rolled back. Go through all rows, or end the job by an exception."
)


class Walk(Generic[T]):
    """One way through a source. ``n``: how many are done, ``key``: the last of them, ``of``: how many there are.

    ``kept``: how many were done when its cursor was written. ``left``: a batch of it was not brought to its end.
    """

    def __init__(self, source: Source[T], options: EachOptions) -> None:
        self.source = source
        self.options = options
        self.name = options.name
        self.n = self.kept = self.began_at = 0
        self.of = options.total
        self.key: object = None
        self.done = self.left = False
        self.began = self.kept_at = clock.monotonic()
        self.steps: Generator[T, None, None] | None = None

    def resume(self, found: object) -> None:
        """Continue behind a cursor that was kept. Raises ``InvalidJob`` if it does not fit."""
        cursor: Any = found if isinstance(found, dict) else {"n": found}
        self.n = self.kept = self.began_at = int(cursor["n"])
        if isinstance(found, int):
            self.done = True
            return
        label, self.of = cursor.get("by", ""), cursor.get("of")
        if label != self.source.label:
            ways = [f"by {each}" if each else "through an iterable" for each in (label, self.source.label)]
            raise InvalidJob(f"each {self.name!r} went {ways[0]} before, and now goes {ways[1]}. {OTHERWISE}")
        if self.n:
            self.key = decode_result(json.dumps(cursor.get("at")))
            self.source.go_behind(self.n, self.key)

    def take(self) -> list[tuple[object, T]]:
        """Return the next ones. Raises ``InvalidJob`` for one behind which no run could continue."""
        found = self.source.take(self.options.every)
        if found:
            self._encoded(found[-1][0])
        return found

    def _encoded(self, key: object) -> str:
        try:
            return encode_result(key, KEY_BYTES, "key", f"{KEY_BYTES} bytes")
        except UnstorableResult as error:
            raise InvalidJob(f"each {self.name!r}: {error}") from None

    def passed(self, key: object) -> None:
        """Count one that is done."""
        self.n, self.key = self.n + 1, key

    def cursor(self) -> str:
        """Return how far it is as JSON text; a number if all are done."""
        if self.done:
            return str(self.n)
        fields = {"n": self.n, "of": self.of, "by": self.source.label}
        text = json.dumps({name: value for name, value in fields.items() if value not in (None, "")})
        return f'{text[:-1]}, "at": {self._encoded(self.key)}}}' if self.n else text

    def progress(self) -> str:
        """Return its progress as JSON text, with the seconds that are left at the pace of this run."""
        total = None if not self.of else self.n if self.done else max(self.of, self.n)
        walked, left = self.n - self.began_at, None
        if total and walked and not self.done:
            left = round((clock.monotonic() - self.began) / walked * (total - self.n), 1)
        return json.dumps({"n": self.n, "total": total, "message": "", **({} if left is None else {"left": left})})


class Walks(Memos):
    """The walks of one attempt, by name."""

    suspending: Suspending
    names: Names

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._walks: dict[str, Walk[Any]] = {}
        self._cursors: dict[str, object] | None = None
        self._others = 0

    if TYPE_CHECKING:

        def check_usable(self, what: str) -> None: ...
        def lost(self) -> NoReturn:
            raise NotImplementedError

    def each(self, rows: Iterable[T], options: EachOptions) -> Iterator[T]:
        """Return an iterator over what is still to be done."""
        walk = self._new_walk(rows, options)
        walk.steps = self._steps(walk)
        return walk.steps

    def aeach(self, rows: Iterable[T], options: EachOptions) -> AsyncIterator[T]:
        """``each`` for coroutines."""
        return self._asteps(self._new_walk(rows, options))

    def _new_walk(self, rows: Iterable[T], options: EachOptions) -> Walk[T]:
        self.suspending.check_going_on()
        self.names.check_outside("each")
        if options.name in self._walks:
            raise InvalidJob(f"each: {options.name!r} was used before in this run of the job: give each a name=…")
        walk = self._walks[options.name] = Walk(source_of(rows, options.key), options)
        return walk

    def _steps(self, walk: Walk[T]) -> Generator[T, None, None]:
        self._begin(walk)
        while not walk.done:
            self._stop_if_asked(walk)
            # An iterable may read by a cursor of the server, which ends with the transaction in which it began.
            ahead = None if walk.source.label else walk.take()
            with self._batch(walk):
                found = walk.take() if ahead is None else ahead
                for key, row in found:
                    yield row
                    walk.passed(key)
                    if self._stops:
                        break
                    self._keep_now_and_then(walk)
                else:
                    walk.done = len(found) < walk.options.every
            if walk.done and not walk.options.atomic:
                self._keep_cursor(walk)

    async def _asteps(self, walk: Walk[T]) -> AsyncIterator[T]:
        await sync_to_async(self._begin)(walk)
        while not walk.done:
            await sync_to_async(self._stop_if_asked)(walk)
            found = await sync_to_async(walk.take)()
            for key, row in found:
                yield row
                walk.passed(key)
                if self._stops:
                    break
                if clock.monotonic() >= walk.kept_at + KEEP_SECONDS:
                    await sync_to_async(self._keep_cursor)(walk)
            else:
                walk.done = len(found) < walk.options.every
            if walk.done:
                await sync_to_async(self._keep_cursor)(walk)

    def _begin(self, walk: Walk[T]) -> None:
        self.check_usable("each")
        if self._cursors is None:
            kept = self._read_cursors()
            if kept is None:
                self.lost()
            self._cursors, self._others = json.loads(kept.text or "{}"), kept.others
        found = self._cursors.get(walk.name)
        if found is not None:
            walk.resume(found)
            self.names.walks = not walk.done
        else:
            walk.of = walk.source.count() if walk.of is None else walk.of
            self._keep_cursor(walk)

    @property
    def _stops(self) -> bool:
        context = self.prepared.context
        return bool(context.stopping) or context.cancelled

    def _stop_if_asked(self, walk: Walk[T]) -> None:
        if self._stops:
            if walk.n > walk.kept:
                self._keep_cursor(walk)
            self.suspending.release()

    @contextmanager
    def _batch(self, walk: Walk[T]) -> Iterator[None]:
        """Commit what is done in this block together with the cursor, if that is asked for."""
        if not walk.options.atomic:
            yield
            return
        self.check_usable("each")
        connection = connections[self.using]
        idle = None if connection.in_atomic_block else IDLE_TIMEOUT  # a savepoint has no COMMIT
        try:
            with transaction.atomic(using=self.using):
                with one_transaction(connection):
                    yield
                check_committable(connection)
                self._store_cursor(walk, idle)
            walk.kept = walk.n
        except GeneratorExit:
            walk.left = True
            raise

    def _keep_now_and_then(self, walk: Walk[T]) -> None:
        if not walk.options.atomic and clock.monotonic() >= walk.kept_at + KEEP_SECONDS:
            self._keep_cursor(walk)

    def _keep_cursor(self, walk: Walk[T]) -> None:
        self._store_cursor(walk)
        walk.kept = walk.n

    def _store_cursor(self, walk: Walk[T], idle: str | None = None) -> None:
        """Write the cursor. Raises ``WorkerStopping`` if the claim is lost."""
        cursor = walk.cursor()
        self._check_size(walk.name, cursor)
        if not self._write_cursor(walk.name, cursor, walk.progress(), idle):
            self.lost()
        walk.kept_at = clock.monotonic()
        self.progressed, self.names.walks = True, not walk.done

    def _check_size(self, name: str, cursor: str) -> None:
        cursors = self._cursors = {**(self._cursors or {}), name: json.loads(cursor)}
        if len(cursors) > MOST_CURSORS or self._others + len(json.dumps(cursors)) > ROOM:
            raise InvalidJob(
                f"each {name!r}: a job may have {MOST_CURSORS} cursors, and {ROOM} bytes for them and other options: "
                "go through fewer things in one job, such as one queryset instead of one for each row"
            )

    def _read_cursors(self) -> Cursors | None:
        job = self.prepared.job
        return read_cursors(on(self.using), job.id, job.claim_id)

    def _write_cursor(self, name: str, cursor: str, progress: str, idle: str | None) -> bool:
        job = self.prepared.job
        return write_cursor(
            on(self.using), job.id, job.claim_id, name=name, cursor=cursor, progress=progress, idle=idle
        )

    def check_walked(self) -> None:
        """Close what the body has left open. Raises ``RolledBack`` if the effects of a batch are gone by that."""
        for walk in self._walks.values():
            if walk.steps is not None:
                walk.steps.close()
            if walk.left or (walk.options.atomic and walk.n > walk.kept):
                raise RolledBack(LEFT.format(name=walk.name))

    def close_walks(self, error: BaseException | None) -> None:
        """Roll back open batches of a body that has failed, and let the next run begin behind what is done.

        ``error``: what left the body besides its suspension. The connection is not used after some errors.
        """
        may_write = isinstance(error, Exception | None) and not isinstance(error, InterfaceError | OperationalError)
        for walk in self._walks.values():
            # A second failure would hide the first.
            with suppress(Exception, WorkerStopping):
                if walk.steps is not None:
                    walk.steps.close()
                if walk.n > walk.kept and not walk.options.atomic and may_write:
                    self._keep_cursor(walk)
