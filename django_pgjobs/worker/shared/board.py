"""Shared memory in which an executor shows what has started, readable while it holds the GIL and after its death.

A message per start would cost a wake-up, and a job that never releases the GIL could not send it. For this reason each
slot (a job thread, or a place on the event loop) holds three words: when the run started; which run it is, 0 for none,
written after the instant; and when the job's own code began, which only a job with a soft limit shows. Runs ascend and
each buffer is first in, first out, so one more word per buffer, ``high``, says which run was popped last: after a death
a run on a slot was running, one at or below ``high`` had finished though its outcome is lost, one above was never
started.

Words are 64 bits, written by one aligned store each (``memoryview.cast``; ``struct`` would copy bytes).
"""

from __future__ import annotations

import mmap
import os
import tempfile

HIGH = {"sync": 0, "async": 1}
HEADER_WORDS = 8
SLOT_WORDS = 3


class Board:
    """The words of one executor: ``threads`` slots, then ``async_slots`` slots."""

    def __init__(self, fd: int, threads: int, async_slots: int) -> None:
        self.fd = fd
        self.threads = threads
        self.slots = threads + async_slots
        size = (HEADER_WORDS + SLOT_WORDS * self.slots) * 8
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, threads: int, async_slots: int) -> Board:
        """Make a new board, all zero, in memory that dies with its last user."""
        fd = os.memfd_create("pgjobs-board") if hasattr(os, "memfd_create") else _unlinked_file()
        try:
            os.ftruncate(fd, (HEADER_WORDS + SLOT_WORDS * (threads + async_slots)) * 8)
            return cls(fd, threads, async_slots)
        except BaseException:
            os.close(fd)
            raise

    def start(self, slot: int, run: int, now_ns: int, buffer: str) -> None:
        """Show that ``run`` starts on ``slot``; called under the buffer's lock, before any of the job's code."""
        at = HEADER_WORDS + SLOT_WORDS * slot
        self._words[at] = now_ns
        self._words[at + 1] = run
        self._words[HIGH[buffer]] = run

    def begin(self, slot: int, now_ns: int) -> None:
        """Show that the own code of the run on ``slot`` begins."""
        self._words[HEADER_WORDS + SLOT_WORDS * slot + 2] = now_ns

    def clear(self, slot: int) -> None:
        """Show that ``slot`` is free; its run's outcome is queued."""
        self._words[HEADER_WORDS + SLOT_WORDS * slot + 1] = 0

    def running(self) -> dict[int, int]:
        """Return run → instant of its start in nanoseconds, of every slot that is taken."""
        words = self._slot_words()
        return {run: started for started, run in zip(words[::3], words[1::3], strict=True) if run}

    def begun(self, run: int) -> int:
        """Return the instant at which the own code of ``run`` began, in nanoseconds; 0 if it shows none."""
        words = self._slot_words()
        for started, shown, begun in zip(words[::3], words[1::3], words[2::3], strict=True):
            if shown == run:
                return begun if begun >= started else 0  # the slot's earlier run has left its own
        return 0

    def _slot_words(self) -> list[int]:
        return self._words[HEADER_WORDS : HEADER_WORDS + SLOT_WORDS * self.slots].tolist()

    def high(self, buffer: str) -> int:
        """Return the run that was popped last from ``buffer``."""
        return self._words[HIGH[buffer]]

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
        os.close(self.fd)


def _unlinked_file() -> int:
    fd, path = tempfile.mkstemp(prefix="pgjobs-board-")
    os.unlink(path)
    return fd
