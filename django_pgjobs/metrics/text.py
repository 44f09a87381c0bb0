"""The text format of Prometheus, version 0.0.4. Pure.

A worker writes it in the process that renews leases, so it must be quick: ``prometheus_client`` takes 5 µs a line.
Any value of a label stays one label: control characters and marks that turn text around become their
numbers, and long values are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from django_pgjobs.metrics.families import Family, Metric, Point, cumulated
from django_pgjobs.serialization.escapes import plain
from django_pgjobs.values.histogram import BOUNDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_CHARS = 200
"""Number of characters of a label's value that are kept."""

LIMITS = (*map(repr, BOUNDS), "+Inf")
"""The values of the label ``le``."""


def render(families: Iterable[Family]) -> bytes:
    """Return the page of these metrics. A metric without values is left out."""
    lines = [line for family in families if family.points for line in _lines(family)]
    return ("\n".join(lines) + "\n").encode()


def harmless(value: str) -> str:
    """Return a text that a label may have: printable and short."""
    return plain(value[:MOST_CHARS])[:MOST_CHARS]


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if value == float("inf"):
        return "+Inf"
    return repr(value) if isinstance(value, int) else repr(float(value))


def _lines(family: Family) -> Iterator[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for point in family.points:
        if metric.kind == "histogram":
            yield from _histogram(metric, point)
        else:
            yield f"{metric.name}{_labels(metric, point.labels)} {number(point.value)}"


def _histogram(metric: Metric, point: Point) -> Iterator[str]:
    prefixes, in_all = _prefixes(metric, point.labels), 0
    for prefix, in_all in zip(prefixes, cumulated(point.counts), strict=True):
        yield f"{prefix}{in_all}"
    labels = _labels(metric, point.labels)
    yield f"{metric.name}_count{labels} {in_all}"
    yield f"{metric.name}_sum{labels} {number(float(point.value))}"


@lru_cache(maxsize=4096)
def _prefixes(metric: Metric, values: tuple[str, ...]) -> list[str]:
    pairs = _pairs(metric, values)
    return [f'{metric.name}_bucket{{{pairs},le="{limit}"}} ' for limit in LIMITS]


@lru_cache(maxsize=8192)
def _labels(metric: Metric, values: tuple[str, ...]) -> str:
    return f"{{{_pairs(metric, values)}}}" if metric.labels else ""


def _pairs(metric: Metric, values: tuple[str, ...]) -> str:
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(metric.labels, values, strict=True))


def _escaped(value: str) -> str:
    return harmless(value).replace("\\", r"\\").replace('"', r"\"")
