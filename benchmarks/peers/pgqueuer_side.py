"""PGQueuer, in its own environment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

from benchmarks import stamps
from benchmarks.peers import side


@asynccontextmanager
async def driver(name: str = "asyncpg") -> AsyncIterator[Any]:
    """Connect."""
    if name == "asyncpg":
        connection = await asyncpg.connect(side.URL)
        try:
            yield AsyncpgDriver(connection)
        finally:
            await connection.close()
    else:
        async with await psycopg.AsyncConnection.connect(side.URL, autocommit=True) as other:
            yield PsycopgDriver(other)


class PGQueuer:
    """Its verbs."""

    async def prepare(self) -> None:
        """Make the schema, with the autovacuum that its documentation advises."""
        async with driver() as on:
            queries = Queries(on)
            await queries.install()
            await queries.optimize_autovacuum()

    async def work(self, setting: dict[str, Any], *, until_idle: bool) -> None:
        """Run a worker."""
        async with driver(setting["driver"]) as on:
            queuer = PgQueuer(on)

            @queuer.entrypoint("noop")
            async def noop(job: Job) -> None:
                pass

            @queuer.entrypoint("note")
            async def note(job: Job) -> None:
                stamps.write(side.STAMPS, int(job.payload or b"0"))

            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
            await queuer.run(
                batch_size=setting["batch"],
                mode=QueueExecutionMode.drain if until_idle else QueueExecutionMode.continuous,
                log_aggregation_interval=timedelta(0),
            )

    async def enqueuing(self, use: Callable[[side.Enqueue], Awaitable[None]]) -> None:
        """Enqueue by its arrays."""
        async with driver() as on:
            queries = Queries(on)

            async def enqueue(name: str, numbers: Sequence[int]) -> None:
                count = len(numbers)
                if count == 1:
                    await queries.enqueue(name, str(numbers[0]).encode())
                else:
                    await queries.enqueue([name] * count, [str(n).encode() for n in numbers], [0] * count)

            await use(enqueue)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    side.main(PGQueuer())
