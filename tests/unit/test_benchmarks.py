"""The parts of the benchmarks that compute and draw: what they say must be right before anybody believes it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import lines, plots, report, stamps
from benchmarks.figures import (
    Figure,
    Result,
    at_least,
    at_most,
    middle,
    percentile,
    rounded,
    shown,
    spread_shown,
    table,
    tenths,
)
from benchmarks.peers.known import PEERS
from benchmarks.plan import Plan
from benchmarks.server import Server

SERVER = object.__new__(Server)  # a server that nobody is connected to


def figure(name: str, value: float, unit: str = "jobs/s") -> dict[str, object]:
    return Figure(name, name, value, unit).as_json()


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)], ids=str)
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share, expected):
    assert percentile(reversed(range(1, 101)), share) == expected


def test_the_percentile_of_one_value_is_that_value_and_of_none_an_error():
    assert percentile([7.0], 0.01) == percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_rate_of_a_tenth_is_its_jobs_by_the_time_between_two_ends():
    assert tenths(10.0, [11.0, 13.0], 20) == [2.0, 1.0]


def test_a_bound_is_kept_at_the_bound_itself():
    assert at_least(0.9).met(0.9)
    assert not at_least(0.9).met(0.899)
    assert at_most(2.0).met(2.0)
    assert not at_most(2.0).met(2.01)
    assert (str(at_least(0.9)), str(at_most(2.0))) == ("≥ 0.9", "≤ 2")


def test_the_verdict_is_of_the_value_not_of_how_it_is_rounded():
    kept = Figure("x", "x", 0.89999999, "×", at_least(0.9)).as_json()
    assert (kept["value"], kept["verdict"]) == (0.9, "missed")


def test_a_figure_with_nothing_to_reach_has_no_verdict():
    assert "verdict" not in Figure("x", "x", 1.0, "×").as_json()


def test_the_middle_of_rounds_keeps_the_lowest_and_the_highest():
    found = middle("x", "x", [3.0, 1.0, 2.0], "jobs/s")
    assert (found.value, found.spread) == (2.0, (1.0, 3.0))
    assert spread_shown(found.as_json()) == "1–3"


def test_no_spread_is_shown_of_one_round():
    assert spread_shown(middle("x", "x", [3.0], "jobs/s").as_json()) == ""


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (63_211.4, "jobs/s", "63,211 jobs/s"),
        (1.537, "ms", "1.54 ms"),
        (0.0151, "a job", "0.0151 a job"),
        (0.874, "×", "0.87"),
        (0.0134, "×", "0.013"),
        (131.2, "×", "131"),
        (0.0, "MB", "0 MB"),
    ],
)
def test_values_are_shown_as_people_read_them(value, unit, expected):
    assert shown(value, unit) == expected


def test_a_results_file_keeps_four_digits():
    assert [rounded(number) for number in (1.23456, 0.000123456, 63_211.4)] == [1.235, 0.0001235, 63211.0]
    kept = Result([], curves={"a": [(1.0, 1.23456)]}).as_json()
    assert kept["curves"] == {"a": [[1.0, 1.235]]}


def test_columns_of_a_table_are_aligned():
    assert table([("a", "1", "x"), ("bbb", "10", "")]) == "a     1  x\nbbb  10"


def test_the_scale_multiplies_down_to_the_least():
    assert Plan(SERVER, 0.1).count(240_000) == 24_000
    assert Plan(SERVER, 0.001).count(240_000, least=5000) == 5000
    assert Plan(SERVER, 0.0501).count(1000, least=10) % 10 == 0
    assert (Plan(SERVER).rounds(7), Plan(SERVER, quick=True).rounds(7), Plan(SERVER, quick=True).rounds(1)) == (7, 2, 1)


def test_our_figures_stand_against_the_best_peer_of_each_kind():
    peers = {
        "slow": {"name": "slow", "drain": 100.0, "p50": 1.0, "p99": 50.0},
        "fast": {"name": "fast", "drain": 1000.0, "p50": 2.0, "p99": 4.0},
        "absent": {"name": "absent", "skipped": "no network"},
    }
    ours = {
        "drain": {"title": "Drain", "figures": [figure("jobs_1", 500.0), figure("jobs_2", 2000.0)]},
        "pickup": {"title": "Pickup", "figures": [figure("p50", 0.5, "ms"), figure("p99", 6.0, "ms")]},
    }
    found = {kept["name"]: kept for kept in report.against({"lines": ours, "peers": peers})}
    assert found["drain_of_fastest"]["value"] == 2.0
    assert found["pickup_p50"]["text"] == "our pickup p50 ÷ slow's"
    assert found["pickup_p50"]["verdict"] == "met"
    assert (found["pickup_p99"]["value"], found["pickup_p99"]["verdict"]) == (1.5, "missed")


def test_without_peers_nothing_stands_against_them():
    assert report.against({"lines": {}, "peers": {"a": {"name": "a", "skipped": "no network"}}}) == []


def test_a_line_that_could_not_be_measured_says_why():
    assert "no executors" in report.line({"title": "Drain", "seconds": 1.0, "failed": "the worker has no executors"})


def test_every_file_of_a_line_is_a_line_and_every_line_can_be_measured():
    found = {path.stem for path in Path(lines.__file__).parent.glob("*.py")} - {"__init__"}
    assert found == set(lines.NAMES)
    for name in lines.NAMES:
        module = lines.line(name)
        assert module.TITLE
        assert callable(module.measure)


def test_every_peer_has_a_side_and_says_what_it_does_not_do():
    folder = Path(report.__file__).parent / "peers"
    for peer in PEERS.values():
        assert (folder / f"{peer.module}.py").exists()
        assert len(peer.notes) >= 3
        assert len(peer.settings) >= 3
        assert all(setting["processes"] >= 1 for setting in peer.settings)


def test_a_database_that_is_not_of_the_benchmarks_is_never_dropped():
    with pytest.raises(ValueError, match="not a database of the benchmarks"):
        SERVER.drop("postgres")


def test_stamps_keep_the_first_start(tmp_path):
    path = str(tmp_path / "stamps")
    assert stamps.read(path) == {}
    before = stamps.now()
    for number in (3, 4, 3):
        stamps.write(path, number)
    found = stamps.read(path)
    assert set(found) == {3, 4}
    assert before <= found[3] <= found[4] <= stamps.now()


def test_plots_are_well_formed_whatever_the_labels_and_longer_bars_are_more():
    drawn = plots.bars("A & B", [("<ours>", 200.0), ("theirs", 100.0)], "jobs/s")
    bars = [float(bar.get("width", 0)) for bar in ElementTree.fromstring(drawn).iter("rect")]
    assert bars[0] == pytest.approx(2 * bars[1])


def test_a_curve_goes_from_the_left_to_the_right_and_is_higher_where_it_is_more():
    drawn = plots.curves("Rate", {"a < b": [(1, 10.0), (2, 20.0)], "flat": [(1, 0.0), (2, 0.0)]}, "tenth", "jobs/s")
    rising, flat = (line.get("points", "").split() for line in ElementTree.fromstring(drawn).iter("polyline"))
    (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in rising)
    assert x1 < x2
    assert y1 > y2
    assert flat[0].split(",")[1] == flat[1].split(",")[1]
