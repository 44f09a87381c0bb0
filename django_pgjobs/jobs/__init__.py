"""``@job``, what it makes of a function, and many registrations at once.

Imports no model: ``from django_pgjobs import job`` never touches the app registry. A wrong definition raises at import
and names its file and line. A wrong call raises at the call, before anything reaches the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.options import JobOptions
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs.definition import BoundJob as BoundJob
from django_pgjobs.jobs.definition import BoundOptions as BoundOptions
from django_pgjobs.jobs.definition import ContextJobDefinition as ContextJobDefinition
from django_pgjobs.jobs.definition import JobDefinition as JobDefinition
from django_pgjobs.jobs.definition import define
from django_pgjobs.registering.encode import Row
from django_pgjobs.registering.register import register_all

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.jobs.definition import JobOf as JobOf

    Result = TypeVar("Result")
    Value = TypeVar("Value", covariant=True)

    class TakesContext(Protocol[P, Value]):
        """A function whose first parameter is ``context: JobContext``."""

        def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> Value: ...

    class Decorator(Protocol):
        """``@job(…)``."""

        @overload
        def __call__(self, func: TakesContext[P, Result], /) -> ContextJobDefinition[P, Result]: ...
        @overload
        def __call__(self, func: Callable[P, R], /) -> JobDefinition[P, R]: ...
        def __call__(self, func: object, /) -> object: ...


@overload
def job(func: TakesContext[P, Result], /) -> ContextJobDefinition[P, Result]: ...


@overload
def job(func: Callable[P, R], /) -> JobDefinition[P, R]: ...


@overload
def job(
    *, takes_context: Literal[True], **options: Unpack[JobOptions]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], ContextJobDefinition[P, R]]: ...


@overload
def job(*, takes_context: Literal[False] = False, **options: Unpack[JobOptions]) -> Decorator: ...


def job(func: Callable[..., object] | None = None, /, **options: object) -> Any:
    """Make a function a job: ``@job`` or ``@job(queue="mail", max_attempts=5, …)``.

    ``name`` (default module.qualname) is stored on every row, so keep it, or add the old one to ``aliases``;
    ``queue``, ``priority`` (−100…100, larger first), ``max_attempts`` and ``timeout`` (seconds or ``timedelta``,
    None for unlimited) are written at registering; ``backoff`` (a ``Backoff``, or a callable (exception, attempt)
    → seconds or None to give up), ``retry_on`` and ``give_up_on`` (exception types, or a callable (exception) →
    bool) come from the code that runs. A function whose first parameter is annotated ``JobContext`` gets that first,
    ``takes_context=True`` does the same for one without annotations; ``store_result=False``
    drops the return value; a job whose return value cannot be stored succeeds without it, and is abandoned with
    ``strict_results=True``; ``sensitive`` names arguments that admin and logs hide; ``cron`` is a ``Cron``, or a list
    of them, that calls the job without arguments; ``schedulable=True`` lets people make schedules for it in the admin
    and the shell. ``unique`` (a format string of the arguments, a callable of them, or a ``Unique``, which also says
    for how long and what a second registration does) lets one job of this key be in its queue. ``sequence`` (given like
    a key, or a ``Sequence``) runs its jobs one after the other, in the order of their registration.
    ``idempotency_key``, also a format string or a callable, lets a job return the result of an earlier one. ``limits``
    (a ``Limit``, or one with a key and one without) bounds how many run at once, or start in a period, in all workers.
    ``tags`` are texts for finding its jobs; ``description`` (a text, a format string of the arguments, or a callable
    of them that returns a text) says for lists and logs what each does. Registering makes it, inside the caller's
    transaction; an error in it is logged and costs only the description. ``timeout`` may be a
    pair: at the first limit the worker raises ``SoftDeadlinePassed`` in the job, at the second it stops the job. A job
    that has not started within ``expires`` (seconds or ``timedelta``) of its start is cancelled.
    ``on_crash="abandon"`` never runs it again if its process or worker dies. ``memory=512`` stops an attempt whose
    process grows by more megabytes than that. ``atomic=True`` commits what it does in the database of the jobs together
    with its success, or not at all. ``undo_on_failure="stop"``: if the job fails and
    one of its steps cannot be undone, those before it are not undone either; by default they are (``"go_on"``).

    Raises ``InvalidJob`` naming the file, the line and the problem.
    """
    return partial(define, options=options) if func is None else define(func, options)


def register_many(jobs: Iterable[BoundJob], database: str | None = None) -> list[int]:
    """Store calls of any definitions in one statement, in the caller's transaction; return the ids in their order.

    All go to ``database``, else to the one alias that their options name, else to your routers' choice, else to that
    of the job that runs here. Raises what
    ``JobDefinition.register`` raises; then nothing is stored.
    """
    return register_all(map(_row_of, jobs), database, get_conf())


def _row_of(call: object) -> Row:
    if not isinstance(call, BoundJob):
        raise InvalidJob(f"register_many() takes calls, made by a definition's bind(…), not {call!r}.")
    return call._row()


async def aregister_many(jobs: Iterable[BoundJob], database: str | None = None) -> list[int]:
    """``register_many`` for async callers."""
    return await sync_to_async(register_many)(jobs, database)
