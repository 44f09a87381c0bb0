"""The real server of Prometheus, with the rules of the documentation, beside real workers and a web process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Count

from django_pgjobs.models import Job
from tests.chaos.load import needs
from tests.docs.pages import DOCS
from tests.e2e import jobs
from tests.e2e.test_metrics import answers
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT, Workers, database_url, ended, started
from tests.plugins.ports import free_port

pytestmark = pytest.mark.chaos


class Prometheus:
    """A server that scrapes these ports each second, and evaluates the rules as often, without their delays."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.port, folder = free_port(), folder / "prometheus"
        folder.mkdir()
        rules = (DOCS / "monitoring" / "pgjobs-alerts.yml").read_text()
        (folder / "rules.yml").write_text(re.sub(r"for: \d+m", "for: 1s", rules))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "pgjobs", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=folder, check=True, capture_output=True)
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                 f"--web.listen-address=127.0.0.1:{self.port}"],
                cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=patience(10)) as answer:
            return json.load(answer)["data"]

    def healthy(self) -> int:
        """How many targets were scraped without an error."""
        try:
            return [target["health"] for target in self.get("targets")["activeTargets"]].count("up")
        except OSError:
            return 0

    def value(self, query: str) -> float | None:
        found = self.get(f"query?query={urllib.parse.quote(query)}")["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[int]:
    """The port of a web process with django-prometheus."""
    pytest.importorskip("django_prometheus")
    port = free_port()
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.chaos.web"}
    with (tmp_path / "web.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "runserver", "--noreload", f"127.0.0.1:{port}"],
            cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: answers(port), 30, "the web process answers")
        yield port
    finally:
        process.kill()
        process.wait()


def test_prometheus_counts_each_end_once_and_its_alerts_fire(worker: Workers, web: int, tmp_path: Path) -> None:
    """A70 A71 W54: two workers and a web process; executors are killed; a queue that nobody serves."""
    needs("prometheus", "promtool")
    ports = [free_port(), free_port()]
    for port in ports:
        worker(f"--metrics-port={port}", "--queues=default", processes=2, threads=2, conf={"POLL_SECONDS": 0.2})
    wait_until(lambda: all(map(answers, ports)), 30, "both workers answer")
    prometheus = Prometheus(tmp_path, [*ports, web])
    try:
        wait_until(lambda: prometheus.healthy() == 3, 30, "three targets are up")
        all_jobs = [*(jobs.no_op.register() for _ in range(200)), jobs.doomed.register()]
        victim = jobs.waits.register("victim")
        started(worker.stage, "victim")
        os.kill(worker.stage.traces("start", "victim")[0].pid, signal.SIGKILL)
        worker.stage.open("victim")
        ended(*all_jobs, victim, timeout=60)
        expected = {
            found["outcome"]: found["jobs"]
            for found in Job.objects.exclude(outcome=None).values("outcome").annotate(jobs=Count("pk"))
        }
        for outcome, number in expected.items():
            for query in (
                f'sum(pgjobs_ends_total{{outcome="{outcome}"}})',
                f'sum(max by (queue, name) (pgjobs_fleet_ends_total{{outcome="{outcome}"}}))',
            ):
                wait_until(partial(_is, prometheus, query, number), 60, f"{query} is {number}")
        assert prometheus.value("min(pgjobs_fleet_up)") == 1
        assert "PgjobsQueueWithoutWorker" not in prometheus.firing()
        jobs.no_op.using(queue="nobody").register()
        wait_until(lambda: "PgjobsQueueWithoutWorker" in prometheus.firing(), 60, "the alert fires")
        assert not prometheus.firing() & {"PgjobsMetricsGone", "PgjobsMetricsDown", "PgjobsNoLeader"}
    finally:
        prometheus.process.kill()
        prometheus.process.wait()


def _is(prometheus: Prometheus, query: str, number: int) -> bool:
    return prometheus.value(query) == number


def test_promtool_likes_both_pages(worker: Workers, web: int) -> None:
    """Names, units and help texts, by Prometheus' own rules."""
    needs("promtool")
    port = free_port()
    worker(f"--metrics-port={port}")
    wait_until(lambda: answers(port), 30, "it answers")
    ended(jobs.no_op.register())
    for each in (port, web):
        with urllib.request.urlopen(f"http://127.0.0.1:{each}/metrics", timeout=patience(10)) as answer:
            page = answer.read()
        done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        ours = [line for line in (done.stdout + done.stderr).decode().splitlines() if "pgjobs_" in line]
        assert ours == []
