"""The printed report, and figures derived from several lines. Pure: it works on the content of a results file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks import stamps
from benchmarks.figures import Figure, at_least, at_most, middle, shown, spread_shown, table

Found = dict[str, Any]


def heading(found: Found) -> str:
    """Return the conditions that the figures depend on."""
    machine = found["machine"]
    server = machine["server"]
    return (
        f"{found['date']}, scale {found['scale']:g}: {machine_class(found)}, PostgreSQL {server['server_version']}"
        f" (fsync {server['fsync']}, synchronous_commit {server['synchronous_commit']}),"
        f" load before {machine['load_before']:g}"
    )


def machine_class(found: Found) -> str:
    """Return the kind of machine in words."""
    machine = found["machine"]
    where = "server on the same machine" if machine["same_machine"] else "server on another machine"
    return f"{machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}, {where}"


def line(part: Found) -> str:
    """Return the text to print when a line has been measured."""
    head = f"\n{part['title']} ({part['seconds']:g} s)"
    if "failed" in part:
        return f"{head}\n  could not be measured: {part['failed']}"
    rows = [
        ("  " + figure["text"], shown(figure["value"], figure["unit"]), spread_shown(figure), mark(figure))
        for figure in part["figures"]
    ]
    return "\n".join([head, table(rows), *([f"  {part['note']}"] if part["note"] else [])])


def mark(figure: Found) -> str:
    """Return the target of a figure and whether the figure meets it."""
    return f"{figure['reach']} {figure['verdict']}" if "reach" in figure else ""


def peer(part: Found) -> str:
    """Return the text to print when a peer has been measured."""
    if "skipped" in part:
        return f"\n{part['name']}: not measured: {part['skipped']}"
    rows = [
        (f"  drain, {setting_text(tried['setting'])}", shown(max(tried["rates"]), "jobs/s"))
        for tried in part["settings"]
    ]
    rows += [
        ("  single enqueue", shown(part["enqueue"], "jobs/s")),
        ("  pickup p50, p99", f"{part['p50']:g}, {part['p99']:g} ms"),
    ]
    rows += [(f"  at {pace}", f"{p50:g}, {p99:g} ms") for pace, (p50, p99) in part.get("paces", {}).items()]
    return f"\n{part['name']} {part['version']}, {part['runtime']} ({part['seconds']:g} s)\n{table(rows)}"


def setting_text(setting: Found) -> str:
    """Return a peer's setting in words."""
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def value(found: Found, name: str, figure: str) -> float | None:
    """Return a figure of a line, or None if it was not measured."""
    figures = found["lines"].get(name, {}).get("figures", [])
    return next((kept["value"] for kept in figures if kept["name"] == figure), None)


def our_drain(found: Found) -> float | None:
    """Return the better of our drains."""
    rates = [rate for number in (1, 2) if (rate := value(found, "drain", f"jobs_{number}")) is not None]
    return max(rates, default=None)


def against(found: Found) -> list[Found]:
    """Return our figures against those of the best peer of the same run."""
    return [figure.as_json() for figure in _against(found)]


def _against(found: Found) -> Iterator[Figure]:
    raced = [part for part in found["peers"].values() if "skipped" not in part]
    if not raced:
        return
    if our_drain(found) is not None:
        # The goal is set against queues for Python; what another language drains is a goal of its own.
        for python, bound in ((True, 1.5), (False, 1.0)):
            field = [part for part in raced if part["runtime"].startswith("Python") is python and "turns" in part]
            if field:
                fastest = max(field, key=lambda part: float(part["drain"]))
                name = "drain_of_fastest" if python else "drain_of_foreign"
                text = f"our drain ÷ {fastest['name']}'s" + ("" if python else f" ({fastest['runtime'].split()[0]})")
                shares = [ours / theirs for ours, theirs in fastest["turns"]]
                yield middle(name, f"{text}, in turns", shares, "×", at_least(bound))
    for name in ("p50", "p99"):
        wait = value(found, "pickup", name)
        if wait is not None:
            quickest = min(raced, key=lambda part: float(part[name]))
            text = f"our pickup {name} ÷ {quickest['name']}'s"
            yield Figure(f"pickup_{name}", text, wait / quickest[name], "×", at_most(1.0))
    for place, name in enumerate(("p50", "p99")):
        for producers, rate in itertools.product(stamps.PRODUCERS, stamps.RATES):
            wait, label = value(found, "paces", f"{name}_{rate}_{producers}"), stamps.name_of(rate, producers)
            field = [(part["paces"][label][place], part["name"]) for part in raced if "paces" in part]
            if wait is not None and field:
                least, whose = min(field)
                text = f"our pickup {name} at {label} ÷ {whose}'s"
                yield Figure(f"pace_{name}_{rate}_{producers}", text, wait / least, "×", at_most(1.0))


def reached(found: Found) -> list[Found]:
    """Return all figures that have a target, with the title of their line."""
    rows = [
        {"title": part["title"], **figure}
        for part in found["lines"].values()
        for figure in part.get("figures", [])
        if "reach" in figure
    ]
    return rows + [{"title": "Against the best peer", **figure} for figure in found.get("against", [])]


def summary(found: Found) -> str:
    """Return the table of targets."""
    rows = [("what", "figure", "spread", "reach", "")]
    rows += [
        (
            f"{figure['title']}: {figure['text']}",
            shown(figure["value"], figure["unit"]),
            spread_shown(figure),
            figure["reach"],
            figure["verdict"],
        )
        for figure in reached(found)
    ]
    return table(rows)
