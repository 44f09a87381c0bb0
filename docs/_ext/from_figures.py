"""What the benchmarks measured."""

from __future__ import annotations

import json
from typing import Any

from markdown_of import DATA, table

import django_pgjobs
from benchmarks import plots, report
from benchmarks.figures import shown, spread_shown
from benchmarks.peers.known import PEERS

# Speed


def _speed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "speed.json").read_text(encoding="utf-8"))
    return found


def speed_conditions() -> str:
    """When, on what and how much was measured."""
    found = _speed()
    server = found["machine"]["server"]
    lines = [
        f"Measured on {found['date']} with `make bench` at scale {found['scale']:g} (1 is the number of rows that the"
        f" lines speak of), on {report.machine_class(found)}; PostgreSQL {server['server_version'].split()[0]} with"
        f" `fsync {server['fsync']}`, `synchronous_commit {server['synchronous_commit']}` and"
        f" `shared_buffers {server['shared_buffers']}`."
    ]
    return "\n\n".join([*lines, *([f"**{found['remark']}**"] if found["remark"] else [])]) + "\n"


def speed_reached() -> str:
    """What was to be reached, and what was."""
    rows = [
        (
            figure["title"],
            figure["text"],
            shown(figure["value"], figure["unit"]),
            spread_shown(figure),
            figure["reach"],
            figure["verdict"],
        )
        for figure in report.reached(_speed())
    ]
    return table(("line", "what", "figure", "spread", "to reach", ""), rows)


def speed_notes() -> str:
    """How each line was measured."""
    lines = [f"* **{part['title']}**: {part['note']}." for part in _speed()["lines"].values() if part.get("note")]
    return "\n".join(lines) + "\n"


def speed_peers() -> str:
    """Every peer as a share of our own figures, at its best setting."""
    found = _speed()
    drain, single = report.our_drain(found), report.value(found, "register", "register_1")
    waits = [report.value(found, "pickup", name) for name in ("p50", "p99")]
    head = ("queue", "drain", "single enqueue", "pickup p50, p99", "best of the settings tried")
    rows = [(f"django-pgjobs {django_pgjobs.__version__}", "1", "1", "1, 1", "`--processes` 1 and 2")]
    for part in found["peers"].values():
        if "skipped" in part:
            rows.append((part["name"], "not measured", "", "", part["skipped"]))
            continue
        shares = [_share(part[key], ours) for key, ours in zip(("p50", "p99"), waits, strict=True)]
        rows.append(
            (
                f"{part['name']} {part['version']}, {part['runtime']}",
                _share(part["drain"], drain),
                _share(part["enqueue"], single),
                ", ".join(shares),
                report.setting_text(part["best"]),
            )
        )
    return table(head, rows)


def _share(theirs: float, ours: float | None) -> str:
    return shown(theirs / ours, "×") if ours else "–"


def speed_peer_notes() -> str:
    """What each peer does not do, or does otherwise."""
    return "\n".join(f"* **{peer.name}**: {' '.join(peer.notes)}" for peer in PEERS.values()) + "\n"


def speed_plans() -> str:
    """The server's work for a claim and for its ends, where it has been explained."""
    path = DATA / "plans.json"
    if not path.exists():
        return "No plans have been published here yet; the command prints them and keeps them in a file.\n"
    found = json.loads(path.read_text(encoding="utf-8"))
    version = found["machine"]["server"]["server_version"].split()[0]
    parts = [f"Explained on {found['date']} at scale {found['scale']:g} by PostgreSQL {version}."]
    for explained in found["plans"]:
        title, plan = explained["title"], explained["plan"]
        parts.append(f"**{title[0].upper()}{title[1:]}**\n\n```text\n{plan}\n```")
    return "\n\n".join(parts) + "\n"


def speed_plots() -> str:
    """The figures that a line of a table does not show."""
    found = _speed()
    drawn = []
    raced = [part for part in found["peers"].values() if "skipped" not in part]
    if ours := report.our_drain(found):
        ceiling = report.value(found, "drain", "ceiling")
        rates = [("django-pgjobs", ours), *((part["name"], part["drain"]) for part in raced)]
        rates += [("claim + finalise in SQL alone", ceiling)] if ceiling else []
        rows = [(name, rate / ours) for name, rate in rates]
        drawn.append(plots.bars("No-op jobs a second, ours is 1", rows, "×"))
    waits = [report.value(found, "pickup", name) for name in ("p50", "p99")]
    for name, wait in zip(("p50", "p99"), waits, strict=True):
        if wait:
            rows = [("django-pgjobs", wait), *((part["name"], part[name]) for part in raced)]
            drawn.append(plots.bars(f"Milliseconds from commit to start, {name}", rows, "ms"))
    for line, title, x_text, unit in (
        ("pinned", "While an open transaction pins the oldest snapshot", "tenth of the jobs", "jobs/s"),
        ("sustained", "Registered, run and deleted at once", "seconds", "jobs/s"),
        ("memory", "Memory of the supervisor", "tenth of the jobs", "MiB"),
    ):
        series = found["lines"].get(line, {}).get("curves", {})
        if series:
            drawn.append(plots.curves(title, series, x_text, unit))
    return "".join(drawn)
