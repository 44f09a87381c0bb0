"""The calls of a durable function on its context: steps, sleep, waits, versions. Pure: ``execution`` remembers.

A *step* is a call whose result the job remembers under a name. When the job runs again, from its beginning, a step that
it remembers is not called; its result is returned. The function thus continues where it stopped. While it sleeps or
waits it is *suspended*: no worker runs it, and its body restarts when it continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakSet

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.values.asynchronous import asynchronous
from django_pgjobs.values.call_options import EachOptions, StepOptions, check_call, check_name, checked

if TYPE_CHECKING:
    from typing import Unpack

    from django_pgjobs.values.call_options import StepOptionsGiven

Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

JOB_EVENTS = "job"
"""Prefix of the stored names of events of single jobs; no ``Event`` has this name."""


known_events: dict[str, WeakSet[Any]] = {}
"""The events that this process has declared, by name: they know the types of their payloads."""


class Called(Protocol[T_co]):
    """A call, made by a definition's ``bind(…)``."""

    @property
    def definition(self) -> Callable[..., T_co]: ...


class EventName(Protocol[T_co]):
    """An event that jobs can wait for. ``Event`` is the only one."""

    def name_of(self, *key: str | int) -> str:
        """Return the name under which it is stored for this key. Raises ``InvalidJob``."""
        ...

    def typed(self, payload: object) -> T_co:
        """Return a payload as what it is for type checkers."""
        ...


