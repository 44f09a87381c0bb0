"""Type checkers accept every right use of the public surface, and mark every wrong one.

``wrong.py.txt`` is no ``.py``, so that a check of the whole repository does not stumble over it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
Found = dict[int, str]
"""Line → message of the errors in one file."""


def run(*command: str) -> str:
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(path: Path) -> Found:
    output = run("mypy", "--no-error-summary", "--no-pretty", "--follow-imports=silent", str(path))
    lines = re.findall(rf"{re.escape(path.name)}:(\d+): error: (.*)", output)
    return {int(line): message for line, message in reversed(lines)}


def pyright(path: Path) -> Found:
    report = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, str(path)))
    errors = [entry for entry in report["generalDiagnostics"] if entry["severity"] == "error"]
    return {entry["range"]["start"]["line"] + 1: entry["message"] for entry in reversed(errors)}


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


checkers = pytest.mark.parametrize(
    "check", [pytest.param(mypy, marks=needs("mypy")), pytest.param(pyright, marks=needs("pyright"))]
)


@checkers
def test_right_uses_are_accepted(check: Callable[[Path], Found]) -> None:
    assert check(HERE / "api.py") == {}


@checkers
def test_wrong_uses_are_errors_where_they_stand(check: Callable[[Path], Found], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text((HERE / "wrong.py.txt").read_text())
    expected = {n for n, line in enumerate(wrong.read_text().splitlines(), 1) if line.endswith("# E")}
    found = check(wrong)
    assert set(found) - expected == set(), f"errors where none belongs: {found}"
    assert expected - set(found) == set(), "wrong uses that were accepted"
