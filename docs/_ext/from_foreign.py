"""What real software did: on the backend for ``django.tasks``, and on the bridge for Celery."""

from __future__ import annotations

import tomllib
from typing import Any

from markdown_of import DATA, table


def foreign_data(name: str = "foreign") -> dict[str, Any]:
    """Return ``_data/foreign.toml``, the last published run of ``make foreign``, or that of the packages for Celery."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def foreign() -> str:
    """When, at which commit, with what, and how many scenarios passed."""
    found = foreign_data()
    rows = [
        (
            f"{each['name']} {each['version']}",
            f"Django {each['django']}, Python {each['python']}",
            str(len(each["passed"])),
            "<br>".join(each["failed"]) or "none",
        )
        for each in found["packages"]
    ]
    said = f"The last run is of {found['date']}, at commit `{found['commit']}`:\n\n"
    return said + table(("package", "with", "scenarios passed", "failed"), rows)


def foreign_wagtail() -> str:
    """What the scenarios of Wagtail show, each in a line, and how its own tests went."""
    (wagtail,) = (each for each in foreign_data()["packages"] if each["name"] == "wagtail")
    lines = [f"* {each[0].upper()}{each[1:]}." for each in wagtail["passed"]]
    figures = wagtail["figures"]
    tests = (
        f"{figures['eager']} of them passed on `EagerBackend`, {figures['immediate']} on Django's `ImmediateBackend`."
    )
    return "\n".join(lines) + f"\n\nThe last line speaks of three modules of Wagtail's own tests: {tests}\n"


def foreign_celery() -> str:
    """How many of their own tests packages with tasks of Celery pass on Celery and here."""
    found = foreign_data("foreign_celery")
    modes = ("celery", "bridge", "rows")
    rows = [
        (
            f"{each['name']} {each['version']}",
            *(str(each["figures"][mode]) for mode in modes),
            str(each["figures"]["jobs"]),
        )
        for each in found["packages"]
    ]
    said = f"The last run is of {found['date']}, at commit `{found['commit']}`:\n\n"
    head = (
        "its own tests that pass",
        "on Celery",
        "with `install(app)`",
        "each call as a job",
        "jobs that ran for these",
    )
    return said + table(head, rows)
