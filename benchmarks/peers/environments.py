"""An environment for each peer, made when it is first measured, under ``.bench/``; ``node`` makes those on Node."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.peers import node
from benchmarks.peers.installing import FOLDER, Environment, NotInstallable, run
from benchmarks.peers.known import Peer

WANTED = ("3.14", "3.13", "3.12", "3.11")


def environment(peer: Peer) -> Environment:
    """Return the peer's environment, made now if need be; tries newer interpreters first."""
    if peer.on == "node":
        return node.environment(peer.project, peer.module)
    refusals = []
    for interpreter in interpreters():
        folder = FOLDER / peer.project
        python = folder / "bin" / "python"
        try:
            if not (folder / ".installed").exists():
                _make(interpreter, folder, peer.requirements)
            return Environment(
                (str(python), "-m", f"benchmarks.peers.{peer.module}"),
                _version(python, peer.project),
                f"Python {_answer(python, _PYTHON_VERSION)}",
            )
        except NotInstallable as refusal:
            refusals.append(f"Python {_answer(interpreter, _PYTHON_VERSION)}: {refusal}")
            shutil.rmtree(folder, ignore_errors=True)
    raise NotInstallable("; ".join(refusals))


def interpreters() -> list[Path]:
    """Return the interpreters found on this machine, the newest first; at least the one that runs this."""
    found: dict[str, Path] = {}
    homes = [Path.home() / ".pyenv" / "versions"]
    for version in WANTED:
        candidates = [Path(path)] if (path := shutil.which(f"python{version}")) else []
        candidates += [
            path
            for home in homes
            if home.is_dir()
            for path in sorted(home.glob(f"{version}.*/bin/python"), reverse=True)
        ]
        for candidate in candidates:
            if _works(candidate, version):
                found.setdefault(version, candidate)
    own = ".".join(map(str, sys.version_info[:2]))
    found.setdefault(own, Path(sys.executable))
    return [found[version] for version in sorted(found, key=lambda v: tuple(map(int, v.split("."))), reverse=True)]


_PYTHON_VERSION = "import platform; print(platform.python_version())"


def _works(python: Path, version: str) -> bool:
    try:
        return _answer(python, _PYTHON_VERSION).startswith(f"{version}.") and bool(
            _answer(python, "import ensurepip, venv; print(True)")
        )
    except (NotInstallable, OSError):
        return False


def _make(interpreter: Path, folder: Path, requirements: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    run([str(interpreter), "-m", "venv", str(folder)])
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements])
    (folder / ".installed").write_text("\n".join(requirements))


def _version(python: Path, project: str) -> str:
    return _answer(python, f"import importlib.metadata as m; print(m.version({project!r}))")


def _answer(python: Path, code: str) -> str:
    return run([str(python), "-c", code]).strip()
