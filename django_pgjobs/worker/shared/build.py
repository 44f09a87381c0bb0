"""The build of this package that a process runs. Between releases many builds have one version."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import django_pgjobs

LETTERS = 8


@cache
def build() -> str:
    """Return a short digest of the package's own files, as they were at the first call: names, sizes and times.

    Reads directories, and no file: it takes milliseconds. Raises OSError if a file vanishes in that time.
    """
    return digest(Path(django_pgjobs.__file__).parent)


def digest(package: Path) -> str:
    """Return the digest of a package's Python and SQL files. Raises OSError."""
    seen = hashlib.sha256(usedforsecurity=False)
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".sql")):
        status = path.stat()
        seen.update(f"{path.relative_to(package)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:LETTERS]
