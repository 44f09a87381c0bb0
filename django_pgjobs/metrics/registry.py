"""The fleet's metrics in a registry of ``prometheus_client``, beside those of the project; the one module to import it.

A registry calls the collector at each scrape. Nothing is read when it is registered, and no value is kept in files: a
process that runs jobs leaves none behind, even where ``PROMETHEUS_MULTIPROC_DIR`` is set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as ClientMetric
from prometheus_client.registry import Collector

from django_pgjobs.logs import log
from django_pgjobs.metrics.families import FLEET, LIMITS, TOTALS, Family, Metric, Point, cumulated, harmless
from django_pgjobs.metrics.reader import FleetReader

_lock = threading.Lock()
_registered: list[FleetCollector] = []


class FleetCollector(Collector):
    """The metrics of the fleet; ``using``: the database of the jobs, None to ask the router."""

    def __init__(self, using: str | None = None) -> None:
        self.reader = FleetReader(using)

    def describe(self) -> Iterable[ClientMetric]:
        """Return the names of all metrics: without this the registry would collect them when this is registered."""
        return [_empty(metric) for metric in (*FLEET, *TOTALS)]

    def collect(self) -> Iterator[ClientMetric]:
        """Return the metrics. Raises nothing, and waits two seconds at most for a database that answers late."""
        return (client_metric(family) for family in self.reader.families() if family.points)


def register(registry: CollectorRegistry = REGISTRY) -> None:
    """Add the fleet's metrics to the process's registry, once. Repeatable."""
    with _lock:
        if _registered:
            return
        collector = FleetCollector()
        try:
            registry.register(collector)
        except ValueError as error:
            log.error("metrics of the fleet cannot be registered: %s", error)
            return
        _registered.append(collector)


def client_metric(family: Family) -> ClientMetric:
    """Return a metric of ours as one of ``prometheus_client``."""
    made = _empty(family.metric)
    for point in family.points:
        labels = [harmless(value) for value in point.labels]
        if isinstance(made, HistogramMetricFamily):
            made.add_metric(labels, _buckets(point), point.value)
        else:
            made.add_metric(labels, point.value)
    return made


def _empty(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.text, labels=metric.labels)
    kind = HistogramMetricFamily if metric.kind == "histogram" else GaugeMetricFamily
    return kind(metric.name, metric.text, labels=metric.labels)


def _buckets(point: Point) -> list[tuple[str, float]]:
    return list(zip(LIMITS, map(float, cumulated(point.counts)), strict=True))
