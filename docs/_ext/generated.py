"""The parts of the documentation that are made from the code: settings, commands, states, signals, SQL and others.

Each public function returns Markdown (or, where it starts with ``<``, HTML). Needs configured Django, no database.
``tests/docs`` compares what is made here with the code once more, and that some page shows it.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import drawings
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.db import models as django_models

import django_pgjobs
from benchmarks import plots, report
from benchmarks.figures import shown, spread_shown
from benchmarks.peers.known import PEERS
from django_pgjobs import checks as checks_module
from django_pgjobs import conf as conf_module
from django_pgjobs import exceptions, models, sql, states
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.payload import encode_payload

PACKAGE = Path(django_pgjobs.__file__).parent
ROOT = PACKAGE.parent
DATA = Path(__file__).resolve().parent.parent / "_data"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    """Text as code within a table's cell."""
    return f"`{_escaped(text)}`" if "`" not in text else f"`` {_escaped(text)} ``"


def _markdown(text: str) -> str:
    """A docstring's reStructuredText as Markdown: only double backquotes are used in ours."""
    return " ".join(inspect.cleandoc(text).replace("``", "`").split())


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def _documented_names(path: Path, within: str = "") -> Iterator[tuple[str, str]]:
    """(name, text) of assignments that are followed by a docstring, in a module or in one of its classes."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    if within:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == within)
    for node, after in pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield target.id, str(after.value.value)


# Settings


def _answer(rule: Any, value: object) -> str:
    try:
        rule(value)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _takes(name: str) -> str:
    """What a setting takes, in the words of its own errors."""
    rule = conf_module.RULES[name]
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
    texts = dict(_documented_names(PACKAGE / "conf.py", within="Conf"))
    parts = []
    for item in fields(conf_module.Conf):
        name = item.name.upper()
        parts += [f"(setting-{item.name.replace('_', '-')})=", f"## {name}", ""]
        parts += [_upper(_markdown(texts[item.name])), ""]
        parts += [f"* Default: `{item.default!r}`", f"* Takes: {_takes(name)}", ""]
    return "\n".join(parts)


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
    return _table(("option", "meaning"), [(_code(option), text) for option, text in command_options("runjobs")])


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
    return [
        (", ".join(action.option_strings) or str(action.metavar), (action.help or "") % vars(action))
        for action in _subparser(name)._actions
        if "--help" not in action.option_strings
    ]


def operator_options() -> str:
    """What ``pgjobs cancel`` and its like take."""
    return _table(("option", "meaning"), [(_code(option), text) for option, text in subcommand_options("cancel")])


def prune_options() -> str:
    """What ``pgjobs prune`` takes."""
    return _table(("option", "meaning"), [(_code(option), text) for option, text in subcommand_options("prune")])


def _options_of(name: str, *, but: str = "") -> str:
    known = subcommand_options(but) if but else []
    options = [option for option in subcommand_options(name) if option not in known]
    return _table(("option", "meaning"), [(_code(option), text) for option, text in options])


def list_options() -> str:
    """What ``pgjobs list`` takes."""
    return _options_of("list")


def show_options() -> str:
    """What ``pgjobs show`` takes."""
    return _options_of("show")


def stats_options() -> str:
    """What ``pgjobs stats`` takes."""
    return _options_of("stats")


def workers_options() -> str:
    """What ``pgjobs workers`` takes."""
    return _options_of("workers")


def check_options() -> str:
    """What ``pgjobs check`` takes."""
    return _options_of("check")


def reschedule_options() -> str:
    """What ``pgjobs reschedule`` takes beyond what ``pgjobs cancel`` does."""
    return _options_of("reschedule", but="cancel")


def pause_options() -> str:
    """What ``pgjobs pause`` takes."""
    return _options_of("pause")


def crons_options() -> str:
    """What the verbs of ``pgjobs crons`` take."""
    verbs = next(a for a in _subparser("crons")._actions if hasattr(a, "_choices_actions")).choices
    found: dict[tuple[str, str], list[str]] = {}
    for verb, parser in verbs.items():
        for action in parser._actions:
            if "--help" not in action.option_strings:
                option = ", ".join(action.option_strings) or str(action.metavar)
                found.setdefault((option, (action.help or "") % vars(action)), []).append(verb)
    rows = [(_code(option), ", ".join(takers), text) for (option, text), takers in found.items()]
    return _table(("option", "of", "meaning"), rows)


def subcommands() -> list[str]:
    """Return the subcommands of ``pgjobs`` that have a help text; the others are hidden."""
    action = next(a for a in _parser("pgjobs")._actions if hasattr(a, "_choices_actions"))
    return [choice.dest for choice in action._choices_actions]


# States


def states_diagram() -> str:
    """Every state and transition, drawn."""
    return drawings.states().inline()


def architecture_diagram() -> str:
    """Processes, threads, connections and tables, drawn."""
    return drawings.architecture().inline()


def claim_diagram() -> str:
    """From a registration to the end that counts, drawn."""
    return drawings.life_of_a_claim().inline()


def stopping_diagram() -> str:
    """The rungs by reason and second, drawn."""
    return drawings.stopping().inline()


def leader_diagram() -> str:
    """A leader's end and its successor, drawn."""
    return drawings.leader_terms().inline()


