"""Ends that a lock keeps from being written. The finaliser sets them aside, and tries them again after a pause."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.shared.runs import HeldRun

PAUSE_SECONDS = 0.1

RunEnd = tuple[HeldRun, End]


class BusyEnd(NamedTuple):
    """An end that has to wait, its kind, and the gate that another session has locked; None: the job's own row or
    key."""

    kind: EndKind
    entry: RunEnd
    gate: int | None = None


class BusyEnds:
    """Ends that wait for a lock, by gate. New ends pass them: one lock delays only what needs it.

    ``until``: when to look again, on this process's clock; it does not move while more ends come.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self.count = 0
        self._by_gate: dict[int | None, list[BusyEnd]] = {}

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def has_rows(self) -> bool:
        """True if some wait for rows that are locked themselves."""
        return None in self._by_gate

    @property
    def has_gates(self) -> bool:
        """True if some wait for gates."""
        return len(self._by_gate) > self.has_rows

    def gates(self) -> dict[int, int]:
        """Return the gates that ends wait for, each with one of the jobs that do: its lock is all of theirs."""
        return {gate: some[0].entry[1].id for gate, some in self._by_gate.items() if gate is not None}

    def add(self, busy: Iterable[BusyEnd]) -> None:
        """Set ends aside."""
        if not self:
            self.until = clock.monotonic() + PAUSE_SECONDS
        for each in busy:
            self._by_gate.setdefault(each.gate, []).append(each)
            self.count += 1

    def take(self, locked: Collection[int]) -> list[BusyEnd]:
        """Return all ends but those that wait for gates still ``locked``, which wait for another pause."""
        free = [gate for gate in self._by_gate if gate is None or gate not in locked]
        taken = [each for gate in free for each in self._by_gate.pop(gate)]
        self.count -= len(taken)
        self.until = clock.monotonic() + PAUSE_SECONDS
        return taken
