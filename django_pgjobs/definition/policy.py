"""The policy of a job definition: what a registration writes by default, and whether and when to retry a failure.

The part of ``jobs`` that needs no types of its own. Settings supply what ``@job`` does not declare. They are read at
each use, so a definition outlives a change of settings. The executor's ``attempt`` asks ``retry_delay``; the
supervisor runs no code of the project, so it asks ``default_delay``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.conf import DEFAULT_BACKOFF, Conf, get_conf
from django_pgjobs.definition.allowed import check_allowed_backoff
from django_pgjobs.definition.keys import OnConflict, check_shown
from django_pgjobs.definition.options import Plan
from django_pgjobs.definition.signature import check_callback, fits, location_of, shape, signature_of
from django_pgjobs.definition.validation import (
    BackoffRule,
    RetryRule,
    check_name,
    check_sensitive,
    seconds,
)
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.logs import log as logger
from django_pgjobs.serialization import references
from django_pgjobs.serialization.payload import CODEC_VERSION, decode_payload
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.built_in import OWN_QUEUE, SERVANTS, is_built_in
from django_pgjobs.values.key_template import KeyOption, Template
from django_pgjobs.values.limit import JobLimits, key_of, key_rule
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext

P = ParamSpec("P")
Callback = TypeVar("Callback", bound="Awaitable[None] | None")
"""Return type of a callback."""
Kept = TypeVar("Kept", bound=Callable[..., object])

OWN_ATTEMPTS = 20
OWN_SECONDS = 1800.0
"""Attempts and timeout of this package's own jobs, which do not ask the project's settings."""


class JobPolicy:
    """Everything about a job definition except its types and its ways to register."""

    __name__: str
    __qualname__: str
    _on_success_func: Callable[..., object] | None = None
    _on_abandon_func: Callable[..., object] | None = None
    _on_cancel_func: Callable[..., object] | None = None
    _undo_definition: JobPolicy | None = None
    """The job that undoes one of this definition."""
    _front: str = ""
    """The decorator of such jobs if it is not ``@job``, as the admin shows it: ``@task``."""
    _backend_alias: str = ""
    """The alias of ``TASKS`` that a task's own jobs are of."""

    def __init__(self, func: Callable[..., Any], declared: Mapping[str, Any]) -> None:
        update_wrapper(cast("Callable[..., Any]", self), func)
        self._declared = declared
        self._kept_plan: Plan | None = None
        self.func = func
        self._location = location_of(func)
        self.name: str = declared.get("name") or check_name("name", f"{func.__module__}.{func.__qualname__}")
        self.aliases: tuple[str, ...] = tuple(alias for alias in declared.get("aliases", ()) if alias != self.name)
        self.queue: str = declared.get("queue", "default")
        self.priority: int = declared.get("priority", 0)
        self.retry_on: RetryRule | None = declared.get("retry_on")
        self.give_up_on: RetryRule | None = declared.get("give_up_on")
        self.takes_context: bool = declared.get("takes_context", False)
        self.store_result: bool = declared.get("store_result", True)
        # A task whose result is no JSON has failed, by the contract of django.tasks.
        self.strict_results: bool = declared.get("strict_results", bool(self._front))
        self.schedulable: bool = declared.get("schedulable", False)
        self.undo_on_failure: str = declared.get("undo_on_failure", "go_on")
        self._log_level: int | None = declared.get("logs")
        self.is_async: bool = iscoroutinefunction(func)
        self.atomic: bool = declared.get("atomic", False)
        if self.atomic and self.is_async:
            raise InvalidOption("atomic needs a plain function: Django has no transactions in async code")
        self._signature = signature_of(func, takes_context=self.takes_context)
        self.sensitive = check_sensitive(declared.get("sensitive", ()), self._signature)
        self.limits: JobLimits = declared.get("limits") or JobLimits()
        self._is_limited = bool(self.limits)
        self._limit_rule = self._checked_limit_rule()
        self._fingerprint = _fingerprint(self.name, self._signature)
        self._key = self._key_rule("key")
        self._idempotency_key = self._key_rule("idempotency_key")
        self._sequence = self._key_rule("sequence")
        self._describe_func = self._description_rule()
        self.description: str = "" if self._describe_func is not None else declared.get("description", "")
        self._fits = fits(func, self.name, takes_context=self.takes_context)

    @property
    def _declares_rules(self) -> bool:
        """True if retry_on or give_up_on was written for this job, not for many jobs."""
        return self.retry_on is not None or self.give_up_on is not None

    def _checked_limit_rule(self) -> Callable[..., str | None] | None:
        key = self.limits.key
        if key is None:
            return None
        if not isinstance(key, str):
            check_callback("the key of a limit", key, self._signature, takes_context=False)
            if iscoroutinefunction(key):
                raise InvalidOption("the key of a limit must not be an async function: registering calls it")
        try:
            rule = key_rule(key, self._signature)
        except ValueError as error:
            raise InvalidOption(str(error)) from None
        if isinstance(key, str):
            check_shown("the key of a limit", Template(key).names, self.sensitive, self._signature)
        return rule

    def _key_rule(self, option: str) -> KeyOption | None:
        declared: KeyOption | Template | None = self._declared.get(option)
        if isinstance(declared, Template):
            check_shown(option, declared.names, self.sensitive, self._signature)
            try:
                return declared.bound(self._signature)
            except ValueError as error:
                raise InvalidOption(f"{option} {error}") from None
        if callable(declared):
            check_callback(option, declared, self._signature, takes_context=False)
        return declared

    def _description_rule(self) -> Callable[..., str | None] | None:
        """Return what describes each job; None if one text describes them all."""
        declared: str | Template | Callable[..., str | None] = self._declared.get("description", "")
        if isinstance(declared, Template):
            check_shown("description", declared.names, self.sensitive, self._signature)
            try:
                return declared.bound(self._signature, apart=False)
            except ValueError as error:
                raise InvalidOption(f"description {error}") from None
        if isinstance(declared, str):
            return None
        check_callback("description", declared, self._signature, takes_context=False)
        return declared

    def _limit_key(self, plan: Plan, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        """Return the limit key of a job: None if no limit applies to it, empty if its limits have no key.

        Raises ``InvalidJob`` if the key cannot be made.
        """
        if self._is_built_in:
            return None
        rule = self._limit_rule
        try:
            found = None if rule is None else key_of(rule, args, kwargs)
        except ValueError as error:
            raise InvalidJob(f"job {self.name!r}: {error}") from error.__cause__
        if found is not None:
            return found
        return "" if self.limits.own is not None or plan.conf.queue_limits.of(plan.queue) is not None else None

    @property
    def _plan(self) -> Plan:
        """Values that a registration without further options writes. Raises ``InvalidJob`` if settings forbid it."""
        conf = get_conf()
        plan = self._kept_plan
        if plan is None or plan.conf is not conf:
            plan = self._kept_plan = self._planned(conf)
        return plan

    def _traits(self) -> frozenset[str]:
        """Return what the process that writes the ends of its jobs must know: callbacks, atomic, strict about results.

        At the time of the call: a module may still be decorating callbacks.
        """
        found = [
            name for name in ("on_success", "on_abandon", "on_cancel") if getattr(self, f"_{name}_func") is not None
        ]
        return frozenset([*found, *(trait for trait in ("atomic", "strict_results") if getattr(self, trait))])

    @cached_property
    def _is_built_in(self) -> bool:
        """True if it is one of this package's own."""
        return is_built_in(self.name)

    def _queue_within(self, conf: Conf) -> str:
        """Return its queue; a job of this package has no say in which queues there are."""
        if self.name in SERVANTS:
            return OWN_QUEUE
        if self._is_built_in and conf.queues and self.queue not in conf.queues:
            return conf.queues[0]
        return self.queue

    def _planned(self, conf: Conf) -> Plan:
        own = self._is_built_in
        try:
            plan = Plan(
                conf=conf,
                queue=self._queue_within(conf),
                priority=self.priority,
                max_attempts=self._declared.get("max_attempts", OWN_ATTEMPTS if own else conf.default_max_attempts),
                timeout=self._declared.get("timeout", OWN_SECONDS if own else conf.default_timeout_seconds),
                key=self._key,
                key_scope=self._declared.get("key_scope"),
                on_conflict=self._declared.get("on_conflict", OnConflict.EXISTING),
                idempotency_key=self._idempotency_key,
                sequence=self._sequence,
                yields=self._declared.get("yields"),
                expires=self._declared.get("expires"),
                soft_timeout=self._declared.get("soft_timeout"),
                on_crash=self._declared.get("on_crash", "retry"),
                memory=self._declared.get("memory"),
                tags=self._declared.get("tags", ()),
                limited=self._is_limited,
                lacks_key=self._key is None and "on_conflict" in self._declared,
                built_in=own,
            ).check()
            if not plan.built_in:
                check_allowed_backoff(self._declared.get("backoff", conf.default_backoff), conf)
        except InvalidOption as error:
            raise InvalidJob(f"{self._location}: job {self.name!r}: {error}") from None
        return plan

    @property
    def max_attempts(self) -> int:
        """Charged starts in all; the setting ``DEFAULT_MAX_ATTEMPTS`` unless declared."""
        return self._plan.max_attempts

    @property
    def timeout(self) -> float | None:
        """Seconds an attempt may take, None for unlimited; ``DEFAULT_TIMEOUT_SECONDS`` unless declared."""
        return self._plan.timeout

    @property
    def backoff(self) -> BackoffRule:
        """Time to wait after a failure; the setting ``DEFAULT_BACKOFF`` unless declared."""
        declared: BackoffRule | None = self._declared.get("backoff")
        if declared is not None:
            return declared
        return DEFAULT_BACKOFF if self._is_built_in else get_conf().default_backoff

    def _default_delay(self, attempt: int) -> float:
        """Return the seconds to wait after ``attempt`` when there is no exception to ask about, as after a kill."""
        backoff = self.backoff
        return (backoff if isinstance(backoff, Backoff) else get_conf().default_backoff).jittered(attempt)

    def _retry_delay(self, error: BaseException, attempt: int) -> float | None:
        """Return the seconds to wait after ``error`` ended ``attempt``, or None to give the job up.

        Never raises: if a callable rule fails, log it and use the default backoff.
        """
        if self.give_up_on is not None and self._matches(self.give_up_on, error, otherwise=False):
            return None
        if self.retry_on is not None and not self._matches(self.retry_on, error, otherwise=True):
            return None
        backoff = self.backoff
        if isinstance(backoff, Backoff):
            return backoff.jittered(attempt)
        try:
            return _asked_delay(backoff(error, attempt))
        except BaseException:
            logger.exception("backoff failed name=%s attempt=%d", self.name, attempt)
            return self._default_delay(attempt)

    def _matches(self, rule: RetryRule, error: BaseException, *, otherwise: bool) -> bool:
        try:
            return issubclass(type(error), rule) if isinstance(rule, tuple) else bool(rule(error))
        except BaseException:
            logger.exception("retry rule failed name=%s", self.name)
            return otherwise

    def _load(self, payload: str) -> tuple[list[object], dict[str, object]]:
        """Return the arguments of a stored payload, without the context. Raises ``UnreadablePayload``."""
        args, kwargs = decode_payload(payload)
        if references.has_any(payload) and (taken := next(references.within([*args, *kwargs.values()]), None)):
            raise UnreadablePayload(f"It takes the result of job {taken.job_id}, which only a flow passes on.")
        try:
            self._fits(*args, **kwargs)
        except TypeError as error:
            raise UnreadablePayload(f"The stored arguments do not fit: {error}") from None
        return args, kwargs

    def _check_ceilings(self) -> None:
        """Check against the settings, if there are any yet; the system checks report what is wrong with these."""
        if settings.configured:
            try:
                _ = self._plan
            except ImproperlyConfigured:
                logger.debug("settings are not valid, ceilings are unchecked name=%s", self.name)


class CallbackDecorators(JobPolicy, Generic[P]):
    """The part of a definition that takes its callbacks."""

    def on_success(
        self, func: Callable[Concatenate[JobContext, P], Callback]
    ) -> Callable[Concatenate[JobContext, P], Callback]:
        """Decorate the callback for jobs that succeeded; it takes the context first. Returns it unchanged.

        It runs once the result is stored, at least once, and the job ends as succeeded when it has run.
        """
        return self._keep("on_success", func)

    def on_abandon(
        self, func: Callable[Concatenate[JobContext, P], Callback]
    ) -> Callable[Concatenate[JobContext, P], Callback]:
        """Decorate the callback for abandoned jobs; it takes the context first. Returns it unchanged."""
        return self._keep("on_abandon", func)

    def on_cancel(
        self, func: Callable[Concatenate[JobContext, P], Callback]
    ) -> Callable[Concatenate[JobContext, P], Callback]:
        """Decorate the callback for cancelled jobs; it takes the context first. Returns it unchanged."""
        return self._keep("on_cancel", func)

    def _keep(self, what: str, func: Kept) -> Kept:
        try:
            if getattr(self, f"_{what}_func") is not None:
                raise InvalidOption(f"{what} is set already")
            check_callback(what, func, self._signature, takes_context=True)
        except InvalidOption as error:
            raise InvalidJob(f"{location_of(func)}: job {self.name!r}: {error}") from None
        setattr(self, f"_{what}_func", func)
        return func


def _fingerprint(name: str, signature: inspect.Signature) -> str:
    return hashlib.sha256(f"{CODEC_VERSION}|{name}|{shape(signature)}".encode()).hexdigest()[:12]


def _asked_delay(asked: float | timedelta | None) -> float | None:
    if asked is None:
        return None
    delay = seconds("the delay of a backoff callable", asked)
    return min(delay, get_conf().bounds.ahead_seconds)
