"""The fleet's metrics in a web process: one read a scrape, of the leader's row, and no harm to the host."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_pgjobs.maintenance.statistics import Measurer
from django_pgjobs.metrics import reader as reader_module
from django_pgjobs.metrics import views
from django_pgjobs.metrics.families import FLEET, TOTALS
from django_pgjobs.metrics.reader import FleetReader
from django_pgjobs.metrics.registry import FleetCollector
from django_pgjobs.models import LeaderTerm
from django_pgjobs.models.numbers import Total
from django_pgjobs.models.workers import Statistic
from django_pgjobs.store import leading
from django_pgjobs.store.counting import read_fleet
from tests.plugins.fix_db import AUTHOR, RawDatabase, register, wait_until

pytestmark = pytest.mark.usefixtures("committed")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def _totals(committed: None) -> Iterator[None]:
    yield
    Total.objects.all().delete()


@pytest.fixture
def measured(raw: RawDatabase) -> Callable[[], None]:
    """Have a leader measure, after it has ended three jobs and registered two."""
    sums = {"jobs": 3, "run_seconds": 1.5, "wait_seconds": 0.25}
    histograms = {"run_histogram": [1, 2], "wait_histogram": [3]}
    Total.objects.create(queue="mail", name="shop.send", outcome="succeeded", **sums, **histograms)
    register(2)
    leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR)(raw)
    return lambda: Measurer(AUTHOR)(raw)


def samples_of(page: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def scraped(collector: FleetCollector) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector)
    return samples_of(generate_latest(registry))


def without_time(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if "age" not in key[0] and "oldest" not in key[0]}


UP = ("pgjobs_fleet_up", ())


def test_the_fleets_metrics_are_those_the_leader_has_measured(measured: Callable[[], None]) -> None:
    found = scraped(FleetCollector())
    assert found[UP] == 1
    assert found["pgjobs_fleet_ends_total", (("name", "shop.send"), ("outcome", "succeeded"), ("queue", "mail"))] == 3
    run = (("name", "shop.send"), ("queue", "mail"))
    assert found["pgjobs_fleet_run_seconds_count", run] == 3
    assert found["pgjobs_fleet_run_seconds_bucket", (("le", "0.001"), *run)] == 1
    assert found["pgjobs_fleet_wait_seconds_sum", (("queue", "mail"),)] == 0.25
    assert found["pgjobs_fleet_jobs", (("queue", "default"), ("state", "ready"))] == 2
    assert 0 <= found["pgjobs_fleet_measured_age_seconds", ()] < 60
    assert found["pgjobs_fleet_leaderless_seconds", ()] == 0
    assert 0 <= found["pgjobs_fleet_notification_queue_ratio", ()] < 1
    tables = {dict(labels)["table"] for name, labels in found if name == "pgjobs_fleet_dead_rows"}
    assert tables == {"pgjobs_job", "pgjobs_claim"}
    names = {sample for metric in (*FLEET, *TOTALS) for sample in metric.samples()}
    assert {name for name, _ in found} == names


def test_dead_rows_are_those_of_the_server(raw: RawDatabase, measured: Callable[[], None]) -> None:
    ids = register(50)
    raw.query("DELETE FROM pgjobs_job WHERE id = ANY (%s)", [ids])
    raw.query("SELECT pg_stat_force_next_flush()")

    def dead() -> float:
        measured()
        return scraped(FleetCollector())["pgjobs_fleet_dead_rows", (("table", "pgjobs_job"),)]

    wait_until(lambda: dead() >= 50, 10, "the server has counted them")


def test_a_term_that_ran_out_counts_its_time(raw: RawDatabase, measured: Callable[[], None]) -> None:
    LeaderTerm.objects.update(expires_at=Now() - timedelta(seconds=90))
    assert 90 <= scraped(FleetCollector())["pgjobs_fleet_leaderless_seconds", ()] < 150


def test_a_fleet_that_never_ran_is_up_and_was_never_measured() -> None:
    found = scraped(FleetCollector())
    assert found == {UP: 1, ("pgjobs_fleet_measured_age_seconds", ()): float("inf"),
                     ("pgjobs_fleet_leaderless_seconds", ()): float("inf")}  # fmt: skip


class Counted:
    """Counts how often readers ask the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        read = read_fleet

        def counting(*given: Any, **named: Any) -> Any:
            self.reads += 1
            return read(*given, **named)

        monkeypatch.setattr(reader_module, "read_fleet", counting)


