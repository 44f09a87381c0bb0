"""Charts as inline SVG: bars, lines and small lines, without a script and without a style attribute.

Colours are classes of ``admin.css``. Each drawing has a title, and the page a table with the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import log10
from typing import NamedTuple

from django.utils.safestring import SafeString

from django_pgjobs.admin.display import format_html, format_html_join
from django_pgjobs.inspection.words import grouped

WIDTH, HEIGHT = 600, 150
LEFT, TOP, BOTTOM = 60, 8, 22
FLOOR = HEIGHT - BOTTOM


class ChartMark(NamedTuple):
    """A line across a chart at the beginning of a bucket, and what began there."""

    at: int
    text: str


class BarPart(NamedTuple):
    """A part of a bar: its class, its height, its title, and where it leads."""

    kind: str
    amount: int
    title: str
    url: str


def bars(
    columns: Sequence[Sequence[BarPart]], *, title: str, times: Sequence[str], marks: Sequence[ChartMark]
) -> SafeString:
    """Draw one bar for each bucket, its parts on top of each other."""
    most = max((sum(part.amount for part in column) for column in columns), default=0) or 1
    step = (WIDTH - LEFT) / max(len(columns), 1)
    drawn: list[tuple[SafeString]] = []
    for at, column in enumerate(columns):
        top = float(FLOOR)
        for part in column:
            height = part.amount / most * (FLOOR - TOP)
            top -= height
            drawn.append((_bar(LEFT + at * step, top, max(step - 1, 1), height, part),))
    return _chart(format_html_join("", "{}", drawn), title, times, marks, len(columns), [(grouped(most), TOP)])


def _bar(x: float, y: float, width: float, height: float, part: BarPart) -> SafeString:
    rect = format_html(
        '<rect class="pgjobs-bar-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        part.kind, _at(x), _at(y), _at(width), _at(max(height, 0.5)), part.title,
    )  # fmt: skip
    return format_html('<a href="{}" aria-label="{}">{}</a>', part.url, part.title, rect) if part.url else rect


def lines(
    series: Sequence[tuple[str, Sequence[float | None]]],
    *,
    title: str,
    times: Sequence[str],
    marks: Sequence[ChartMark],
    labels: Sequence[tuple[str, float]],
    logarithmic: bool = False,
) -> SafeString:
    """Draw lines over the buckets, interrupted where a value is None; ``labels``: words at heights of the axis."""
    values = [value for _kind, line in series for value in line if value is not None]
    most = max([*values, *(value for _word, value in labels)], default=0.0) or 1.0
    least = min(values, default=most) if logarithmic else 0.0
    count = max((len(line) for _kind, line in series), default=1)
    step = (WIDTH - LEFT) / count

    def height(value: float) -> float:
        if not logarithmic:
            return FLOOR - value / most * (FLOOR - TOP)
        low, high = log10(max(least, 1e-4) / 2), log10(max(most, 1e-3))
        return FLOOR - (log10(max(value, 1e-4)) - low) / max(high - low, 0.1) * (FLOOR - TOP)

    drawn = []
    for kind, line in series:
        for whole, run in groupby(enumerate(line), key=lambda each: each[1] is not None):
            points = [(LEFT + (at + 0.5) * step, height(value or 0.0)) for at, value in run] if whole else []
            if len(points) == 1:
                x, y = points[0]
                drawn.append(
                    (format_html('<circle class="pgjobs-line-{}" cx="{}" cy="{}" r="1.5"/>', kind, _at(x), _at(y)),)
                )
            elif points:
                path = " ".join(f"{_at(x)},{_at(y)}" for x, y in points)
                drawn.append((format_html('<polyline class="pgjobs-line-{}" points="{}"/>', kind, path),))
    axis = [(word, height(value)) for word, value in labels if TOP - 1 <= height(value) <= FLOOR]
    return _chart(format_html_join("", "{}", drawn), title, times, marks, count, axis)


def _chart(
    drawn: SafeString, title: str, times: Sequence[str], marks: Sequence[ChartMark], count: int,
    axis: Sequence[tuple[str, float]],
) -> SafeString:  # fmt: skip
    step = (WIDTH - LEFT) / max(count, 1)
    words = format_html_join(
        "",
        '<text class="pgjobs-axis" x="{}" y="{}" text-anchor="end">{}</text>',
        ((LEFT - 4, _at(min(max(y + 4, TOP + 4), FLOOR)), word) for word, y in axis),
    )
    anchors = ("start", "middle", "end")
    positions = (LEFT, LEFT + (WIDTH - LEFT) / 2, WIDTH)
    below = format_html_join(
        "",
        '<text class="pgjobs-axis" x="{}" y="{}" text-anchor="{}">{}</text>',
        ((_at(x), HEIGHT - 4, anchor, time) for x, anchor, time in zip(positions, anchors, times, strict=True)),
    )
    lines = format_html_join(
        "",
        '<g class="pgjobs-mark"><title>{}</title><line x1="{}" x2="{}" y1="{}" y2="{}"/></g>',
        ((mark.text, _at(LEFT + mark.at * step), _at(LEFT + mark.at * step), TOP, FLOOR) for mark in marks),
    )
    floor = format_html('<line class="pgjobs-floor" x1="{}" x2="{}" y1="{}" y2="{}"/>', LEFT, WIDTH, FLOOR, FLOOR)
    return format_html(
        '<svg class="pgjobs-chart" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}{}{}{}</svg>',
        WIDTH, HEIGHT, title, floor, drawn, lines, words, below,
    )  # fmt: skip


def sparkline(values: Sequence[int], title: str) -> SafeString | str:
    """Draw a small line; nothing if it would be flat at zero."""
    if not any(values):
        return ""
    most = max(values)
    step = 100 / max(len(values) - 1, 1)
    points = " ".join(f"{_at(at * step)},{_at(22 - value / most * 20)}" for at, value in enumerate(values))
    return format_html(
        '<svg class="pgjobs-spark" viewBox="0 0 100 24" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<title>{}</title><polyline points="{}"/></svg>',
        title, f"{title}: {grouped(values[-1])} / {grouped(most)}", points,
    )  # fmt: skip


def _at(value: float) -> str:
    """A coordinate, locale or not."""
    return f"{value:.1f}"