def states_table() -> str:
    """Every state and the states that may follow it."""
    return _table(
        ("state", "may be followed by"),
        [(f"`{state}`", ", ".join(f"`{s}`" for s in after) or "–") for state, after in states.TRANSITIONS.items()],
    )


# Signals, log lines, errors, checks


def signals() -> str:
    """Every signal with its arguments."""
    parts = []
    for name, text in _documented_names(PACKAGE / "signals.py"):
        body = inspect.cleandoc(text).replace("``", "`")
        parts += [f"(signal-{name.replace('_', '-')})=", f"### {name}", "", body, ""]
    return "\n".join(parts)


LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def _literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values)  # type: ignore[misc]
    return None


def log_calls() -> list[tuple[str, str, str, str]]:
    """(logger's variable, level, line, module) of every call that logs, in the package's own words."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "embedded" in path.parts:
            continue
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner = node.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.func.attr not in LEVELS or name not in ("log", "logger", "jobs_log"):
                continue
            line = _literal(node.args[1 if node.func.attr == "log" and len(node.args) > 1 else 0])
            if line:
                level = {"exception": "ERROR", "log": "INFO"}.get(node.func.attr, node.func.attr.upper())
                found.append((name, level, line, module))
    return sorted(set(found), key=lambda call: (LEVELS.index(call[1].lower()), call[2]), reverse=False)


def log_lines() -> str:
    """Every log line of the package by level, the loudest first."""
    order = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
    calls = sorted(log_calls(), key=lambda call: (order.index(call[1]), call[2].lower()))
    shown = ((level, _code(re.sub(r"%[-.\d]*[a-z]", "…", line)), f"`{module}`") for _, level, line, module in calls)
    return _table(("level", "line", "from"), list(dict.fromkeys(shown)))


def error_classes() -> list[type[BaseException]]:
    """Return the exceptions of ``django_pgjobs.exceptions`` in the order of the file."""
    return [
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == exceptions.__name__
    ]


def error_tree() -> str:
    """The tree of exceptions as its module draws it."""
    tree = inspect.cleandoc(exceptions.__doc__ or "").partition("::\n")[2]
    lines = [line for line in tree.splitlines() if line.startswith("    ")]
    return "```text\n" + "\n".join(line[4:] for line in lines) + "\n```\n"


def errors() -> str:
    """Every exception and its message."""
    return _table(
        ("exception", "is a", "meaning"),
        [
            (f"`{kind.__name__}`", ", ".join(f"`{b.__name__}`" for b in kind.__bases__), _markdown(kind.__doc__ or ""))
            for kind in error_classes()
        ],
    )


def check_rows() -> list[tuple[str, str]]:
    """(id, what is wrong) as the room of the checks lists them."""
    rows = re.findall(r"^(pgjobs\.[EW]\d{3})\s+(.+)$", checks_module.__doc__ or "", re.MULTILINE)
    return [(id_, text) for id_, text in rows]


def check_hints() -> dict[str, str]:
    """Id → hint, where the hint stands beside the id."""
    hints = {}
    room = sorted((PACKAGE / "checks").glob("*.py"))
    for node in (node for path in room for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "id" in given and "hint" in given:
                hints[_literal(given["id"]) or ""] = _literal(given["hint"]) or ""
    return hints


def checks() -> str:
    """Every system check."""
    hints = check_hints()
    return _table(
        ("id", "what is wrong", "hint"),
        [(f"`{id_}`", text.replace("``", "`"), _escaped(hints.get(id_, ""))) for id_, text in check_rows()],
    )


# Models, SQL, payload


def model_classes() -> list[type[django_models.Model]]:
    """Return the models of the package."""
    return [m for m in vars(models).values() if isinstance(m, type) and issubclass(m, models.PostgresModel)
            and not m._meta.abstract]  # fmt: skip


FIELD_TEXTS: dict[str, dict[str, str]] = tomllib.loads((DATA / "fields.toml").read_text(encoding="utf-8"))
"""Model → field → what it means."""


def model_fields() -> str:
    """Every model with its fields, permissions and indexes."""
    parts = []
    for model in model_classes():
        meta: Any = model._meta
        parts += [f"## {model.__name__}", "", f"Table `{meta.db_table}`. " + _markdown(model.__doc__ or ""), ""]
        rows = []
        for field in meta.local_concrete_fields:
            kind = field.get_internal_type() if type(field).__module__.startswith("django") else type(field).__name__
            rows.append(
                (f"`{field.name}`", kind + (", null" if field.null else ""), FIELD_TEXTS[model.__name__][field.name])
            )
        parts += [_table(("field", "type", "meaning"), rows)]
        if meta.permissions:
            parts += ["Permissions: " + ", ".join(f"`pgjobs.{code}`" for code, _ in meta.permissions) + ".", ""]
        if meta.indexes:
            parts += ["Indexes: " + ", ".join(f"`{index.name}`" for index in meta.indexes) + ".", ""]
    return "\n".join(parts)


def sql_contracts() -> str:
    """Every statement: its four-line contract, and its text."""
    parts = []
    for name in sql.names():
        text = resources.files(sql).joinpath(f"{name}.sql").read_text(encoding="utf-8")
        head = [line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--")]
        parts += [f"## {name}", "", head[0].partition(": ")[2], ""]
        parts += [f"* **{line.partition(': ')[0]}**: {_escaped(line.partition(': ')[2])}" for line in head[1:]]
        parts += ["", "```text", sql.statement(name).strip("\n"), "```", ""]
    return "\n".join(parts)


SAMPLES: tuple[tuple[str, object], ...] = (
    ("None, True, 7, 1.5, 'text'", [None, True, 7, 1.5, "text"]),
    ("datetime with an offset", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
    ("date", date(2026, 3, 29)),
    ("time", time(2, 30)),
    ("timedelta", timedelta(days=1, seconds=2)),
    ("Decimal", Decimal("1.10")),
    ("UUID", UUID("00000000-0000-4000-8000-000000000001")),
    ("bytes", b"\x00\xff"),
    ("tuple", (1, 2)),
    ("a float from 1e16 on", 1e16),
    ("a dict that looks like one of these", {"$date": "x"}),
)
REFUSALS: tuple[tuple[str, object], ...] = (
    ("a dict with keys that are no texts", {1: "one"}),
    ("NaN and infinity", float("nan")),
    ("text with NUL", "a\0b"),
    ("a set", {1}),
    ("anything else", object),
)


def payload_values() -> str:
    """What each kind of value becomes in jsonb."""
    return _table(
        ("value", "stored as"),
        [(name, _code(encode_payload((value,), {}, 10_000)[9:].partition('],"kwargs"')[0])) for name, value in SAMPLES],
    )


def _refusal(value: object) -> str:
    try:
        encode_payload((value,), {}, 10_000)
    except InvalidJob as error:
        return str(error)
    raise AssertionError(f"{value!r} is not refused any more")


def payload_refusals() -> str:
    """What is refused, and in which words."""
    return _table(("value", "`InvalidJob`"), [(name, _escaped(_refusal(value))) for name, value in REFUSALS])


# Coverage

ROW_ID = re.compile(r"\b([CDAWPX])(\d{1,2})(?:(?:\s*[–-]\s*|\s+to\s+)\1?(\d{1,2}))?\b")


def rows() -> dict[str, Any]:
    """Return ``_data/rows.toml``: the behaviours promised so far and those that do not apply."""
    return tomllib.loads((DATA / "rows.toml").read_text(encoding="utf-8"))


def cited_rows() -> dict[str, list[str]]:
    """Row id → tests (``path::function``) whose docstring cites it; a module's docstring counts for the module."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            where = name if isinstance(node, ast.Module) else f"{name}::{node.name}"
            for row in _ids(text):
                found.setdefault(row, []).append(where)
    return found