def test_a_scrape_reads_once_and_the_next_within_a_second_not_at_all(
    monkeypatch: pytest.MonkeyPatch, measured: Callable[[], None]
) -> None:
    """A71: nothing at registration, one message a scrape that query logs do not see, and the same answer after."""
    counted, registry = Counted(monkeypatch), CollectorRegistry(auto_describe=True)
    now = [100.0]
    monkeypatch.setattr("django_pgjobs.clock.monotonic", lambda: now[0])
    with CaptureQueriesContext(connection) as queries:
        registry.register(FleetCollector())
        assert counted.reads == 0
        first = generate_latest(registry)
        assert (counted.reads, len(queries)) == (1, 0)
        register()
        assert (counted.reads, generate_latest(registry)) == (1, first)
        asked = len(queries)
        now[0] += 2 * reader_module.KEPT_SECONDS
        generate_latest(registry)
        assert (counted.reads, len(queries)) == (2, asked)


def test_many_threads_that_scrape_at_once_read_once_and_leave_no_connection(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, measured: Callable[[], None]
) -> None:
    counted, reader = Counted(monkeypatch), FleetReader()
    monkeypatch.setattr(reader_module, "KEPT_SECONDS", 60.0)
    left: list[object] = []

    def scrape() -> None:
        assert len(reader.families()) > 10
        left.append(connections["default"].connection)

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (counted.reads, left) == (1, [None] * 8)


@pytest.mark.parametrize("trouble", ["table", "figures", "locked"])
def test_trouble_is_said_once_and_never_breaks_the_hosts_page_or_transaction(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: RawDatabase,
    measured: Callable[[], None], trouble: str,
) -> None:  # fmt: skip
    """A table that is not there or that a migration keeps locked, figures of another release: ``up`` is 0."""
    caplog.set_level(logging.INFO, "django_pgjobs")
    monkeypatch.setattr(reader_module, "KEPT_SECONDS", -1.0)
    monkeypatch.setattr(reader_module, "WAIT_SECONDS", 0.2)
    collector = FleetCollector()
    match trouble:
        case "table":
            other.query("ALTER TABLE pgjobs_statistic RENAME TO pgjobs_statistic_gone")
            other.commit()
        case "figures":
            Statistic.objects.update(figures={"queues": [{"queue": 3}], "workers": "none"})
        case "locked":
            other.query("LOCK TABLE pgjobs_statistic IN ACCESS EXCLUSIVE MODE")
    try:
        for _ in range(2):
            assert scraped(collector) == {UP: 0}
        with transaction.atomic():
            assert scraped(collector) == {UP: 0}
            timeout = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
            with connection.cursor() as cursor:
                cursor.execute(timeout)
                assert cursor.fetchone() == ("0", "0")
    finally:
        other.rollback()
        other.query("ALTER TABLE IF EXISTS pgjobs_statistic_gone RENAME TO pgjobs_statistic")
        other.commit()
    if trouble == "figures":
        measured()
    assert scraped(collector)[UP] == 1
    lines = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert lines == [
        ("ERROR", "metrics of the fleet cannot be read"),
        ("INFO", "metrics of the fleet can be read again"),
    ]


def test_a_host_page_in_a_transaction_keeps_its_settings(measured: Callable[[], None]) -> None:
    """ATOMIC_REQUESTS: what the read sets for itself ends with its savepoint."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '77s'")
        assert scraped(FleetCollector())[UP] == 1
        cursor.execute("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
        assert cursor.fetchone() == ("77s", "0")


def test_the_router_or_the_caller_names_the_database(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    asked: list[str] = []

    def read(db: Any, **given: Any) -> Any:
        asked.append(db.using)
        raise RuntimeError("no matter")

    monkeypatch.setattr(reader_module, "read_fleet", read)
    FleetReader().families()
    FleetReader("other").families()
    assert asked == ["default", "other"]


def test_our_own_page_shows_the_same_to_whoever_may_read(
    monkeypatch: pytest.MonkeyPatch, measured: Callable[[], None]
) -> None:
    """Also under ``PROMETHEUS_MULTIPROC_DIR``, where the page of django-prometheus shows what is in files alone."""
    monkeypatch.setattr(views, "_reader", FleetReader())
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    answer: HttpResponse = views.fleet(RequestFactory().get("/"))
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "no-store" in answer["Cache-Control"]
    assert without_time(samples_of(answer.content)) == without_time(scraped(FleetCollector()))
    assert views.fleet(RequestFactory().post("/")).status_code == 405


PROCESS = """
import json, os, sys
import django
from django.conf import settings

