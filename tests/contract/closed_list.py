"""The closed list of Django's tests that do not pass on our backends: ``docs/_data/contract.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from tests.contract.fetching import ROOT

DATA: dict[str, Any] = tomllib.loads((ROOT / "docs/_data/contract.toml").read_text(encoding="utf-8"))

BORROWED: str = DATA["borrowed"]["version"]
"""The release whose tests a Django without ``django.tasks`` runs."""


def excluded(series: str, python: str) -> set[str]:
    """Return the tests of a series of Django, such as ``6.0``, that are on the list for this version of Python."""
    return {
        name
        for name, entry in DATA["tests"].items()
        if series in entry["django"] and python in entry.get("python", [python])
    }


def differences(outcomes: Mapping[str, str | None], excluded: set[str]) -> list[str]:
    """Return how outcomes differ from the list, in both directions; ``outcomes``: test → None or why it failed."""
    failed = {name: why for name, why in outcomes.items() if why is not None}
    return [
        *(
            f"{name} does not pass, and is not on the list:\n{why}"
            for name, why in failed.items()
            if name not in excluded
        ),
        *(f"{name} is on the list, and passes" for name in sorted((excluded & set(outcomes)) - set(failed))),
        *(f"{name} is on the list, and does not exist" for name in sorted(excluded - set(outcomes))),
    ]
