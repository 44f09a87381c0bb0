"""Two clocks. The database's decides every stored instant and every comparison of instants
(``statement_timestamp()`` in ``sql/``). The process's own, here, only makes us give up *sooner*:
timers, trust windows, deadlines of running attempts. It is never compared with the database's.

CLOCK_BOOTTIME goes on while a machine is suspended, as the server's clock does; CLOCK_MONOTONIC would
come back from suspend believing that a lease is still good. It is the same in supervisor and executors.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
LATEST = datetime(9999, 12, 29, tzinfo=UTC)
"""What Python can show in every time zone. PostgreSQL knows 300,000 years, BC and infinity; see ``store.instants``."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds that never go back and do not stop in suspend; comparable between processes of one boot."""
    return time.clock_gettime(_CLOCK)


def monotonic_ns() -> int:
    """The same in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)
