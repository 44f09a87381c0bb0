"""The options of ``@job(…)`` and ``.using(…)``: their types, their checks, and the error messages.

Pure: no database, no registry. A check raises ``InvalidOption`` with the bare sentence; ``jobs`` adds the job and the
place. Callers give durations as seconds or ``timedelta``; checks return float seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from django_pgjobs.conf import Conf
from django_pgjobs.definition import allowed, keys
from django_pgjobs.definition.keys import OnConflict, Scope, Unique
from django_pgjobs.definition.keys import Sequence as JobSequence
from django_pgjobs.definition.validation import (
    PRIORITIES,
    BackoffRule,
    Duration,
    RetryRule,
    check_after,
    check_attempts,
    check_backoff,
    check_crons,
    check_database,
    check_expires,
    check_expiry,
    check_flag,
    check_instant,
    check_int,
    check_known,
    check_limits,
    check_logs,
    check_memory,
    check_name,
    check_names,
    check_on_crash,
    check_queue,
    check_rule,
    check_run_at,
    check_tags,
    check_timeouts,
    check_undo_on_failure,
    check_when,
    seconds,
)
from django_pgjobs.states import Rule
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.key_template import KeyOption
from django_pgjobs.values.limit import Limit
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django.db.models import Model

    from django_pgjobs.definition.cron_declaration import CronDeclaration

BYPASSED = "a job that bypasses the queue runs at once, once, and is not stored"
UNCOUNTED = "a job that bypasses the queue is not stored, so no limit counts it"

Timeout = Duration | None | tuple[Duration, Duration | None]
"""A timeout, None for unlimited, or a soft limit and a timeout."""

CrashOption = Literal["retry", "abandon"]

UndoOption = Literal["go_on", "stop"]
"""Policy for an abandoned compensation: the others run all the same, or none after it."""

UndoTarget = tuple[int, str]
"""The target that a job undoes: a job, and the name of its step, empty for all of it."""

RuleOption = Literal["succeeded", "settled", "failed"]

Needed: TypeAlias = "Model | int | Iterable[Model | int]"
"""Jobs that a job needs, or their ids."""


class PolicyOptions(TypedDict, total=False):
    """The options of ``@policy``: those of ``@job`` that a task does not have itself."""

    aliases: Iterable[str]
    max_attempts: int
    backoff: BackoffRule
    retry_on: RetryRule
    give_up_on: RetryRule
    timeout: Timeout
    store_result: bool
    strict_results: bool
    atomic: bool
    sensitive: Iterable[str]
    cron: CronDeclaration | Iterable[CronDeclaration]
    schedulable: bool
    unique: KeyOption | Unique | None
    sequence: KeyOption | JobSequence | None
    expires: Duration
    on_crash: CrashOption
    memory: int | None
    undo_on_failure: UndoOption
    logs: str | int | None
    idempotency_key: KeyOption | None
    limits: Limit | Sequence[Limit]
    tags: Iterable[str]
    description: str | Callable[..., str | None]


class JobOptions(PolicyOptions, total=False):
    """The options of ``@job``, except ``takes_context``, which changes the function's type."""

    name: str
    queue: str
    priority: int


