"""Bars and curves as SVG, in the colour of the text around them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.figures import shown

WIDTH = 760
LEFT = 250
BAR_HEIGHT = 20
BAR_GAP = 8
TOP = 34
CURVE_HEIGHT = 220
MARGIN = 70
DASHES = ("", "7 4", "2 4", "10 3 2 3")

Bar = tuple[str, float]
Points = Sequence[Sequence[float]]


def bars(title: str, rows: Sequence[Bar], unit: str) -> str:
    """Return labelled horizontal bars; the first is ours, drawn opaque."""
    most = max(number for _, number in rows)
    reach = WIDTH - LEFT - 120
    drawn = []
    for index, (label, number) in enumerate(rows):
        y = TOP + index * (BAR_HEIGHT + BAR_GAP)
        length = max(1.0, number / most * reach) if most > 0 else 1.0
        drawn.append(
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}" fill="currentColor" stroke="none"'
            f' opacity="{0.85 if index == 0 else 0.4}"/>'
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 15}">{shown(number, unit)}</text>'
        )
    height = TOP + len(rows) * (BAR_HEIGHT + BAR_GAP)
    return _svg(title, height, "".join(drawn), "; ".join(f"{label}: {shown(number, unit)}" for label, number in rows))


def curves(title: str, series: Mapping[str, Points], x_text: str, unit: str) -> str:
    """Return lines over one pair of axes; the vertical one begins at zero."""
    xs = [point[0] for points in series.values() for point in points]
    most = max((point[1] for points in series.values() for point in points), default=0.0) * 1.05 or 1.0
    first, last = min(xs, default=0.0), max(xs, default=1.0)
    width, bottom = WIDTH - MARGIN - 20, TOP + CURVE_HEIGHT

    def place(point: Sequence[float]) -> str:
        x = MARGIN + (point[0] - first) / ((last - first) or 1.0) * width
        return f"{x:.1f},{bottom - point[1] / most * CURVE_HEIGHT:.1f}"

    drawn = [
        f'<path d="M{MARGIN} {TOP}V{bottom}H{MARGIN + width}" fill="none" stroke="currentColor" opacity=".5"/>',
        f'<text x="{MARGIN - 8}" y="{TOP + 10}" text-anchor="end">{shown(most / 1.05, "")}</text>',
        f'<text x="{MARGIN - 8}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{MARGIN}" y="{bottom + 18}">{first:g}</text>',
        f'<text x="{MARGIN + width}" y="{bottom + 18}" text-anchor="end">{last:g}</text>',
        f'<text x="{MARGIN + width / 2}" y="{bottom + 18}" text-anchor="middle">{escape(x_text)}</text>',
    ]
    for index, (label, points) in enumerate(series.items()):
        dash = DASHES[index % len(DASHES)]
        style = f'fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="{dash}"'
        y = bottom + 42 + index * 20
        drawn.append(
            f'<polyline points="{" ".join(map(place, points))}" {style}/>'
            f'<path d="M{MARGIN} {y - 5}h40" {style}/><text x="{MARGIN + 50}" y="{y}">{escape(label)}</text>'
        )
    height = bottom + 42 + len(series) * 20
    said = "; ".join(
        f"{label}: from {shown(points[0][1], unit)} to {shown(points[-1][1], unit)}"
        for label, points in series.items()
        if points
    )
    return _svg(f"{title} ({unit})", height, "".join(drawn), said)


def _svg(title: str, height: float, drawn: str, said: str) -> str:
    return (
        f'<div class="pgjobs-diagram"><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-size="14"'
        f' aria-label="{escape(title, quote=True)}. {escape(said, quote=True)}">'
        f'<text x="0" y="18" font-weight="bold">{escape(title)}</text>{drawn}</svg></div>'
    )