given = json.loads(sys.argv[1])
if given["hidden"]:
    sys.modules["prometheus_client"] = None
if given["first"]:
    import prometheus_client
settings.configure(
    INSTALLED_APPS=given["apps"], DATABASES={"default": given["database"]}, USE_TZ=True, PGJOBS=given["conf"],
    ALLOWED_HOSTS=["*"], ROOT_URLCONF="django_prometheus.urls", SECRET_KEY="x",
)
django.setup()
django.apps.apps.get_app_config("pgjobs").ready()
loaded = "prometheus_client" in sys.modules and not given["hidden"]
opened = django.db.connection.connection is not None
page = ""
if given["page"]:
    from django.test import Client
    page = Client().get("/metrics").content.decode()
elif loaded:
    import prometheus_client
    page = prometheus_client.generate_latest().decode()
print(json.dumps([loaded, opened, page, os.listdir(given["files"])]))
"""


def process(
    files: Path, *apps: str, conf: dict[str, Any] | None = None, ok: bool = True, multi: bool = False, **given: bool
) -> Any:
    """What a process of a project has loaded when its apps are ready, and what its page of metrics shows."""
    database = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    words = {"hidden": False, "first": False, "page": False, **given}
    facts = {"apps": [*apps, "django_pgjobs"], "database": database, "conf": conf or {}, "files": str(files), **words}
    env = {"PYTHONPATH": ":".join(sys.path), **({"PROMETHEUS_MULTIPROC_DIR": str(files)} if multi else {})}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, json.dumps(facts)], capture_output=True, text=True, check=False, env=env
    )
    assert (done.returncode == 0) == ok, done.stderr
    return json.loads(done.stdout) if ok else done.stderr


def test_a_project_that_uses_no_metrics_loads_nothing_for_them(tmp_path: Path) -> None:
    """Although prometheus_client is installed here; nor does one that says so, whatever it has loaded."""
    assert process(tmp_path)[0] is False
    loaded, _, page, _ = process(tmp_path, first=True, conf={"METRICS": False})
    assert loaded
    assert "pgjobs_fleet" not in page


@pytest.mark.parametrize("how", [{"first": True}, {"conf": {"METRICS": True}}], ids=["loaded", "asked for"])
def test_a_project_that_does_has_the_fleet_in_its_registry_once(
    tmp_path: Path, measured: Callable[[], None], how: Any
) -> None:
    """Its apps are made ready twice here; nothing is read until the first scrape."""
    loaded, opened, page, files = process(tmp_path, multi=True, **how)
    assert (loaded, opened, files) == (True, False, [])
    assert page.count("# TYPE pgjobs_fleet_up gauge\n") == 1
    assert 'pgjobs_fleet_ends_total{name="shop.send",outcome="succeeded",queue="mail"} 3.0' in page


def test_metrics_without_the_package_are_an_error_that_names_it(tmp_path: Path) -> None:
    said = process(tmp_path, hidden=True, conf={"METRICS": True}, ok=False)
    assert "pip install 'django-pgjobs[prometheus]'" in said
    assert process(tmp_path, hidden=True)[0] is False


@pytest.mark.skipif(not find_spec("django_prometheus"), reason="django-prometheus does not allow this Django")
def test_the_page_of_django_prometheus_shows_the_fleet(tmp_path: Path, measured: Callable[[], None]) -> None:
    """Without another line than the app's. With files for several processes it shows the files alone."""
    _, _, page, _ = process(tmp_path, "django_prometheus", page=True)
    assert "pgjobs_fleet_up 1.0" in page
    assert "django_migrations" in page or "python_info" in page
    _, _, page, _ = process(tmp_path, "django_prometheus", page=True, multi=True)
    assert "pgjobs_fleet" not in page


def test_the_row_for_metrics_reads_totals_only_for_those_who_ask(
    raw: RawDatabase, measured: Callable[[], None]
) -> None:
    assert read_fleet(raw, totals=True).figures["totals"]
    without = read_fleet(raw, totals=False).figures
    assert "totals" not in without
    assert without["queues"]
