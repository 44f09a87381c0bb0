"""A function as a job: ``JobDefinition`` registers jobs and holds their policy, alone or bound to options and
arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, ParamSpec, TypeVar, Unpack, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.next_step import Call
from django_pgjobs.definition.options import JobOptions, Plan, RegisterOptions, checked_job_options
from django_pgjobs.definition.policy import CallbackDecorators
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.signature import check_callback, check_function, location_of, names_context
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs.methods import GUESSED, Elsewhere, SteeredByName
from django_pgjobs.registering.encode import Arguments, Row, row_of
from django_pgjobs.registering.register import register_all, register_one
from django_pgjobs.states import BUILT_IN
from django_pgjobs.values.setting_rules import InvalidOption, abridged

P = ParamSpec("P")
R = TypeVar("R")
R2 = TypeVar("R2")

if TYPE_CHECKING:
    import typing_extensions

    from django_pgjobs.context import JobContext
    from django_pgjobs.definition.cron_declaration import CronDeclaration
    from django_pgjobs.definition.plans import Plans, Variant
    from django_pgjobs.jobs.job_of import JobOf as JobOf
    from django_pgjobs.schedules import BoundSchedule, ScheduleOptions

    V = TypeVar("V")
    Result = TypeVar("Result")
    Returned = typing_extensions.TypeVar("Returned", default=Any, covariant=True)

if not TYPE_CHECKING:
    Returned = TypeVar("Returned")


class JobDefinition(SteeredByName, CallbackDecorators[P], Generic[P, R]):
    """A function that you can register as a job, and still call.

    ``backoff``, ``retry_on``, ``give_up_on`` and the callbacks are read from the code that runs the job. ``queue``,
    ``priority``, ``max_attempts`` and ``timeout`` (seconds, None for unlimited) are written on the row at registering.
    Each option of ``job`` but keys is an attribute, ``func`` is the function, ``is_async`` says whether it is one.
    """

    func: Callable[..., R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it had no decorator."""
        return self.func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in GUESSED]

    def __reduce__(self) -> str:
        """Pickle and copy by name, like functions."""
        return self.func.__qualname__

    def undo(
        self, *unnamed: Never, **options: Unpack[JobOptions]
    ) -> Callable[[Callable[Concatenate[JobContext, P], R2]], JobDefinition[P, R2]]:
        """Decorate the function that undoes a job of this definition; return it as a job definition of its own.

        It takes the context, whose ``target`` is what it undoes, and then the same arguments. It runs when something
        that contains the job fails: a batch or flow with ``undo=True``, or a durable function with a step that has
        ``undo=…``. The name, unless given, is that of the job and *.undo*; ``options`` are those of ``job``. Raises
        ``InvalidJob``.
        """
        if unnamed:
            raise InvalidJob(f"{location_of(unnamed[0])}: write @{self.__name__}.undo(), with brackets")

        def decorate(func: Callable[..., object]) -> JobDefinition[..., object]:
            if self._undo_definition is not None and self._undo_definition._location != location_of(func):
                raise InvalidJob(f"{location_of(func)}: job {self.name!r}: undo is set already")
            try:
                check_callback("undo", func, self._signature, takes_context=True)
            except InvalidOption as error:
                raise InvalidJob(f"{location_of(func)}: job {self.name!r}: {error}") from None
            made = define(func, {"name": f"{self.name}.undo", **options, "takes_context": True})
            self._undo_definition = made
            return made

        return cast("Callable[[Callable[Concatenate[JobContext, P], R2]], JobDefinition[P, R2]]", decorate)

    # Registering

    def register(self, *args: P.args, **kwargs: P.kwargs) -> JobOf[R]:
        """Store a job with these arguments, as part of the caller's transaction, and return it.

        If its key is taken, return the job that has it, or do what ``on_conflict`` says. Raises ``TypeError`` if the
        function does not take these arguments, ``InvalidJob`` for values that cannot be stored, ``DuplicateJob`` if the
        key is taken and ``on_conflict`` asks for it. Then nothing is stored, and an open transaction stays usable.
        """
        self._fits(*args, **kwargs)
        return cast("JobOf[R]", register_one(Row(self, self._plan, args, kwargs)))

    async def aregister(self, *args: P.args, **kwargs: P.kwargs) -> JobOf[R]:
        """``register`` for async callers."""
        return await sync_to_async(self.register)(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """Return a call to register later. Raises ``TypeError`` as ``register`` does."""
        self._fits(*args, **kwargs)
        return BoundJob(self, args, kwargs)

    def using(self, *unnamed: Never, **options: Unpack[RegisterOptions]) -> BoundOptions[P, R]:
        """Return this job with options for one or more registrations.

        ``run_at`` (aware datetime) or ``delay`` (seconds or ``timedelta``, on the database's clock); ``deadline``
        (aware datetime: the job does not start after it; if it runs then, it is stopped and abandoned); ``expires``
        (seconds or ``timedelta`` after the start, an aware datetime, or None: the job is cancelled if it has not
        started by then); ``tags``, added to the job's; ``description``, instead of the job's; ``queue``, ``priority``,
        ``timeout`` (None for unlimited, or a pair with a soft limit), ``max_attempts``, ``on_crash``, ``memory``
        (megabytes, None for no limit), ``database``
        (alias); ``unique`` and ``idempotency_key`` (a text, a callable of the arguments, None for no key;
        ``unique`` also a ``Unique``); ``sequence`` (the same, or a ``Sequence``). ``after`` (jobs or their ids) lets
        the job wait until these have ended; ``when`` (``"succeeded"``, ``"failed"``, ``"settled"``) says which end of
        each it needs. Registering such a job locks these until the commit, and raises ``OldWorkers`` while workers live
        that know nothing of it. ``bypass=True`` runs the job at once in a thread of this process, once, and stores
        nothing. Raises ``InvalidJob``.
        """
        if unnamed:
            raise _unnamed(unnamed)
        made = self._plans.of(options)
        return BoundOptions(self, made.fields, made.plan)

    def _plan_with(self, **options: Unpack[RegisterOptions]) -> Plan:
        """Return the plan that a registration by ``using(**options)`` has; raise ``InvalidJob`` as it does.

        Plans are remembered by the settings and by the options that many calls share, such as queue, priority and
        database, so a call with only these checks nothing again. Never blocks; repeatable.
        """
        return self._plans.of(options).plan

    @cached_property
    def _plans(self) -> Plans:
        from django_pgjobs.definition.plans import Plans  # here for start-up time

        return Plans(self)

    def schedule(
        self, expression: str | CronDeclaration | None = None, **options: Unpack[ScheduleOptions]
    ) -> BoundSchedule[P]:
        """Return this job with a schedule, to write to its row by ``register(…)`` with the job's arguments.

        ``expression`` is that of ``Cron``, or a ``Cron`` without a call; ``every``, ``anchor``, ``tz``, ``misfire``,
        ``misfire_limit`` and ``overlap`` are those of ``Cron``. ``name`` identifies the schedule, in all of the
        database. ``start`` and ``end`` (aware datetimes) bound its fires, ``max_fires`` how many it makes since its
        timing last changed; ``enabled=False`` keeps it from firing. ``by`` (a user or a text) and ``reason`` go into
        its history. Raises ``InvalidJob``.
        """
        from django_pgjobs.schedules import bound_schedule  # here for start-up time

        return cast("BoundSchedule[P]", bound_schedule(self, {}, expression, options))

    def as_task(self, backend: str = "default") -> Any:
        """Return this job as a ``Task`` of ``django.tasks``, for libraries that want one.

        ``backend``: an alias of ``TASKS``. Its ``enqueue`` registers this job. A job with ``takes_context`` must call
        its first parameter ``context``, and gets what it is used to, the ``JobContext``. Raises ``InvalidTask``, and
        ``ImportError`` where there is no ``django.tasks``.
        """
        return made_task(self, backend)

    # Many at once

    def register_many(self, rows: Iterable[Arguments]) -> list[int]:
        """Store one job per row in one statement; return the ids in the order of the rows.

        A row is a mapping of keyword arguments or a tuple of positional ones. Raises what ``register`` raises, naming
        the row; then nothing is stored.
        """
        return BoundOptions(self, {}).register_many(rows)

    async def aregister_many(self, rows: Iterable[Arguments]) -> list[int]:
        """``register_many`` for async callers."""
        return await sync_to_async(self.register_many)(rows)


for _name in GUESSED:
    setattr(JobDefinition, _name, Elsewhere(_name))


class ContextJobDefinition(JobDefinition[P, R]):
    """The definition of a job that takes its context: only a direct call passes that, first."""

    if TYPE_CHECKING:

        def __call__(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
            ...


@dataclass(frozen=True, slots=True)
class BoundOptions(Generic[P, R]):
    """A job definition with options for its registrations. ``using`` makes it; it registers like the definition."""

    definition: JobDefinition[P, R]
    options: Mapping[str, Any]
    """Fields of the plan, already checked; ``using`` makes them."""
    _known_plan: Plan | None = field(default=None, compare=False, repr=False)
    """The plan that these make, if it is known."""

    def _planned(self) -> Plan:
        return _as_of_now(self.definition, self.options, self._known_plan)

    def using(self, *unnamed: Never, **options: Unpack[RegisterOptions]) -> BoundOptions[P, R]:
        """Return the same definition with further options, which override these."""
        if unnamed:
            raise _unnamed(unnamed)
        return BoundOptions(self.definition, *_made(self.definition, self.options, options))

    def register(self, *args: P.args, **kwargs: P.kwargs) -> JobOf[R]:
        """Store a job with these arguments and options; see ``JobDefinition.register``."""
        self.definition._fits(*args, **kwargs)
        return cast("JobOf[R]", register_one(Row(self.definition, self._planned(), args, kwargs)))

    async def aregister(self, *args: P.args, **kwargs: P.kwargs) -> JobOf[R]:
        """``register`` for async callers."""
        return await sync_to_async(self.register)(*args, **kwargs)

    def schedule(
        self, expression: str | CronDeclaration | None = None, **options: Unpack[ScheduleOptions]
    ) -> BoundSchedule[P]:
        """Return the job with these options and a schedule; see ``JobDefinition.schedule``."""
        from django_pgjobs.schedules import bound_schedule  # here for start-up time

        return cast("BoundSchedule[P]", bound_schedule(self.definition, self.options, expression, options))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """Return a call with these options, to register later. Raises ``TypeError`` as ``register`` does."""
        self.definition._fits(*args, **kwargs)
        return BoundJob(self.definition, args, kwargs, self.options, self._known_plan)

    def register_many(self, rows: Iterable[Arguments]) -> list[int]:
        """Store one job per row with these options; see ``JobDefinition.register_many``."""
        plan = self._planned()
        calls = (row_of(self.definition, plan, number, row) for number, row in enumerate(rows))
        return register_all(calls, None, plan.conf)

    async def aregister_many(self, rows: Iterable[Arguments]) -> list[int]:
        """``register_many`` for async callers."""
        return await sync_to_async(self.register_many)(rows)


@dataclass(frozen=True, slots=True)
class BoundJob(Call, Generic[Returned]):
    """A call to register later, or to continue with: definition, arguments and options. ``bind`` makes it.

    Type checkers know from it what the function returns.
    """

    definition: JobDefinition[..., Returned]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    _known_plan: Plan | None = field(default=None, compare=False, repr=False)
    """The plan that these make, if it is known."""

    def using(self, *unnamed: Never, **options: Unpack[RegisterOptions]) -> BoundJob[Returned]:
        """Return the same call with further options, which override these."""
        if unnamed:
            raise _unnamed(unnamed)
        made = _made(self.definition, self.options, options)
        return replace(self, options=made.fields, _known_plan=made.plan)

    def register(self) -> JobOf[Returned]:
        """Store the job; each further call stores another one. See ``JobDefinition.register``."""
        return cast("JobOf[Returned]", register_one(self._row()))

    async def aregister(self) -> JobOf[Returned]:
        """``register`` for async callers."""
        return await sync_to_async(self.register)()

    def _row(self) -> Row:
        """Return the call as a row to register."""
        plan = _as_of_now(self.definition, self.options, self._known_plan)
        return Row(self.definition, plan, self.args, dict(self.kwargs))

    # As a next step

    @property
    def name(self) -> str:
        """The name of the job to call."""
        return self.definition.name

    def _as_step(self, delay: float | timedelta | None) -> BoundJob:
        """Return the call with this delay, for ``Next``. Raises ``InvalidJob`` for options that no step may have."""
        from django_pgjobs.registering import next_step  # here for start-up time

        next_step.check_options(self.name, self.options)
        return self if delay is None else self.using(delay=delay)

    def _stored(self) -> str:
        """Return the columns of a next step, as a JSON object. Raises ``InvalidJob``."""
        from django_pgjobs.registering import next_step  # here for start-up time

        return next_step.encoded(self._row(), self.options)


def _no_app(definition: JobDefinition[..., Any], backend: str) -> object:
    raise ImproperlyConfigured('as_task() needs "django_pgjobs" in INSTALLED_APPS')


made_task: Callable[[JobDefinition[..., Any], str], object] = _no_app
"""Makes a task of a job. The app sets it: the front is a room above."""


def define(func: Callable[..., object], options: Mapping[str, object]) -> JobDefinition[..., object]:
    try:
        check_function(func, local=registry.is_isolated)
        declared = {"takes_context": names_context(func), **checked_job_options(options)}
        entries = declared.pop("cron", ())
        kind = ContextJobDefinition[..., object] if declared.get("takes_context") else JobDefinition[..., object]
        definition = kind(func, declared)
        if definition._is_built_in and not func.__module__.startswith("django_pgjobs."):
            raise InvalidOption(f"names that begin with {BUILT_IN!r} are for this package alone; pass another name=…")
    except InvalidOption as error:
        label = options.get("name") or getattr(func, "__qualname__", func)
        raise InvalidJob(f"{location_of(func)}: job {abridged(str(label))}: {error}") from None
    definition._check_ceilings()
    registry.add(definition)
    for entry in entries:
        entry.declare(definition)
    return definition


# Helpers


def _unnamed(values: tuple[object, ...]) -> TypeError:
    from django_pgjobs.values import cures  # here for start-up time

    return cures.unnamed("using", "database", values)


def _made(definition: JobDefinition[..., R], before: Mapping[str, object], given: Mapping[str, object]) -> Variant:
    from django_pgjobs.definition.plans import made  # here for start-up time

    return made(definition, before, given)


def _as_of_now(definition: JobDefinition[..., R], options: Mapping[str, object], plan: Plan | None) -> Plan:
    """Return ``plan``, made again if the settings have changed since; instants in it are checked again."""
    if not options:
        return definition._plan
    if plan is None or plan.conf is not get_conf():
        return _made(definition, options, {}).plan
    try:
        return plan.check() if plan.names_instants else plan
    except InvalidOption as error:
        raise InvalidJob(f"job {definition.name!r}: {error}") from None
