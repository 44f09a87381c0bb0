"""The errors of a task's result: one for each failed attempt, and one for an end that no attempt explains."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from django_pgjobs.exceptions import Abandon, AttemptFailed, Cancel, UnstorableResult
from django_pgjobs.serialization.failures import full_path
from django_pgjobs.states import Outcome
from django_pgjobs.tasks.families import TaskError

if TYPE_CHECKING:
    from django_pgjobs.inspection.results import ReadAttempt, ReadResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PgTaskError(TaskError):
    """A ``TaskError`` that also finds the class of an exception that is defined inside another class."""

    @property
    def exception_class(self) -> type[BaseException]:
        """The class of the exception. Raises ``ImportError`` if no module has it, ``ValueError`` if it is none."""
        found = _at(self.exception_class_path)
        if not isinstance(found, type) or not issubclass(found, BaseException):
            raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
        return found


def _at(path: str) -> object:
    """Return what stands at a dotted path, be it inside a class, which ``import_string`` does not look into."""
    try:
        return import_string(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        names = [name]
        while module:
            try:
                found: Any = import_module(module)
            except ModuleNotFoundError:
                module, _, name = module.rpartition(".")
                names.insert(0, name)
                continue
            for each in names:
                found = getattr(found, each, None)
            if found is None:
                raise
            return found
        raise


def path_of(kind: type[BaseException]) -> str:
    """Return the full dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def errors_of(read: ReadResult) -> list[TaskError]:
    """Return an error for each charged attempt that failed, the oldest first; at least one if the task failed."""
    errors = [_of_attempt(failure) for failure in read.failures]
    if read.outcome == Outcome.CANCELLED:
        by, reason = read.cancel_by, read.cancel_reason
        errors.append(_error(path_of(Cancel), f"Cancelled{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"))
    elif read.is_abandoned_by_hand:
        errors.append(_error(path_of(Abandon), read.error))
    elif read.outcome == Outcome.ABANDONED and not errors:
        errors.append(_error(path_of(AttemptFailed), read.error))
    return errors


def _of_attempt(failure: ReadAttempt) -> TaskError:
    kind, message = failure.exception or path_of(AttemptFailed), failure.message
    if kind == path_of(UnstorableResult) and len(failure.chain) > 1:
        # The attempt did its work, and returned what is no JSON: why, is what people look for.
        kind, message = failure.chain[1]
    return _error(kind, failure.traceback or f"{kind}: {message or failure.cause}")


def _error(kind: str, traceback: str) -> TaskError:
    path = full_path(kind)
    if "<locals>" in path:
        # Nothing outside of its function can reach the class; the traceback names it.
        path = path_of(AttemptFailed)
    return PgTaskError(exception_class_path=path, traceback=traceback)
