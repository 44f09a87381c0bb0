"""A progress bar on stderr: one line drawn again on a terminal, a line for every tenth elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

WIDTH = 30
REDRAW_SECONDS = 0.1


class Bar:
    """``with Bar("files", 1790) as bar: bar.show(17)``; leaving it ends the line."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = max(total, 1)
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self._done = 0
        self._drawn_at = 0.0
        self._tenth = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.terminal:
            self._write(f"\r{self}\n")

    def show(self, done: int) -> None:
        """Show that ``done`` of the total are done; cheap enough to be called for each."""
        self._done = min(done, self.total)
        if self.terminal:
            self._redraw()
        elif (tenth := self._done * 10 // self.total) > self._tenth:
            self._tenth = tenth
            self._write(f"{self}\n")

    def _redraw(self) -> None:
        now = time.monotonic()
        if now - self._drawn_at > REDRAW_SECONDS:
            self._drawn_at = now
            self._write(f"\r{self}")

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        full = self._done * WIDTH // self.total
        bar = "█" * full + "░" * (WIDTH - full) if self.terminal else f"{self._done * 100 // self.total:3} %"
        rate = self._done / seconds if seconds > 0.5 else 0
        return f"{bar} {self._done:>5}/{self.total} {self.what}, {seconds:.1f} s, {rate:.0f}/s  "

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
