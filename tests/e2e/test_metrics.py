"""Metrics of real workers: each end once, whatever dies; and what ports and scrapers in trouble cost."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections import Counter
from contextlib import suppress

import pytest
from django.db.models import Q
from prometheus_client.parser import text_string_to_metric_families

from django_pgjobs import __version__
from django_pgjobs.metrics.families import FLEET, WORKER
from django_pgjobs.models import Attempt, Job
from tests.e2e import jobs
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, ended, started
from tests.plugins.ports import free_port
from tests.plugins.shell import run

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(10)) as answer:
        page = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def answers(port: int) -> bool:
    with suppress(OSError):
        return bool(scrape(port))
    return False


def ends_of(*pages: Samples) -> Counter[tuple[str, str]]:
    """How many attempts of each name ended in each way, in all these workers."""
    found: Counter[tuple[str, str]] = Counter()
    for page in pages:
        for (name, labels), value in page.items():
            if name == "pgjobs_ends_total":
                words = dict(labels)
                found[words["name"].rpartition(".")[2], words["outcome"]] += int(value)
    return found


def total(page: Samples, name: str, **labels: str) -> float:
    return sum(value for (each, words), value in page.items() if each == name and labels.items() <= dict(words).items())


@pytest.fixture
def ports() -> list[int]:
    return [free_port(), free_port()]


def test_each_end_counts_once_in_all_workers_whatever_kills_their_executors(worker: Workers, ports: list[int]) -> None:
    """A70, W54: two workers of two executors each, SIGKILL amid jobs, recycling after five jobs."""
    conf = {"EXECUTOR_MAX_JOBS": 5, "POLL_SECONDS": 0.2}
    files = worker.stage.path / "multiprocess"
    files.mkdir()
    env = {"PROMETHEUS_MULTIPROC_DIR": str(files)}
    both = [worker(f"--metrics-port={port}", processes=2, threads=2, conf=conf, env=env) for port in ports]
    wait_until(lambda: all(map(answers, ports)), 10, "both answer")
    all_jobs = [*(jobs.no_op.register() for _ in range(60)), *(jobs.doomed.register() for _ in range(3))]
    victims = [jobs.waits.register("victims") for _ in range(2)]
    started(worker.stage, "victims", 2)
    killed = {trace.pid for trace in worker.stage.traces("start", "victims")}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    worker.stage.open("victims")
    found = ended(*all_jobs, *victims, timeout=60)

    expected: Counter[tuple[str, str]] = Counter()
    for job in found:
        word = job.name.rpartition(".")[2]
        expected[word, str(job.outcome)] += 1
        for attempt in Attempt.objects.filter(job_id=job.pk):
            if attempt.cause in ("crashed", "failed") and attempt.number < job.attempt:
                expected[word, "retried"] += 1
    read: list[Samples] = []

    def is_complete() -> bool:
        read[:] = [scrape(port) for port in ports]
        counted = ends_of(*read)
        return all(counted[key] >= value for key, value in expected.items())

    wait_until(is_complete, 20, f"they count {expected}, not {ends_of(*read)}")
    counted = {key: value for key, value in ends_of(*read).items() if key[1] != "released"}
    assert counted == expected
    deaths = sum(total(page, "pgjobs_executor_deaths_total", reason="signal") for page in read)
    assert deaths == len(killed)
    assert sum(total(page, "pgjobs_executor_deaths_total") for page in read) == deaths, "recycling is no death"
    runs = sum(total(page, "pgjobs_run_seconds_count") for page in read)
    assert runs >= sum(expected.values()) - len(killed)
    assert sum(total(page, "pgjobs_jobs_claimed_total") for page in read) >= sum(expected.values())
    assert sum(total(page, "pgjobs_leader") for page in read) == 1
    for each in both:
        each.stop()
    assert list(files.iterdir()) == [], "no process of a worker keeps metrics in files"


def test_a_page_names_its_worker_and_shows_what_it_holds(worker: Workers, ports: list[int]) -> None:
    """All declared metrics, slots and busy ones, and the fleet as a leader measured it: no other scrape is needed."""
    port = ports[0]
    conf = {"RELEASE": "2026.11", "LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0}
    made = worker(f"--metrics-port={port}", processes=2, threads=2, conf=conf)
    waiting = [jobs.waits.register("it") for _ in range(3)]
    started(worker.stage, "it", 3)
    wait_until(lambda: total(scrape(port), "pgjobs_slots_busy") == 3, 10, "three slots are busy")
    page = scrape(port)
    assert page["pgjobs_worker_info", (("release", "2026.11"), ("version", __version__), ("worker", made.name))] == 1
    assert total(page, "pgjobs_slots", mode="thread") == 4
    assert total(page, "pgjobs_slots", mode="coroutine") == 2 * 50
    assert (total(page, "pgjobs_jobs_held"), total(page, "pgjobs_executors")) == (3, 2)
    assert 1 <= total(page, "pgjobs_claims_held") <= 3
    assert total(page, "pgjobs_runs_sent_total") >= 3
    assert 0 <= total(page, "pgjobs_renewal_age_seconds") < patience(5)
    wait_until(lambda: total(scrape(port), "pgjobs_fleet_measured_age_seconds") < 60, 30, "the fleet was measured")
    worker.stage.open("it")
    ended(*waiting)
    wait_until(lambda: total(scrape(port), "pgjobs_slots_busy") == 0, 10, "no slot is busy")
    wait_until(lambda: total(scrape(port), "pgjobs_ends_unwritten") == 0, 10, "all ends are written")
    wait_until(lambda: ends_of(scrape(port))["waits", "succeeded"] == 3, 10, "they are counted")
    wait_until(lambda: total(scrape(port), "pgjobs_leader") == 1, 10, "it leads")

    def missing() -> set[str]:
        names = {name for name, _ in scrape(port)}
        return {metric.name for metric in (*WORKER, *FLEET) if not names & set(metric.samples())}

    wait_until(lambda: not missing(), 40, f"every metric is there, not {missing()}")


def test_a_port_that_is_taken_costs_the_worker_nothing(worker: Workers, ports: list[int]) -> None:
    """The first worker has it; the second says so once, runs its jobs, and serves when the first has gone."""
    port = ports[0]
    first = worker(f"--metrics-port={port}", "--queues=none")
    wait_until(lambda: answers(port), 10, "the first answers")
    second = worker(f"--metrics-port={port}")
    second.wait_for_log("metrics cannot be served, tried again")
    ended(*(jobs.no_op.register() for _ in range(5)))
    first.stop()
    second.wait_for_log("metrics are served after all")
    assert ends_of(scrape(port))["no_op", "succeeded"] == 5
    assert second.log.count("metrics cannot be served") == 1


def test_scrapers_that_never_read_delay_no_job_and_no_leaving(worker: Workers, ports: list[int]) -> None:
    port = ports[0]
    made = worker(f"--metrics-port={port}")
    wait_until(lambda: answers(port), 10, "it answers")
    hanging = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    try:
        for number, each in enumerate(hanging):
            with suppress(OSError):
                each.sendall(b"GET /metrics HTTP/1.0\r\n\r\n" if number % 2 else b"GE")
        ended(*(jobs.no_op.register() for _ in range(20)), timeout=10)
        assert answers(port)
        assert made.stop(timeout=10) == 0
    finally:
        for each in hanging:
            each.close()


def test_what_jobs_are_given_is_in_no_metric(worker: Workers, ports: list[int]) -> None:
    """Nor are results, errors, tags and keys."""
    port, secret = ports[0], "s3cr3t-4711"
    worker(f"--metrics-port={port}")
    found = ended(jobs.effect.using(unique=f"{secret}-key", tags=[secret], description=secret).register(secret))
    assert found[0].outcome == "succeeded"
    wait_until(lambda: ends_of(scrape(port))["effect", "succeeded"] == 1, 10, "it is counted")
    assert secret not in str(scrape(port))


def test_a_name_that_no_code_defines_is_one_of_the_others(worker: Workers, ports: list[int]) -> None:
    """Whoever may write rows chooses names: 10 MB, markup, line breaks. None makes series of its own."""
    port = ports[0]
    strange = [jobs.no_op.using(delay=3600).register() for _ in range(3)]
    names = ["x" * 10_000_000, 'a"} 1\nb{c="', "<b>\u202e</b>"]
    for job, name in zip(strange, names, strict=True):
        Job.objects.filter(pk=job.pk).update(name=name)
    worker(f"--metrics-port={port}")
    Job.objects.filter(pk__in=[job.pk for job in strange]).reschedule(delay=0)
    ended(jobs.no_op.register())
    settled = Job.objects.filter(pk__in=[job.pk for job in strange]).filter(Q(hold="parked") | Q(outcome="abandoned"))
    wait_until(lambda: settled.count() == 3, 20, "they are parked, or abandoned where the name is too long for that")
    wait_until(lambda: ends_of(scrape(port))["others", "abandoned"] == 1, 10, "it is counted")
    seen = {dict(labels).get("name") for _, labels in scrape(port)}
    assert seen <= {None, "tests.e2e.jobs.no_op", "others"}


@pytest.mark.parametrize("given", ["0", "65536", "-1", "x"])
def test_a_port_that_is_none_is_refused_at_once(given: str) -> None:
    answer = run("run", f"--metrics-port={given}")
    assert answer.returncode == 2
    assert "--metrics-port: must be" in answer.stderr


def test_an_address_that_is_none_and_inline_workers_are_refused_at_once() -> None:
    assert "--metrics-host: must be a host name or an address" in run("run", "--metrics-host=a b").stderr
    assert "leave out --metrics-port" in run("run", "--inline", "--metrics-port=9000").stderr
