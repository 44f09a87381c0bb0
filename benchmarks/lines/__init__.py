"""The lines of the table, one module each: ``TITLE`` and ``measure(plan)``."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = (
    "drain",
    "register",
    "register_many",
    "tasks",
    "producers",
    "pickup",
    "paces",
    "pinned",
    "big_tables",
    "sustained",
    "sleeping",
    "costs",
    "memory",
    "payloads",
    "results",
    "queries",
    "queues",
    "keys",
    "fan_in",
    "mixed",
    "starvation",
)
"""In the order in which they run."""

ON_REQUEST = ("million", "suspended", "observed")
"""They run if ``--only`` names them: minutes each, to see that something holds, or what it costs."""


def line(name: str) -> ModuleType:
    """Return the module of a line."""
    return import_module(f"benchmarks.lines.{name}")
