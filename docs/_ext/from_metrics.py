"""Metrics and alerts, as the package declares them and as ``monitoring`` has them."""

from __future__ import annotations

from collections.abc import Sequence

import monitoring
from markdown_of import code, table

from django_pgjobs.metrics import families
from django_pgjobs.metrics.families import Metric


def _table(metrics: Sequence[Metric]) -> str:
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for metric in metrics
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


def worker_metrics() -> str:
    """What a worker exports of itself."""
    return _table(families.WORKER)


def fleet_metrics() -> str:
    """What workers and web processes export of the fleet."""
    return _table(families.FLEET)


def total_metrics() -> str:
    """What web processes alone export of the fleet."""
    return _table(families.TOTALS)


def alerts_table() -> str:
    """The alerts: when each fires, and what to do then."""
    rows = [
        (f"`{alert.name}`", code(alert.query), alert.cure.replace("{{ $labels.name }}", "NAME"))
        for alert in monitoring.ALERTS
    ]
    return table(("alert", "fires on", "what to do"), rows)
