"""The text of metrics: what Prometheus' own library reads from it, and what hostile texts cannot do to it."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_pgjobs.metrics import families, fleet, worker
from django_pgjobs.metrics import families as m
from django_pgjobs.metrics.families import Family, Metric, Point
from django_pgjobs.metrics.registry import client_metric
from django_pgjobs.store.counting import StoredFleet
from django_pgjobs.store.numbers import AttemptFigures
from django_pgjobs.values.histogram import BOUNDS

DECLARED = (*m.WORKER, *m.FLEET, *m.TOTALS)

HOSTILE = [
    'a"} 1\npgjobs_leader 1\n# HELP x y',
    "back\\slash\\",
    "tab\tNUL\0bell\a",
    "gnp.\u202eexe",
    "<script>alert(1)</script>",
    "line\u2028separator\x85",
    "\ud800 alone",
    "{{ template }} ${x} %s",
    "",
    "long" * 2_500_000,
]


def read(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a page, by name and labels, as Prometheus' library reads it; none may come twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def of_everything() -> list[Family]:
    """Every declared metric with a value or two."""
    made = []
    for metric in DECLARED:
        counts = range(27) if metric.kind == "histogram" else ()
        labels = [tuple(f"{label}-{n}" for label in metric.labels) for n in range(2 if metric.labels else 1)]
        made.append(Family(metric, [Point(each, 3.5, list(counts)) for each in labels]))
    return made


def test_prometheus_reads_the_page_as_it_reads_that_of_its_own_library() -> None:
    class Everything:
        def collect(self) -> object:
            return map(client_metric, of_everything())

    registry = CollectorRegistry()
    registry.register(Everything())  # type: ignore[arg-type]
    ours, theirs = families.render(of_everything()), generate_latest(registry)
    assert read(ours) == read(theirs)
    kinds = re.compile(rb"^# TYPE .*$", re.MULTILINE)
    assert sorted(kinds.findall(ours)) == sorted(kinds.findall(theirs))


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_prometheus(metric: Metric) -> None:
    """Counters end in _total, and nothing else does; durations are in seconds; no suffix of histograms is taken."""
    assert re.fullmatch(r"pgjobs_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(milliseconds|ms|minutes|hours|percent|bucket|count|sum)$", metric.name)
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert metric.text.endswith(".")
    assert not set(metric.labels) & {"job", "instance", "le", "__name__"}, "Prometheus sets these itself"


def test_no_two_metrics_share_a_name_and_those_of_the_fleet_are_apart() -> None:
    names = [sample for metric in DECLARED for sample in metric.samples()]
    assert len(names) == len(set(names))
    assert all(metric.name.startswith("pgjobs_fleet_") for metric in (*m.FLEET, *m.TOTALS))
    assert not any(metric.name.startswith("pgjobs_fleet_") for metric in m.WORKER)


def test_a_histogram_counts_up_to_each_bound_and_ends_with_all() -> None:
    page = families.render([Family(m.WAIT_SECONDS, [Point(("mail",), 12.5, [1, 0, 2])])])
    found = {key: value for (_, labels), value in read(page).items() if (key := dict(labels).get("le"))}
    assert [found[limit] for limit in ("0.001", "0.002", "0.004", "33554.432", "+Inf")] == [1, 1, 3, 3, 3]
    assert len(found) == len(BOUNDS) + 1
    assert b'pgjobs_wait_seconds_count{queue="mail"} 3\n' in page
    assert b'pgjobs_wait_seconds_sum{queue="mail"} 12.5\n' in page


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_one_label_of_its_own_line(hostile: str) -> None:
    """Neither a line of its own nor marks that turn text around, and no more than 200 characters."""
    row = AttemptFigures(hostile, hostile, "succeeded", 1, 1.0, 1.0, [1], [1])
    found = worker.families_of_ends([row], m.ENDS, m.RUN_SECONDS, m.WAIT_SECONDS)
    page = families.render([*found, Family(m.WORKER_INFO, [Point((hostile, hostile, hostile), 1)])])
    samples = read(page)
    assert {name for name, _ in samples} == {
        "pgjobs_ends_total", *m.RUN_SECONDS.samples(), *m.WAIT_SECONDS.samples(), "pgjobs_worker_info",
    }  # fmt: skip
    assert len(page) < 100_000
    values = {value for _, labels in samples for _, value in labels}
    assert all(value.isprintable() and len(value) <= families.MOST_CHARS for value in values)
    client = client_metric(found[0])
    assert next(iter(client.samples)).labels["queue"] == families.harmless(hostile)


def test_infinity_and_whole_numbers_are_written_as_prometheus_reads_them() -> None:
    assert [families.number(value) for value in (3, 0.1, math.inf, 1e300)] == ["3", "0.1", "+Inf", "1e+300"]


def test_ends_of_one_queue_name_and_outcome_add_up() -> None:
    rows = [
        AttemptFigures("mail", "shop.send", "succeeded", 2, 1.0, 4.0, [1, 1], [0, 0, 2]),
        AttemptFigures("mail", "shop.send", "retried", 1, 3.0, 1.0, [0, 0, 1], [1]),
        AttemptFigures("mail", "shop.bill", "succeeded", 1, 0.5, 0.5, [1], [1]),
    ]
    samples = read(families.render(worker.families_of_ends(rows, m.ENDS, m.RUN_SECONDS, m.WAIT_SECONDS)))
    send = {("queue", "mail"), ("name", "shop.send")}
    assert samples["pgjobs_ends_total", frozenset({*send, ("outcome", "succeeded")})] == 2
    assert samples["pgjobs_run_seconds_count", frozenset(send)] == 3
    assert samples["pgjobs_run_seconds_sum", frozenset(send)] == 4.0
    assert samples["pgjobs_wait_seconds_count", frozenset({("queue", "mail")})] == 4
    assert samples["pgjobs_wait_seconds_sum", frozenset({("queue", "mail")})] == 5.5


def queue(name: str, ready: int) -> dict[str, object]:
    held = {"blocked": 0, "parked": 1, "limited": 0, "paused": 0}
    return {
        "queue": name, "ready": ready, "scheduled": 0, "running": 0, "held": held, "oldest_ready_seconds": float(ready),
        "workers": 1,
    }  # fmt: skip


def test_the_fleets_queues_and_names_are_bounded_and_nothing_is_lost() -> None:
    """Those with most to do are named, the others are one; what counters are called stays as it was."""
    queues = [queue(f"q{n}", n) for n in range(1000)]
    workers = {"live": 1, "draining": 0, "silent": 0, "slots": 4, "running": 0}
    rows = [[f"q{n}", f"shop.n{n}", "succeeded", n + 1, 0.0, 0.0, [], []] for n in range(1000)]
    found = StoredFleet({"queues": queues, "workers": workers, "totals": rows}, 1.0, 0.0)
    samples = read(families.render(fleet.gauges_of(found)))
    ready = {dict(labels)["queue"]: value for (_, labels), value in samples.items() if ("state", "ready") in labels}
    assert len(ready) == fleet.MOST_QUEUES + 1
    assert sum(ready.values()) == sum(range(1000))
    assert samples["pgjobs_fleet_oldest_ready_seconds", frozenset({("queue", fleet.OTHERS)})] == 899

    totals = fleet.Totals()
    before = read(families.render(totals.families(found)))
    ends = [dict(labels) for name, labels in before if name == "pgjobs_fleet_ends_total"]
    assert len({labels["queue"] for labels in ends}) == fleet.MOST_QUEUES + 1
    assert len({labels["name"] for labels in ends}) == fleet.MOST_NAMES + 1
    assert sum(v for (name, _), v in before.items() if name == "pgjobs_fleet_ends_total") == sum(range(1, 1001))
    rows[0][3] = 10**6  # the least of all is the busiest now
    after = read(families.render(totals.families(found)))
    assert all(after[key] >= value for key, value in before.items())
    assert after.keys() == before.keys()


def test_the_pairs_of_queue_and_name_of_the_fleet_are_bounded() -> None:
    most = 10 * fleet.MOST_PAIRS
    rows = [[f"q{n % 100}", f"shop.n{n // 100}", "succeeded", 1, 0.0, 0.0, [], []] for n in range(most)]
    found = StoredFleet({"queues": [], "workers": {}, "totals": rows}, 1.0, 0.0)
    samples = read(families.render(fleet.Totals().families(found)))
    ends = {labels: value for (name, labels), value in samples.items() if name == "pgjobs_fleet_ends_total"}
    assert fleet.MOST_PAIRS <= len(ends) <= fleet.MOST_PAIRS + fleet.MOST_QUEUES
    assert sum(ends.values()) == most


@pytest.mark.parametrize(
    ("found", "measured", "leaderless"),
    [(StoredFleet(None, None, None), math.inf, math.inf), (StoredFleet(None, 7.0, 0.0), 9.0, 0.0)],
)
def test_a_fleet_that_has_measured_nothing_says_so(found: StoredFleet, measured: float, leaderless: float) -> None:
    samples = read(families.render(fleet.gauges_of(found, 2.0)))
    none = frozenset[tuple[str, str]]()
    assert samples == {
        ("pgjobs_fleet_up", none): 1,
        ("pgjobs_fleet_measured_age_seconds", none): measured,
        ("pgjobs_fleet_leaderless_seconds", none): leaderless,
    }
