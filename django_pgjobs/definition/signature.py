"""Inspect a project's functions: where one stands, whether a worker can find it again, which arguments it takes.

Pure inspection; nothing here calls the function. Checks raise ``InvalidOption`` with the bare sentence.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from types import FunctionType

from django_pgjobs.context import JobContext
from django_pgjobs.values.setting_rules import InvalidOption

YOUR_CONTEXT = "if its first parameter is the JobContext, annotate it as that, or declare takes_context=True"
NO_GENERATOR = "calling a generator function runs none of its body; use a plain function"

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def location_of(func: object) -> str:
    """Return ``file:line`` of a function, or its representation if it has none."""
    code = getattr(inspect.unwrap(func) if callable(func) else func, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(func)


NOT_OF_CALLERS = (f"{__name__.partition('.')[0]}.", "django.tasks.", "django_tasks.", "sentry_sdk.")
"""Prefixes of the names of modules between a caller and this package; Sentry's SDK wraps ``Task.enqueue``."""


def call_site() -> str:
    """Return ``file:line`` of the innermost call that is neither this package's own nor that of a ``Task``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(NOT_OF_CALLERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_function(func: object, *, local: bool = False) -> None:
    """Refuse a function that another process, the worker, could not import by name or run as a job.

    ``local``: no worker has to find it, so it may be a function inside a function.
    """
    if hasattr(func, "enqueue"):
        raise InvalidOption(f"{func!r} is a task already: write @policy below @task instead of @job")
    if not inspect.isfunction(func):
        raise InvalidOption(f"a job is a function, not {func!r}; pass options as keywords: @job(queue=…)")
    if func.__name__ == "<lambda>":
        raise InvalidOption("a lambda has no name by which a worker could find it; use a function with a name")
    if "<locals>" in func.__qualname__ and not local:
        raise InvalidOption(
            "a worker cannot find a function inside a function; move it to module level, or in a test declare it "
            "within isolated_registry()"
        )
    if func.__module__ == "__main__":
        raise InvalidOption("__main__ is another module in a worker; move the function to an importable module")
    if _is_generator(func):
        raise InvalidOption(NO_GENERATOR)


def _is_generator(func: Callable[..., object]) -> bool:
    wrapped = inspect.unwrap(func)
    return inspect.isgeneratorfunction(wrapped) or inspect.isasyncgenfunction(wrapped)


def names_context(func: Callable[..., object]) -> bool:
    """Return whether the first parameter is annotated as the ``JobContext``, also by a text."""
    first = next(iter(inspect.signature(func).parameters.values()), None)
    named = None if first is None else first.annotation
    if not isinstance(named, str):
        return named is JobContext
    return named.rpartition(".")[2] == "JobContext" or inspect.unwrap(func).__globals__.get(named) is JobContext


def signature_of(func: Callable[..., object], *, takes_context: bool) -> Signature:
    """Return the signature that registering sees: without the context."""
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is not None and first.name in ("self", "cls") and "." in func.__qualname__:
        raise InvalidOption("a method has no object to run on in a worker; make it a static method or a function")
    if not takes_context:
        return signature
    if first is not None and first.kind in _POSITIONAL:
        return signature.replace(parameters=parameters[1:])
    if first is not None and first.kind is Parameter.VAR_POSITIONAL:
        return signature
    raise InvalidOption("there is no first positional parameter for the context; add one")


def shape(signature: Signature) -> str:
    """Return the signature as text, without annotations and defaults: theirs may differ between processes."""
    return ",".join(
        f"{p.kind.name}:{p.name}{'' if p.default is p.empty else '='}" for p in signature.parameters.values()
    )


def fits(func: Callable[..., object], name: str, *, takes_context: bool) -> Callable[..., None]:
    """Return a function that takes the arguments of ``func``, without the context, and does nothing.

    Wrong arguments raise the same ``TypeError`` as a normal call, at a thirtieth of the cost of ``Signature.bind``.
    Every registration and every run pays that cost.
    """
    parameters = list(inspect.signature(func).parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    keyword = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    rest = [p for p in parameters if p.kind is Parameter.VAR_POSITIONAL]
    others = [p for p in parameters if p.kind is Parameter.VAR_KEYWORD]
    names = tuple(p.name for p in (*positional, *keyword, *rest, *others))
    nothing = (lambda: None).__code__
    code = nothing.replace(
        co_name=name,
        co_qualname=name,
        co_argcount=len(positional),
        co_posonlyargcount=sum(p.kind is Parameter.POSITIONAL_ONLY for p in positional),
        co_kwonlyargcount=len(keyword),
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=nothing.co_flags | (inspect.CO_VARARGS if rest else 0) | (inspect.CO_VARKEYWORDS if others else 0),
    )
    check = FunctionType(code, {}, name, tuple(p.default for p in positional if p.default is not p.empty))
    check.__kwdefaults__ = {p.name: p.default for p in keyword if p.default is not p.empty}
    if takes_context:
        return partial(check, None)
    return _hinting(check) if parameters and parameters[0].name in CONTEXT_NAMES else check


CONTEXT_NAMES = ("context", "ctx")


def _hinting(check: Callable[..., None]) -> Callable[..., None]:
    """Return ``check`` for a function that looks as if it took the context, without the option that passes it."""

    def hinting(*args: object, **kwargs: object) -> None:
        try:
            check(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{error}; {YOUR_CONTEXT}") from None

    return hinting


def check_callback(what: str, callback: Callable[..., object], job: Signature, *, takes_context: bool) -> None:
    """Refuse a callback that cannot be called with the job's arguments, preceded by the context if it takes one."""
    if not callable(callback):
        raise InvalidOption(f"{what} decorates a function, not {callback!r}")
    if _is_generator(callback):
        raise InvalidOption(f"{what}: {NO_GENERATOR}")
    try:
        taken = list(signature_of(callback, takes_context=takes_context).parameters.values())
    except InvalidOption as error:
        raise InvalidOption(f"{what}: {error}") from None
    by_keyword = any(p.kind is Parameter.VAR_KEYWORD for p in taken)
    names = {p.name for p in taken}
    required = {
        p.name
        for p in taken
        if p.default is p.empty and p.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    }
    missing = [] if by_keyword else [name for name in job.parameters if name not in names]
    if missing or required - job.parameters.keys():
        first = "the context and then " if takes_context else ""
        raise InvalidOption(
            f"{what} {getattr(callback, '__qualname__', callback)!r} must take {first}the job's arguments {job}"
        )
