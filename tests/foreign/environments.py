"""An environment for each site, made when it is first needed, under ``.tox/``; delete it to take newer releases."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.peers.environments import interpreters
from benchmarks.peers.installing import NotInstallable, run
from benchmarks.workers import ROOT
from tests.foreign.sites import Site

PYPROJECT = ROOT / "pyproject.toml"


def environment(site: Site) -> Path:
    """Return the interpreter of the site's environment, made now if need be with the newest Python that will do.

    Raises NotInstallable with each interpreter's reason.
    """
    folder = ROOT / ".tox" / f"foreign-{site.name}"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    wanted = "\n".join(site.requirements)
    if stamp.exists() and stamp.read_text() == wanted and stamp.stat().st_mtime > PYPROJECT.stat().st_mtime:
        return python
    refusals = []
    for interpreter in interpreters():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            run([str(interpreter), "-m", "venv", str(folder)])
            run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *site.requirements])
            if site.sources:
                _unpack(python, site, folder)
        except NotInstallable as refusal:
            refusals.append(f"{interpreter}: {refusal}")
            continue
        stamp.write_text(wanted)
        return python
    raise NotInstallable("; ".join(refusals))


def _unpack(python: Path, site: Site, folder: Path) -> None:
    """Put the released sources of the package under ``sdist``."""
    options = ["-q", "--disable-pip-version-check", "--no-deps", f"--no-binary={site.project}"]
    run([str(python), "-m", "pip", "download", *options, f"--dest={folder}", site.requirement])
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    archive.with_suffix("").with_suffix("").rename(folder / "sdist")


def versions(python: Path, *projects: str) -> list[str]:
    """Return the versions that an environment has: of Python itself, then of each project."""
    code = "import platform, sys; from importlib.metadata import version as v; "
    code += "print(platform.python_version(), *map(v, sys.argv[1:]))"
    return run([str(python), "-c", code, *projects]).split()
