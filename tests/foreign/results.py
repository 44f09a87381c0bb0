"""What became of a site's scenarios, read from pytest's report, and the file that the documentation shows of all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Result:
    """How one site went; ``passed`` and ``failed`` are scenarios as sentences, ``figures`` what they counted."""

    package: str
    version: str
    django: str
    python: str
    seconds: int
    passed: list[str]
    failed: list[str]
    figures: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed"
        return f"{self.package} {self.version}, Django {self.django}, Python {self.python}: {counts}, {self.seconds} s"


def read_report(path: Path) -> tuple[list[str], list[str], dict[str, int]]:
    """Return the scenarios that passed, those that did not, and the figures, from a JUnit file; empty without one."""
    if not path.exists():
        return [], ["its scenarios were collected"], {}
    passed: list[str] = []
    failed: list[str] = []
    figures: dict[str, int] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        bad = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        (failed if bad else passed).append(sentence(case.get("name", "")))
        figures |= {each.get("name", ""): int(each.get("value", "")) for each in case.iter("property")}
    return passed, failed, figures


def sentence(name: str) -> str:
    """Return the name of a test function in words."""
    return name.removeprefix("test_").replace("_", " ")


def published(date: str, commit: str, results: list[Result]) -> str:
    """Return the text of a file such as ``docs/_data/foreign.toml``."""
    parts = [
        "# The last run of `make foreign ARGS=--publish`, which writes this file.\n"
        f"date = {_text(date)}\ncommit = {_text(commit)}\n"
    ]
    for each in results:
        lines = [
            "[[packages]]",
            f"name = {_text(each.package)}",
            f"version = {_text(each.version)}",
            f"django = {_text(each.django)}",
            f"python = {_text(each.python)}",
            f"seconds = {each.seconds}",
            f"passed = {_texts(each.passed)}",
            f"failed = {_texts(each.failed)}",
            "[packages.figures]",
            *(f"{name} = {value}" for name, value in each.figures.items()),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _texts(values: list[str]) -> str:
    return "[\n" + "".join(f"    {_text(value)},\n" for value in values) + "]" if values else "[]"
