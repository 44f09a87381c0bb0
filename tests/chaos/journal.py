"""What jobs say of themselves, outside the database: an append-only file, one JSON object and one write a line.

Each line carries the instant on CLOCK_BOOTTIME (the same in all processes of a machine) and by the wall clock, which
on one machine is the database's. A line survives whatever its writer does next, a SIGKILL included. The producer
notes there too what it registered and whether it committed; the nemesis what it did to whom.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django_pgjobs import clock

NAME = "journal"


class Journal:
    """The file; ``note`` appends, ``lines`` reads."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **facts: Any) -> None:
        """Append a line by one write, so lines of several processes never mix."""
        line = {"what": what, "at": clock.monotonic_ns(), "wall": time.time_ns(), "pid": os.getpid(), **facts}
        os.write(self._fd, (json.dumps(line, separators=(",", ":")) + "\n").encode())

    def lines(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Yield what was noted, oldest first; only these kinds if any are named."""
        with self.path.open() as file:
            for text in file:
                if not text.endswith("\n"):
                    return  # somebody is writing it
                line: dict[str, Any] = json.loads(text)
                if not kinds or line["what"] in kinds:
                    yield line

    def count(self, what: str, **facts: Any) -> int:
        """Return how many lines of a kind have these facts."""
        return sum(all(line.get(key) == value for key, value in facts.items()) for line in self.lines(what))

    def clear(self) -> None:
        """Forget all."""
        os.truncate(self.path, 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


_here: Journal | None = None


def here() -> Journal:
    """Return the journal of the test that started this process (``PGJOBS_TEST_STAGE``)."""
    global _here
    if _here is None:
        _here = Journal(Path(os.environ["PGJOBS_TEST_STAGE"]))
    return _here