class RegisterOptions(TypedDict, total=False):
    """The options of ``.using``.

    None means "not given" for ``run_at``, ``delay``, ``deadline``, ``description`` and ``database``, "no key" for a
    key, and "never" for ``expires``.
    """

    run_at: datetime | None
    delay: Duration | None
    deadline: datetime | None
    expires: Duration | datetime | None
    queue: str
    priority: int
    timeout: Timeout
    max_attempts: int
    tags: Iterable[str]
    description: str | None
    database: str | None
    unique: KeyOption | Unique | None
    sequence: KeyOption | JobSequence | None
    on_crash: CrashOption
    memory: int | None
    idempotency_key: KeyOption | None
    bypass: bool
    after: Needed
    when: RuleOption


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a registration except its arguments, checked against the settings ``conf``."""

    conf: Conf
    queue: str
    priority: int
    max_attempts: int
    timeout: float | None
    run_at: datetime | None = None
    delay: float | None = None
    deadline: datetime | None = None
    expires: float | datetime | None = None
    """Seconds after the start that is asked for, or an instant."""
    on_crash: str = "retry"
    soft_timeout: float | None = None
    memory: int | None = None
    """Megabytes by which it may let its process grow."""
    tags: tuple[str, ...] = ()
    description: str | None = None
    """The description that ``.using`` gives this registration; the job's own stands on its definition."""
    database: str | None = None
    key: KeyOption | None = None
    key_scope: Scope | None = None
    """The declared scope; ``scope`` is the one that applies."""
    on_conflict: OnConflict = OnConflict.EXISTING
    idempotency_key: KeyOption | None = None
    sequence: KeyOption | None = None
    yields: bool | None = None
    """True if its sequence continues when it is abandoned."""
    bypass: bool = False
    limited: bool = False
    """True if the job declares limits."""
    lacks_key: bool = False
    """True if ``on_conflict`` is given and ``key`` is not."""
    after: tuple[int, ...] = ()
    """The jobs that it needs."""
    after_rows: tuple[object, ...] = ()
    """Those of them that were given as ``Job``, whose database is known."""
    when: Rule | None = None
    """The end of these that it needs; None: a success."""
    target: UndoTarget | None = None
    """The target that it undoes."""
    built_in: bool = False
    """True if it is for this package's own jobs: no setting of the project's bounds these."""

    @property
    def has_keys(self) -> bool:
        """True if a registration may have a key or an idempotency key."""
        return self.key is not None or self.idempotency_key is not None

    @property
    def scope(self) -> Scope:
        """Time for which a job of this plan takes its key."""
        return keys.scope_of(self.key_scope, self.on_conflict)

    @property
    def names_instants(self) -> bool:
        """True if it is checked against the clock, so that a plan that was valid may not be so any more."""
        return self.run_at is not None or self.deadline is not None or isinstance(self.expires, datetime)

    @property
    def is_special(self) -> bool:
        """True if a registration may have a key, tags, a deadline or another value that few jobs have."""
        return (
            self.has_keys
            or bool(self.tags)
            or self.deadline is not None
            or self.expires is not None
            or self.rare is not None
            or bool(self.after)
            or self.sequence is not None
        )

    @property
    def rare(self) -> dict[str, object] | None:
        """The values of the column ``options``, None for most jobs."""
        if self.on_crash == "retry" and self.soft_timeout is None and self.target is None and self.memory is None:
            return None
        rare: dict[str, object] = {} if self.on_crash == "retry" else {"on_crash": self.on_crash}
        if self.soft_timeout is not None:
            rare["soft_timeout"] = self.soft_timeout
        if self.memory is not None:
            rare["memory"] = self.memory
        if self.target is not None:
            rare["target"] = list(self.target)
        return rare

    def check(self) -> Plan:
        """Return this plan if the settings allow it. Raises ``InvalidOption``."""
        if self.queue != OWN_QUEUE:
            allowed.check_allowed_queue(self.queue, self.conf.queues)
        if not self.built_in:
            allowed.check_attempts_allowed(self.max_attempts, self.conf)
            allowed.check_timeout_allowed(self.timeout, self.conf)
        if isinstance(self.key, str):
            keys.check_pattern(self.key, self.conf.bounds.key_pattern)
        keys.scope_of(self.key_scope, self.on_conflict)
        allowed.check_start(self.run_at, self.delay, self.conf)
        if self.deadline is not None:
            allowed.check_deadline(self.deadline, self.run_at, self.delay, self.conf)
        if isinstance(self.expires, datetime):
            allowed.check_deadline(self.expires, self.run_at, self.delay, self.conf, option="expires")
        elif self.expires is not None:
            allowed.check_expiry_allowed(self.expires, self.conf)
        if self.bypass:
            self._check_bypass()
        if self.after and self.sequence is not None:
            raise InvalidOption(
                "after and sequence exclude each other: two orders could wait for each other; pass sequence=None"
            )
        if self.when is not None and not self.after:
            raise InvalidOption("when says which end of other jobs this one needs: pass after=JOBS, too")
        allowed.check_needs_allowed(len(self.after), self.conf)
        return self

    def _check_bypass(self) -> None:
        if self.has_keys:
            key = "idempotency_key" if self.key is None else "unique"
            raise InvalidOption(f"{key} and bypass exclude each other: {BYPASSED}; pass {key}=None")
        if self.sequence is not None:
            raise InvalidOption(f"sequence and bypass exclude each other: {BYPASSED}; pass sequence=None")
        if self.soft_timeout is not None:
            raise InvalidOption("a soft limit and bypass exclude each other: pass timeout=SECONDS, which stops the job")
        if self.memory is not None:
            raise InvalidOption("memory and bypass exclude each other: only the process of a worker is measured")
        if self.limited:
            raise InvalidOption(f"limits and bypass exclude each other: {UNCOUNTED}")
        if self.conf.queue_limits.of(self.queue) is not None:
            where = f"PGJOBS['QUEUE_LIMITS'] limits queue {self.queue!r}"
            raise InvalidOption(f"{where}, and limits and bypass exclude each other: {UNCOUNTED}")

    def changed(self, given: Mapping[str, Any]) -> Plan:
        """Return the plan with the options of ``.using``, checked; tags add up. Raises ``InvalidOption``."""
        if given.get("tags"):
            given = {**given, "tags": check_tags((*self.tags, *given["tags"]))}
        if "when" in given and given.get("after") == ():
            if given["when"] == Rule.FAILED:
                raise InvalidOption("when='failed' with an empty after: no job can fail, and this one would run now")
            given = {**given, "when": None}  # nothing is needed
        if given.get("yields") is not None and given.get("sequence", self.sequence) is None:
            raise InvalidOption("on_abandon says what a sequence does, and there is none: pass Sequence(NAME, …)")
        lacks_key = "key" not in given and self.key is None and (self.lacks_key or "on_conflict" in given)
        return _with(self, {**given, "lacks_key": lacks_key}).check() if given else self


