"""Measure two checkouts in turns: ``python -m benchmarks.turns OLD NEW --only NAME[,NAME…]``.

OLD and NEW are folders, such as ``git worktree add`` makes. Each turn is a run of ``benchmarks.run`` in one of them,
by this interpreter with its packages, and each pair of turns has the reverse order of the pair before: old, new, new,
old. It prints the median of each figure on both sides, its spread, and new ÷ old. Uses the server that DATABASE_URL
names. Every line must be in both checkouts; copy those that OLD lacks, with the jobs that they run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import shown, spread_shown, table

Found = dict[str, Any]
NAME = "turns"
"""The name of the results file in each checkout; it is deleted as soon as it is read."""

WHERE = "import benchmarks, django_pgjobs; print(benchmarks.__file__, django_pgjobs.__file__, sep='\\n')"


def main() -> None:
    """Measure, and print the comparison."""
    parser = argparse.ArgumentParser(
        "benchmarks.turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", required=True, metavar="NAME[,NAME…]", help="lines of benchmarks.run")
    parser.add_argument("--pairs", type=int, default=2, help="how often to measure each checkout (default 2)")
    parser.add_argument("--scale", help="as for benchmarks.run")
    parser.add_argument("--quick", action="store_true", help="as for benchmarks.run")
    options = parser.parse_args()
    sides = {"old": options.old.resolve(), "new": options.new.resolve()}
    for checkout in sides.values():
        check(checkout)
    arguments = [f"--only={options.only}", "--no-peers", f"--name={NAME}"]
    arguments += [f"--scale={options.scale}"] if options.scale else []
    arguments += ["--quick"] if options.quick else []
    found: dict[str, list[Found]] = {side: [] for side in sides}
    for turn, side in enumerate(order(options.pairs), 1):
        print(f"\n== turn {turn} of {2 * options.pairs}: {side}, {sides[side]}", flush=True)
        found[side].append(_turn(sides[side], arguments))
    print(
        "\n" + table([("what", "old", "spread", "new", "spread", "new ÷ old"), *compared(found["old"], found["new"])])
    )


def order(pairs: int) -> list[str]:
    """Return whose turn it is: each pair in the reverse order of the pair before."""
    return [side for number in range(pairs) for side in (("new", "old") if number % 2 else ("old", "new"))]


def compared(old: Sequence[Found], new: Sequence[Found]) -> Iterator[tuple[str, ...]]:
    """Return a row for each figure that both sides have measured in all of their turns."""
    before, after = _figures(old), _figures(new)
    for key in before:
        if key in after and len(before[key]) == len(old) and len(after[key]) == len(new):
            text, unit = after[key][0]["title"] + ": " + after[key][0]["text"], after[key][0]["unit"]
            row, middles = [text], []
            for figures in (before[key], after[key]):
                values = [figure["value"] for figure in figures]
                middles.append(median(values))
                row += [shown(middles[-1], unit), spread_shown({"spread": (min(values), max(values)), "unit": unit})]
            yield *row, shown(middles[1] / middles[0], "×") if middles[0] else "–"


def _figures(runs: Sequence[Found]) -> dict[tuple[str, str], list[Found]]:
    """Return the figures of all runs by the names of line and figure."""
    found: dict[tuple[str, str], list[Found]] = {}
    for run in runs:
        for name, line in run["lines"].items():
            for figure in line.get("figures", []):
                found.setdefault((name, figure["name"]), []).append({**figure, "title": line["title"]})
    return found


def _turn(checkout: Path, arguments: list[str]) -> Found:
    kept = checkout / "benchmarks" / "results" / f"{NAME}.json"
    command = [sys.executable, "-m", "benchmarks.run", *arguments]
    done = subprocess.run(command, cwd=checkout, env=_environment(checkout), check=False)
    if done.returncode:
        raise SystemExit(f"the run in {checkout} failed, exit code {done.returncode}")
    found: Found = json.loads(kept.read_text(encoding="utf-8"))
    kept.unlink()
    return found


def check(checkout: Path) -> None:
    """Raise SystemExit unless a run there would import its code, whatever is installed beside this interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", WHERE],
        cwd=checkout,
        env=_environment(checkout),
        capture_output=True,
        text=True,
        check=False,
    )
    files = done.stdout.split()
    if done.returncode or not all(Path(file).is_relative_to(checkout) for file in files):
        raise SystemExit(f"{checkout} is no checkout with benchmarks/ and django_pgjobs/")


def _environment(checkout: Path) -> dict[str, str]:
    # The workers' executors are started anew and do not know the folder of the run.
    return {**os.environ, "PYTHONPATH": str(checkout)}


if __name__ == "__main__":
    main()
