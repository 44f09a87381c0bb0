"""The tutorial, done as a reader does it: files written, commands run, and what they print compared."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_pgjobs.embedded.directory import clean
from tests.docs.pages import DOCS, ROOT, Block, blocks
from tests.plugins.fix_db import patience

PAGES = [DOCS / "tutorial" / f"{name}.md" for name in ("first-job", "worker", "retry", "admin")]


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the environment of a reader who has installed the project and nothing else: no server, no settings."""
    project = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
    return {
        **{key: value for key, value in os.environ.items() if key not in project},
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def matches(printed: str, wanted: list[str]) -> bool:
    """Tell whether the lines wanted come in this order; ``…`` stands for anything."""
    pattern = ".*".join(re.escape(line).replace("…", ".*") for line in wanted)
    return re.search(pattern, printed, re.DOTALL) is not None


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines it prints) of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *printed = part.rstrip("\n").split("\n")
        yield command, printed


@contextlib.contextmanager
def terminal(block: Block, place: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run the one command of a block until the end of the block; it has printed what the page says before."""
    [(command, wanted)] = commands(block.text)
    with subprocess.Popen(
        command, shell=True, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            assert matches(printed, wanted), f"{block.where}: {command}\n{printed}"
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)


def perform(block: Block, place: Path, environment: dict[str, str]) -> None:
    if path := block.marks.get("file") or block.marks.get("append"):
        target = place / path
        before = target.read_text() if "append" in block.marks else ""
        target.write_text(f"{before}\n{block.text}" if before else block.text)
    for command, wanted in commands(block.text) if "run" in block.marks else ():
        done = subprocess.run(
            command, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=patience(60)
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{block.where}: {command}\n{printed}"
        assert matches(printed, wanted), f"{block.where}: {command}\n{printed}"


def test_a_reader_who_follows_the_tutorial_sees_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    """A2, A4, C31, C33: a first job, a worker, a retry, an abandoned job and its steering, from an empty directory."""
    with contextlib.ExitStack() as stack:
        stack.callback(clean, tmp_path / ".pg")
        for block in (block for page in PAGES for block in blocks(page)):
            assert block.marks, f"{block.where}: say above the block whether it is a file, run or skipped"
            if "background" in block.marks:
                stack.enter_context(terminal(block, tmp_path, environment))
            elif "skip" not in block.marks:
                perform(block, tmp_path, environment)
