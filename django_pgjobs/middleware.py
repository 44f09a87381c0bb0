"""``PGJOBS["MIDDLEWARE"]``: layers around every job, shaped like Django's.

A dotted path names a factory, a function or a class. The factory gets ``run`` and returns a callable to use instead of
it; the first in the list is the outermost layer::

    def tracing(run):
        def inner(context):
            with tracer.span(context.name, parent=context.headers.get("trace")):
                return run(context)
        return inner

    tracing.capture = lambda: {"trace": tracer.current()}     # optional: runs at register, fills Job.headers

Two more attributes of a factory are optional. ``registering(registration)`` returns a context manager that is around
``capture`` and the INSERT. ``duty(name)`` returns one that is around each turn of a maintenance duty, in the process
that performs it.

Factories are sync by default. A factory marked by Django's ``sync_and_async_middleware`` or ``async_only_middleware``
gets an ``async def`` run for ``async def`` jobs and returns one (``iscoroutinefunction(run)`` tells). If the colours
differ, the layer is adapted as in Django; a sync layer around an async job occupies a thread for as long as the job
runs. A factory may raise ``MiddlewareNotUsed``.

Factories are called once per process and colour, never per job. Without middleware there is no cost: ``chain(run)``
returns ``run``. This module knows no attempt, no database and no outcome; errors of a layer propagate, except those of
``duty``: no layer may cost the fleet a rescue.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log, running
from django_pgjobs.states import TASK_HEADER
from django_pgjobs.values.built_in import is_built_in

if TYPE_CHECKING:
    from types import TracebackType

    from django_pgjobs.context import JobContext

Run = Callable[["JobContext"], Any]
AsyncRun = Callable[["JobContext"], Awaitable[Any]]
Factory = Callable[[Any], Any]

_building = threading.Lock()
_innermost: ContextVar[Run] = ContextVar("django_pgjobs_innermost_run")
_async_innermost: ContextVar[AsyncRun] = ContextVar("django_pgjobs_innermost_async_run")


def chain(run: Run) -> Run:
    """Return ``run`` inside all layers; ``run`` itself if there are none. Cheap enough to call per job.

    Raises ``ImproperlyConfigured`` for a path that does not lead to a factory.
    """
    if not get_conf().middleware:
        return run
    layers: Run = _layers(False)

    def layered(context: JobContext) -> object:
        token = _innermost.set(run)
        try:
            return layers(context)
        finally:
            _innermost.reset(token)

    return layered


def async_chain(run: AsyncRun) -> AsyncRun:
    """Return the coroutine function ``run`` inside all layers; ``run`` itself if there are none.

    Raises ``ImproperlyConfigured`` for a path that does not lead to a factory.
    """
    if not get_conf().middleware:
        return run
    layers: AsyncRun = _layers(True)

    async def layered(context: JobContext) -> object:
        token = _async_innermost.set(run)
        try:
            return await layers(context)
        finally:
            _async_innermost.reset(token)

    return layered


def capture_headers() -> dict[str, object]:
    """Return the merged dicts of the factories' ``capture()``; later factories override earlier ones.

    Errors in a capture propagate: a job registered without its tenant would run for the wrong one. Raises
    ``ImproperlyConfigured`` for a capture that returns no dict, or the reserved ``TASK_HEADER``. Empty in a job of this
    package: jobs that it registers have the headers of the job that they serve.
    """
    headers: dict[str, object] = {}
    if not get_conf().middleware or _is_ours():
        return headers
    for factory in _factories():
        capture = getattr(factory, "capture", None)
        if capture is not None:
            headers.update(_captured(factory, capture))
    return headers


def _is_ours() -> bool:
    try:
        job = running.get()
    except LookupError:
        return False
    return is_built_in(getattr(job, "job", job).name)


# Around a job of this package


def lenient(run: Run) -> Run:
    """Return ``run`` inside all layers, which may fail: a batch, a gather or an undo hangs on no layer.

    The end is that of ``run``, no matter what a layer raises, returns or swallows. A layer that raises is logged; if it
    did so before ``run`` was called, ``run`` is called without layers.
    """

    def inner(context: JobContext) -> object:
        found: list[Any] = []
        failed: list[BaseException] = []

        def once(context: JobContext) -> object:
            if not found and not failed:
                try:
                    found.append(run(context))
                except BaseException as error:
                    failed.append(error)
            if failed:
                raise failed[0]
            return found[0]

        try:
            chain(once)(context)
        except (Exception, SystemExit) as error:
            if error not in failed:
                kind = type(error).__name__
                log.error(
                    "middleware failed around a job of ours, which continues without it name=%s job=%s: %s",
                    context.name, context.id, kind, exc_info=error,
                )  # fmt: skip
        if failed:
            raise failed[0]
        return found[0] if found else run(context)

    return inner


# Around registering


@dataclass(slots=True)
class Registration:
    """Jobs that are being registered by one call; what is known of them grows until the block ends.

    ``name``, ``queue``: of all of them; empty while unknown, and if they differ. ``count``: how many were inserted, 0
    where another job has the key. ``job``: the id of the one job that the call returns, None for several and for a job
    that bypasses the queue.
    """

    name: str = ""
    queue: str = ""
    count: int = 0
    job: int | None = None


_UNSEEN: AbstractContextManager[None] = nullcontext()


def registering(name: str = "", queue: str = "") -> AbstractContextManager[Registration | None]:
    """Return the factories' ``registering`` blocks as one; it yields the ``Registration`` to complete, or None.

    Errors in them propagate, as those of ``capture`` do. None of them can swallow an error of the block.
    """
    if not get_conf().middleware:
        return _UNSEEN
    return _registering(Registration(name, queue))


@contextmanager
def _registering(registration: Registration) -> Iterator[Registration]:
    failed: BaseException | None = None
    with ExitStack() as stack:
        for factory in _factories():
            enter = getattr(factory, "registering", None)
            if enter is not None:
                stack.enter_context(enter(registration))
        try:
            yield registration
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed


# Around the turns of duties


def on_duty(name: str) -> AbstractContextManager[None]:
    """Return the factories' ``duty`` blocks as one. An error in them is logged once for each factory, never raised."""
    return _OnDuty(name) if get_conf().middleware else _UNSEEN


