"""``OPTIONS`` of the aliases in ``TASKS`` that are ours, as the definitions of tasks read them.

Settings load before everything else, so dotted texts stand for exception types and callables; they are imported at the
first use. Settings that were read are kept for the process until ``TASKS`` or ``PGJOBS`` changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_pgjobs.cron_entries import Cron
from django_pgjobs.definition.keys import Unique
from django_pgjobs.definition.validation import check_name, did_you_mean
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.tasks.policies import checked_policy
from django_pgjobs.values.limit import Limit
from django_pgjobs.values.setting_rules import InvalidOption

DEFAULTS = {
    "MAX_ATTEMPTS": "max_attempts",
    "TIMEOUT_SECONDS": "timeout",
    "BACKOFF": "backoff",
    "GIVE_UP_ON": "give_up_on",
    "RETRY_ON": "retry_on",
}
"""Keys of ``OPTIONS`` → the option that they are the default of."""

KEYS = (*DEFAULTS, "DATABASE", "TASKS", "ALIASES")


@dataclass(frozen=True, slots=True)
class AliasOptions:
    """The ``OPTIONS`` of one alias, checked. Declared options are those of a job definition."""

    database: str | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    exact: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Path of a task → its options."""
    patterns: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Patterns of paths and their options, the shortest first."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Former path → path."""

    def declared(self, path: str, marked: Mapping[str, object]) -> dict[str, Any]:
        """Return the options of the task at ``path``, whose function declares ``marked``."""
        declared = {**self.defaults, **marked}
        for pattern, options in self.patterns:
            if fnmatchcase(path, pattern):
                declared |= options
        return {**declared, **self.exact.get(path, {})}

    def keys_about(self, path: str) -> list[str]:
        """Return the keys of ``OPTIONS["TASKS"]`` that say something of the task at ``path``."""
        patterns = [pattern for pattern, _ in self.patterns if fnmatchcase(path, pattern)]
        return [*patterns, *(key for key in self.exact if key == path)]

    def former(self, path: str) -> tuple[str, ...]:
        """Return the former paths of the task at ``path``."""
        return tuple(old for old, new in self.renamed.items() if new == path)


# Which aliases


@cache
def our_aliases() -> tuple[str, ...]:
    """Return the aliases whose BACKEND is ours or derives from it, in the order of ``TASKS``."""
    return tuple(alias for alias, params in given_tasks().items() if _is_ours(params))


def _is_ours(params: object) -> bool:
    path = params.get("BACKEND") if isinstance(params, Mapping) else None
    if not isinstance(path, str):
        return False
    try:
        backend = import_string(path)
    except ImportError:
        if path.startswith("django_pgjobs."):
            raise
        return False  # Django reports that to users of that alias
    return bool(getattr(backend, "is_pgjobs", False))


def renamed(path: str) -> str:
    """Return the present path of a task, given one that ``OPTIONS["ALIASES"]`` of an alias of ours may rename."""
    for alias in our_aliases():
        path = options_of(alias).renamed.get(path, path)
    return path


class OptionProblem(NamedTuple):
    """A problem of ``OPTIONS``: one of its keys, or a path under ``TASKS``."""

    key: str
    message: str


@cache
def options_of(alias: str) -> AliasOptions:
    """Return the options of an alias. Raises ``ImproperlyConfigured`` naming everything that is wrong with them."""
    found, problems = read_options(given_options(alias))
    if problems:
        raise ImproperlyConfigured(" ".join(f"TASKS[{alias!r}]: {problem.message}" for problem in problems))
    return found


def given_options(alias: str) -> object:
    """Return ``OPTIONS`` of an alias as the settings have them."""
    params = given_tasks().get(alias)
    return params.get("OPTIONS", {}) if isinstance(params, Mapping) else {}


def given_tasks() -> Mapping[str, object]:
    """Return the setting ``TASKS``; empty if there is none."""
    given = getattr(settings, "TASKS", None)
    return given if isinstance(given, Mapping) else {}


