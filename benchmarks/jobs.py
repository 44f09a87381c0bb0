"""The jobs of the benchmarks."""

from __future__ import annotations

from django_pgjobs import job


@job
def noop(number: int) -> int:
    return number
