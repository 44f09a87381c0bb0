"""States, signals, log lines, errors, checks, models, SQL and payload values, as the code has them."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import drawings
from django.apps import apps
from django.db import models as django_models
from markdown_of import DATA, PACKAGE, code, documented_names, escaped, prose, table

from django_pgjobs import checks as checks_module
from django_pgjobs import exceptions, models, sql, states
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.payload import encode_payload
from django_pgjobs.values.built_in import POLICY, Act, BuiltIn

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


def locks_diagram() -> str:
    """The order in which the end of a job locks what waits for it, drawn."""
    return drawings.lock_order().inline()


def states_table() -> str:
    """Every state and the states that may follow it."""
    return table(
        ("state", "may be followed by"),
        [(f"`{state}`", ", ".join(f"`{s}`" for s in after) or "–") for state, after in states.TRANSITIONS.items()],
    )


# Signals, log lines, errors, checks


def own_jobs() -> str:
    """Return what may be done to the package's own jobs, and what to do instead of the rest."""
    return table(
        ("job", "what it does", "takes", "instead of the rest"),
        [(code(name), own.does, _acts(own), "; ".join([own.instead, *_instead(own)])) for name, own in POLICY.items()],
    )


def _acts(own: BuiltIn) -> str:
    return ", ".join(f"*{act}*" for act in Act if act in own.allows) or "nothing"


def _instead(own: BuiltIn) -> list[str]:
    return [f"*{act}*: {words}" for act, words in own.instead_of.items()]


def signals() -> str:
    """Every signal with its arguments."""
    parts = []
    for name, text in documented_names(PACKAGE / "signals.py"):
        body = inspect.cleandoc(text).replace("``", "`")
        parts += [f"(signal-{name.replace('_', '-')})=", f"### {name}", "", body, ""]
    return "\n".join(parts)


LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")

LOGGERS = ("log", "logger", "jobs_log")
"""The variables that have our loggers."""


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
            if node.func.attr not in LEVELS or name not in LOGGERS:
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
    shown = ((level, code(re.sub(r"%[-.\d]*[a-z]", "…", line)), f"`{module}`") for _, level, line, module in calls)
    return table(("level", "line", "from"), list(dict.fromkeys(shown)))


def error_classes() -> list[type[BaseException]]:
    """Return the exceptions of ``django_pgjobs.exceptions`` in the order of the file."""
    return [
        kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == exceptions.__name__
        if not name.startswith("_")
    ]


def error_tree() -> str:
    """The tree of exceptions as its module draws it."""
    tree = inspect.cleandoc(exceptions.__doc__ or "").partition("::\n")[2]
    lines = [line for line in tree.splitlines() if line.startswith("    ")]
    return "```text\n" + "\n".join(line[4:] for line in lines) + "\n```\n"


def errors() -> str:
    """Every exception and its message."""
    return table(
        ("exception", "is a", "meaning"),
        [
            (f"`{kind.__name__}`", ", ".join(f"`{b.__name__}`" for b in kind.__bases__), prose(kind.__doc__ or ""))
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
    room = [*sorted((PACKAGE / "checks").glob("*.py")), PACKAGE / "tasks" / "checks.py"]
    for node in (node for path in room for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "id" in given and "hint" in given:
                hints[_literal(given["id"]) or ""] = _literal(given["hint"]) or ""
    return hints


def checks() -> str:
    """Every system check."""
    hints = check_hints()
    return table(
        ("id", "what is wrong", "hint"),
        [(f"`{id_}`", text.replace("``", "`"), escaped(hints.get(id_, ""))) for id_, text in check_rows()],
    )


# Models, SQL, payload


def model_classes() -> list[type[django_models.Model]]:
    """Return the models of the package."""
    return [model for model in apps.get_app_config("pgjobs").get_models() if not model._meta.proxy]


FIELD_TEXTS: dict[str, dict[str, str]] = tomllib.loads((DATA / "fields.toml").read_text(encoding="utf-8"))
"""Model → field → what it means."""


def model_fields() -> str:
    """Every model with its fields, permissions and indexes."""
    parts = []
    for model in model_classes():
        meta: Any = model._meta
        internal = "" if model.__name__ in models.__all__ else " Internal: it may change without notice."
        parts += [f"## {model.__name__}", "", f"Table `{meta.db_table}`. {prose(model.__doc__ or '')}{internal}", ""]
        rows = []
        for field in meta.local_concrete_fields:
            kind = field.get_internal_type() if type(field).__module__.startswith("django") else type(field).__name__
            rows.append(
                (f"`{field.name}`", kind + (", null" if field.null else ""), FIELD_TEXTS[model.__name__][field.name])
            )
        parts += [table(("field", "type", "meaning"), rows)]
        if meta.permissions:
            parts += ["Permissions: " + ", ".join(f"`pgjobs.{code}`" for code, _ in meta.permissions) + ".", ""]
        if meta.indexes:
            parts += ["Indexes: " + ", ".join(f"`{index.name}`" for index in meta.indexes) + ".", ""]
    return "\n".join(parts)


def statements_by_module() -> dict[str, list[str]]:
    """Module of ``store`` → the statements that it alone names; under ``shared`` all others."""
    named: dict[str, set[str]] = {}
    for path in (PACKAGE / "store").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.setdefault(node.value, set()).add(path.stem)
    found: dict[str, list[str]] = {}
    for name in sql.names():
        modules = named.get(name, set())
        found.setdefault(next(iter(modules)) if len(modules) == 1 else "shared", []).append(name)
    return found


def sql_contracts(modules: str = "") -> str:
    """The statements of these modules of ``store``, or all: the four-line contract of each, and its text."""
    by_module = statements_by_module()
    parts = []
    for name in sorted(name for module in modules.split() or by_module for name in by_module[module]):
        lines = sql.source(name).splitlines()
        head = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
        body = [line for line in lines if not line.startswith("--")]
        parts += [f"## {name}", "", head[0].partition(": ")[2], ""]
        parts += [f"* **{line.partition(': ')[0]}**: {escaped(line.partition(': ')[2])}" for line in head[1:]]
        parts += ["", "```text", *body, "```", ""]
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
    return table(
        ("value", "stored as"),
        [(name, code(encode_payload((value,), {}, 10_000)[9:].partition('],"kwargs"')[0])) for name, value in SAMPLES],
    )


def _refusal(value: object) -> str:
    try:
        encode_payload((value,), {}, 10_000)
    except InvalidJob as error:
        return str(error)
    raise AssertionError(f"{value!r} is not refused any more")


def payload_refusals() -> str:
    """What is refused, and in which words."""
    return table(("value", "`InvalidJob`"), [(name, escaped(_refusal(value))) for name, value in REFUSALS])
