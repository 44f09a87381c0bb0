"""The lines about duties, at DEBUG: one for each turn.

A leader takes two turns a second at rest, and nearly all of them find nothing to do. Those have a logger of their own,
``django_pgjobs.duties``, so that a project can silence them and still see the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from typing import TypeVar

from django_pgjobs import clock
from django_pgjobs.logs import log, safe_logger

Connected = TypeVar("Connected")

idle_log = safe_logger("django_pgjobs.duties")


def take_turn(name: str, perform: Callable[[Connected], object], db: Connected) -> None:
    """Perform a duty and log its turn. A number that it returns, or the length of a list, is how much it did."""
    began = clock.monotonic()
    did = perform(db)
    took_turn(name, began, len(did) if isinstance(did, Sized) else did if isinstance(did, int) else 0)


def took_turn(name: str, began: float, done: int = 0) -> None:
    """Log a turn that ``began`` then, by ``clock.monotonic()``, and changed so many rows."""
    logger = log if done else idle_log
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("duty took its turn duty=%s done=%d seconds=%.4f", name, done, clock.monotonic() - began)
