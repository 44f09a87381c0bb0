"""The limits that this process's code declares, beside which an operator's limit is shown, and both in words."""

from __future__ import annotations

from typing import NamedTuple

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.values.limit import Limit


class DeclaredLimit(NamedTuple):
    """The limit in this process's code. ``applies``: a limit that an operator sets in its place has jobs to count.

    That is false for a job that this code does not know, and for a key that its limits do not have: it is *idle*.
    """

    limit: Limit | None
    applies: bool

    @property
    def words(self) -> str:
        """Its numbers."""
        if self.limit is None:
            return "none in the code"
        return f"in the code {numbers(self.limit.concurrency, self.limit.rate, self.limit.per)}"


def declared(kind: str, name: str) -> DeclaredLimit:
    """Return the limit for a *queue*, a *job*, or each *key* of a job."""
    if kind == "queue":
        return DeclaredLimit(get_conf().queue_limits.of(name), applies=True)
    definition = registry.resolved(name)
    if definition is None:
        return DeclaredLimit(None, applies=False)
    if kind == "job":
        return DeclaredLimit(definition.limits.own, applies=True)
    return DeclaredLimit(definition.limits.keyed, applies=definition.limits.keyed is not None)


def numbers(concurrency: int | None, rate: int | None, per: float | None) -> str:
    """*2 at once and 100 starts in 60 s*."""
    at_once = [] if concurrency is None else [f"{concurrency} at once"]
    return " and ".join([*at_once, *([] if rate is None else [f"{rate} starts in {per or 0.0:g} s"])])


def subject(kind: str, name: str) -> str:
    """*queue mail*, *job shop.send*, *each key of job shop.send*."""
    return f"each key of job {name}" if kind == "key" else f"{kind} {name}"
