"""The one dict ``settings.PGJOBS``, read once into a frozen ``Conf``; units are in the names.

Layer 1. ``Conf`` gives each setting its default, its rule and, below it, its description. ``problems`` finds everything
that is wrong with a dict, ``checks`` reports it, and ``get_conf`` raises it with the same words. Only the system checks
look at how settings relate to each other: a test may well run with a lease of one second. Nothing here reads the
environment or touches a database.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_pgjobs.values import setting_rules as rules
from django_pgjobs.values.backoff import LONGEST_SECONDS, Backoff, read_backoff
from django_pgjobs.values.by_queue import MOST_JOBS, MOST_PLACES, ByQueue, Rate, by_queue
from django_pgjobs.values.limit import Limit, read_limit
from django_pgjobs.values.retention import Retention, read_retention
from django_pgjobs.values.setting_rules import MOST_BYTES, SettingRule, WrongPart, part, part_rules, read_parts

if TYPE_CHECKING:
    from django_pgjobs.values.notify_failures import NotifyFailures

LADDER_SECONDS = 5.0
"""Maximum time from a passed deadline to the death of the executor."""

DEFAULT_BACKOFF = Backoff(15, factor=4, limit=3600, jitter=0.1)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A problem with one key of ``PGJOBS``; ``key`` is empty if the dict itself is wrong."""

    kind: Literal["dict", "unknown", "type", "range"]
    key: str
    message: str
    hint: str


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _notify_failures(value: object) -> NotifyFailures:
    from django_pgjobs.values.notify_failures import NotifyFailures  # here for start-up time

    return read_parts(NotifyFailures, value)


def _processes(value: object) -> int:
    return min(4, usable_cores()) if value is None else rules.whole(1, 1000)(value)


