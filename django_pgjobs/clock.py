"""The process's monotonic clock, for timers, trust windows and deadlines of running attempts.

There are two clocks. The database's decides every stored instant and every comparison of instants
(``statement_timestamp()`` in ``sql/``). The process's own, here, only makes us give up *sooner*. Nothing compares one
with the other.

CLOCK_BOOTTIME continues while a machine is suspended, like the server's clock. With CLOCK_MONOTONIC a process would
wake from suspend and trust a lease that has expired. Supervisor and executors share this clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
LATEST = datetime(9999, 12, 29, tzinfo=UTC)
"""The range that Python can show in every time zone. PostgreSQL has 300,000 years, BC, infinity: ``store.instants``."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Return seconds that never go back and do not stop in suspend; comparable between processes of one boot."""
    return time.clock_gettime(_CLOCK)


def monotonic_ns() -> int:
    """Return the same in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)
