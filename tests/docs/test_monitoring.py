"""Alert rules and dashboard ask for what is exported; Prometheus' own tool sees each rule fire when it must."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from django_pgjobs.metrics.families import FLEET, TOTALS, WORKER
from tests.chaos.load import needs
from tests.docs.pages import DOCS, generated

generated()
monitoring: Any = import_module("monitoring")  # it lies beside what generated() has loaded

METRICS = {sample: metric for metric in (*WORKER, *FLEET, *TOTALS) for sample in metric.samples()}
BY_PROMETHEUS = {"le", "instance"}
OF_SEVERAL = {"database"}
"""The label that the fleet's metrics have where several databases are served."""

Series = Mapping[str, str]

SCENES: dict[str, tuple[list[Series], Series]] = {
    "PgjobsNoLeader": (
        [{"pgjobs_fleet_measured_age_seconds": "0+60x30"}],
        {"pgjobs_fleet_measured_age_seconds": "5x30"},
    ),
    "PgjobsOldestJobTooOld": (
        [{'pgjobs_fleet_oldest_ready_seconds{queue="mail"}': "0+60x30"}],
        {'pgjobs_fleet_oldest_ready_seconds{queue="mail"}': "250x30"},
    ),
    "PgjobsManyAbandoned": (
        [
            {
                'pgjobs_ends_total{name="pay",outcome="abandoned"}': "0+1x30",
                'pgjobs_ends_total{name="pay",outcome="succeeded"}': "0+9x30",
            },
            {'pgjobs_ends_total{name="pay",outcome="abandoned"}': "0+1x30"},
        ],
        {
            'pgjobs_ends_total{name="pay",outcome="abandoned"}': "0+1x30",
            'pgjobs_ends_total{name="pay",outcome="succeeded"}': "0+99x30",
        },
    ),
    "PgjobsExecutorsDie": (
        [{'pgjobs_executor_deaths_total{reason="signal"}': "0+1x30"}],
        {'pgjobs_executor_deaths_total{reason="killed"}': "0+1x30"},
    ),
    "PgjobsLeasesLost": (
        [{"pgjobs_leases_lost_total": "0+1x30"}, {'pgjobs_rescues_total{cause="lost"}': "0+1x30"}],
        {"pgjobs_leases_lost_total": "7x30", 'pgjobs_rescues_total{cause="lost"}': "7x30"},
    ),
    "PgjobsWorkerGone": (
        [{'pgjobs_fleet_workers{state="silent"}': "1x30"}],
        {'pgjobs_fleet_workers{state="silent"}': "0x30", 'pgjobs_fleet_workers{state="running"}': "2x30"},
    ),
    "PgjobsQueueWithoutWorker": (
        [
            {
                'pgjobs_fleet_jobs{queue="mail",state="ready"}': "3x30",
                'pgjobs_fleet_queue_workers{queue="mail"}': "0x30",
                'pgjobs_fleet_queue_workers{queue="default"}': "1x30",
            }
        ],
        {
            'pgjobs_fleet_jobs{queue="mail",state="scheduled"}': "3x30",
            'pgjobs_fleet_jobs{queue="default",state="ready"}': "3x30",
            'pgjobs_fleet_queue_workers{queue="mail"}': "0x30",
            'pgjobs_fleet_queue_workers{queue="default"}': "1x30",
        },
    ),
    "PgjobsNotificationQueueFull": (
        [{"pgjobs_fleet_notification_queue_ratio": "0.6x30"}],
        {"pgjobs_fleet_notification_queue_ratio": "0.4x30"},
    ),
    "PgjobsDeadRows": (
        [
            {
                'pgjobs_fleet_dead_rows{table="pgjobs_job"}': "200000x30",
                'pgjobs_fleet_live_rows{table="pgjobs_job"}': "300000x30",
            }
        ],
        {
            'pgjobs_fleet_dead_rows{table="pgjobs_job"}': "200000x30",
            'pgjobs_fleet_live_rows{table="pgjobs_job"}': "3000000x30",
            'pgjobs_fleet_dead_rows{table="pgjobs_claim"}': "900x30",
            'pgjobs_fleet_live_rows{table="pgjobs_claim"}': "3x30",
        },
    ),
    "PgjobsMetricsDown": ([{"pgjobs_fleet_up": "0x30"}], {"pgjobs_fleet_up": "1x30"}),
    "PgjobsMetricsGone": ([{'up{job="pgjobs"}': "0x30"}], {"pgjobs_fleet_up": "1x30"}),
}
"""Alert → series with which it fires, one set a time, and series with which nothing does; a value a minute."""


def promtool(*arguments: object) -> str:
    needs("promtool")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@pytest.mark.parametrize("name", monitoring.FILES)
def test_the_files_are_those_that_the_declarations_make(name: str) -> None:
    """Or run ``python docs/_ext/monitoring.py``."""
    assert (DOCS / "monitoring" / name).read_text(encoding="utf-8") == monitoring.FILES[name]()


@pytest.mark.parametrize("query", monitoring.queries())
def test_queries_ask_for_what_is_exported(query: str) -> None:
    found = re.findall(r"\b(pgjobs_\w+)(?:\{([^}]*)\})?", query)
    assert found
    labels: set[str] = set()
    for name, selected in found:
        assert name in METRICS
        assert set(re.findall(r"(\w+)[=!]", selected)) <= set(METRICS[name].labels) | BY_PROMETHEUS
        labels |= set(METRICS[name].labels)
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels | BY_PROMETHEUS | OF_SEVERAL


def test_every_metric_that_is_a_sign_of_trouble_is_asked_for() -> None:
    asked = "\n".join(monitoring.queries())
    unasked = {name for name in METRICS if not re.search(rf"\b{name}\b", asked)}
    assert not {name for name in unasked if re.search("lost|deaths|rescues|oldest|dead_rows|notification", name)}


def test_every_alert_has_its_scenes() -> None:
    assert list(SCENES) == [alert.name for alert in monitoring.ALERTS]


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    said = promtool("check", "rules", "--lint=all", DOCS / "monitoring" / "pgjobs-alerts.yml")
    assert f"{len(SCENES)} rules found" in said


def test_each_alert_fires_when_it_must_and_nothing_fires_when_all_is_well(tmp_path: Path) -> None:
    """By Prometheus' own evaluation, half an hour each."""
    tests: list[dict[str, Any]] = []
    for name, (firing, quiet) in SCENES.items():
        tests += [_scene(series, [name]) for series in firing]
        tests.append(_scene(quiet, []))
    file = tmp_path / "scenes.json"  # JSON is YAML
    rules = str(DOCS / "monitoring" / "pgjobs-alerts.yml")
    file.write_text(json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def _scene(series: Series, alerts: list[str]) -> dict[str, Any]:
    alive = {} if "pgjobs_fleet_up" in series or alerts == ["PgjobsMetricsGone"] else {"pgjobs_fleet_up": "1x30"}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in {**alive, **series}.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "29m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts],
            }
        ],
    }
