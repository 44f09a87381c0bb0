"""What all tests share lives in ``tests/plugins``, one named plugin an area."""

from __future__ import annotations

import signal

from hypothesis import settings

# Under CI Hypothesis would play the same examples each time; ours are new ones, and a failure prints how to repeat it.
settings.register_profile("pgjobs", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("pgjobs")

# A shell that starts us in the background lets us ignore it, and with us every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.plugins.fix_db",  # first: others import it
    "tests.plugins.fix_admin",
    "tests.plugins.fix_claimer",
    "tests.plugins.fix_clock",
    "tests.plugins.fix_signals",
    "tests.plugins.fix_crons",
    "tests.plugins.fix_registering",
    "tests.plugins.fix_run_jobs",
    "tests.plugins.fix_tasks",
    "tests.plugins.fix_worker",
    "tests.plugins.fix_roles",
    "tests.plugins.fix_chaos",
    "tests.plugins.fix_lanes",
]
