"""Traces and reports of real workers: from a web request to the end of a child job; flushed when executors leave."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from django.test import Client

from django_pgjobs.models import Job
from tests.db.otel_ground import Spans
from tests.e2e import jobs, tracing
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended

PATHS = [f"django_pgjobs.telemetry.{path}" for path in ("otel.tracing", "sentry.reporting")]
LAYERS = {"MIDDLEWARE": PATHS}
BROWSER, CLICK = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def arrived(stage: Stage, kind: str = "spans") -> list[dict[str, Any]]:
    path = stage.path / kind
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return sorted(found, key=lambda span: span.get("start", 0))


@pytest.fixture
def spans(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Spans:
    settings.PGJOBS = {**settings.PGJOBS, **LAYERS}
    settings.ROOT_URLCONF = "tests.e2e.tracing"
    return Spans(monkeypatch)


def test_a_trace_goes_from_a_web_request_through_a_retry_to_the_end_of_a_child_job(
    worker: Workers, stage: Stage, spans: Spans
) -> None:
    """In order, in one trace that the browser began, each span under the one that caused it."""
    process = worker(conf=LAYERS, env={"PGJOBS_TEST_TRACING": "file"})
    browser = f"00-{BROWSER:032x}-{CLICK:016x}-01"
    answer = Client().post("/order", headers={"traceparent": browser})
    (first,) = ended(Job.objects.get(pk=int(answer.content)))
    wait_until(lambda: stage.count("packed", "one"), 15, "its child job has run")
    ended(*Job.objects.exclude(pk=first.pk))
    assert arrived(stage) == [], "nothing is sent before the executor leaves"
    assert process.stop() == 0
    request, register, *rest = [tracing.facts_of(span) for span in spans.all()] + arrived(stage)
    fails, succeeds, registers, packs = rest
    own, child = f"{tracing.__name__}.ordered", f"{tracing.__name__}.packed"
    assert [span["name"] for span in (request, register, *rest)] == [
        "POST /order", f"register {own}", f"attempt {own}", f"attempt {own}", f"register {child}", f"attempt {child}",
    ]  # fmt: skip
    assert {span["trace"] for span in (request, register, *rest)} == {BROWSER}
    assert [span["parent"] for span in (request, register, *rest)] == [
        CLICK, request["id"], register["id"], register["id"], succeeds["id"], registers["id"],
    ]  # fmt: skip
    assert [span["links"] for span in rest] == [[register["id"]], [register["id"]], [], [registers["id"]]]
    assert [span["attributes"].get("pgjobs.outcome") for span in rest] == ["retried", "succeeded", None, "succeeded"]
    assert [span["start"] for span in rest] == sorted(span["start"] for span in rest)
    assert {fails["attributes"]["pgjobs.job"], succeeds["attributes"]["pgjobs.job"]} == {first.pk}
    assert packs["attributes"]["pgjobs.job"] == registers["attributes"]["pgjobs.job"] != first.pk
    (report,) = arrived(stage, "events")
    assert (report["level"], report["tags"]["pgjobs.job"]) == ("warning", str(first.pk))
    assert report["tags"]["pgjobs.worker"]
    assert fails["attributes"]["pgjobs.claim"] == report["tags"]["pgjobs.claim"]


def test_spans_and_reports_arrive_when_an_executor_is_recycled(worker: Workers, stage: Stage) -> None:
    process = worker("--executor-max-jobs=2", conf=LAYERS, env={"PGJOBS_TEST_TRACING": "file"})
    ended(tracing.ordered.register("one"))
    process.wait_for_log("executor has been recycled")
    assert f"attempt {tracing.__name__}.ordered" in {span["name"] for span in arrived(stage)}
    assert arrived(stage, "events")


def test_spans_and_reports_arrive_when_the_supervisor_is_killed(worker: Workers, stage: Stage) -> None:
    process = worker(conf=LAYERS, env={"PGJOBS_TEST_TRACING": "file"})
    ended(tracing.ordered.register("one"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "its executor has left")
    assert f"attempt {tracing.__name__}.ordered" in {span["name"] for span in arrived(stage)}
    assert arrived(stage, "events")


@pytest.mark.parametrize("how", ["hangs", "raises"])
def test_a_collector_that_is_away_holds_up_nobody_and_is_told_once(worker: Workers, stage: Stage, how: str) -> None:
    """What comes after it is flushed all the same, within the time that receivers have."""
    process = worker(conf=LAYERS, env={"PGJOBS_TEST_TRACING": how})
    assert ended(tracing.ordered.register("one"))[0].outcome == "succeeded"
    ended(*Job.objects.all())
    assert process.stop() == 0
    assert len(arrived(stage, "events")) == 1, "Sentry's turn came"
    assert "receivers of executor_stopping take too long" not in process.log
    if how == "hangs":
        assert process.log.count("OpenTelemetry could not be flushed") == 1


def test_duties_of_a_worker_have_spans(worker: Workers, stage: Stage) -> None:
    """W54: in the process that performs them, which is no executor."""
    duties = {"MIDDLEWARE": ["django_pgjobs.telemetry.otel.duties"]}
    process = worker(conf=duties, env={"PGJOBS_TEST_TRACING": "file"})
    process.wait_for_log("worker leads now")
    ended(jobs.effect.register("one"))
    assert process.stop() == 0
    names = {span["name"] for span in arrived(stage)}
    assert {"maintenance.lead", "maintenance.rescue", "maintenance.unpause"} <= names
    assert all(name.startswith("maintenance.") for name in names)


def test_a_duty_goes_on_beside_middleware_that_raises(worker: Workers, stage: Stage) -> None:
    process = worker(conf={"MIDDLEWARE": ["tests.e2e.layers.breaks_duties"]})
    assert ended(jobs.effect.register("one"))[0].outcome == "succeeded"
    process.wait_for_log("worker leads now")
    assert process.stop() == 0
    assert process.log.count("middleware failed around a duty") == 1
