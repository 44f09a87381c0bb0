"""Instants that jobs write to a file when they start. Peers import it too: standard library only.

CLOCK_MONOTONIC is one clock for all processes of a machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

RATES = (1, 5, 20, 50, 100, 250, 1000)
"""Registrations a second at which pickup is measured: from a quiet site's to a flood's."""

_LINE = "{} {:.9f}\n"


def now() -> float:
    """Return the current instant on the clock of the stamps."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def write(path: str, number: int) -> None:
    """Append that job ``number`` has started."""
    instant = now()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, _LINE.format(number, instant).encode())
    finally:
        os.close(file)


def paced(pace: str) -> Iterator[int]:
    """Yield the numbers of ``COUNT@RATE`` at their instants, so many a second; blocks in between on purpose.

    One that is late does not delay the next.
    """
    count, rate = map(int, pace.split("@"))
    began = now()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - now()))
        yield number


def read(path: str) -> dict[int, float]:
    """Return the first start of each job."""
    started: dict[int, float] = {}
    if Path(path).exists():
        for line in Path(path).read_text().splitlines():
            number, instant = line.split()
            started.setdefault(int(number), float(instant))
    return started


def wait_for(path: str, number: int, seconds: float) -> float | None:
    """Return when job ``number`` started, waiting at most so long; None if it did not start."""
    until = now() + seconds
    while now() < until:
        if (instant := read(path).get(number)) is not None:
            return instant
        time.sleep(0.002)
    return None
