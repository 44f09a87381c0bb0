"""What all tests share lives in ``tests/plugins``, one named plugin an area."""

from __future__ import annotations

from hypothesis import settings

# Under CI Hypothesis would play the same examples each time; ours are new ones, and a failure prints how to repeat it.
settings.register_profile("pgjobs", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("pgjobs")

pytest_plugins = ["tests.plugins.fix_db", "tests.plugins.fix_worker", "tests.plugins.fix_chaos"]
