"""Settings, commands and the options of ``@job``, as the code takes them."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any
from unittest import mock

from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from markdown_of import PACKAGE, code, documented_names, escaped, prose, table

from django_pgjobs import conf as conf_module
from django_pgjobs.presentation.sight import TABLE, Fact
from django_pgjobs.values.retention import Retention
from django_pgjobs.values.setting_rules import SettingRule, part_rules

# Settings


def _answer(rule: Any, value: object) -> str:
    try:
        rule(value)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _takes(rule: SettingRule) -> str:
    """What a setting takes, in the words of its own errors."""
    kind = _answer(rule, object()) or "anything"
    ranges = [_answer(rule, value) for value in (-1, 10**12, [" "])]
    found = next((text for text in ranges if text and text != kind), "").partition(" (found")[0]
    return f"{kind}, {found}" if found else kind


def _upper(text: str) -> str:
    """Within a text about settings, attributes of ``Conf`` as keys of PGJOBS."""
    return re.sub(r"`(\w+)`", lambda m: f"`{m[1].upper()}`" if m[1].upper() in conf_module.RULES else m[0], text)


def setting_names() -> list[str]:
    """Return the keys of PGJOBS in the order of ``Conf``."""
    return [item.name.upper() for item in fields(conf_module.Conf)]


def settings() -> str:
    """Every key of PGJOBS: what it does, its default, what it takes."""
    texts = dict(documented_names(PACKAGE / "conf.py", within="Conf"))
    parts = []
    for item in fields(conf_module.Conf):
        name = item.name.upper()
        parts += [f"(setting-{item.name.replace('_', '-')})=", f"## {name}", ""]
        parts += [_upper(prose(texts[item.name])), ""]
        if item.name in PARTS:
            parts += [_parts(*PARTS[item.name])]
        else:
            parts += [f"* Default: `{item.default!r}`", f"* Takes: {_takes(conf_module.RULES[name])}", ""]
    return "\n".join(parts)


PARTS = {
    "retention": (Retention, ("values/retention.py", "OutcomeRetention"), ("values/retention.py", "Retention")),
    "bounds": (conf_module.JobBounds, ("conf.py", "JobBounds")),
}
"""Setting that is a dict of named parts → what it is read as, and where its parts are described."""


def _parts(kind: type, *places: tuple[str, str]) -> str:
    """The keys of such a dict: what each does, its default, what it takes."""
    texts = dict(pair for path, within in places for pair in documented_names(PACKAGE / path, within=within))
    default = kind()
    return table(
        ("key", "meaning", "default", "takes"),
        [
            (f"`{name}`", _upper(prose(texts[name])), code(repr(getattr(default, name))), escaped(_takes(rule)))
            for name, rule in part_rules(kind).items()
        ],
    )


# Commands


def _parser(command: str) -> Any:
    return load_command_class("django_pgjobs", command).create_parser("manage.py", command)


def command_options(command: str) -> list[tuple[str, str]]:
    """(option, help) of what a command takes beyond what every Django command takes."""
    common = {option for action in BaseCommand().create_parser("", "")._actions for option in action.option_strings}
    return [
        (", ".join(action.option_strings) + (f" {action.metavar}" if action.metavar else ""), action.help or "")
        for action in _parser(command)._actions
        if action.option_strings and not set(action.option_strings) & common
    ]


def runjobs_options() -> str:
    """The options of a worker."""
    return table(("option", "meaning"), [(code(option), text) for option, text in command_options("runjobs")])


def _help_block(command: str) -> str:
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        text = _parser(command).format_help()
    return f"```text\n{text}```\n"


def runjobs_help() -> str:
    """``manage.py runjobs --help``."""
    return _help_block("runjobs")


def pgjobs_help() -> str:
    """``manage.py pgjobs --help``."""
    return _help_block("pgjobs")


def _subparser(name: str) -> Any:
    action = next(a for a in _parser("pgjobs")._actions if hasattr(a, "_choices_actions"))
    return action.choices[name]


def subcommand_options(name: str) -> list[tuple[str, str]]:
    """(option, help) of what a subcommand of ``pgjobs`` takes, what is named without dashes included."""
    parser = _subparser(name)
    verbs = [verb for a in parser._actions if hasattr(a, "_choices_actions") for verb in a.choices.values()]
    return [
        (", ".join(action.option_strings) or str(action.metavar), (action.help or "") % vars(action))
        for each in (parser, *verbs)
        for action in each._actions
        if "--help" not in action.option_strings and not hasattr(action, "_choices_actions")
    ]


def operator_options() -> str:
    """What ``pgjobs cancel`` and its like take."""
    return table(("option", "meaning"), [(code(option), text) for option, text in subcommand_options("cancel")])


def prune_options() -> str:
    """What ``pgjobs prune`` takes."""
    return table(("option", "meaning"), [(code(option), text) for option, text in subcommand_options("prune")])


def _options_of(name: str, *, but: str = "") -> str:
    known = subcommand_options(but) if but else []
    options = [option for option in subcommand_options(name) if option not in known]
    return table(("option", "meaning"), [(code(option), text) for option, text in options])


def list_options() -> str:
    """What ``pgjobs list`` takes."""
    return _options_of("list")


def show_options() -> str:
    """What ``pgjobs show`` takes."""
    return _options_of("show")


def logs_options() -> str:
    """What ``pgjobs logs`` takes."""
    return _options_of("logs")


def stack_options() -> str:
    """What ``pgjobs stack`` takes."""
    return _options_of("stack")


def top_options() -> str:
    """What ``pgjobs top`` takes."""
    return _options_of("top")


def stats_options() -> str:
    """What ``pgjobs stats`` takes."""
    return _options_of("stats")


def workers_options() -> str:
    """What ``pgjobs workers`` takes, without a verb."""
    actions = [a for a in _subparser("workers")._actions if a.option_strings and "--help" not in a.option_strings]
    rows = [(code(", ".join(a.option_strings)), (a.help or "") % vars(a)) for a in actions]
    return table(("option", "meaning"), rows)


def workers_steer_options() -> str:
    """What the verbs of ``pgjobs workers`` take."""
    return _options_of_verbs("workers")


def check_options() -> str:
    """What ``pgjobs check`` takes."""
    return _options_of("check")


def doctor_options() -> str:
    """What ``pgjobs doctor`` takes."""
    return _options_of("doctor")


def reschedule_options() -> str:
    """What ``pgjobs reschedule`` takes beyond what ``pgjobs cancel`` does."""
    return _options_of("reschedule", but="cancel")


def pause_options() -> str:
    """What ``pgjobs pause`` takes."""
    return _options_of("pause")


def limit_options() -> str:
    """What ``pgjobs limit`` takes."""
    return _options_of("limit")


def send_event_options() -> str:
    """What ``pgjobs send-event`` takes."""
    return _options_of("send-event")


def crons_options() -> str:
    """What the verbs of ``pgjobs crons`` take."""
    return _options_of_verbs("crons")


def _options_of_verbs(name: str) -> str:
    verbs = next(a for a in _subparser(name)._actions if hasattr(a, "_choices_actions")).choices
    found: dict[tuple[str, str], list[str]] = {}
    for verb, parser in verbs.items():
        for action in parser._actions:
            if "--help" not in action.option_strings:
                option = ", ".join(action.option_strings) or str(action.metavar)
                found.setdefault((option, (action.help or "") % vars(action)), []).append(verb)
    rows = [(code(option), ", ".join(takers), text) for (option, text), takers in found.items()]
    return table(("option", "of", "meaning"), rows)


def subcommands() -> list[str]:
    """Return the subcommands of ``pgjobs`` that have a help text; the others are hidden."""
    action = next(a for a in _parser("pgjobs")._actions if hasattr(a, "_choices_actions"))
    return [choice.dest for choice in action._choices_actions]


# Options of @job and using

OPTION_TEXTS = {
    "name": "stored on every row; default `module.qualname`. Keep it when you move the function",
    "aliases": "former names, still understood",
    "queue": "the queue it goes to; default `default`",
    "priority": "−100 to 100, larger first; default 0",
    "max_attempts": "charged starts in all; default `DEFAULT_MAX_ATTEMPTS`",
    "backoff": "a `Backoff`, or a callable `(exception, attempt)` returning seconds, a `timedelta`, or None to give up",
    "retry_on": "exception types, or a callable `(exception)` → bool: only these lead to a retry",
    "give_up_on": "the same, for exceptions that never lead to a retry; wins over `retry_on`",
    "timeout": "seconds or `timedelta`, None for unlimited; default `DEFAULT_TIMEOUT_SECONDS`. A pair is a soft limit,"
    " at which `SoftDeadlinePassed` is raised in the job, and the timeout",
    "takes_context": "pass the `JobContext` first. A first parameter that is annotated `JobContext` says so itself; the"
    " option is for code without annotations. Type checkers know the parameter by its name, `context`",
    "store_result": "False drops the return value",
    "strict_results": "True abandons a job whose return value cannot be stored; by default it succeeds without one",
    "atomic": "True commits what the job does in the database of the jobs together with its success, or not at all",
    "sensitive": "arguments to hide in the admin, `pgjobs show` and logs",
    "limits": "a `Limit`, or one with a key and one without: how many run at once, how many start in a period",
    "cron": "a `Cron`, or a list of them: its schedule, without arguments",
    "schedulable": "people may make schedules for it, in the admin and the shell; default False",
    "tags": "short strings to find and steer jobs by; `using` adds its tags to those of `@job`",
    "description": "what it does, in words for lists and logs: in `@job` a text, a format string of the arguments or a"
    " callable of them, in `using` the text of one job",
    "run_at": "earliest start, an aware datetime",
    "deadline": "aware datetime: no attempt starts after it, a running one stops at it, and the job is abandoned",
    "expires": "seconds or `timedelta` after the start that is asked for; in `using` also an aware datetime, or None"
    " for never: a job that has not started by then is cancelled, a started one continues",
    "on_crash": "when its process or its worker dies while it runs: `retry` (default) runs it again while attempts are"
    " left, `abandon` never does",
    "memory": "megabytes by which the process may grow while the job runs, before the worker"
    " [stops it](../how-to/memory.md); None for no limit",
    "delay": "the same as seconds or `timedelta`, counted by the database's clock",
    "database": "alias to register in",
    "unique": "no second unfinished job of this key in its queue: in `@job` a format string of the arguments"
    ' (`"welcome:{user_id}"`) or a callable of them, in `using` a string or a callable; None is no key. A'
    " [`Unique`](../how-to/unique-jobs.md) also says for how long, and what happens when the key is taken",
    "sequence": "jobs of one [sequence](../how-to/sequences.md) run one after the other, in the order of their"
    " registration: given as a key, or a `Sequence`, which also says what an abandoned job does to those behind it",
    "logs": "the level from which on the [lines that such jobs log](../how-to/logs-of-jobs.md) are kept, None for none;"
    " without it `JOB_LOGS` says so",
    "undo_on_failure": "when the [undo](../how-to/saga.md) of a step was abandoned: `go_on` (default) undoes the steps"
    " before it all the same, `stop` leaves them",
    "idempotency_key": "given like a key: among the jobs of one name and key the first success counts, the others"
    " return its result",
    "bypass": "True runs the job at once in a thread of this process, once, and stores nothing",
    "after": "jobs that it needs, or their ids: it waits until [they have ended](../how-to/batches.md"
    "#a-job-that-needs-others)",
    "when": "which end of these it needs: `succeeded` (default), `failed` or `settled`",
}


def job_options() -> str:
    """Every option of ``@job`` and ``using``, and where it may stand."""
    from django_pgjobs.definition.options import JOB_CHECKS, REGISTER_CHECKS

    names = list(dict.fromkeys([*JOB_CHECKS, *REGISTER_CHECKS]))
    yes = {True: "yes", False: ""}
    return table(
        ("option", "`@job`", "`using`", "meaning"),
        [(f"`{n}`", yes[n in JOB_CHECKS], yes[n in REGISTER_CHECKS], OPTION_TEXTS[n]) for n in names],
    )


OPTION_BOUNDS = {
    "name": ("1 to 200 printable characters, no spaces around; not in `__main__`", "`module.qualname`", ""),
    "aliases": ("as `name`, each", "none", ""),
    "queue": ("1 to 100 of A-Z a-z 0-9 _ . : -", "`default`", "QUEUES"),
    "priority": ("whole number from −100 to 100", "0", ""),
    "max_attempts": ("whole number from 1 to the setting", "DEFAULT_MAX_ATTEMPTS", "BOUNDS['max_attempts']"),
    "backoff": (
        "a `Backoff`: base from 0 to the setting, factor above 0 and within the setting, limit from 0, jitter from 0"
        " to 1; or a callable that takes two",
        "DEFAULT_BACKOFF",
        "BOUNDS['backoff_base_seconds'], BOUNDS['backoff_factor']",
    ),
    "retry_on": ("exception types, or a callable that takes one", "every exception", ""),
    "give_up_on": ("exception types, or a callable that takes one", "none", ""),
    "timeout": (
        "from 0.001 seconds to the setting, or None; or a pair, the shorter first",
        "DEFAULT_TIMEOUT_SECONDS",
        "BOUNDS['timeout_seconds']",
    ),
    "takes_context": ("True or False", "True if the first parameter is annotated `JobContext`", ""),
    "store_result": ("True or False", "True", "BOUNDS['result_bytes']"),
    "strict_results": ("True or False", "False, for tasks True", ""),
    "atomic": ("True or False; True not for `async def`", "False", ""),
    "sensitive": ("names of existing arguments", "none", ""),
    "limits": (
        "a `Limit`, or one with a key and one without: concurrency and rate from 1 to 1,000,000, window from a tenth of"
        " a second to 31 days, key of 1 to 200 characters",
        "none",
        "",
    ),
    "cron": ("a `Cron`, or several", "none", ""),
    "schedulable": ("bool", "False", ""),
    "run_at": (
        "aware instant, not later than so many days and, if set, not earlier than so many seconds ago;"
        " not with `delay`",
        "now",
        "BOUNDS['ahead_seconds'], BOUNDS['past_seconds']",
    ),
    "delay": ("from 0 seconds to so many days; not with `run_at`", "0", "BOUNDS['ahead_seconds']"),
    "deadline": (
        "aware instant, in the future and after `run_at`, at most so many days ahead",
        "none",
        "BOUNDS['ahead_seconds']",
    ),
    "on_crash": ("`retry` or `abandon`", "`retry`", ""),
    "memory": ("whole number of megabytes from 1, or None", "None", ""),
    "logs": ("`DEBUG`, `INFO`, `WARNING`, `ERROR`, `CRITICAL`, or None", "as `JOB_LOGS`", ""),
    "undo_on_failure": ("`go_on` or `stop`", "`go_on`", ""),
    "expires": (
        "from 0.001 seconds to so many days; in `using` also an aware instant, in the future and after `run_at`,"
        " or None",
        "never",
        "BOUNDS['ahead_seconds']",
    ),
    "tags": ("up to 20 printable strings of 1 to 50 characters, no spaces around", "none", ""),
    "description": ("up to 200 printable characters; of a callable's text the first 200 are kept", "none", ""),
    "database": ("an alias of `DATABASES` that is PostgreSQL", "the router's", ""),
    "unique": (
        "1 to 200 printable characters that match the setting, or a callable that makes them; or a `Unique`, whose"
        " window is of a second or more, and not with `postpone`",
        "none",
        "BOUNDS['key_pattern']",
    ),
    "idempotency_key": ("1 to 200 printable characters, or a callable that makes them", "none", ""),
    "sequence": (
        "1 to 200 printable characters, or a callable that makes them; or a `Sequence`; not with `after`, nor in a flow"
        " or a schedule",
        "none",
        "",
    ),
    "bypass": ("True or False; True goes with `queue`, `timeout` and `description` only", "False", "BYPASS_WORKERS"),
    "after": ("stored jobs, or ids from 1 to 2⁶³−1", "none", "BOUNDS['needs']"),
    "when": ("`succeeded`, `failed` or `settled`", "`succeeded`", ""),
}
"""Option → what it takes, its default, and the settings that bound it."""


def covered_by_view_payload() -> str:
    """What people see without the permission."""
    return table(("what", "without `pgjobs.view_payload`"), [(fact.value, TABLE[fact].value) for fact in Fact])


def option_bounds() -> str:
    """Every option of ``@job`` and ``using``: range, default, setting."""

    def linked(words: str) -> str:
        return re.sub(r"([A-Z][A-Z]+(?:_[A-Z]+)*)\b(\['\w+'\])?", _setting_link, words)

    return table(
        ("option", "range", "default", "setting"),
        [
            (f"`{name}`", takes, linked(default), linked(setting))
            for name, (takes, default, setting) in OPTION_BOUNDS.items()
        ],
    )


def _setting_link(match: re.Match[str]) -> str:
    name = match[1]
    if name not in conf_module.RULES:
        return match[0]
    return f"{{ref}}`{match[0]} <setting-{name.lower().replace('_', '-')}>`"
