"""What all tests share lives in ``tests/plugins``, one named plugin an area."""

from __future__ import annotations

pytest_plugins = ["tests.plugins.fix_db", "tests.plugins.fix_worker"]
