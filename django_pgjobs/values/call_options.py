"""The options of calls of a durable function on its context: of a step, of a walk through rows, and their names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.values.backoff import Backoff

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class StepOptionsGiven(TypedDict, total=False):
        """The options of ``context.step.using``."""

        name: str | None
        key: str | int | None
        attempts: int | None
        backoff: Backoff | None
        atomic: bool
        undo: Undo | None


NAME_LIMIT = 200
"""Characters of the name of a step or an event, its key included."""

MOST_ATTEMPTS = 1000

MOST_AT_ONCE = 10_000
"""Number of rows that ``each`` reads, or commits, at once."""


class Undo(Protocol):
    """A job definition whose jobs undo a step: ``definition.undo`` makes one."""

    @property
    def name(self) -> str: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of the call of a step; None: not given. See ``Steps.using``."""

    name: str | None = None
    key: str | int | None = None
    attempts: int | None = None
    backoff: Backoff | None = None
    atomic: bool = False
    undo: Undo | None = None


OPTIONS = frozenset(field.name for field in fields(StepOptions))


@dataclass(frozen=True, slots=True)
class EachOptions:
    """Options of ``context.each``. Raises ``InvalidJob``."""

    key: str
    every: int
    atomic: bool
    name: str
    total: int | None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        every, total = cast(object, self.every), cast(object, self.total)
        if isinstance(every, bool) or not isinstance(every, int) or not 1 <= every <= MOST_AT_ONCE:
            raise InvalidJob(f"each: every must be a whole number from 1 to {MOST_AT_ONCE}, not {every!r}")
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
            raise InvalidJob(f"each: total must be a whole number, or None to count the rows, not {total!r}")


def check_name(what: str, name: object) -> str:
    """Return ``name`` if it can name a step or an event. Raises ``InvalidJob``."""
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT or not name.isprintable():
        raise InvalidJob(f"{what} must be a printable text of 1 to {NAME_LIMIT} characters, not {name!r:.300}")
    return name


def check_call(call: str, func: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Refuse the value of a call instead of its function, and options of the step among the arguments."""
    if not callable(func):
        if inspect.iscoroutine(func):
            func.close()
        raise InvalidJob(
            f"context.{call}() takes a function and its arguments, such as context.{call}(charge, order_id): "
            f"this is a value, of type {type(func).__name__}"
        )
    if wrong := [name for name in kwargs if name in OPTIONS]:
        taken = (None, *args) if getattr(func, "takes_context", False) else args
        try:
            inspect.signature(func).bind(*taken, **kwargs)
        except ValueError:
            pass  # a builtin without a signature
        except TypeError as error:
            instead = f"context.{call}.using({wrong[0]}=…)({getattr(func, '__name__', 'function')}, …)"
            raise InvalidJob(f"step: {error}; for the option of the step write {instead}") from None


def checked(before: StepOptions, given: Mapping[str, Any], unnamed: tuple[object, ...]) -> StepOptions:
    """Return options with those that ``context.step.using`` is given. Raises ``InvalidJob``."""
    if unnamed or not given.keys() <= OPTIONS:
        from django_pgjobs.values import cures  # here for start-up time

        if unnamed:
            raise cures.unnamed("context.step.using", "name", unnamed)
        option = min(given.keys() - OPTIONS)
        hint = cures.cure("step", option, given[option]) or f"a step has {', '.join(sorted(OPTIONS))}"
        raise InvalidJob(f"step: unknown option {option!r}: {hint}")
    options = replace(before, **given)
    if options.name is not None:
        check_name("name", options.name)
    key: object = options.key
    if key is not None and (isinstance(key, bool) or not isinstance(key, str | int)):
        raise InvalidJob(f"step: key must be a text or a number, not {key!r}")
    attempts: object = options.attempts
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int)):
        raise InvalidJob(f"step: attempts must be a whole number, not {attempts!r}")
    if isinstance(attempts, int) and not 1 <= attempts <= MOST_ATTEMPTS:
        raise InvalidJob(f"step: attempts must be from 1 to {MOST_ATTEMPTS}, not {attempts}")
    if options.backoff is not None and not isinstance(options.backoff, Backoff):
        raise InvalidJob(f"step: backoff must be a Backoff, not {options.backoff!r}")
    if options.backoff is not None and options.attempts is None:
        raise InvalidJob("step: backoff needs attempts=…, or the step is tried again with the job")
    if options.undo is not None and not hasattr(options.undo, "bind"):
        raise InvalidJob(f"step: undo must be a job, made by @job or by a definition's undo, not {options.undo!r}")
    return options
