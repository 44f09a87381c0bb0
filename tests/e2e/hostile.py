"""A project whose own code raises wherever this package calls it; the test says which of it, by a word on the stage.

``install`` puts a handler, two filters, a formatter, receivers and an exception handler into a process. Each is quiet
until the stage's file ``hostile`` names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from django_pgjobs import Backoff, JobContext, job, signals
from django_pgjobs.jobs import JobDefinition
from tests.e2e import stage

NOW = Backoff(0)


class Leaving(BaseException):
    """What no ``except Exception`` catches."""


def chosen() -> str:
    """Return what is hostile now."""
    with contextlib.suppress(OSError):
        return (stage.here().path / "hostile").read_text()
    return ""


def _recurse() -> NoReturn:
    _recurse()


def strike(place: str) -> None:
    """Raise if it is this place's turn; the word after it says what."""
    where, _, what = chosen().partition(": ")
    if where != place:
        return
    if what == "recursion":
        _recurse()
    raise {"error": ValueError, "leaving": Leaving, "exit": SystemExit, "interrupt": KeyboardInterrupt}[what](place)


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        strike("formatter")
        return super().format(record)


class Handler(logging.Handler):
    """Raises in ``emit``, as one does that writes to a place which is gone and does not call ``handleError``."""

    def emit(self, record: logging.LogRecord) -> None:
        strike("handler")
        self.format(record)


class Filter(logging.Filter):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def filter(self, record: logging.LogRecord) -> bool:
        strike(self.place)
        return True


def install(*, logger: str = "django_pgjobs") -> None:
    """Put it all in: for an app's ``ready``."""
    handler = Handler()
    handler.setFormatter(Formatter())
    handler.addFilter(Filter("filter of a handler"))
    logging.getLogger(logger).addHandler(handler)
    logging.getLogger(logger).addFilter(Filter("filter of a logger"))
    logging.getLogger("django.dispatch").addHandler(handler)
    factory = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        strike("record factory")
        return factory(*args, **kwargs)

    logging.setLogRecordFactory(make)
    for name in ("job_started", "attempt_ended", "job_finished", "job_retried"):
        _receive(name)


def _receive(name: str) -> None:
    def receiver(**_: Any) -> None:
        strike(f"receiver of {name}")

    getattr(signals, name).connect(receiver, weak=False)


