"""Alert rules for Prometheus and a dashboard for Grafana, as files that readers download.

``python docs/_ext/monitoring.py`` writes them; a test compares them with what is made here, and every name in a query
with the metrics that the package exports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "monitoring"


@dataclass(frozen=True)
class Alert:
    """A rule: it fires when ``query`` has had a result for so many minutes."""

    name: str
    query: str
    minutes: int
    severity: str
    summary: str
    cure: str


ALERTS = (
    Alert(
        "PgjobsNoLeader",
        "min by (database) (pgjobs_fleet_measured_age_seconds) > 120",
        1,
        "critical",
        "No worker has measured the fleet for two minutes",
        "No worker runs, or none can lead: schedules do not fire. Run manage.py pgjobs check.",
    ),
    Alert(
        "PgjobsOldestJobTooOld",
        "max by (database, queue) (pgjobs_fleet_oldest_ready_seconds) > 300",
        5,
        "warning",
        "A ready job of queue {{ $labels.queue }} has waited for {{ $value | humanizeDuration }}",
        "Start more workers for the queue, or look for what holds its jobs: manage.py pgjobs why ID.",
    ),
    Alert(
        "PgjobsManyAbandoned",
        'sum by (name) (increase(pgjobs_ends_total{outcome="abandoned"}[15m])) > 0.05 *'
        ' sum by (name) (increase(pgjobs_ends_total{outcome=~"succeeded|abandoned"}[15m]))',
        5,
        "warning",
        "More than one in twenty jobs of {{ $labels.name }} is abandoned",
        "Read their errors: manage.py pgjobs list --state abandoned --name {{ $labels.name }}.",
    ),
    Alert(
        "PgjobsExecutorsDie",
        'sum by (reason) (increase(pgjobs_executor_deaths_total{reason!="killed"}[15m])) > 2',
        0,
        "warning",
        "Executors of workers die ({{ $labels.reason }})",
        "A job crashes its process, or memory is short: the worker's log names the jobs.",
    ),
    Alert(
        "PgjobsLeasesLost",
        "sum(increase(pgjobs_leases_lost_total[15m])) > 0"
        ' or sum(increase(pgjobs_rescues_total{cause="lost"}[15m])) > 0',
        0,
        "warning",
        "Workers have lost jobs that they held",
        "A worker died, stood still, or could not reach the database for longer than a lease.",
    ),
    Alert(
        "PgjobsWorkerGone",
        'max by (database) (pgjobs_fleet_workers{state="silent"}) > 0',
        2,
        "warning",
        "A worker is no longer heard from",
        "It was killed, or cannot reach the database: manage.py pgjobs workers.",
    ),
    Alert(
        "PgjobsQueueWithoutWorker",
        'max by (database, queue) (pgjobs_fleet_jobs{state="ready"}) > 0'
        " and on (database, queue) max by (database, queue) (pgjobs_fleet_queue_workers) == 0",
        5,
        "critical",
        "No worker serves queue {{ $labels.queue }}",
        "Start one with --queues, or correct the queue's name where its jobs are registered.",
    ),
    Alert(
        "PgjobsNotificationQueueFull",
        "max by (database) (pgjobs_fleet_notification_queue_ratio) > 0.5",
        5,
        "critical",
        "The server's queue of notifications is more than half full",
        "A session that listens is in an old transaction; when the queue is full, no NOTIFY commits.",
    ),
    Alert(
        "PgjobsDeadRows",
        "max by (database, table) (pgjobs_fleet_dead_rows) > 100000"
        " and on (database, table) max by (database, table) (pgjobs_fleet_dead_rows)"
        " > 0.5 * max by (database, table) (pgjobs_fleet_live_rows)",
        15,
        "warning",
        "VACUUM does not keep up with {{ $labels.table }}",
        "An old transaction or replication slot keeps dead rows, or no role may vacuum the table.",
    ),
    Alert(
        "PgjobsMetricsDown",
        "min by (database) (pgjobs_fleet_up) == 0",
        5,
        "warning",
        "A process cannot read the figures of the fleet",
        "Its log says why. Until then the other alerts may see nothing.",
    ),
    Alert(
        "PgjobsMetricsGone",
        "absent(pgjobs_fleet_up)",
        5,
        "critical",
        "Prometheus scrapes nothing of the fleet",
        "No worker runs and no web process answers, or their targets have changed. No other alert sees anything.",
    ),
)

PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Ends per second", "ops", {"{{outcome}}": "sum by (outcome) (rate(pgjobs_ends_total[$__rate_interval]))"}),
    (
        "Run time by name",
        "s",
        {
            "median {{name}}": "histogram_quantile(0.5,"
            " sum by (name, le) (rate(pgjobs_run_seconds_bucket[$__rate_interval])))",
            "95 % {{name}}": "histogram_quantile(0.95,"
            " sum by (name, le) (rate(pgjobs_run_seconds_bucket[$__rate_interval])))",
        },
    ),
    (
        "Wait by queue",
        "s",
        {
            "95 % {{queue}}": "histogram_quantile(0.95,"
            " sum by (queue, le) (rate(pgjobs_wait_seconds_bucket[$__rate_interval])))"
        },
    ),
    (
        "Unfinished jobs",
        "short",
        {"{{queue}} {{state}}": "sum by (queue, state) (max by (database, queue, state) (pgjobs_fleet_jobs))"},
    ),
    ("Oldest ready job", "s", {"{{queue}}": "max by (queue) (pgjobs_fleet_oldest_ready_seconds)"}),
    ("Slots", "short", {"all": "sum(pgjobs_slots)", "busy": "sum(pgjobs_slots_busy)"}),
    (
        "Workers",
        "short",
        {"{{state}}": "max by (state) (pgjobs_fleet_workers)", "executors": "sum(pgjobs_executors)"},
    ),
    (
        "Trouble per minute",
        "short",
        {
            "executors died: {{reason}}": "60 * sum by (reason) (rate(pgjobs_executor_deaths_total[$__rate_interval]))",
            "rescued: {{cause}}": "60 * sum by (cause) (rate(pgjobs_rescues_total[$__rate_interval]))",
            "leases lost": "60 * sum(rate(pgjobs_leases_lost_total[$__rate_interval]))",
        },
    ),
    (
        "Jobs that a worker holds",
        "short",
        {"{{instance}}": "pgjobs_jobs_held", "{{instance}} unwritten": "pgjobs_ends_unwritten"},
    ),
    ("Since the last renewal", "s", {"{{instance}}": "pgjobs_renewal_age_seconds"}),
    (
        "Leader",
        "s",
        {
            "since it measured {{database}}": "min by (database) (pgjobs_fleet_measured_age_seconds)",
            "without a leader {{database}}": "min by (database) (pgjobs_fleet_leaderless_seconds)",
        },
    ),
    ("Dead rows", "short", {"{{table}}": "max by (table) (pgjobs_fleet_dead_rows)"}),
    ("Notification queue", "percentunit", {"full": "max(pgjobs_fleet_notification_queue_ratio)"}),
)
"""(title, unit, legend → query) of each panel."""


def alerts() -> str:
    """The alert rules, as a file for Prometheus."""
    lines = ["# Alert rules for django-pgjobs. Set the bounds to what your jobs need.", "groups:", "  - name: pgjobs"]
    lines.append("    rules:")
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.query)}",
            f"        for: {alert.minutes}m",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.cure)}",
        ]
    return "\n".join(lines) + "\n"


def dashboard() -> str:
    """The dashboard, as a file that Grafana imports."""
    whole = {
        "title": "Background jobs",
        "uid": "django-pgjobs",
        "tags": ["django", "postgresql"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(whole, indent=2) + "\n"


def _panel(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(queries.items())
        ],
    }


def queries() -> list[str]:
    """Every query of both files."""
    return [*(alert.query for alert in ALERTS), *(query for *_, found in PANELS for query in found.values())]


FILES = {"pgjobs-alerts.yml": alerts, "pgjobs-dashboard.json": dashboard}


if __name__ == "__main__":
    for name, make in FILES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
