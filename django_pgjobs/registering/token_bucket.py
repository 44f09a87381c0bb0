"""The token buckets of this process: how fast it may register into a queue, cancel in it and inspect it.

One bucket per queue, full at first, on this process's monotonic clock. Processes share no buckets, and a forked process
begins with full ones. A bucket is one number, the instant at which it will be full again, so nothing has to fill it. An
action that costs more than a bucket holds waits for a full bucket and leaves it in debt: the rate holds over time, and
every action can be paid for once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from django_pgjobs import clock
from django_pgjobs.exceptions import RateLimited
from django_pgjobs.values.by_queue import Rate

WAITS = 5
"""Number of times that an inspection of a queue waits for tokens before it gives up."""

PATIENCE_SECONDS = 5.0
"""Time that it waits in all. A bucket may be in debt for hours, and the caller is often a web request."""

MANY = 1000
"""With more buckets than this, ``take`` drops the full ones, which hold no information."""

TOLERANCE_SECONDS = 1e-6
"""Larger than rounding errors of float sums: a caller that waited as long as the error said passes."""


class Buckets:
    """Buckets by queue. Thread-safe; ``take`` never blocks."""

    def __init__(
        self,
        now: Callable[[], float] = clock.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        asleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.now = now
        self.sleep = sleep
        self.asleep = asleep
        self.reset()

    def reset(self) -> None:
        """Fill every bucket."""
        self._lock = threading.Lock()
        self._full_at: dict[str, tuple[Rate, float]] = {}

    def take(self, prices: Mapping[str, tuple[Rate, int]]) -> None:
        """Take tokens for several queues (queue → rate, price), from all of their buckets or from none.

        Raises ``RateLimited`` with the seconds after which it would succeed.
        """
        now = self.now()
        with self._lock:
            waits = {queue: self._wait(queue, rate, price, now) for queue, (rate, price) in prices.items()}
            queue = max(waits, key=waits.__getitem__)
            if waits[queue] > TOLERANCE_SECONDS:
                raise RateLimited(queue=queue, retry_after=waits[queue])
            for queue, (rate, price) in prices.items():
                self._full_at[queue] = rate, max(self._full(queue, rate), now) + price * rate.seconds_per_token
            if len(self._full_at) > MANY:
                self._full_at = {queue: full for queue, full in self._full_at.items() if full[1] > now}

    def take_patiently(self, queue: str, rate: Rate, price: int) -> None:
        """Take tokens, waiting for them up to ``WAITS`` times and ``PATIENCE_SECONDS`` in all.

        Raises ``RateLimited`` when other callers were always first, and at once if the wait would be longer.
        """
        for seconds in self._tries(queue, rate, price):
            self.sleep(seconds)

    async def atake_patiently(self, queue: str, rate: Rate, price: int) -> None:
        """``take_patiently`` for async callers; occupies no thread while it waits."""
        for seconds in self._tries(queue, rate, price):
            await self.asleep(seconds)

    def _tries(self, queue: str, rate: Rate, price: int) -> Iterator[float]:
        """Try until tokens are taken; between tries, yield the seconds to wait."""
        patience = PATIENCE_SECONDS
        for left in reversed(range(WAITS + 1)):
            try:
                return self.take({queue: (rate, price)})
            except RateLimited as limited:
                seconds = limited.retry_after
                patience -= seconds
                if not left or patience < 0:
                    raise
            yield seconds

    def _wait(self, queue: str, rate: Rate, price: int, now: float) -> float:
        if not price:
            return 0.0
        missing = max(self._full(queue, rate) - now, 0.0)
        free = rate.tokens * rate.seconds_per_token - missing
        return min(price, rate.tokens) * rate.seconds_per_token - free

    def _full(self, queue: str, rate: Rate) -> float:
        """Return when the bucket will be full; a bucket of another rate, from before settings changed, is full."""
        known, full = self._full_at.get(queue, (rate, 0.0))
        return full if known == rate else 0.0


of_this_process = Buckets()

if hasattr(os, "register_at_fork"):
    # A lock that another thread held when this process was forked would stay locked forever.
    os.register_at_fork(after_in_child=of_this_process.reset)
