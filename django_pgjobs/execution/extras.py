"""The ``extras`` of a claimed job: the values that few jobs have. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_pgjobs.values.backoff import LONGEST_SECONDS


def until_of(extras: Mapping[str, Any] | None, claimed_at: float) -> float | None:
    """Return when the deadline of a job claimed at ``claimed_at`` passes, by ``clock.monotonic()``; None without."""
    left = None if extras is None else extras.get("seconds_left")
    return None if left is None else claimed_at + float(left)


def option_of(extras: Mapping[str, Any] | None, name: str) -> Any:
    """Return one of the rare options of a claimed job, None if it has none of that name."""
    options = None if extras is None else extras.get("options")
    return options.get(name) if isinstance(options, dict) else None


def target_of(extras: Mapping[str, Any] | None) -> int | None:
    """Return the job that a claimed job undoes, or a part of; None if it undoes nothing."""
    target = option_of(extras, "target")
    return int(target[0]) if isinstance(target, list) and target else None


def soft_limit_of(extras: Mapping[str, Any] | None) -> float | None:
    """Return after how many seconds ``SoftDeadlinePassed`` is raised in a job; None for never."""
    seconds = option_of(extras, "soft_timeout")
    # A number beyond the floats, which no registration writes, would raise.
    return float(seconds) if isinstance(seconds, int | float) and seconds <= LONGEST_SECONDS else None


def expiry_of(extras: Mapping[str, Any] | None, claimed_at: float) -> float | None:
    """Return after when a job claimed at ``claimed_at`` is not started, by ``clock.monotonic()``; None for never."""
    left = None if extras is None else extras.get("expires_in")
    return None if left is None else claimed_at + float(left)


def dated(extras: Mapping[str, Any] | None, claimed_at: float) -> Mapping[str, Any] | None:
    """Return ``extras`` for an ``Item``: with that instant, as ``expires``, if the job expires."""
    expires = expiry_of(extras, claimed_at)
    return extras if extras is None or expires is None else {**extras, "expires": expires}