_limits = by_queue('{"mail": {"concurrency": 10, "rate": 100, "per": 60}}', read_limit)
_capacities = by_queue('{"mail": 1000, "*": 100000}', rules.whole(1, MOST_JOBS))
_places = by_queue('{"mail": 2, "*": 5}', rules.whole(1, MOST_PLACES))
_rates = by_queue('{"mail": {"tokens": 30, "register": 3}}', partial(read_parts, Rate))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobBounds:
    """The most that a job may ask for. Names end in their unit; seconds may be given as ``timedelta``."""

    members: int = part(1_000_000, rules.whole(1, 100_000_000))
    """Maximum number of members of a batch."""

    nodes: int = part(50_000, rules.whole(1, 1_000_000))
    """Maximum number of nodes of a flow."""

    needs: int = part(10_000, rules.whole(1, 100_000))
    """Maximum number of jobs that a job may need, by ``using(after=…)`` or in a flow."""

    steps: int = part(10_000, rules.whole(1, 1_000_000))
    """Maximum number of steps, sleeps and waits that a job may remember."""

    steps_bytes: int = part(16 * 1024 * 1024, rules.whole(2, MOST_BYTES))
    """Maximum size of the results of all steps of a job, in bytes of UTF-8; ``result_bytes`` bounds each."""

    gather: int = part(10_000, rules.whole(1, 1_000_000))
    """Maximum number of jobs that one ``gather`` may run."""

    event_bytes: int = part(1024 * 1024, rules.whole(2, MOST_BYTES))
    """The maximum size of an event's encoded payload, in bytes of UTF-8."""

    payload_bytes: int = part(1024 * 1024, rules.whole(2, MOST_BYTES))
    """The maximum size of a job's encoded arguments, in bytes of UTF-8."""

    result_bytes: int = part(1024 * 1024, rules.whole(2, MOST_BYTES))
    """The maximum size of a job's encoded result, in bytes of UTF-8."""

    traceback_chars: int = part(20_000, rules.whole(0, 10_000_000))
    """Number of characters of a traceback that the retry history keeps."""

    log_lines: int = part(1000, rules.whole(1, 100_000))
    """Number of lines that are kept of what an attempt logs; see ``JOB_LOGS``."""

    log_bytes: int = part(256 * 1024, rules.whole(1000, 4 * 1024 * 1024))
    """Maximum size of these lines, in bytes of UTF-8."""

    max_attempts: int = part(1000, rules.whole(1, 1_000_000))
    """The most attempts that a job may ask for."""

    timeout_seconds: float = part(86400.0, rules.seconds(0.001))
    """The longest timeout that a job may ask for."""

    ahead_seconds: float = part(3650 * 86_400.0, rules.seconds(60, 36_500 * 86_400.0))
    """Maximum time ahead for which a job may be registered: ``run_at``, ``delay``, ``deadline``, a sleep or a wait."""

    past_seconds: float | None = part(None, rules.or_none(rules.seconds()))
    """Maximum age of ``run_at`` at registration, by this machine's clock; None is any distance, 0 is not at all."""

    backoff_base_seconds: float = part(LONGEST_SECONDS, rules.seconds())
    """The longest first delay that a ``Backoff`` may have."""

    backoff_factor: tuple[float, float] = part((0.0, 1000.0), rules.factors)
    """The least and the largest factor that a ``Backoff`` may have."""

    key_pattern: str = part(".{1,200}", rules.pattern)
    """A regular expression that the ``key`` of a job must match in full.

    In any case a key is 1 to 200 printable characters; for an ``idempotency_key`` that is the only rule.
    """

    def __repr__(self) -> str:
        """As it is written in the settings."""
        return repr({item.name: getattr(self, item.name) for item in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The settings as the rest of the package reads them: attribute ``lease_seconds`` is ``PGJOBS["LEASE_SECONDS"]``.

    Seconds may be given as ``timedelta`` and are floats here.
    """

    queues: tuple[str, ...] | None = part(None, rules.or_none(rules.queues))
    """The queues that jobs may be registered in; None allows any valid name."""

    queue_limits: ByQueue[Limit] = part(ByQueue(), _limits)  # noqa: RUF009 (ByQueue is frozen)
    """Number of jobs of a queue that run at once, and that start in a time, in all workers together, by queue.

    A dict of ``"concurrency"`` (jobs), ``"rate"`` (starts) and ``"per"`` (seconds or a ``timedelta``, 60 if left out);
    ``"*"`` stands for every queue that is not named, each by itself. It applies to jobs registered from then on. See
    {doc}`../how-to/limits`.
    """

    databases: tuple[str, ...] | Callable[[], Sequence[str]] | str | None = part(  # noqa: RUF009 (no call makes one)
        None, rules.or_none(rules.aliases)
    )
    """The aliases that a worker without ``--database`` serves; None for the one that your routers send jobs to.

    A list, a callable that returns one, or its dotted path. The shell, the admin, the metrics of the fleet and notices
    are about all of them. Cron entries that name no database are of the first, or of each with ``each_database``. See
    {doc}`../how-to/several-databases`.
    """

    schemas: Callable[[], Sequence[str]] | str | None = part(None, rules.or_none(rules.schemas))  # noqa: RUF009
    """A callable, or its dotted path, that names the schemas with tables of ours that a worker serves, as of tenants.

    Called every 15 seconds; None for the one that your search path leads to. See {doc}`../how-to/schemas`.
    """

    modules: tuple[str, ...] = part((), rules.modules)
    """Dotted paths of the modules that declare jobs beside ``jobs.py`` of each app, such as ``"shop.workflows.*"``.

    ``*`` stands for any characters but a dot; the first part has none. A package that a pattern names is imported, not
    the modules in it. Every process imports them once, when Django is ready; nothing else is imported to find them.
    """

    middleware: tuple[str, ...] = part((), rules.texts)
    """Dotted paths of the factories whose middleware wraps every job in the executor, outermost first."""

    release: str = part("", rules.text)
    """Name of the deployed code, shown with workers and attempts."""

    environment: str = part("", rules.text)
    """Name of this installation, such as ``"production"``: a worker runs no jobs of a database of another environment.

    Without names workers know a copy by its server and database only. See {doc}`../how-to/backup`.
    """

    notify: bool = part(True, rules.flag)
    """Wake workers by NOTIFY when a job is registered and committed; without it they find the job by polling."""

    lease_seconds: float = part(30.0, rules.seconds(0.05))
    """Time that a worker keeps a claimed job without renewal; after a worker's death its jobs wait this long."""

    renew_seconds: float = part(10.0, rules.seconds(0.01))
    """Interval at which a worker renews its leases; at most a third of ``lease_seconds``."""

    beat_seconds: float = part(10.0, rules.seconds(0.01))
    """Interval at which a worker writes its heartbeat, which informs people and grants no right to jobs."""

    stale_seconds: float = part(60.0, rules.seconds(0.05))
    """After how long without a heartbeat a worker is *lost*; more than twice ``beat_seconds``.

    After two missed heartbeats it is *silent*: commands and the admin show it as such, and nothing relies on it.
    """

    drain_seconds: float = part(25.0, rules.seconds())
    """Time that a stopping worker gives running jobs to finish before it releases them."""

    poll_seconds: float = part(5.0, rules.seconds(0.01))
    """Maximum time that an idle worker sleeps between two polls, if no NOTIFY reaches it."""

    rescue_grace_seconds: float = part(30.0, rules.seconds())
    """Time after a job's deadline in which its worker tries to stop it before it gives the job up, to run again."""

    retention: Retention = part(Retention(), read_retention)  # noqa: RUF009 (Retention is frozen)
    """Retention of rows: a dict of seconds or ``timedelta``, in which a key that is left out keeps its default.

    Ended jobs go by outcome: ``"succeeded"``, ``"cancelled"`` and ``"abandoned"``. The leader prunes them; None keeps
    them forever, 0 keeps nothing: the job is deleted as it ends. None instead of the whole dict prunes no jobs.
    """

    bounds: JobBounds = part(JobBounds(), partial(read_parts, JobBounds))  # noqa: RUF009 (JobBounds is frozen)
    """The most that a job, its arguments and its relations may ask for: a dict, in which a key that is left out
    keeps its default."""

    vacuum: bool = part(True, rules.flag)
    """Let the leader VACUUM the tables of jobs and claims when many rows there are dead; else only autovacuum does."""

    metrics: bool | None = part(None, rules.or_none(rules.flag))
    """Add the fleet's metrics to the registry of ``prometheus_client``: None where that is loaded when apps are ready.

    It is if ``django_prometheus`` is an installed app. True loads it, False adds nothing. See {doc}`../how-to/metrics`.
    """

    metrics_port: int | None = part(None, rules.or_none(rules.whole(1, 65_535)))
    """The TCP port at which each worker serves its metrics under ``/metrics``; None serves none."""

    metrics_host: str = part("127.0.0.1", rules.host)
    """The address to which that port is bound; ``"0.0.0.0"`` or ``"::"`` lets other machines scrape it."""

    notify_failures: NotifyFailures | None = part(None, rules.or_none(_notify_failures))  # noqa: RUF009 (it is frozen)
    """Recipient of notices of abandoned jobs and other problems; None for no notices.

    A dict of ``"to"`` (``"mail_admins"``, or the dotted path of a callable) and, if you like, ``"every_seconds"`` (900;
    or a ``timedelta``), ``"at_most"`` (20 groups in a message), ``"queues"`` and ``"names"`` (lists, or None for all),
    ``"site"`` (what links begin with, such as ``https://shop.example``) and ``"url"`` (for the shipped webhook). See
    {doc}`../how-to/notifications`.
    """

    callback_seconds: float = part(10.0, rules.seconds(0.01))
    """Time limit of ``on_success``, ``on_abandon`` and ``on_cancel``."""

    ready_seconds: float = part(120.0, rules.seconds(0.1))
    """Time in which an executor must start before the worker kills it and counts a failed boot."""

    executor_conn_max_age_seconds: float = part(60.0, rules.seconds())
    """Time that executors keep database connections open between jobs; 0 closes them after each job.

    Not of an alias whose ``CONN_MAX_AGE`` is set: that applies, a 0 as well. Nor to a database that is not PostgreSQL.
    """

    executor_max_jobs: int | None = part(None, rules.or_none(rules.whole(1, 1_000_000_000)))
    """After how many jobs the worker replaces an executor, starting its successor first; None for never."""

    executor_max_megabytes: int | None = part(None, rules.or_none(rules.whole(1, 1_000_000_000)))
    """Above how much memory, in units of 1024² bytes, the worker replaces an executor likewise; None for never."""

    executor_kill_megabytes: int | None = part(None, rules.or_none(rules.whole(1, 1_000_000_000)))
    """Above how much memory of its own, in units of 1024² bytes, an executor is stopped with the jobs in it.

    None for never. The job that took it is charged, its neighbours are not; see {doc}`../how-to/memory`. It must be
    above ``EXECUTOR_MAX_MEGABYTES``, which waits for the jobs to end.
    """

    job_logs: int | None = part(None, rules.or_none(rules.log_level))
    """Level from which on lines that jobs log are kept: ``"INFO"``; None keeps none. {doc}`../how-to/logs-of-jobs`."""

    executor_template: bool = part(True, rules.flag)
    """Let executors be forked from a template that has imported the project; False starts each as a new program.

    Turn it off if a library that the project imports does not survive ``fork``. See {doc}`../how-to/libraries`.
    """

    processes: int = part(None, _processes)
    """Executor processes of one worker; None is the number of usable cores, at most 4."""

    threads: int = part(4, rules.whole(1, 1000))
    """Jobs that one executor runs at once in threads."""

    async_slots: int = part(50, rules.whole(1, 100_000))
    """Coroutine jobs that one executor runs at once."""

    places: ByQueue[int] = part(ByQueue(), _places)  # noqa: RUF009 (ByQueue is frozen)
    """Number of jobs of a queue that one worker runs at once, in threads and on loops, by queue.

    ``"*"``: of all queues that are not named, **together**. None, or no entry for a queue, means that it may take every
    slot. ``--places`` stands instead of it. See {doc}`../how-to/places`.
    """

    capacity: ByQueue[int] = part(ByQueue(), _capacities)  # noqa: RUF009 (ByQueue is frozen)
    """Maximum number of unfinished jobs in a queue, by queue; ``"*"`` stands for every queue that is not named.

    Registering beyond it raises ``QueueFull``. None, or no entry for a queue, means no limit.
    """

    registration_rate: ByQueue[Rate] = part(ByQueue(), _rates)  # noqa: RUF009 (ByQueue is frozen)
    """Rate at which one process may register into a queue, by queue; ``"*"`` stands for every queue that is not named.

    A dict of ``"tokens"`` (30), ``"seconds_per_token"`` (0.5) and the price of each action in tokens: ``"register"``
    (3), ``"cancel"`` (3), ``"status"`` (1; also of one job), ``"list"`` (1). If the tokens run out, registering raises
    ``RateLimited``.
    """

    bypass_workers: int = part(4, rules.whole(1, 1000))
    """Jobs registered with ``bypass=True`` that one process runs at once in its own threads."""

    bypass_exit_seconds: float = part(10.0, rules.seconds())
    """Time that an exiting process waits for such jobs; those that still run then are lost."""

    default_max_attempts: int = part(5, rules.whole(1, 1_000_000))
    """Attempts of a job that does not declare ``max_attempts``."""

    default_timeout_seconds: float | None = part(1800.0, rules.or_none(rules.seconds(0.001)))
    """Timeout of a job that does not declare ``timeout``; None means no limit."""

    default_backoff: Backoff = part(DEFAULT_BACKOFF, read_backoff)  # noqa: RUF009 (Backoff is frozen)
    """Delay between the attempts of a job that does not declare ``backoff``."""

    @property
    def silent_seconds(self) -> float:
        """After how many seconds without a heartbeat, two intervals, a worker no longer counts as alive."""
        return 2 * self.beat_seconds


RULES: Mapping[str, SettingRule] = {name.upper(): rule for name, rule in part_rules(Conf).items()}
"""Key of ``PGJOBS`` → its rule."""


@cache
def get_conf() -> Conf:
    """Return the configuration, read from ``settings.PGJOBS`` at the first call and after each change of it.

    Raises ``ImproperlyConfigured`` naming every unknown key and wrong value.
    """
    given = getattr(settings, "PGJOBS", {})
    if found := list(problems(given)):
        raise ImproperlyConfigured(" ".join(f"{problem.message} {problem.hint}" for problem in found))
    defaults = {item.name.upper(): item.default for item in fields(Conf)}
    return Conf(**{key.lower(): RULES[key](value) for key, value in {**defaults, **given}.items()})


def problems(given: object) -> Iterator[SettingProblem]:
    """Yield the problems of ``given`` as ``settings.PGJOBS``, each key by itself."""
    if not isinstance(given, Mapping):
        words = f"PGJOBS must be a dict, not {type(given).__name__}."
        yield SettingProblem("dict", "", words, 'Write PGJOBS = {"THREADS": 4}.')
        return
    for key, value in given.items():
        if key not in RULES:
            yield _unknown(key)
            continue
        try:
            RULES[key](value)
        except (TypeError, ValueError) as error:
            name, path, found = "", "", value
            if isinstance(error, WrongPart):
                name, path, found = str(error.key), error.path, error.value
            yield SettingProblem(
                "type" if isinstance(error, TypeError) else "range",
                key,
                f'PGJOBS["{key}"]{path} must be {error}, not {found!r}.',
                _default(key, name),
            )


def _unknown(key: object) -> SettingProblem:
    close = difflib.get_close_matches(str(key).upper(), RULES, n=1)
    hint = f'Did you mean "{close[0]}"?' if close else f"The settings are: {', '.join(sorted(RULES))}."
    return SettingProblem("unknown", str(key), f"PGJOBS[{key!r}] is not a setting of django-pgjobs.", hint)


def _default(key: str, name: str) -> str:
    """Name the default of a setting, or of the part of this name."""
    default = next(item.default for item in fields(Conf) if item.name == key.lower())
    if isinstance(default, JobBounds | Retention):
        default = getattr(default, name, default)
    return f"The default is {default!r}."


def _reset(*, setting: str, **_: object) -> None:
    if setting == "PGJOBS":
        get_conf.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_pgjobs.conf")