def layer(run: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    """Middleware that raises on the way in, or in its ``finally``."""

    def inner(context: JobContext) -> Any:
        strike("middleware in")
        try:
            return run(context)
        finally:
            strike("middleware out")

    return inner


# Exceptions that are hostile themselves


def _raising(name: str, kind: type[BaseException] = ValueError) -> type[Exception]:
    def get(self: object) -> NoReturn:
        raise kind(name)

    return type("Hostile", (Exception,), {name: property(get, lambda self, value: None)})


def _method(name: str, kind: type[BaseException] = ValueError) -> type[Exception]:
    def method(self: object, *_: object) -> NoReturn:
        raise kind(name)

    return type("Hostile", (Exception,), {name: method})


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__", "__name__"):
            raise ValueError(name)
        return super().__getattribute__(name)


class _OfHostileKind(Exception, metaclass=_Meta):
    pass


ATTRIBUTES = (
    "__cause__", "__context__", "__suppress_context__", "__traceback__", "__class__", "__notes__", "args",
)  # fmt: skip
METHODS = ("__str__", "__repr__", "__eq__", "__bool__", "__del__", "__getattribute__", "__format__", "__hash__")


def _hidden(error: BaseException) -> BaseException:
    """One that carries ``error`` as its cause, where only a chain leads to it."""
    outer = RuntimeError("outer")
    outer.__cause__ = error
    return outer


class _Told(Exception):
    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


def _notes() -> BaseException:
    error = ValueError("with notes")
    error.__notes__ = [_method("__str__")()]  # type: ignore[list-item]
    return error


def _cycle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


ERRORS: dict[str, Callable[[], BaseException]] = {
    **{name: _raising(name) for name in ATTRIBUTES},
    **{f"{name} leaves": _raising(name, Leaving) for name in ATTRIBUTES},
    **{name: _method(name) for name in METHODS},
    **{f"{name} leaves": _method(name, Leaving) for name in METHODS},
    "cause.__str__": lambda: _hidden(_method("__str__", Leaving)()),
    "cause.__cause__": lambda: _hidden(_raising("__cause__")()),
    "cause.__context__": lambda: _hidden(_raising("__context__")()),
    "str of no text": lambda: _Told(7),
    "notes": _notes,
    "cycle": _cycle,
    "kind": _OfHostileKind,
    "group": lambda: ExceptionGroup("group", [_method("__str__", Leaving)(), _raising("__cause__")()]),
    "leaving": Leaving,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "recursion": RecursionError,
}  # fmt: skip


@job(max_attempts=2, backoff=NOW)
def fails() -> None:
    raise ValueError("an ordinary failure")


@job(max_attempts=1)
def succeeds() -> int:
    return 7


@job(max_attempts=2, backoff=NOW)
def raises(what: str) -> None:
    raise ERRORS[what]()


@job(max_attempts=2, backoff=NOW)
async def araises(what: str) -> None:
    raise ERRORS[what]()


@job(max_attempts=2, backoff=NOW)
async def afails() -> None:
    raise ValueError("an ordinary failure")


@job(max_attempts=1)
def gives_up() -> None:
    raise ValueError("so its callback is called")


@gives_up.on_abandon
def after_giving_up(context: JobContext) -> None:
    stage.here().note("callback", context.id)
    raise Leaving("the callback leaves")


# Rules that are hostile


def _rule(*_: object) -> NoReturn:
    raise Leaving("a rule leaves")


class _Truth:
    def __bool__(self) -> NoReturn:
        raise Leaving("no truth")


def _untrue(*_: object) -> Any:
    return _Truth()


class _Delay(float):
    def __float__(self) -> NoReturn:
        raise Leaving("no number")

    def __lt__(self, other: object) -> NoReturn:
        raise Leaving("no order")

    __gt__ = __le__ = __ge__ = __lt__


def _fails() -> None:
    raise ValueError("a rule is asked")


RULES: dict[str, dict[str, Any]] = {
    "backoff": {"backoff": _rule},
    "retry_on": {"retry_on": _rule, "backoff": NOW},
    "give_up_on": {"give_up_on": _rule, "backoff": NOW},
    "retry_on untrue": {"retry_on": _untrue, "backoff": NOW},
    "give_up_on untrue": {"give_up_on": _untrue, "backoff": NOW},
    "backoff of no number": {"backoff": lambda error, attempt: _Delay(0.0)},
}
RULED: dict[str, JobDefinition[..., Any]] = {
    name: job(name=f"hostile.{name.replace(' ', '_')}", max_attempts=2, **options)(_fails)
    for name, options in RULES.items()
}


# Values that are hostile


class _Text(str):
    def __str__(self) -> NoReturn:
        raise Leaving("no text")

    __repr__ = __format__ = __str__  # type: ignore[assignment]


class _Number(int):
    def __int__(self) -> NoReturn:
        raise Leaving("no number")

    __index__ = __float__ = __str__ = __repr__ = __int__


class _List(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise Leaving("no items")

    __len__ = __bool__ = __iter__  # type: ignore[assignment]


class _Mute:
    def __getattribute__(self, name: str) -> NoReturn:
        raise Leaving(name)

    def __repr__(self) -> NoReturn:
        raise Leaving("no words")


class _Dying:
    def __del__(self) -> None:
        raise Leaving("as it is let go")


class _Kind(metaclass=_Meta):
    pass


VALUES: dict[str, Callable[[], Any]] = {
    "text": lambda: _Text("x"),
    "number": lambda: _Number(3),
    "list": lambda: _List([1]),
    "mute": _Mute,
    "dying": _Dying,
    "kind": _Kind,
}


@job(max_attempts=1)
def returns_hostile(what: str) -> Any:
    return VALUES[what]()


@job(max_attempts=1, takes_context=True)
def progresses_by(context: JobContext, what: str) -> None:
    context.progress(*PROGRESS[what])


PROGRESS: dict[str, Any] = {
    "text": (1.0, 2.0, _Text("x")),
    "mute": (1.0, 2.0, _Mute()),
    "number": (_Number(3), None, ""),
    "surrogate": (1.0, 2.0, "\ud800"),
}


# What a job leaves behind in its thread or on the loop


def _patches_its_context(context: JobContext) -> None:
    context.started = "never"  # type: ignore[assignment]
    context.headers = None  # type: ignore[assignment]


LEFT: dict[str, Callable[[JobContext], None]] = {
    "context": _patches_its_context,
}


@job(max_attempts=3, backoff=NOW, takes_context=True)
def leaves_behind(context: JobContext, what: str) -> str:
    LEFT[what](context)
    return "done"


@job(max_attempts=1)
async def cancels_itself_and_returns() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "done"


@job(max_attempts=1)
async def puts_hostile_things_on_the_loop() -> str:
    loop = asyncio.get_running_loop()

    def handler(*_: object) -> NoReturn:
        raise Leaving("an exception handler leaves")

    def factory(*_: object, **__: object) -> NoReturn:
        raise Leaving("a task factory leaves")

    loop.set_exception_handler(handler)
    loop.set_task_factory(factory)
    loop.call_soon(lambda: 1 / 0)
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(handler)
    return "done"


@job(max_attempts=1)
async def closes_the_selector() -> str:
    os.close(asyncio.get_running_loop()._selector._selector.fileno())  # type: ignore[attr-defined]
    return "done"


@job(max_attempts=1)
def says(words: str) -> None:
    logging.getLogger("shop").info(words)
