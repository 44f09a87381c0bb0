"""The memory of a ``FakeContext``: steps are called, sleeps are over, events come from the test. No row, no query."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DEFAULT_DB_ALIAS

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.durable import Settled
from django_pgjobs.exceptions import (
    INTERRUPTS,
    Cancel,
    InvalidJob,
    JobControl,
    MembersFailed,
    StepFailed,
    StepLimit,
    UnstorableResult,
)
from django_pgjobs.execution.attempt import value_of
from django_pgjobs.execution.durable import DurableMemory
from django_pgjobs.execution.failed_attempts import failure_of
from django_pgjobs.execution.naming import Names
from django_pgjobs.execution.walks import T, Walk
from django_pgjobs.flows.builtin import checked_calls
from django_pgjobs.jobs import BoundJob
from django_pgjobs.serialization.payload import check_has_run, decode_result, encode_result
from django_pgjobs.store.memos import Cursors, NewMemo
from django_pgjobs.values.call_options import EachOptions, StepOptions, check_name

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext

_PASS = (JobControl, *INTERRUPTS, UnstorableResult, StepLimit)
"""Exceptions of a step that cause no other attempt."""


class FakeMemory(DurableMemory):
    """Has the names and the limits of a job's memory, and keeps what it remembers to itself."""

    def __init__(self, context: JobContext, events: Mapping[str, object], versions: Mapping[str, int]) -> None:
        super().__init__(cast(Any, SimpleNamespace(context=context, lane=None)), DEFAULT_DB_ALIAS)
        self.names = Names(None, lambda name: False)  # a test may call the function with this context again
        self._memos = {}
        self.events = events
        self.versions = versions

    def check_usable(self, what: str) -> None:
        """Do nothing: a ``TestCase`` is a transaction of its own."""

    def step(
        self, options: StepOptions, func: Callable[..., object], args: object, kwargs: Mapping[str, object]
    ) -> object:
        """Call ``func``, as often as its attempts allow, and without a pause between them."""
        with self.names.of_step(options, func) as name:
            if self._has(name):
                return self._recalled(name)
            for attempt in self._attempts(options, args, kwargs):
                try:
                    return self._remember(name, self._called(func, args, kwargs), None, 0.0)
                except Exception as error:
                    self._check_again(name, options, attempt, error)
        raise AssertionError(name)

    async def astep(
        self, options: StepOptions, func: Callable[..., object], args: object, kwargs: Mapping[str, object]
    ) -> object:
        """``step`` for coroutines."""
        is_async = self._is_async(options, func)
        with self.names.of_step(options, func) as name:
            if self._has(name):
                return self._recalled(name)
            for attempt in self._attempts(options, args, kwargs):
                try:
                    if is_async:
                        return self._remember(name, await self._called(func, args, kwargs), None, 0.0)
                    value = await sync_to_async(self._called)(func, args, kwargs)
                    if inspect.isawaitable(value):
                        value = await value
                    return self._remember(name, value, None, 0.0)
                except Exception as error:
                    self._check_again(name, options, attempt, error)
        raise AssertionError(name)

    def _has(self, name: str) -> bool:
        """Return whether a step of this name has run: the test calls the function with the same context again."""
        return name in (self._memos or {})

    def _attempts(self, options: StepOptions, args: Any, kwargs: Mapping[str, object]) -> Iterator[int]:
        if options.undo is not None:
            try:
                options.undo.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidJob(f"step: undo: {error}") from None
        return count(1)

    def _check_again(self, name: str, options: StepOptions, attempt: int, error: Exception) -> None:
        """Return if the step is tried again; else raise what it comes to."""
        if options.attempts is None or isinstance(error, _PASS):
            raise error
        if attempt >= options.attempts:
            failure = failure_of(error)
            raise StepFailed(step=name, error=failure.summary, kind=failure.kind) from error

    def _called(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, object]) -> Any:
        if getattr(func, "takes_context", False):
            return func(self.prepared.context, *args, **kwargs)
        return func(*args, **kwargs)

    def _written(self, memo: NewMemo) -> bool:
        return True

    def _slept(self, seconds: float, name: str) -> None:
        """Return at once."""

    def _waited(self, event: str, seconds: float) -> object:
        """Return the payload that the test gives for this event, or raise it if it is an exception."""
        if event not in self.events:
            raise LookupError(
                f"The job waits for the event {event!r}, and this context knows none of that name"
                f"{did_you_mean(event, list(self.events))}: pass context(events={{{event!r}: payload}}), or an "
                "exception to be raised, such as WaitTimedOut()."
            )
        given = self.events[event]
        if isinstance(given, BaseException):
            raise given
        return decode_result(encode_result(given, get_conf().bounds.event_bytes, "payload", "BOUNDS['event_bytes']"))

    def each(self, rows: Iterable[object], options: EachOptions) -> Iterator[Any]:
        """Go through rows, again if the test calls the function again."""
        self._walks.pop(options.name, None)
        return super().each(rows, options)

    def _read_cursors(self) -> Cursors:
        return Cursors(None, 0)

    def _write_cursor(self, name: str, cursor: str, progress: str, idle: str | None) -> bool:
        return True

    @contextmanager
    def _batch(self, walk: Walk[T]) -> Iterator[None]:
        """Begin no transaction."""
        yield
        walk.kept = walk.n

    def version(self, name: str, number: int) -> int:
        """Return the number that the test gives for this name; else ``number``, as a job that begins now does."""
        return self.versions.get(check_name("name", name), number)

    def _gathered(self, calls: Sequence[object], name: str, *, settled: bool) -> list[Any]:
        """Call the functions, one after the other."""
        found = [self._member(number, call) for number, call in enumerate(checked_calls(calls), 1)]
        if settled:
            return found
        if failed := [member for member in found if member.outcome != "succeeded"]:
            raise MembersFailed(
                f"{len(failed)} of {len(found)} jobs did not succeed; the first: {failed[0].error}", failed=failed
            )
        return [member.result for member in found]

    def _member(self, number: int, call: object) -> Settled[object]:
        if not isinstance(call, BoundJob):
            raise InvalidJob(f"gather takes calls, made by a definition's bind(…), not {call!r}")
        func = async_to_sync(call.definition.func) if call.definition.is_async else call.definition.func
        given = (self.prepared.context,) if call.definition.takes_context else ()
        try:
            value = value_of(func(*given, *call.args, **call.kwargs))
            check_has_run("The job", value)
            kept = value if call.definition.store_result else None
            try:
                result = decode_result(encode_result(kept, get_conf().bounds.result_bytes))
            except UnstorableResult:
                if call.definition.strict_results:
                    raise
                result = None
        except Cancel as error:
            return Settled("cancelled", None, error.reason, number)
        except Exception as error:
            return Settled("abandoned", None, failure_of(error).summary, number)
        return Settled("succeeded", result, "", number)