def _ids(text: str) -> Iterator[str]:
    for letter, first, last in ROW_ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


SHOWN_TESTS = 3


def _readable(where: str) -> str:
    """``tests/e2e/test_x.py::test_a_fact`` as file and sentence."""
    path, _, name = where.removeprefix("tests/").partition("::")
    return f"`{path}` {name.removeprefix('test_').replace('_', ' ')}".strip()


def coverage() -> str:
    """Row → tests → note."""
    cited = cited_rows()
    lines = []
    for id_, row in rows()["rows"].items():
        tests = [_readable(where) for where in cited.get(id_, [])]
        shown = "<br>".join(tests[:SHOWN_TESTS])
        if len(tests) > SHOWN_TESTS:
            shown += f"<br>and {len(tests) - SHOWN_TESTS} more"
        lines.append((id_, row["says"], shown or "none yet", row.get("note", "")))
    return _table(("row", "behaviour", "shown by", "note"), lines)


def not_applicable() -> str:
    """Rows that do not apply, with the reason."""
    return _table(("row", "reason"), [(id_, text) for id_, text in rows()["not_applicable"].items()])


# Faults


def faults_data() -> dict[str, Any]:
    """Return ``_data/faults.toml``: what is survived by which test, and what was not tested."""
    return tomllib.loads((DATA / "faults.toml").read_text(encoding="utf-8"))


