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

PRODUCERS = (1, 16)
"""Processes that keep such a pace together."""

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


def name_of(rate: int, producers: int) -> str:
    """Return the words for a pace, which are the key of a peer's figures too."""
    return f"{rate}/s" + (f" of {producers}" if producers > 1 else "")


def shared(pace: str, producers: int) -> list[str]:
    """Return the pace of each producer that registers its share of ``COUNT@RATE``."""
    return [f"{pace}@{number}/{producers}" for number in range(producers)]


def paced(pace: str) -> Iterator[int]:
    """Yield the numbers of ``COUNT@RATE`` at their instants, so many a second; blocks in between on purpose.

    Of ``COUNT@RATE@NUMBER/PRODUCERS`` it yields each of so many, from NUMBER on. One that is late does not delay the
    next.
    """
    count, rate, *share = pace.split("@")
    first, step = map(int, share[0].split("/")) if share else (0, 1)
    began = now()
    for number in range(first, int(count), step):
        time.sleep(max(0.0, began + number / int(rate) - now()))
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
