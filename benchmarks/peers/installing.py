"""What environments of all runtimes share: where they are, what they answer, and how a failure to make one is told."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.workers import ROOT

FOLDER = ROOT / ".bench"
INSTALL_SECONDS = 300
NPM_CODE = "npm error code "


class NotInstallable(Exception):
    """A peer cannot be installed here."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer is installed, as which version, on which ``runtime``.

    ``command`` runs its side; verb and argument follow. ``variables`` are what the side needs beside those of the race.
    """

    command: tuple[str, ...]
    version: str
    runtime: str
    variables: dict[str, str] = field(default_factory=dict)


def run(command: list[str], *, folder: Path | None = None) -> str:
    """Return what a command prints; raises NotInstallable with its last error if it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False, cwd=folder)
    except subprocess.TimeoutExpired:
        raise NotInstallable(f"not done after {INSTALL_SECONDS} s") from None
    if done.returncode:
        raise NotInstallable(_reason(done.stderr))
    return done.stdout


def _reason(errors: str) -> str:
    """Return the line that says why: pip marks it in capitals, npm begins with a code.

    Whatever npm says behind the code names addresses, which have no place in a results file.
    """
    said = [line for line in errors.splitlines() if line.strip()]
    codes = [line.removeprefix(NPM_CODE) for line in said if line.startswith(NPM_CODE)]
    if codes:
        return f"npm failed with {codes[0]}; it keeps a log in {FOLDER.name}/npm-cache/_logs"
    return ([line for line in said if "ERROR" in line] or said or ["failed"])[-1]
