"""A task as one more kind of job definition: made of the module's own ``Task``, at its first use; and
how it is enqueued.

Rows name a task by its path. The definition is made of what stands at that path, never of the ``Task`` object at hand:
wrappers build a second ``Task`` around another function, and the module's is the one that a worker finds.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import router
from django.utils.module_loading import import_string

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.options import Plan
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.signature import check_function, location_of
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.registering.destination import writable_alias
from django_pgjobs.registering.encode import Row
from django_pgjobs.registering.register import register_all_fresh, register_one
from django_pgjobs.states import TASK_FRONT
from django_pgjobs.tasks import families, results, running, sending
from django_pgjobs.tasks.families import DEFAULT_ALIAS, InvalidTask, InvalidTaskJob
from django_pgjobs.tasks.plain import plain_arguments
from django_pgjobs.tasks.policies import mark_of
from django_pgjobs.tasks.settings import AliasOptions, options_of, our_aliases, renamed
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.conf import Conf
    from django_pgjobs.definition.options import Plan
    from django_pgjobs.tasks.families import BaseTaskBackend, Task, TaskResult


P = ParamSpec("P")
R = TypeVar("R")

_defining = threading.RLock()

UNDO = ".undo"

PYTHONS_OWN = sys.stdlib_module_names | {"test"}
"""Its own tests run at import, and are not among those names."""


class TaskDefinition(JobDefinition[P, R]):
    """The job definition of a task: registers, binds, schedules and limits as every other.

    ``task``: the module's. ``backend_alias``: its alias. ``database``: where its jobs go, None if the router decides.
    """

    _front = TASK_FRONT

    def __init__(self, task: Task, declared: Mapping[str, object], database: str | None) -> None:
        self.task = task
        self._backend_alias: str = task.backend
        self.database = database
        super().__init__(task.func, declared)
        self.func = running.body_of(self, task.func)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now; what it returns stays as it is."""
        found: R = self.task.func(*args, **kwargs)
        return found

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> Any:
        """Pickle and copy by path."""
        return definition_at, (self.name,)

    @property
    def _declares_rules(self) -> bool:
        """True if retry_on or give_up_on comes from somewhere else than the defaults of the alias."""
        defaults = options_of_task(self.task).defaults
        rules = {"retry_on": self.retry_on, "give_up_on": self.give_up_on}
        return any(rule is not None and rule is not defaults.get(name) for name, rule in rules.items())

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundJob[R]:
        """Return a call to register later. Raises ``TypeError`` as ``register`` does."""
        self._fits(*args, **kwargs)
        return BoundJob(self, args, kwargs, {} if self.database is None else {"database": self.database})

    def _planned(self, conf: Conf) -> Plan:
        plan = super()._planned(conf)
        return plan if self.database is None else replace(plan, database=self.database)


def definition_of(task: Task) -> JobDefinition[..., object]:
    """Return the definition of what stands at the path of ``task``. May import it.

    Raises ``InvalidTask``, and ``TypeError`` if ``task`` is none.
    """
    if not families.is_task(task):
        raise TypeError(f"{task!r} is no task: write @task above the function")
    path = task.module_path
    known = registry.find(path)
    return definition_at(path) if known is None else cast("JobDefinition[..., object]", known)


def definition_at(path: str) -> JobDefinition[..., object]:
    """Return the definition of the task or job at this path. May import it. Raises ``InvalidTask``."""
    try:
        return cast("JobDefinition[..., object]", registry.resolve(path))
    except UnknownJob as error:
        if not our_aliases():
            raise InvalidTask(f"{path} can be no job: no alias of TASKS has a BACKEND of django_pgjobs.") from None
        raise InvalidTask(f"{path} is no task that a worker could find: {error}") from error


def resolver(name: str) -> JobDefinition[..., object] | None:
    """Return the definition of the task or job at a dotted path, former ones included; see ``Registry.resolve``.

    Never takes anything else for a task, so that no row can name an arbitrary callable.
    """
    if not our_aliases():
        return None
    path = renamed(name)
    if not _may_be_imported(path):
        return None
    if path.endswith(UNDO):  # no attribute of a module: what the decorator ``undo`` has named after its job
        undone = registry.resolved(path.removesuffix(UNDO))
        undo = None if undone is None else cast("JobDefinition[..., object] | None", undone._undo_definition)
        return undo if undo is not None and undo.name == path else None
    found = import_string(path)
    if isinstance(found, JobDefinition):
        return found
    if not families.is_task(found):
        raise InvalidTask(f"{path} is no task")
    if found.module_path != path:
        # Another name for a task: rows have the path at which its function was defined.
        raise InvalidTask(f"{path} is the task {found.module_path}")
    return define(found)


def _may_be_imported(path: str) -> bool:
    """Return whether a path may lead to a task. Rows choose the names: Python's own modules, and programs, hold
    none."""
    first = path.partition(".")[0]
    named = {config.name.partition(".")[0] for config in apps.app_configs.values()}
    return ".__main__." not in path and (first not in PYTHONS_OWN or first in named)


def define(task: Task) -> TaskDefinition[..., object]:
    """Make the module's task known, with its cron entries, unless it is. Raises ``InvalidJob``."""
    with _defining:
        known = registry.find(task.module_path)
        if isinstance(known, TaskDefinition) and known.task is task:
            return known
        definition, entries = _made(task)
        registry.add(definition)
        for entry in entries:
            # A copy: an entry belongs to one definition, and settings may change under a mark.
            copy.copy(entry).declare(definition)
        return definition


