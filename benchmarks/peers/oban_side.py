"""oban, in its own environment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from oban import Job, Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks import stamps
from benchmarks.peers import side

LEFT = "SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN ('available', 'executing'))"
LOOK_SECONDS = 0.2


@worker(queue="default")
class Noop:
    async def process(self, job: Job) -> None:
        pass


@worker(queue="default")
class Note:
    async def process(self, job: Job) -> None:
        stamps.write(side.STAMPS, job.args["number"])


@asynccontextmanager
async def pool() -> AsyncIterator[AsyncConnectionPool]:
    """Connect, with as many connections as it takes by default."""
    async with AsyncConnectionPool(conninfo=side.URL, min_size=1, max_size=10, open=False) as opened:
        yield opened


class ObanSide:
    """Its verbs."""

    async def prepare(self) -> None:
        """Make the schema."""
        async with pool() as opened:
            await install(opened)

    async def work(self, setting: dict[str, Any], *, until_idle: bool) -> None:
        """Run a worker."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with pool() as opened, Oban(pool=opened, queues={"default": setting["limit"]}):
            while not stop.is_set():
                await asyncio.sleep(LOOK_SECONDS)
                if until_idle:
                    async with opened.connection() as connection:
                        row = await (await connection.execute(LEFT)).fetchone()
                    if row is not None and not row[0]:
                        break

    async def enqueuing(self, use: Callable[[side.Enqueue], Awaitable[None]]) -> None:
        """Enqueue as a client."""
        async with pool() as opened:
            client = Oban(pool=opened)

            async def enqueue(name: str, numbers: Sequence[int]) -> None:
                kind: Any = Noop if name == "noop" else Note
                await client.enqueue_many([kind.new({"number": number}) for number in numbers])

            await use(enqueue)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    side.main(ObanSide())
