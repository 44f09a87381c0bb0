"""Pictures as SVG: texts, boxes and lines at the places that a caller gives them. Pure.

A picture keeps what is on it, so it can say what is misplaced: what hangs over its edge, which texts overlap, which
line runs through a box or a text. Widths of texts are those of DejaVu Sans, the widest of the fonts that readers have.
Colours are classes, so one drawing fits a page of either scheme: ``inline`` takes them from the documentation's style
sheet, ``standalone`` brings its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import combinations, pairwise

Point = tuple[float, float]
Extent = tuple[float, float, float, float]
"""Left, top, right, bottom."""

STYLE = """
svg { color: #1f2328; --pj-page: #ffffff; --pj-fill: #f6f8fa; --pj-lane: #eff2f5; --pj-accent: #0a5fb4; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6edf3; --pj-page: #0d1117; --pj-fill: #1c2128; --pj-lane: #151b23; --pj-accent: #6cb6ff; }
}
.pj-page { fill: var(--pj-page); }
"""
"""The colours of a picture that stands alone; their names are those of ``_static/pgjobs.css``, which has the rest."""

SIZE, SMALL = 13.0, 12.0
CORNER = 6.0
TIP = 7.0
EMS = {"ijlI|.,:;'!·": 0.33, "tfr()[]/ ": 0.43, "ckszvxy": 0.6, "mwMW@%—→…": 1.0}
"""Letters → how many ems they take; capitals, digits and others are below."""


def width_of(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """Return how wide a text is at most."""
    if mono:
        return len(text) * 0.61 * size
    ems = (next((em for letters, em in EMS.items() if sign in letters), _other(sign)) for sign in text)
    return sum(ems) * size * (1.13 if bold else 1.0)


def _other(sign: str) -> float:
    return 0.78 if sign.isupper() else 0.64


@dataclass(frozen=True)
class Text:
    """A line of text; ``y`` is its base line, ``anchor`` says which of its points ``x`` is."""

    x: float
    y: float
    text: str
    size: float = SIZE
    anchor: str = "middle"
    bold: bool = False
    mono: bool = False

    @property
    def extent(self) -> Extent:
        width = width_of(self.text, self.size, bold=self.bold, mono=self.mono)
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return left, self.y - 0.8 * self.size, left + width, self.y + 0.25 * self.size

    def svg(self) -> str:
        kinds = "".join(f" pj-{kind}" for kind in ("bold", "mono") if getattr(self, kind))
        return (
            f'<text class="pj-text{kinds}" x="{self.x:g}" y="{self.y:g}" font-size="{self.size:g}"'
            f' text-anchor="{self.anchor}">{escape(self.text)}</text>'
        )


@dataclass(frozen=True)
class Box:
    """A rectangle. A *lane* is ground, which anything may cross; lines may cross a *frame*; nothing crosses others."""

    x: float
    y: float
    width: float
    height: float
    kind: str = "box"

    @property
    def extent(self) -> Extent:
        return self.x, self.y, self.x + self.width, self.y + self.height

    @property
    def solid(self) -> bool:
        return self.kind not in ("lane", "frame")

    def svg(self) -> str:
        return (
            f'<rect class="pj-{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{self.width:g}"'
            f' height="{self.height:g}" rx="{CORNER:g}"/>'
        )


@dataclass(frozen=True)
class Line:
    """A line through points, with a tip at its end; ``both`` gives it one at its beginning too.

    A *grid* lies behind boxes. ``stands_for`` names what it shows: pairs of what it leads from and to.
    """

    points: tuple[Point, ...]
    kind: str = "line"
    tip: bool = True
    both: bool = False
    stands_for: tuple[tuple[str, str], ...] = ()

    @property
    def extent(self) -> Extent:
        xs, ys = zip(*self.points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def svg(self) -> str:
        tips = [self.points[-2:]] * self.tip + [self.points[1::-1]] * self.both
        said = escape(" ".join(f"{start}>{end}" for start, end in self.stands_for), quote=True)
        shown = f' data-of="{said}"' if said else ""
        return f'<path class="pj-{self.kind}" d="{_rounded(self.points)}"{shown}/>' + "".join(map(_tip, tips))


def _towards(start: Point, end: Point, far: float) -> Point:
    """The point so far from ``start`` on the way to ``end``, half the way at most."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    share = min(far / length, 0.5)
    return start[0] + dx * share, start[1] + dy * share


def _rounded(points: Sequence[Point]) -> str:
    parts = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (ax, ay), (bx, by) = _towards(corner, before, CORNER), _towards(corner, after, CORNER)
        parts.append(f"L{ax:g} {ay:g}Q{corner[0]:g} {corner[1]:g} {bx:g} {by:g}")
    return "".join([*parts, f"L{points[-1][0]:g} {points[-1][1]:g}"])