def read_options(given: object) -> tuple[AliasOptions, list[OptionProblem]]:
    """Return what ``OPTIONS`` say as far as they are valid, and what is wrong with them. Imports what they name."""
    if not isinstance(given, Mapping):
        return AliasOptions(), [OptionProblem("", f"OPTIONS must be a dict, not {given!r}.")]
    problems: list[OptionProblem] = []
    defaults: dict[str, object] = {}
    for key in given:
        if key not in KEYS:
            problems.append(OptionProblem(str(key), f"OPTIONS has no key {key!r}{did_you_mean(str(key), KEYS)}."))
    for key, option in DEFAULTS.items():
        if key in given:
            defaults |= _checked(f"OPTIONS[{key!r}]", key, {option: given[key]}, problems)
    exact: dict[str, Mapping[str, object]] = {}
    patterns: dict[str, Mapping[str, object]] = {}
    for path, options in _items("TASKS", given, problems):
        if not isinstance(options, Mapping):
            problems.append(OptionProblem("TASKS", f"OPTIONS['TASKS'][{path!r}] must be a dict, not {options!r}."))
            continue
        declared = _checked(f"OPTIONS['TASKS'][{path!r}]", "TASKS", options, problems)
        (patterns if is_pattern(path) else exact)[path] = declared
    renamed: dict[str, str] = {}
    for old, new in _items("ALIASES", given, problems):
        try:
            renamed[check_name("a former path", old)] = check_name("the path of a task", new)
        except InvalidOption as error:
            problems.append(OptionProblem("ALIASES", f"OPTIONS['ALIASES']: {error}."))
    database = given.get("DATABASE")
    if database is not None and (not isinstance(database, str) or not database):
        problems.append(OptionProblem("DATABASE", f"OPTIONS['DATABASE'] must be an alias, not {database!r}."))
        database = None
    shortest_first = tuple(sorted(patterns.items(), key=lambda item: len(item[0])))
    return AliasOptions(database, defaults, exact, shortest_first, renamed), problems


def is_pattern(path: str) -> bool:
    """Return whether a key of ``OPTIONS["TASKS"]`` stands for several paths."""
    return any(sign in path for sign in "*?[")


def _items(key: str, given: Mapping[str, object], problems: list[OptionProblem]) -> Iterator[tuple[str, object]]:
    found = given.get(key, {})
    if not isinstance(found, Mapping) or not all(isinstance(path, str) for path in found):
        problems.append(OptionProblem(key, f"OPTIONS[{key!r}] must be a dict by the paths of tasks, not {found!r}."))
        return
    yield from found.items()


def _checked(where: str, key: str, options: Mapping[str, object], problems: list[OptionProblem]) -> dict[str, object]:
    declared: dict[str, object] = {}
    for option, value in options.items():
        try:
            declared |= checked_policy({option: _FROM_TEXT.get(str(option), _as_it_is)(value)})
        except (InvalidOption, InvalidJob, ImportError, ValueError, TypeError) as error:
            problems.append(OptionProblem(key, f"{where}: {error}."))
    return declared


# Texts for what settings cannot import


def _as_it_is(value: object) -> object:
    return value


def _imported(value: object) -> object:
    return import_string(value) if isinstance(value, str) else value


def _rule(value: object) -> object:
    """Return a rule of exceptions: types, or one callable, each as itself or as its dotted path."""
    return [_imported(one) for one in value] if isinstance(value, list | tuple) else _imported(value)


def _cron(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_cron(one) for one in value]
    if not isinstance(value, str):
        return value
    entry = Cron(value)
    entry.location = "settings.TASKS"
    return entry


def _limits(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_limits(one) for one in value]
    return Limit(**value) if isinstance(value, Mapping) else value


def _unique(value: object) -> object:
    return Unique(**value) if isinstance(value, Mapping) else value


_FROM_TEXT: Mapping[str, Callable[[object], object]] = {
    "backoff": _imported,
    "retry_on": _rule,
    "give_up_on": _rule,
    "cron": _cron,
    "limits": _limits,
    "unique": _unique,
}
"""Option → what makes its value from what settings can hold."""


def _reset(*, setting: str, **_: object) -> None:
    if setting in ("TASKS", "PGJOBS"):
        options_of.cache_clear()
        our_aliases.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_pgjobs.tasks.settings")
