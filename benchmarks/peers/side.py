"""What every peer's side understands, and how it answers. Runs in the peer's environment: standard library only.

``python -m benchmarks.peers.X_side VERB ARGUMENT`` with PEER_URL and PEER_STAMPS in the environment:

* ``prepare ''``        make the schema
* ``fill N``            enqueue N no-op jobs by the peer's bulk call
* ``work SETTING``      run a worker until nothing is left (SETTING is JSON)
* ``serve SETTING``     run a worker until SIGTERM
* ``enqueue N``         enqueue N jobs one by one, a commit each; answers with the seconds
* ``hello ''``          enqueue the job by which a worker shows that it serves
* ``pickup N``          enqueue N jobs that note their start, with pauses; answers with when each call returned
* ``pickup N@RATE``     the same, so many a second; ``N@RATE@NUMBER/PRODUCERS``: one producer's share of them
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from benchmarks import stamps

URL = os.environ.get("PEER_URL", "")
STAMPS = os.environ.get("PEER_STAMPS", "")
WARM_UP = 20
HELLO = -1
"""The number of the job by which a worker shows that it serves."""


class Side(Protocol):
    """What a peer must be able to do. ``opened`` wraps what enqueues; the enqueuing functions are its result."""

    async def prepare(self) -> None:
        """Make the schema."""

    async def work(self, setting: dict[str, Any], *, until_idle: bool) -> None:
        """Run a worker."""

    async def enqueuing(self, use: Callable[[Enqueue], Awaitable[None]]) -> None:
        """Call ``use`` with a function that enqueues jobs."""


class Enqueue(Protocol):
    """Enqueue a job for each number by one call of the peer's: ``noop``, or ``note`` which writes its stamp."""

    async def __call__(self, name: str, numbers: Sequence[int]) -> None: ...


def main(side: Side) -> None:
    """Do what the command line says."""
    verb, argument = sys.argv[1:3]
    asyncio.run(_do(side, verb, argument))


async def _do(side: Side, verb: str, argument: str) -> None:
    match verb:
        case "prepare":
            await side.prepare()
        case "work" | "serve":
            await side.work(json.loads(argument), until_idle=verb == "work")
        case "fill":
            await side.enqueuing(lambda enqueue: _fill(enqueue, int(argument)))
        case "enqueue":
            await side.enqueuing(lambda enqueue: _enqueue(enqueue, int(argument)))
        case "hello":
            await side.enqueuing(lambda enqueue: enqueue("note", [HELLO]))
        case "pickup":
            await side.enqueuing(lambda enqueue: _pickup(enqueue, argument))
        case _:
            raise SystemExit(f"unknown verb {verb}")


async def _fill(enqueue: Enqueue, count: int) -> None:
    for start in range(0, count, 1000):
        await enqueue("noop", range(start, min(start + 1000, count)))


async def _enqueue(enqueue: Enqueue, count: int) -> None:
    for number in range(WARM_UP):
        await enqueue("noop", [number])
    began = time.perf_counter()
    for number in range(count):
        await enqueue("noop", [number])
    print(json.dumps({"seconds": time.perf_counter() - began}))


async def _pickup(enqueue: Enqueue, pace: str) -> None:
    returned = {}
    # Blocks on purpose: nothing else shall happen in this process.
    for number in stamps.paced(pace) if "@" in pace else _now_and_then(int(pace)):
        await enqueue("note", [number])
        returned[number] = stamps.now()
    print(json.dumps({"returned": returned}))


def _now_and_then(count: int) -> Iterator[int]:
    for number in range(count):
        time.sleep(0.02 + random.random() * 0.03)
        yield number
