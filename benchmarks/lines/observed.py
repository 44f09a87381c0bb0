"""What it costs to be watched: drains with metrics, notices and traces, and scrapes beside millions of rows."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result, at_least, at_most, middle, percentile
from benchmarks.plan import Plan
from django_pgjobs.metrics.families import render
from django_pgjobs.metrics.reader import FleetReader

TITLE = "Watched by other tools"
JOBS = 200_000
ROWS = 10_000_000
QUEUES = 50
SCRAPES = 300
WAYS = {"alone": "", "metrics": "", "sampled": "0.01", "traced": "1"}
"""With nothing; scraped each second and with notices; and with spans, then of this share of the jobs."""

MEASURED = re.compile(r"^pgjobs_fleet_measured_age_seconds ([\d.]+)$", re.MULTILINE)


def measure(plan: Plan) -> Result:
    """Drain in turns; then scrape a worker and a web process with few rows and with ten million."""
    count, rows = plan.count(JOBS, least=2000), plan.count(ROWS, least=20_000)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(plan.rounds(6)):
        for way in reversed(WAYS) if number % 2 else WAYS:
            rates[way].append(_drain(way, count))
    shares = {way: [watched / alone for watched, alone in zip(rates[way], rates["alone"], strict=True)] for way in WAYS}
    figures = [
        middle("alone", "drain with neither", rates["alone"], "jobs/s"),
        middle("metrics", "scraped each second, with notices ÷ alone", shares["metrics"], "×", at_least(0.97)),
        middle("sampled", "and traced, one job in a hundred sampled ÷ alone", shares["sampled"], "×"),
        middle("traced", "and traced, every job sampled ÷ alone", shares["traced"], "×"),
    ]
    for name, text, more in (("few", "few rows", 0), ("many", f"{rows:,} rows", rows)):
        tables.empty()
        tables.seed(more, kind="finished")
        tables.vacuum()
        plan.server.settle()
        worker, web = _scrape(plan.fixed(SCRAPES, 20))
        for who, seconds in (("worker", worker), ("web process", web)):
            key = f"{who.partition(' ')[0]}_{name}"
            figures += [
                Figure(f"{key}_p50", f"scrape of a {who}, {text}, p50", percentile(seconds, 0.5) * 1000, "ms"),
                Figure(
                    f"{key}_p99",
                    f"scrape of a {who}, {text}, p99",
                    percentile(seconds, 0.99) * 1000,
                    "ms",
                    at_most(5.0),
                ),
            ]
    tables.empty()
    return Result(
        figures, f"{count:,} jobs a drain, two processes; scrapes show {QUEUES} queues, none is answered twice"
    )


def _drain(way: str, count: int) -> float:
    port = _free_port()
    watched = {"PGJOBS_BENCH_METRICS_PORT": str(port)} if way != "alone" else {}
    with workers.working(processes=2, environment={**watched, "PGJOBS_BENCH_TRACED": WAYS[way]}) as worker:
        workers.warm_up(worker)
        tables.register(count)
        with _scraped_each_second(port if watched else None):
            return count / workers.drained(worker, count)


@contextmanager
def _scraped_each_second(port: int | None) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while port is not None and not over.wait(1.0):
            page_of(port)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _scrape(times: int) -> tuple[list[float], list[float]]:
    """Return the seconds of so many scrapes of a worker that has run jobs of many queues, and of a web process."""
    port, reader = _free_port(), FleetReader()
    environment = {"PGJOBS_BENCH_METRICS_PORT": str(port)}
    with workers.working(processes=1, environment=environment, empty=False) as worker:
        for number in range(QUEUES):
            jobs.noop.using(queue=f"queue-{number}").register_many([(0,)] * 20)
        workers.until_idle(worker)
        _until_measured(worker, port)
        pages = [_seconds(lambda: page_of(port)) for _ in range(times)]
        fleet = [_seconds(lambda: _fresh(reader)) for _ in range(times)]
    return pages, fleet


def _until_measured(worker: workers.Worker, port: int) -> None:
    """Wait until the leader has measured the queues after they were drained."""
    began = time.monotonic()

    def measured() -> bool:
        found = MEASURED.search(page_of(port))
        return found is not None and float(found[1]) < time.monotonic() - began

    workers.wait_until(worker, measured, what="has measured nothing", pause=0.5)


def page_of(port: int) -> str:
    """Return the metrics that a worker serves at this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        page = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        raise workers.BenchmarkError(page)
    return page


def _fresh(reader: FleetReader) -> bytes:
    reader.kept = None
    return render(reader.families())


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
