"""An environment for a peer that runs on Node: packages and Node itself from npm, by a lock file, under ``.bench/``.

``benchmarks/peers/PROJECT/`` has ``package.json`` and its lock. The lock names a Node for each platform that npm has
one for, so the figure does not depend on the Node of the machine; npm itself has to be there. To renew the lock, change
``package.json`` and run ``npm install --package-lock-only --ignore-scripts`` beside it.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

from benchmarks.peers.installing import FOLDER, Environment, NotInstallable, run
from benchmarks.workers import ROOT

SIDES = ROOT / "benchmarks" / "peers"


def environment(project: str, module: str) -> Environment:
    """Return the environment of a project, made now if need be, and anew if its lock has changed."""
    folder = FOLDER / project
    lock = (SIDES / project / "package-lock.json").read_text(encoding="utf-8")
    installed = folder / ".installed"
    if not installed.exists() or installed.read_text(encoding="utf-8") != lock:
        try:
            _make(folder, SIDES / project)
        except NotInstallable:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        installed.write_text(lock, encoding="utf-8")
    modules = folder / "node_modules"
    node = str(modules / ".bin" / "node")
    version = json.loads((modules / project / "package.json").read_text(encoding="utf-8"))["version"]
    return Environment(
        (node, str(SIDES / f"{module}.cjs")),
        version,
        f"Node {run([node, '--version']).strip().removeprefix('v')}",
        {"NODE_PATH": str(modules)},
    )


def _make(folder: Path, locked: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstallable("npm is not on the PATH; it comes with Node.js")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(locked / name, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", f"--cache={FOLDER / 'npm-cache'}"]
    run([npm, "ci", *options], folder=folder)
    if not (folder / "node_modules" / ".bin" / "node").exists():
        raise NotInstallable(f"its lock names no Node for {platform.system()} on {platform.machine()}")