def faults() -> str:
    """Fault → invariants → test → measured recovery."""
    return _table(
        ("fault", "what holds", "test", "recovery"),
        [
            (_escaped(f["fault"]), ", ".join(f["keeps"]), _readable(f["test"]), _escaped(f["recovery"]))
            for f in faults_data()["faults"]
        ],
    )


def untested_faults() -> str:
    """What was not tested, and why."""
    return _table(("fault", "why not"), [(_escaped(f["fault"]), f["why"]) for f in faults_data()["untested"]])


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
    "timeout": "seconds or `timedelta`, None for unlimited; default `DEFAULT_TIMEOUT_SECONDS`",
    "takes_context": "pass the `JobContext` first",
    "store_result": "False drops the return value",
    "sensitive": "arguments to hide in the admin, `pgjobs show` and logs",
    "limits": "a `Limit`, or one with a key and one without: how many run at once, how many start in a period",
    "cron": "a `Cron`, or a list of them: its schedule, without arguments",
    "tags": "short strings to find and steer jobs by; `using` adds its tags to those of `@job`",
    "run_at": "earliest start, an aware datetime",
    "deadline": "aware datetime: no attempt starts after it, a running one stops at it, and the job is abandoned",
    "delay": "the same as seconds or `timedelta`, counted by the database's clock",
    "database": "alias to register in",
    "key": "no second unfinished job of this key in its queue: in `@job` a format string of the arguments"
    ' (`"welcome:{user_id}"`) or a callable of them, in `using` a string or a callable; None is no key',
    "key_scope": "how long the key is taken: `until_finished` (default), `until_started`, or a `Window` or `timedelta`",
    "on_conflict": "when the key is taken: `existing` (default) returns that job, `replace` cancels it, `raise` raises"
    " `DuplicateJob`",
    "idempotency_key": "given like a key: among the jobs of one name and key the first success counts, the others"
    " return its result",
    "bypass": "True runs the job at once in a thread of this process, once, and stores nothing",
}


def job_options() -> str:
    """Every option of ``@job`` and ``using``, and where it may stand."""
    from django_pgjobs.definition.options import JOB_CHECKS, REGISTER_CHECKS

    names = list(dict.fromkeys([*JOB_CHECKS, *REGISTER_CHECKS]))
    yes = {True: "yes", False: ""}
    return _table(
        ("option", "`@job`", "`using`", "meaning"),
        [(f"`{n}`", yes[n in JOB_CHECKS], yes[n in REGISTER_CHECKS], OPTION_TEXTS[n]) for n in names],
    )


