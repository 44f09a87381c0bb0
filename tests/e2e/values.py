"""What ``jobs.returns`` returns: good, large, and everything that cannot be stored."""

from __future__ import annotations

from typing import Any


def _recursive() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class _Broken(dict[str, object]):
    def items(self) -> Any:
        raise SystemExit("a value with opinions")


def _deep() -> Any:
    value: Any = []
    for _ in range(5000):
        value = [value]
    return value


RESULTS: dict[str, Any] = {
    "good": lambda: {"rows": [1, 2.5, None, "ü"], "ok": True},
    "object": object,
    "recursive": _recursive,
    "huge": lambda: "x" * 2_000_000,
    "large": lambda: "ü" * 500_000,
    "surrogate": lambda: "\ud800",
    "nul": lambda: "a\0b",
    "nan": lambda: float("nan"),
    "deep": _deep,
    "integer": lambda: 10**5000,
    "broken": lambda: _Broken(a=1),
}