def _made(task: Task) -> tuple[TaskDefinition[..., object], tuple[Any, ...]]:
    path = task.module_path
    options = options_of_task(task)
    declared = options.declared(path, mark_of(task.func))
    entries = declared.pop("cron", ())
    aliases = dict.fromkeys((*declared.pop("aliases", ()), *options.former(path)))
    own = {
        "name": path,
        "aliases": tuple(aliases),
        "queue": task.queue_name,
        "priority": int(task.priority),
        "takes_context": task.takes_context,
    }
    try:
        check_function(task.func)
        return TaskDefinition(task, {**declared, **own}, options.database), entries
    except InvalidOption as error:
        keys = "".join(f" OPTIONS['TASKS'][{key!r}] is about it." for key in options.keys_about(path))
        raise InvalidJob(f"{location_of(task.func)}: task {path!r}: {error}{keys and '.'}{keys}") from None


def options_of_task(task: Task) -> AliasOptions:
    """Return the options of the task's own alias; if that is not ours, of the first one that is."""
    ours = our_aliases()
    alias = task.backend if task.backend in ours or not ours else ours[0]
    return options_of(alias)


def as_task(definition: JobDefinition[..., object], backend: str = DEFAULT_ALIAS) -> Task:
    """Return a job definition as a task; see ``JobDefinition.as_task``."""
    if isinstance(definition, TaskDefinition):
        return definition.task if backend == definition._backend_alias else definition.task.using(backend=backend)
    return families.Task(
        func=definition.func,
        backend=backend,
        queue_name=definition.queue,
        priority=definition.priority,
        takes_context=definition.takes_context,
    )


registry.add_resolver(resolver)


WAITS = "waits for the database: in asynchronous code write"


def enqueue(backend: BaseTaskBackend, task: Task, args: Sequence[object], kwargs: Mapping[str, object]) -> TaskResult:
    """Store a job of a valid task; see ``PgJobsBackend.enqueue``."""
    taken, named = plain_arguments(args, kwargs)
    definition = definition_of(task)
    definition._fits(*taken, **named)
    own: Task | None = getattr(definition, "task", None)
    try:
        row = Row(definition, plan_of(definition, task), taken, named, results.header_of(task, own))
        job: Any = register_one(row)
    except InvalidJob as error:
        raise InvalidTaskJob(str(error)) from error.__cause__
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(f"enqueue() {WAITS} await aenqueue(…).") from None
    if not job.fresh:
        return results.found(backend.alias, str(job.pk))
    result = results.of_new_job(job, task, backend.alias, taken, named)
    sending.send_enqueued(type(backend), result)
    return result


def enqueue_many(task: Task, calls: Iterable[tuple[Sequence[object], Mapping[str, object]]]) -> list[str]:
    """Store jobs of one task; see ``bridge.enqueue_many``."""
    definition = definition_of(task)
    backend = task.get_backend()
    backend.validate_task(task)
    try:
        plan = plan_of(definition, task)
        headers = results.header_of(task, getattr(definition, "task", None))
        ids, fresh = register_all_fresh(_rows(definition, plan, headers, calls), None, plan.conf)
    except InvalidJob as error:
        raise InvalidTaskJob(str(error)) from error.__cause__
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(f"enqueue_many() {WAITS} await sync_to_async(enqueue_many)(…).") from None
    if sending.others_want_enqueued():
        made = results.of_jobs(writable_alias(plan.database), [ids[at] for at in fresh], task.backend)
        for result in made:
            sending.send_enqueued(type(backend), result)
    then = getattr(backend, "many_stored", None)  # another backend has no such method
    if then is not None:
        then()
    return list(map(str, ids))


def _rows(
    definition: JobDefinition[..., object], plan: Plan, headers: Mapping[str, object] | None, calls: Iterable[Any]
) -> Iterator[Row]:
    fits = definition._fits
    for number, call in enumerate(calls):
        try:
            args, kwargs = call
            if isinstance(args, str | bytes) or not isinstance(kwargs, (dict, Mapping)):  # an ABC asks longer
                raise TypeError
        except (TypeError, ValueError):
            words = f"row {number}: must be a pair of arguments and keyword arguments, not {call!r}"
            raise InvalidTaskJob(words) from None
        try:
            taken, named = plain_arguments(args, kwargs)
            fits(*taken, **named)
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {number}: {error}") from error.__cause__
        yield Row(definition, plan, taken, named, headers)


def plan_of(definition: JobDefinition[..., object], task: Task) -> Plan:
    """Return what a registration of ``task`` writes. Raises ``InvalidJob``."""
    given: dict[str, Any] = {}
    if task.queue_name != definition.queue:
        given["queue"] = task.queue_name
    if task.priority != definition.priority:
        given["priority"] = int(task.priority)
    after: Any = task.run_after
    if isinstance(after, timedelta):
        given["delay"] = after
    elif after is not None:
        given["run_at"] = after
    if not isinstance(definition, TaskDefinition):
        database = options_of(task.backend).database
        if database is not None:
            given["database"] = database
    elif task.backend != definition._backend_alias:
        given |= _of_alias(definition, task.backend)
    if router.routers and definition._plan.database is None and given.get("database") is None:
        # Not where they would send this job: of a result, only the alias of its task and its id are known later.
        given["database"] = results.database_of(task.backend)
    return definition._plan_with(**given) if given else definition._plan


def _of_alias(definition: TaskDefinition[..., object], alias: str) -> dict[str, object]:
    """Return what a row gets from the alias that it is enqueued by, where that is not the task's own."""
    options, conf = options_of(alias), get_conf()
    declared = options.declared(definition.name, mark_of(definition.task.func))
    hard = declared.get("timeout", conf.default_timeout_seconds)
    soft = declared.get("soft_timeout")
    return {
        "database": options.database,
        "max_attempts": declared.get("max_attempts", conf.default_max_attempts),
        "timeout": hard if soft is None else (soft, hard),
    }