OPTION_BOUNDS = {
    "name": ("1 to 200 printable characters, no spaces around; not in `__main__`", "`module.qualname`", ""),
    "aliases": ("as `name`, each", "none", ""),
    "queue": ("1 to 100 of A-Z a-z 0-9 _ . : -", "`default`", "QUEUES"),
    "priority": ("whole number from −100 to 100", "0", ""),
    "max_attempts": ("whole number from 1 to the setting", "DEFAULT_MAX_ATTEMPTS", "MAX_ATTEMPTS_CEILING"),
    "backoff": (
        "a `Backoff`: base from 0 to the setting, factor above 0 and within the setting, limit from 0, jitter from 0"
        " to 1; or a callable that takes two",
        "DEFAULT_BACKOFF",
        "BACKOFF_BASE_CEILING_SECONDS, BACKOFF_FACTOR_BOUNDS",
    ),
    "retry_on": ("exception types, or a callable that takes one", "every exception", ""),
    "give_up_on": ("exception types, or a callable that takes one", "none", ""),
    "timeout": ("from 0.001 seconds to the setting, or None", "DEFAULT_TIMEOUT_SECONDS", "TIMEOUT_CEILING_SECONDS"),
    "takes_context": ("True or False", "False", ""),
    "store_result": ("True or False", "True", "RESULT_LIMIT_BYTES"),
    "sensitive": ("names of existing arguments", "none", ""),
    "limits": (
        "a `Limit`, or one with a key and one without: concurrency and rate from 1 to 1,000,000, window from a tenth of"
        " a second to 31 days, key of 1 to 200 characters",
        "none",
        "",
    ),
    "cron": ("a `Cron`, or several", "none", ""),
    "run_at": (
        "aware instant, not later than so many days and, if set, not earlier than so many seconds ago;"
        " not with `delay`",
        "now",
        "RUN_AT_CEILING_DAYS, PAST_RUN_AT_SECONDS",
    ),
    "delay": ("from 0 seconds to so many days; not with `run_at`", "0", "RUN_AT_CEILING_DAYS"),
    "deadline": (
        "aware instant, in the future and after `run_at`, at most so many days ahead",
        "none",
        "RUN_AT_CEILING_DAYS",
    ),
    "tags": ("up to 20 printable strings of 1 to 50 characters, no spaces around", "none", ""),
    "database": ("an alias of `DATABASES` that is PostgreSQL", "the router's", ""),
    "key": (
        "1 to 200 printable characters that match the setting, or a callable that makes them",
        "none",
        "KEY_PATTERN",
    ),
    "key_scope": (
        "`until_finished`, `until_started`, a `Window` or `timedelta` of a second or more",
        "`until_finished`",
        "",
    ),
    "on_conflict": ("`existing`, `replace` or `raise`", "`existing`", ""),
    "idempotency_key": ("1 to 200 printable characters, or a callable that makes them", "none", ""),
    "bypass": ("True or False; True goes with `queue` and `timeout` only", "False", "BYPASS_WORKERS"),
}
"""Option → what it takes, its default, and the settings that bound it."""


def option_bounds() -> str:
    """Every option of ``@job`` and ``using``: range, default, setting."""

    def linked(words: str) -> str:
        return re.sub(r"[A-Z][A-Z]+(?:_[A-Z]+)*\b", _setting_link, words)

    return _table(
        ("option", "range", "default", "setting"),
        [
            (f"`{name}`", takes, linked(default), linked(setting))
            for name, (takes, default, setting) in OPTION_BOUNDS.items()
        ],
    )


def _setting_link(match: re.Match[str]) -> str:
    name = match[0]
    return f"{{ref}}`{name} <setting-{name.lower().replace('_', '-')}>`" if name in conf_module.RULES else name


# Speed


def _speed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "speed.json").read_text(encoding="utf-8"))
    return found


def speed_conditions() -> str:
    """When, on what and how much was measured."""
    found = _speed()
    server = found["machine"]["server"]
    lines = [
        f"Measured on {found['date']} with `make bench` at scale {found['scale']:g} (1 is the number of rows that the"
        f" lines speak of), on {report.machine_class(found)}; PostgreSQL {server['server_version'].split()[0]} with"
        f" `fsync {server['fsync']}`, `synchronous_commit {server['synchronous_commit']}` and"
        f" `shared_buffers {server['shared_buffers']}`."
    ]
    return "\n\n".join([*lines, *([f"**{found['remark']}**"] if found["remark"] else [])]) + "\n"