class _OnDuty:
    def __init__(self, name: str) -> None:
        self.name = name
        self.entered: list[tuple[Factory, AbstractContextManager[object]]] = []

    def __enter__(self) -> None:
        try:
            factories = _factories()
        except ImproperlyConfigured as error:
            _complain(repr(get_conf().middleware), error)
            return
        for factory in factories:
            duty = getattr(factory, "duty", None)
            if duty is None:
                continue
            try:
                block = duty(self.name)
                block.__enter__()
            except (Exception, SystemExit) as error:
                _complain(_name(factory), error)
            else:
                self.entered.append((factory, block))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for factory, block in reversed(self.entered):
            try:
                block.__exit__(kind, error, trace)
            except (Exception, SystemExit) as raised:
                if raised is not error:
                    _complain(_name(factory), raised)


_complained: set[str] = set()


def _complain(who: str, error: BaseException) -> None:
    if who not in _complained:
        _complained.add(who)
        log.error("middleware failed around a duty, which continues without it middleware=%s", who, exc_info=error)


# Factories and their layers


def load(path: str) -> Factory:
    """Return the factory at a dotted path. Raises ``ImproperlyConfigured`` naming the path and the reason."""
    try:
        factory = import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f'PGJOBS["MIDDLEWARE"]: {path!r} cannot be imported: {error}') from error
    if not callable(factory):
        raise ImproperlyConfigured(f'PGJOBS["MIDDLEWARE"]: {path!r} is not a factory: it cannot be called.')
    return factory  # type: ignore[no-any-return]


def _captured(factory: Factory, capture: Callable[[], object]) -> dict[str, object]:
    captured = capture()
    if not isinstance(captured, dict):
        raise ImproperlyConfigured(f"{_name(factory)}.capture() must return a dict, not {captured!r}.")
    if TASK_HEADER in captured:
        raise ImproperlyConfigured(
            f"{_name(factory)}.capture() must not return the header {TASK_HEADER!r}: it belongs to django.tasks. "
            "Choose another name."
        )
    return captured


@cache
def _factories() -> tuple[Factory, ...]:
    return tuple(load(path) for path in get_conf().middleware)


def _layers(is_async: bool) -> Any:
    # Two threads may arrive first at the same time; built twice, a layer that opens an exporter would open two.
    with _building:
        return _build(is_async)


@cache
def _build(is_async: bool) -> object:
    """Wrap the layers around a function that calls the job that runs in this context."""
    run: Any = _run_innermost_async if is_async else _run_innermost
    for factory in reversed(_factories()):
        try:
            run = _wrap(factory, run, is_async)
        except MiddlewareNotUsed:
            continue
    return run


def _run_innermost(context: JobContext) -> object:
    return _innermost.get()(context)


async def _run_innermost_async(context: JobContext) -> object:
    return await _async_innermost.get()(context)


def _wrap(factory: Factory, run: object, is_async: bool) -> object:
    """Put one layer around ``run``, adapted if the layer supports only the other colour."""
    capable = getattr(factory, "async_capable" if is_async else "sync_capable", not is_async)
    layer_is_async = is_async if capable else not is_async
    layer = factory(_adapt(run, is_async, layer_is_async))
    if not callable(layer):
        raise ImproperlyConfigured(f"{_name(factory)} must return a callable to use instead of run, not {layer!r}.")
    if iscoroutinefunction(layer) is not layer_is_async:
        colours = ("a sync", "an async") if layer_is_async else ("an async", "a sync")
        raise ImproperlyConfigured(f"{_name(factory)} returned {colours[0]} function for {colours[1]} run.")
    return _adapt(layer, layer_is_async, is_async)


def _adapt(run: Any, is_async: bool, wanted: bool) -> object:
    if is_async == wanted:
        return run
    return sync_to_async(run, thread_sensitive=True) if wanted else async_to_sync(run)


def _name(factory: Factory) -> str:
    return f"{factory.__module__}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _reset(*, setting: str, **_: object) -> None:
    if setting == "PGJOBS":
        _factories.cache_clear()
        _build.cache_clear()
        _complained.clear()


setting_changed.connect(_reset, dispatch_uid="django_pgjobs.middleware")
