"""``make bench``: run all measurements, line by line, and print a table with the targets.

Uses the server that DATABASE_URL names; its databases begin with pgjobs_bench and are dropped at the end. Lines never
run side by side, and no second run can begin on the same server. Compare figures of one run, never those of two
machines. Without --scale it uses a quarter of the rows of the full table and takes about a quarter of an hour. With
--scale 1 our own lines take some twenty minutes, most of them to make rows, and the peers fifteen more; --no-peers
skips the peers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.peers.installing import NotInstallable
from benchmarks.peers.known import PEERS
from benchmarks.plan import Plan
from benchmarks.server import PREFIX, Server
from benchmarks.workers import ROOT, BenchmarkError

NEAR = 4.0
"""A peer whose drain is within this factor of ours is measured once more, in turns with us."""

RESULTS = ROOT / "benchmarks" / "results"
PUBLISHED = ROOT / "docs" / "_data" / "speed.json"
SCALE = 0.25
QUICK_SCALE = 0.01


def main() -> None:
    """Measure, print and keep the results; exit 1 if a line could not be measured."""
    from benchmarks import lines

    options = _options(lines.NAMES, lines.ON_REQUEST)
    server = Server(os.environ["DATABASE_URL"])
    if not server.take_the_turn():
        raise SystemExit("another run of the benchmarks is on this server")
    plan = Plan(server, options.scale or (QUICK_SCALE if options.quick else SCALE), options.quick)
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "scale": plan.scale,
        "quick": plan.quick,
        "remark": options.remark,
        "machine": server.describe(),
        "lines": {},
        "peers": {},
    }
    print(report.heading(found), flush=True)
    try:
        _measure(plan, options, found)
    finally:
        drop_databases(server)
        server.close()
    found["against"] = report.against(found)
    if report.reached(found):
        print("\n" + report.summary(found))
    _keep(found, options)
    failed = [name for name, part in found["lines"].items() if "failed" in part]
    if failed:
        raise SystemExit(f"could not be measured: {', '.join(failed)}")


def _options(names: tuple[str, ...], on_request: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME[,NAME…]", help=f"of {', '.join((*names, *on_request))}, peers")
    parser.add_argument(
        "--scale", type=float, help=f"multiplies jobs and rows (default {SCALE:g}; 1 is the full table)"
    )
    parser.add_argument("--quick", action="store_true", help=f"few rounds, scale {QUICK_SCALE:g}: does it work at all?")
    parser.add_argument("--peers", metavar="NAME[,NAME…]", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--no-peers", action="store_true", help="measure ourselves alone")
    parser.add_argument(
        "--name", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="of the file in benchmarks/results"
    )
    parser.add_argument("--remark", default="", help="kept with the figures: what the machine is, what else ran")
    parser.add_argument("--publish", action="store_true", help="let the documentation show these figures")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [*names, "peers"]
    options.peers = [] if options.no_peers or "peers" not in wanted else options.peers.split(",")
    options.only = [name for name in wanted if name != "peers"]
    unknown = (set(options.only) - {*names, *on_request}) | (set(options.peers) - set(PEERS))
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def _measure(plan: Plan, options: argparse.Namespace, found: dict[str, Any]) -> None:
    make_databases(plan.server)
    migrate()
    for name in options.only:
        plan.server.settle()
        began = time.perf_counter()
        found["lines"][name] = part = _line(name, plan)
        part["seconds"] = round(time.perf_counter() - began, 1)
        print(report.line(part), flush=True)
    from django.db import connections

    connections.close_all()
    for name in options.peers:
        began = time.perf_counter()
        found["peers"][name] = part = _peer(name, plan, report.our_drain(found))
        part["seconds"] = round(time.perf_counter() - began, 1)
        print(report.peer(part), flush=True)


def drop_databases(server: Server) -> None:
    """Drop both databases."""
    for suffix in ("", "_small"):
        server.drop(PREFIX + suffix)


def make_databases(server: Server) -> None:
    """Recreate both databases, and make Django use the settings that name them."""
    for suffix in ("", "_small"):
        server.make(PREFIX + suffix)
    os.environ |= {"PGJOBS_BENCH_DATABASE": PREFIX, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"}


def migrate() -> None:
    """Set Django up and make the tables of both databases."""
    import django

    django.setup()
    from django.core.management import call_command

    for alias in ("default", "small"):
        call_command("migrate", database=alias, verbosity=0)


def _line(name: str, plan: Plan) -> dict[str, Any]:
    from benchmarks import lines

    module = lines.line(name)
    try:
        return {"title": module.TITLE, **module.measure(plan).as_json()}
    except Exception as error:
        # Catch everything: an error must not lose the results of half an hour before it.
        failed = str(error) if isinstance(error, BenchmarkError) else _trace()
        return {"title": module.TITLE, "failed": failed}


def _peer(name: str, plan: Plan, ours: float | None) -> dict[str, Any]:
    from benchmarks.peers.racing import race, take_turns

    try:
        part = race(PEERS[name], plan)
        if ours is not None and part["drain"] * NEAR > ours:
            part["turns"] = take_turns(PEERS[name], plan, part["best"])
        return part
    except Exception as error:
        known = isinstance(error, NotInstallable | BenchmarkError)
        return {"name": PEERS[name].name, "skipped": str(error) if known else _trace()}


def _trace() -> str:
    """Return the traceback of what is handled, without the folder of this checkout: results are published."""
    return traceback.format_exc().replace(f"{Path(__file__).resolve().parent.parent}/", "")


def _keep(found: dict[str, Any], options: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{Path(options.name).name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"kept in {path.relative_to(ROOT)}")
    if options.publish:
        shutil.copy(path, PUBLISHED)
        print(f"shown by {PUBLISHED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
