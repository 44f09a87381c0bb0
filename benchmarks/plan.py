"""How much a run measures."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.server import Server


@dataclass(frozen=True, slots=True)
class Plan:
    """``scale`` multiplies numbers of jobs and rows; 1 measures what the table to reach speaks of."""

    server: Server
    scale: float = 1.0
    quick: bool = False

    def count(self, full: int, least: int = 500) -> int:
        """Return how many jobs or rows stand for ``full``; a multiple of ten."""
        return max(least, round(full * self.scale / 10) * 10)

    def fixed(self, full: int, quick: int) -> int:
        """Return how many of something that no number of rows changes."""
        return quick if self.quick else full

    def rounds(self, full: int) -> int:
        """Return how many times to measure."""
        return min(2, full) if self.quick else full

    def seconds(self, full: float) -> float:
        """Return how long to measure something that goes on and on."""
        return min(3.0, full) if self.quick else full
