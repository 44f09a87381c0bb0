"""Gets Django's tests from its source distribution, and another Django to lay over the environment's own.

Both are kept in ``.tox/contract``, by version. pip downloads them from the index that it is configured with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / ".tox" / "contract"

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2")


class NotFetched(Exception):
    """The index did not give it: most often there is no network."""


def fetched_tests(version: str) -> Path:
    """Return a directory with Django's ``tests/tasks`` of this version as its package ``tasks``.

    Blocks while pip downloads it, if it is not kept yet. Raises ``NotFetched``.
    """
    kept = KEPT / f"tests-{version}"
    if not kept.exists():
        with _scratch() as scratch:
            # The newest tests are also for a Python that their Django does not run on: only files are taken out.
            source = ("--no-deps", "--no-binary", "django", "--ignore-requires-python")
            _pip("download", *source, "--dest", str(scratch), f"django=={version}")
            (archive,) = scratch.glob("*.tar.gz")
            take_out(archive, scratch / "tests")
            _keep(scratch / "tests", kept)
    return kept


def fetched_django(series: str) -> Path:
    """Return a directory with the newest Django of a series such as ``6.0``, to put before all others on the path.

    Blocks while pip installs it, if it is not kept yet. Raises ``NotFetched``.
    """
    kept = KEPT / f"django-{series}"
    if not kept.exists():
        with _scratch() as scratch:
            _pip("install", "--no-deps", "--target", str(scratch / "django"), f"django=={series}.*")
            _keep(scratch / "django", kept)
    return kept


@contextmanager
def _scratch() -> Iterator[Path]:
    KEPT.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=KEPT) as directory:
        yield Path(directory)


def _pip(*arguments: str) -> None:
    done = subprocess.run((*PIP, *arguments), capture_output=True, text=True)
    if done.returncode:
        raise NotFetched(f"pip could not get {arguments[-1]}: {done.stderr.strip() or done.stdout.strip()}")


def take_out(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as opened:
        for member in opened:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            content = opened.extractfile(member) if inside.is_relative_to("tests/tasks") else None
            if content is not None:
                path = target / inside.relative_to("tests")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())


def _keep(made: Path, kept: Path) -> None:
    """Move it to its place in one step, so that nobody sees half of it; another process may have been faster."""
    try:
        os.replace(made, kept)
    except OSError:
        if not kept.exists():
            raise