def speed_reached() -> str:
    """What was to be reached, and what was."""
    rows = [
        (
            figure["title"],
            figure["text"],
            shown(figure["value"], figure["unit"]),
            spread_shown(figure),
            figure["reach"],
            figure["verdict"],
        )
        for figure in report.reached(_speed())
    ]
    return _table(("line", "what", "figure", "spread", "to reach", ""), rows)


def speed_notes() -> str:
    """How each line was measured."""
    lines = [f"* **{part['title']}**: {part['note']}." for part in _speed()["lines"].values() if part.get("note")]
    return "\n".join(lines) + "\n"


def speed_peers() -> str:
    """Every peer as a share of our own figures, at its best setting."""
    found = _speed()
    drain, single = report.our_drain(found), report.value(found, "register", "register_1")
    waits = [report.value(found, "pickup", name) for name in ("p50", "p99")]
    head = ("queue", "drain", "single enqueue", "pickup p50, p99", "best of the settings tried")
    rows = [(f"django-pgjobs {django_pgjobs.__version__}", "1", "1", "1, 1", "`--processes` 1 and 2")]
    for part in found["peers"].values():
        if "skipped" in part:
            rows.append((part["name"], "not measured", "", "", part["skipped"]))
            continue
        shares = [_share(part[key], ours) for key, ours in zip(("p50", "p99"), waits, strict=True)]
        rows.append(
            (
                f"{part['name']} {part['version']}, Python {part['python']}",
                _share(part["drain"], drain),
                _share(part["enqueue"], single),
                ", ".join(shares),
                report.setting_text(part["best"]),
            )
        )
    return _table(head, rows)


def _share(theirs: float, ours: float | None) -> str:
    return shown(theirs / ours, "×") if ours else "–"


def speed_peer_notes() -> str:
    """What each peer does not do, or does otherwise."""
    return "\n".join(f"* **{peer.name}**: {' '.join(peer.notes)}" for peer in PEERS.values()) + "\n"


def speed_plans() -> str:
    """What the server does for a claim and for its ends, where somebody has let it be explained."""
    path = DATA / "plans.json"
    if not path.exists():
        return "No plans have been published here yet; the command prints them and keeps them in a file.\n"
    found = json.loads(path.read_text(encoding="utf-8"))
    version = found["machine"]["server"]["server_version"].split()[0]
    parts = [f"Explained on {found['date']} at scale {found['scale']:g} by PostgreSQL {version}."]
    for explained in found["plans"]:
        title, plan = explained["title"], explained["plan"]
        parts.append(f"**{title[0].upper()}{title[1:]}**\n\n```text\n{plan}\n```")
    return "\n\n".join(parts) + "\n"


def speed_plots() -> str:
    """The figures that a line of a table does not show."""
    found = _speed()
    drawn = []
    raced = [part for part in found["peers"].values() if "skipped" not in part]
    if ours := report.our_drain(found):
        ceiling = report.value(found, "drain", "ceiling")
        rates = [("django-pgjobs", ours), *((part["name"], part["drain"]) for part in raced)]
        rates += [("claim + finalise in SQL alone", ceiling)] if ceiling else []
        rows = [(name, rate / ours) for name, rate in rates]
        drawn.append(plots.bars("No-op jobs a second, ours is 1", rows, "×"))
    waits = [report.value(found, "pickup", name) for name in ("p50", "p99")]
    for name, wait in zip(("p50", "p99"), waits, strict=True):
        if wait:
            rows = [("django-pgjobs", wait), *((part["name"], part[name]) for part in raced)]
            drawn.append(plots.bars(f"Milliseconds from commit to start, {name}", rows, "ms"))
    for line, title, x_text, unit in (
        ("pinned", "While an open transaction pins the oldest snapshot", "tenth of the jobs", "jobs/s"),
        ("sustained", "Registered, run and deleted at once", "seconds", "jobs/s"),
        ("memory", "Memory of the supervisor", "tenth of the jobs", "MiB"),
    ):
        series = found["lines"].get(line, {}).get("curves", {})
        if series:
            drawn.append(plots.curves(title, series, x_text, unit))
    return "".join(drawn)