def _tip(ends: Sequence[Point]) -> str:
    (ax, ay), (bx, by) = ends
    length = ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5 or 1.0
    dx, dy = (bx - ax) / length * TIP, (by - ay) / length * TIP
    left, right = (bx - dx - dy / 2, by - dy + dx / 2), (bx - dx + dy / 2, by - dy - dx / 2)
    return f'<path class="pj-tip" d="M{bx:g} {by:g}L{left[0]:g} {left[1]:g}L{right[0]:g} {right[1]:g}z"/>'


@dataclass
class Picture:
    """What is drawn, from the back to the front, on a plane of ``width`` and ``height``; ``title`` is read aloud."""

    width: float
    height: float
    title: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, *rows: str, kind: str = "box") -> None:
        """Add a box and its rows of text, centred in it; the first row is bold if there are others."""
        self.boxes.append(Box(x, y, width, height, kind))
        first = y + height / 2 + 4.5 - (len(rows) - 1) * 8
        for number, row in enumerate(rows):
            bold, size = len(rows) > 1 and number == 0, SIZE if number == 0 else SMALL
            self.texts.append(Text(x + width / 2, first + number * 16, row, size, bold=bold))

    def text(self, x: float, y: float, *rows: str, anchor: str = "middle", size: float = SMALL, **looks: bool) -> None:
        """Add rows of text, one below the other."""
        for number, row in enumerate(rows):
            self.texts.append(Text(x, y + number * (size + 3), row, size, anchor, **looks))

    def line(
        self,
        *points: Point,
        kind: str = "line",
        tip: bool = True,
        both: bool = False,
        of: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Add a line."""
        self.lines.append(Line(points, kind, tip, both, tuple(of)))

    def _drawn(self) -> str:
        ground = [
            *(box for box in self.boxes if box.kind == "lane"),
            *(line for line in self.lines if line.kind == "grid"),
        ]
        rest = [each for each in (*self.boxes, *self.lines) if each not in ground]
        return "".join(each.svg() for each in (*ground, *rest, *self.texts))

    def _opening(self) -> str:
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" role="img"'

    def inline(self) -> str:
        """Return it for a page that has the documentation's style sheet."""
        said = escape(self.title, quote=True)
        return f'<div class="pgjobs-diagram">{self._opening()} aria-label="{said}">{self._drawn()}</svg></div>'

    def standalone(self, style: str) -> str:
        """Return it as a file of its own, with a ground, in the reader's colour scheme; ``style`` is of its classes."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return (
            f"{self._opening()} {size}><title>{escape(self.title)}</title><style>{STYLE}{style}</style>"
            f'<rect class="pj-page" {size} rx="{CORNER:g}"/>{self._drawn()}</svg>\n'
        )

    def misplaced(self) -> Iterator[str]:
        """Yield what is wrong with the places of what is drawn."""
        whole = (0.0, 0.0, self.width, self.height)
        for each in (*self.texts, *self.boxes, *self.lines):
            if not _inside(each.extent, whole):
                yield f"over the edge: {each}"
        for one, other in combinations(self.texts, 2):
            if _meet(one.extent, other.extent):
                yield f"two texts overlap: {one.text!r} and {other.text!r}"
        for text in self.texts:
            for box in (box for box in self.boxes if box.kind != "lane"):
                if _meet(text.extent, box.extent) and not _inside(text.extent, box.extent):
                    yield f"a text runs over the side of a box: {text.text!r}, {box}"
        solid = [box for box in self.boxes if box.solid]
        for one_box, other_box in combinations(solid, 2):
            extents = one_box.extent, other_box.extent
            if _meet(*extents) and not (_inside(*extents) or _inside(*reversed(extents))):
                yield f"two boxes overlap: {one_box} and {other_box}"
        for line in self.lines:
            behind = line.kind == "grid"
            boxes = [] if behind else solid
            texts = [t for t in self.texts if not (behind and any(_inside(t.extent, box.extent) for box in solid))]
            for part in pairwise(line.points):
                yield from (f"a line runs through a box: {line}, {box}" for box in boxes if _cuts(part, box.extent))
                yield from (f"a line runs through a text: {line}, {t.text!r}" for t in texts if _cuts(part, t.extent))


def _inside(small: Extent, large: Extent) -> bool:
    return small[0] >= large[0] and small[1] >= large[1] and small[2] <= large[2] and small[3] <= large[3]


def _meet(one: Extent, other: Extent) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _cuts(part: tuple[Point, Point], extent: Extent) -> bool:
    """Whether a straight part runs through the inside of an extent; to end on its side is to touch it."""
    (ax, ay), (bx, by) = part
    left, top, right, bottom = extent[0] + 0.5, extent[1] + 0.5, extent[2] - 0.5, extent[3] - 0.5
    first, last = 0.0, 1.0
    for start, step, low, high in ((ax, bx - ax, left, right), (ay, by - ay, top, bottom)):
        if step == 0:
            if not low < start < high:
                return False
            continue
        enter, leave = sorted(((low - start) / step, (high - start) / step))
        first, last = max(first, enter), min(last, leave)
    return first < last
