"""The size of a run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.server import Server


@dataclass(frozen=True, slots=True)
class Plan:
    """``scale`` multiplies numbers of jobs and rows; 1 is the size that the targets refer to."""

    server: Server
    scale: float = 1.0
    quick: bool = False

    def count(self, full: int, least: int = 500) -> int:
        """Return the scaled number of jobs or rows for ``full``; a multiple of ten."""
        return max(least, round(full * self.scale / 10) * 10)

    def fixed(self, full: int, quick: int) -> int:
        """Return a count that does not depend on the number of rows."""
        return quick if self.quick else full

    def rounds(self, full: int) -> int:
        """Return how many times to measure."""
        return min(2, full) if self.quick else full

    def seconds(self, full: float) -> float:
        """Return how long to measure something that has no end of its own."""
        return min(3.0, full) if self.quick else full
