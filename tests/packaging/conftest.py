"""What tests of the embedded server share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory that every account may enter; pytest's are their owner's alone."""
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        yield path