class Memory(Protocol):
    """The memos of a running job; one implementation is in ``execution``, another in ``testing``."""

    def step(self, options: StepOptions, func: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    async def astep(self, options: StepOptions, func: Callable[..., Any], args: Any, kwargs: Any) -> object: ...
    def sleep(self, seconds: float, name: str) -> None: ...
    async def asleep(self, seconds: float, name: str) -> None: ...
    def wait_for(self, event: str, seconds: float) -> object: ...
    async def await_for(self, event: str, seconds: float) -> object: ...
    def version(self, name: str, number: int) -> int: ...
    def each(self, rows: Iterable[object], options: EachOptions) -> Iterator[Any]: ...
    def aeach(self, rows: Iterable[object], options: EachOptions) -> AsyncIterator[Any]: ...
    def gather(self, calls: Sequence[object], name: str, *, settled: bool) -> list[Any]: ...
    async def agather(self, calls: Sequence[object], name: str, *, settled: bool) -> list[Any]: ...


Gatherer = Callable[..., list[object]]
"""Takes the memory, the calls, the name of the gather, and ``settled``: ``flows.gathering.gather``."""

_gatherers: list[Gatherer] = []


def provide_gather(gather: Gatherer) -> None:
    """Set what ``context.gather`` calls: batches are above the room that runs jobs."""
    _gatherers[:] = [gather]


def gatherer() -> Gatherer:
    """Return what ``provide_gather`` has set."""
    return _gatherers[0]


class Steps:
    """``context.step``: call it with a function and its arguments."""

    __slots__ = ("_memory", "_options")

    def __init__(self, memory: Memory, options: StepOptions | None = None) -> None:
        self._memory = memory
        self._options = options or StepOptions()

    def using(self, *unnamed: Never, **options: Unpack[StepOptionsGiven]) -> Steps:
        """Return it with options for the next call.

        ``name``: of the step, by default that of the function. ``key`` (text or number): tells calls of one name apart,
        each used once in a run; without it, the second is called *name#2*, and in a task beside the body refused.
        ``attempts``: how often to try in all; between them the job is suspended, for as long as ``backoff`` says. Then
        ``StepFailed`` is raised. Without ``attempts`` a step that raises fails the attempt of the job. ``atomic``:
        commit what the step does in the database of the jobs together with its result, or not at all. ``undo``: a job
        that undoes the step, called with its arguments, if the job is abandoned or cancelled. Raises ``InvalidJob``.
        """
        return Steps(self._memory, checked(self._options, options, unnamed))

    def __call__(self, func: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Call ``func``, or return what it returned before."""
        check_call("step", func, args, kwargs)
        return cast(T, self._memory.step(self._options, func, args, kwargs))


class AsyncSteps:
    """``context.astep``: await its call with a function, plain or async, and its arguments."""

    __slots__ = ("_memory", "_options")

    def __init__(self, memory: Memory, options: StepOptions | None = None) -> None:
        self._memory = memory
        self._options = options or StepOptions()

    def using(self, *unnamed: Never, **options: Unpack[StepOptionsGiven]) -> AsyncSteps:
        """Return it with options for the next call; see ``Steps.using``. ``atomic`` needs a plain function."""
        return AsyncSteps(self._memory, checked(self._options, options, unnamed))

    @overload
    def __call__(
        self, func: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, func: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> Coroutine[Any, Any, T]: ...
    def __call__(self, func: Callable[..., object], /, *args: object, **kwargs: object) -> Coroutine[Any, Any, object]:
        """Call ``func``, or return what it returned before."""
        check_call("astep", func, args, kwargs)
        return self._memory.astep(self._options, func, args, kwargs)


def job_event(job_id: int, name: object) -> str:
    """Return under which name an event of one job is stored. Raises ``InvalidJob``."""
    words = "the name of an event of a job"
    return check_name(words, f"{JOB_EVENTS}:{job_id}:{check_name(words, name)}")


def _seconds(what: str, given: float | timedelta) -> float:
    """Return a duration in seconds. Raises ``InvalidJob`` unless it is from 0 to ``BOUNDS['ahead_seconds']``."""
    seconds: object = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidJob(f"{what} must be seconds or a timedelta, not {given!r}")
    if not 0 <= seconds <= (most := get_conf().bounds.ahead_seconds):
        raise InvalidJob(
            f"{what} must be from 0 seconds to {most / 86400:g} days, not {given!r} (BOUNDS['ahead_seconds'])"
        )
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """The end of a member of ``gather(…, settled=True)``; ``result`` is None unless it succeeded."""

    outcome: Literal["succeeded", "abandoned", "cancelled"]
    result: T | None
    error: str
    job_id: int


class Durable:
    """The part of a context that durable functions use."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def id(self) -> int: ...

    def _remembered(self) -> Memory:
        raise NotImplementedError

    @property
    def step(self) -> Steps:
        """Call a function once, and remember what it returned: ``context.step(charge, order_id)``.

        When the job runs again, the call returns that without calling the function. See ``Steps.using`` for options.
        Raises ``InvalidJob`` inside ``atomic()``, in a callback, and for a function without a name of its own;
        ``UnstorableResult`` for a result that is no JSON; ``StepLimit``; ``StepFailed`` if it has failed for good.
        """
        return Steps(self._remembered())

    @property
    def astep(self) -> AsyncSteps:
        """``step`` for ``async def`` jobs: ``await context.astep(charge, order_id)``."""
        return AsyncSteps(self._remembered())

    def each(
        self,
        rows: Iterable[T],
        /,
        *,
        key: str = "pk",
        every: int = 100,
        atomic: bool = False,
        name: str = "each",
        total: int | None = None,
    ) -> Iterator[T]:
        """Go through ``rows``, and continue behind the last one that was done when the job runs again.

        ``rows``: a queryset, in the order of its unique field ``key``, read ``every`` rows at a time; or an iterable
        that yields the same keys in each run. The job's row keeps how far it is, also as its progress. While the job is
        ``stopping`` it is released, uncharged; then ``JobSuspended`` leaves it: let it through. A row counts as done
        when the next one is asked for, so nothing may read ahead: no ``list()``, no ``batched()``. ``atomic``: commit
        the effects of ``every`` rows together with that, so that each row has its effects once. ``name``: one for each
        call. ``total``: how many rows there are, if they are not to be counted. Raises ``InvalidJob`` as ``step`` does,
        and if it cannot continue.
        """
        return self._remembered().each(rows, EachOptions(key, every, atomic, name, total))

    def aeach(
        self,
        rows: Iterable[T],
        /,
        *,
        key: str = "pk",
        every: int = 100,
        name: str = "each",
        total: int | None = None,
    ) -> AsyncIterator[T]:
        """``each`` for ``async def`` jobs: ``async for shop in context.aeach(…)``; it has no ``atomic``."""
        return self._remembered().aeach(rows, EachOptions(key, every, False, name, total))

    def sleep(self, duration: float | timedelta, *, name: str = "sleep") -> None:
        """Continue after ``duration``, seconds or a ``timedelta``, by the database's clock. No worker waits in the
        meantime.

        The job is suspended: its body restarts, and passes this line once the time is over. ``name`` tells
        sleeps apart when code changes; without it they are counted. Raises ``InvalidJob`` as ``step`` does.
        """
        self._remembered().sleep(_seconds("sleep", duration), name)

    async def asleep(self, duration: float | timedelta, *, name: str = "sleep") -> None:
        """``sleep`` for ``async def`` jobs."""
        await self._remembered().asleep(_seconds("sleep", duration), name)

    @overload
    def wait_for(self, event: EventName[T], /, *key: str | int, timeout: float | timedelta) -> T: ...
    @overload
    def wait_for(self, event: str, /, *, timeout: float | timedelta) -> Any: ...
    def wait_for(self, event: EventName[object] | str, /, *key: str | int, timeout: float | timedelta) -> object:
        """Return the payload of ``event`` for ``key``, once it is sent; no worker waits in the meantime.

        A text is an event of this job alone, which ``Job.send`` sends; it takes no key. ``timeout``: seconds or a
        ``timedelta`` from the first wait on, after which it raises ``WaitTimedOut``. An event that was sent before
        counts too. Raises ``InvalidJob`` as ``step`` does.
        """
        seconds = _seconds("timeout", timeout)
        return self._remembered().wait_for(self._name_of(event, key), seconds)

    def _name_of(self, event: EventName[object] | str, key: tuple[str | int, ...]) -> str:
        if not isinstance(event, str):
            return event.name_of(*key)
        if key:
            raise InvalidJob(f"wait_for: {event!r} is an event of this job, which takes no key: write it into the name")
        return job_event(self.id, event)

    @overload
    async def await_for(self, event: EventName[T], /, *key: str | int, timeout: float | timedelta) -> T: ...
    @overload
    async def await_for(self, event: str, /, *, timeout: float | timedelta) -> Any: ...
    async def await_for(self, event: Any, /, *key: str | int, timeout: float | timedelta) -> object:
        """``wait_for`` for ``async def`` jobs."""
        seconds = _seconds("timeout", timeout)
        return await self._remembered().await_for(self._name_of(event, key), seconds)

    def version(self, name: str, number: int) -> int:
        """Return the ``number`` of the first call under this name, in whichever version of the code that was.

        For a fork in the code that a running job must not change over: ``if context.version("invoices", 2) >= 2: …``.
        """
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidJob(f"version takes a whole number, not {number!r}")
        return self._remembered().version(name, number)

    @overload
    def gather(
        self, calls: Iterable[Called[Coroutine[Any, Any, T]]], *, name: str = ..., settled: Literal[False] = ...
    ) -> list[T]: ...
    @overload
    def gather(self, calls: Iterable[Called[T]], *, name: str = ..., settled: Literal[False] = ...) -> list[T]: ...
    @overload
    def gather(
        self, calls: Iterable[Called[Coroutine[Any, Any, T]]], *, name: str = ..., settled: Literal[True]
    ) -> list[Settled[T]]: ...
    @overload
    def gather(self, calls: Iterable[Called[T]], *, name: str = ..., settled: Literal[True]) -> list[Settled[T]]: ...
    def gather(self, calls: Iterable[object], *, name: str = "gather", settled: bool = False) -> list[Any]:
        """Run calls, made by ``bind(…)``, as jobs, and return what they returned; no worker waits in the meantime.

        The jobs are the members of a batch, registered once, at most ``BOUNDS['gather']``. ``settled``: return a
        ``Settled`` of each; without it, raise ``MembersFailed`` if some did not succeed, after all have ended. A retry
        of the job then runs those again. ``name`` tells gathers apart when code changes; without it they are counted.
        Raises ``InvalidJob`` as ``step`` does, and what registering raises; ``StepLimit`` for results that are too
        large.
        """
        return self._remembered().gather(list(calls), name, settled=settled)

    @overload
    async def agather(
        self, calls: Iterable[Called[Coroutine[Any, Any, T]]], *, name: str = ..., settled: Literal[False] = ...
    ) -> list[T]: ...
    @overload
    async def agather(
        self, calls: Iterable[Called[T]], *, name: str = ..., settled: Literal[False] = ...
    ) -> list[T]: ...
    @overload
    async def agather(
        self, calls: Iterable[Called[Coroutine[Any, Any, T]]], *, name: str = ..., settled: Literal[True]
    ) -> list[Settled[T]]: ...
    @overload
    async def agather(
        self, calls: Iterable[Called[T]], *, name: str = ..., settled: Literal[True]
    ) -> list[Settled[T]]: ...
    async def agather(self, calls: Iterable[object], *, name: str = "gather", settled: bool = False) -> list[Any]:
        """``gather`` for ``async def`` jobs."""
        return await self._remembered().agather(list(calls), name, settled=settled)

    aversion = asynchronous(version)
