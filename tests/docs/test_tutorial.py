"""The tutorial, done as a reader does it: files written, commands run, and what they print compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.docs.pages import DOCS, ROOT, Block, blocks
from tests.plugins.fix_db import patience

PAGES = [DOCS / "tutorial" / f"{name}.md" for name in ("first-job", "worker", "retry", "admin")]
DATABASE = f"pgjobs_tutorial_{os.getpid()}"
OVERRIDE = f'\nDATABASES["default"]["NAME"] = "{DATABASE}"\n'


@pytest.fixture
def environment(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Make an empty database and return the environment in which Django finds it without being told a host."""
    known = connection.settings_dict
    with django_db_blocker.unblock(), connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(f'CREATE DATABASE "{DATABASE}"')
        project = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
        yield {
            **{key: value for key, value in os.environ.items() if key not in project},
            **{f"PG{key}": str(known[key]) for key in ("HOST", "PORT", "USER", "PASSWORD") if known[key]},
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        cursor.execute(f'DROP DATABASE "{DATABASE}" WITH (FORCE)')


def matches(printed: str, wanted: list[str]) -> bool:
    """Tell whether the lines wanted come in this order; ``…`` stands for anything."""
    pattern = ".*".join(re.escape(line).replace("…", ".*") for line in wanted)
    return re.search(pattern, printed, re.DOTALL) is not None


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines it prints) of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield command, printed


def perform(block: Block, place: Path, environment: dict[str, str]) -> None:
    if path := block.marks.get("file") or block.marks.get("append"):
        target = place / path
        before = target.read_text() if "append" in block.marks else ""
        override = OVERRIDE if path.endswith("settings.py") else ""
        target.write_text(f"{before}\n{block.text}{override}" if before else block.text)
    for command, wanted in commands(block.text) if "run" in block.marks else ():
        done = subprocess.run(
            command, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=patience(60)
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{block.where}: {command}\n{printed}"
        assert matches(printed, wanted), f"{block.where}: {command}\n{printed}"


def test_a_reader_who_follows_the_tutorial_sees_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    """A2, A4, C31, C33: a first job, a worker, a retry, an abandoned job and its steering, from an empty directory."""
    for page in PAGES:
        for block in blocks(page):
            assert block.marks, f"{block.where}: say above the block whether it is a file, run or skipped"
            if "skip" not in block.marks:
                perform(block, tmp_path, environment)
