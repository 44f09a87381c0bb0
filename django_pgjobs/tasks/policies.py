"""The policy of a task: ``@policy`` marks its function, and ``OPTIONS`` of ``TASKS`` speak for code of others.

An option comes from the first place that gives it: ``OPTIONS["TASKS"]`` under the exact path, there under a pattern,
the longest first, ``@policy``, the alias' own ``OPTIONS``, ``PGJOBS``. Needs no family of tasks: code that imports
``policy`` may run on another backend, or on none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar, Unpack

from django_pgjobs.definition.options import JOB_CHECKS, PolicyOptions, checked_job_options
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.signature import call_site, location_of
from django_pgjobs.definition.validation import check_known
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.values.setting_rules import InvalidOption

F = TypeVar("F", bound=Callable[..., object])

MARK = "_pgjobs_policy"
"""The attribute of a function that holds its ``Mark``; ``functools.wraps`` copies it."""

OF_THE_TASK = {
    "name": "the name of a task is its path: give former names as aliases",
    "queue": "write @task(queue_name=…)",
    "queue_name": "write @task(queue_name=…)",
    "priority": "write @task(priority=…)",
    "takes_context": "write @task(takes_context=True)",
    "run_after": "write using(run_after=…)",
}
"""Option that the task has itself, or that nothing has → where it belongs."""

KNOWN = JOB_CHECKS.keys() - OF_THE_TASK.keys()


class Mark(NamedTuple):
    """The declaration of ``@policy``: checked options of a job, and where."""

    declared: Mapping[str, object]
    location: str


def policy(**options: Unpack[PolicyOptions]) -> Callable[[F], F]:
    """Give a task the policy of a job: ``@task`` over ``@policy(max_attempts=5, unique="welcome:{user_id}", …)``.

    Takes the options of ``job`` except ``name``, ``queue``, ``priority`` and ``takes_context``, which the task has
    itself. It marks the function and returns it, so the module also imports on any other backend, which takes no
    notice. Raises ``InvalidJob``, naming the file and the line, and ``TypeError`` above ``@task`` or ``@job``.
    """
    location = call_site()
    try:
        declared = checked_policy(options)
    except InvalidOption as error:
        raise InvalidJob(f"{location}: policy: {error}") from None

    def mark(func: F) -> F:
        if not inspect.isfunction(func):
            raise TypeError(f"{location}: policy marks the plain function: write @task above @policy, not below")
        try:
            _check_signature(func, declared)
        except InvalidOption as error:
            raise InvalidJob(f"{location_of(func)}: policy of {func.__qualname__!r}: {error}") from None
        setattr(func, MARK, Mark(declared, location_of(func)))
        return func

    return mark


def checked_policy(options: Mapping[str, object]) -> dict[str, object]:
    """Return these options as ``checked_job_options`` does. Raises ``InvalidOption``."""
    for option in options:
        if option in OF_THE_TASK:
            raise InvalidOption(f"a policy takes no {option!r}: {OF_THE_TASK[option]}")
    check_known(options, KNOWN, "policy")
    return checked_job_options(options)


def mark_of(func: Callable[..., object]) -> Mapping[str, object]:
    """Return what ``@policy`` declares for a function; empty without it."""
    mark: Mark | None = getattr(func, MARK, None)
    return {} if mark is None else mark.declared


def _check_signature(func: Callable[..., object], declared: Mapping[str, object]) -> None:
    """Refuse what does not go with the function's arguments; ``@task`` above says whether the context is one."""
    others = {option: value for option, value in declared.items() if option != "cron"}
    if next(iter(inspect.signature(func).parameters), "") == "context":
        with suppress(InvalidOption):
            JobPolicy(func, {**others, "takes_context": True})
            return
    JobPolicy(func, others)
