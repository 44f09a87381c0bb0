"""The ``extras`` of a claimed job: the values that few jobs have. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_pgjobs.values.backoff import LONGEST_SECONDS


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
