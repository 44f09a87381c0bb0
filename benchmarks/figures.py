"""Results of a benchmark: named figures, some with a target. Pure: no Django, no database, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Series = list[tuple[float, float]]
"""Points of a curve."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The target of a figure: a lower or upper bound."""

    bound: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Return whether ``value`` meets it."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


def at_least(bound: float) -> Reach:
    """Return a lower bound."""
    return Reach(bound)


def at_most(bound: float) -> Reach:
    """Return an upper bound."""
    return Reach(bound, at_least=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: its description, its unit (``×`` for a ratio), and its target, if any.

    ``name`` is unique within its line and never changes, so that runs can be compared. ``value`` is the median of some
    rounds, ``spread`` their lowest and highest.
    """

    name: str
    text: str
    value: float
    unit: str
    reach: Reach | None = None
    spread: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or nothing without a target."""
        if self.reach is None:
            return ""
        return "met" if self.reach.met(self.value) else "missed"

    def as_json(self) -> dict[str, Any]:
        """Return what a results file keeps."""
        kept: dict[str, Any] = {"name": self.name, "text": self.text, "value": rounded(self.value), "unit": self.unit}
        if self.reach is not None:
            kept |= {"reach": str(self.reach), "verdict": self.verdict}
        if self.spread is not None:
            kept["spread"] = [rounded(end) for end in self.spread]
        return kept


@dataclass(slots=True)
class Result:
    """The results of one line of the table. ``curves`` are drawn, ``raw`` is only kept."""

    figures: list[Figure]
    note: str = ""
    curves: dict[str, Series] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what a results file keeps."""
        return {
            "figures": [figure.as_json() for figure in self.figures],
            "note": self.note,
            "curves": {name: [[rounded(x), rounded(y)] for x, y in points] for name, points in self.curves.items()},
            "raw": self.raw,
        }


def middle(name: str, text: str, rounds: Sequence[float], unit: str, reach: Reach | None = None) -> Figure:
    """Return the median of some rounds as a figure, with its spread."""
    return Figure(name, text, statistics.median(rounds), unit, reach, (min(rounds), max(rounds)))


def rounded(value: float) -> float:
    """Return a value with four significant digits; whole numbers above that stay whole."""
    return float(f"{value:.4g}") if abs(value) < 1000 else float(round(value))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def tenths(began: float, ends: Sequence[float], count: int) -> list[float]:
    """Return the rate within each tenth of ``count`` jobs; ``ends`` are the instants at which each tenth was done."""
    return [count / 10 / max(end - start, 1e-9) for start, end in pairwise([began, *ends])]


def shown(value: float, unit: str) -> str:
    """Return a value formatted for people."""
    if unit == "×":
        return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"
    if value and abs(value) < 0.1:
        return f"{value:.3g} {unit}".rstrip()
    return f"{value:,.0f} {unit}".rstrip() if abs(value) >= 100 else f"{value:.3g} {unit}".rstrip()


def spread_shown(figure: Mapping[str, Any]) -> str:
    """Return the spread of a figure of a results file, or nothing."""
    ends = figure.get("spread")
    if not ends or ends[0] == ends[1]:
        return ""
    return "–".join(shown(end, figure["unit"]).split(" ")[0] for end in ends)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns of text; all but the first and the last are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