_names = tuple(item.name for item in fields(Plan))
_values = attrgetter(*_names)


def _with(plan: Plan, given: Mapping[str, Any]) -> Plan:
    """Do what ``dataclasses.replace`` does, at a quarter of the cost: a registration with options makes a plan."""
    return Plan(*map(given.get, _names, _values(plan)))


def _apart(checked: dict[str, Any]) -> dict[str, object]:
    """Return checked options with the two limits of ``timeout`` apart; each ``timeout`` sets both. The same holds for
    ``after``, ``unique`` and ``sequence``."""
    if "after" in checked:
        checked = {**checked, **checked["after"]._asdict()}
    if "unique" in checked:
        unique: dict[str, object] = checked.pop("unique")
        checked = {**checked, **unique}
    if "sequence" in checked:
        sequence: dict[str, object] = checked.pop("sequence")
        checked = {**checked, **sequence}
    if "timeout" not in checked:
        return checked
    soft, hard = checked["timeout"]
    return {**checked, "timeout": hard, "soft_timeout": soft}


REGISTER_CHECKS: dict[str, Callable[[object], object]] = {
    "run_at": check_run_at,
    "delay": lambda value: seconds("delay", value),
    "deadline": lambda value: check_instant("deadline", value),
    "expires": check_expires,
    "queue": check_queue,
    "priority": lambda value: check_int("priority", value, PRIORITIES),
    "timeout": check_timeouts,
    "max_attempts": check_attempts,
    "tags": check_tags,
    "description": keys.check_description,
    "database": check_database,
    "unique": keys.check_unique,
    "sequence": keys.check_sequence,
    "on_crash": check_on_crash,
    "memory": check_memory,
    "idempotency_key": lambda value: keys.check_key("idempotency_key", value),
    "bypass": lambda value: check_flag("bypass", value),
    "after": check_after,
    "when": check_when,
}
_NONE_MEANS_NOT_GIVEN = frozenset({"run_at", "delay", "deadline", "description", "database"})

OPTION_OF = {**dict.fromkeys(("key", "key_scope", "on_conflict"), "unique"), "yields": "sequence"}
"""Field of a plan → the option that sets it, where its name is another."""


def checked_register_options(given: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of ``Plan`` that ``.using(**given)`` sets. Raises ``InvalidOption``."""
    check_known(given, REGISTER_CHECKS, "using")
    return _apart(
        {
            option: None if value is None and option in _NONE_MEANS_NOT_GIVEN else REGISTER_CHECKS[option](value)
            for option, value in given.items()
        }
    )


JOB_CHECKS: dict[str, Callable[[object], object]] = {
    "name": lambda value: check_name("name", value),
    "aliases": lambda value: check_names("aliases", value),
    "queue": check_queue,
    "priority": lambda value: check_int("priority", value, PRIORITIES),
    "max_attempts": check_attempts,
    "backoff": check_backoff,
    "retry_on": lambda value: check_rule("retry_on", value),
    "give_up_on": lambda value: check_rule("give_up_on", value),
    "timeout": check_timeouts,
    "takes_context": lambda value: check_flag("takes_context", value),
    "store_result": lambda value: check_flag("store_result", value),
    "strict_results": lambda value: check_flag("strict_results", value),
    "atomic": lambda value: check_flag("atomic", value),
    "sensitive": lambda value: check_names("sensitive", value),
    "cron": check_crons,
    "schedulable": lambda value: check_flag("schedulable", value),
    "unique": keys.declared_unique,
    "sequence": keys.declared_sequence,
    "expires": check_expiry,
    "on_crash": check_on_crash,
    "memory": check_memory,
    "undo_on_failure": check_undo_on_failure,
    "logs": check_logs,
    "idempotency_key": lambda value: keys.declared_key("idempotency_key", value),
    "limits": check_limits,
    "tags": check_tags,
    "description": keys.declared_description,
}


def checked_job_options(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of ``@job(**given)``, checked except for the ceilings, which settings hold."""
    check_known(given, JOB_CHECKS, "@job")
    return _apart({option: JOB_CHECKS[option](value) for option, value in given.items()})
