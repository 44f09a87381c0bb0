"""What the faults of server and network are tried on: many jobs under way, and how long it took until all was well."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.models import Job
from tests.chaos.ground import Ground
from tests.chaos.jobs import act
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ended


def under_load(ground: Ground, count: int, *, done: int, seconds: float = 0.05, role: str = "sleep") -> list[Job]:
    """Register so many jobs; return when some are running and ``done`` of them have come to their end."""
    jobs = ground.register.many([(act, role, "", {"seconds": seconds})] * count)
    wait_until(lambda: ground.journal.count("end") >= done, 30, f"{done} of {count} jobs are done")
    return jobs


def recovered(ground: Ground, *jobs: Job, within: float, what: str) -> float:
    """Wait until these jobs and one registered now have ended; return how long that took, and say it.

    Called when the fault is over. Django's connection here may have suffered from it and is made anew.
    """
    began = time.monotonic()
    connection.close()
    probe = ground.register(act)
    ended(probe, timeout=within)
    ended(*jobs, timeout=within)
    took = time.monotonic() - began
    sys.stdout.write(f"recovery: {what}: {took:.2f} s\n")
    assert took < patience(within)
    return took


@contextmanager
def meanwhile(act_once: Callable[[], Any], every: float) -> Iterator[list[Any]]:
    """Do something again and again in a thread while the block runs; yields what it returned, in order."""
    over = threading.Event()
    found: list[Any] = []

    def doing() -> None:
        while not over.wait(every):
            found.append(act_once())

    thread = threading.Thread(target=doing, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(30)


def needs(*programs: str) -> None:
    """Skip where a program is not installed; in CI it must be: ``.ci/run`` installs what these tests need."""
    missing = [program for program in programs if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    unless(missing, f"not installed: {', '.join(missing)}")


def unless(impossible: object, reason: str) -> None:
    """Skip with a reason if this machine cannot do it; fail where CI promises that it can."""
    if impossible and os.environ.get("CI"):
        pytest.fail(reason)
    if impossible:
        pytest.skip(reason)
