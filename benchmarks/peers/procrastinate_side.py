"""procrastinate, in its own environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import procrastinate

from benchmarks import stamps
from benchmarks.peers import side

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=side.URL, min_size=1, max_size=20))


@app.task(name="noop")
async def noop(number: int) -> None:
    pass


@app.task(name="note")
async def note(number: int) -> None:
    stamps.write(side.STAMPS, number)


class Procrastinate:
    """Its verbs."""

    async def prepare(self) -> None:
        """Make the schema."""
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def work(self, setting: dict[str, Any], *, until_idle: bool) -> None:
        """Run a worker."""
        async with app.open_async():
            await app.run_worker_async(
                concurrency=setting["concurrency"], wait=not until_idle, listen_notify=not until_idle
            )

    async def enqueuing(self, use: Callable[[side.Enqueue], Awaitable[None]]) -> None:
        """Enqueue through the same connector."""
        async with app.open_async():
            await use(self._enqueue)

    async def _enqueue(self, name: str, numbers: Sequence[int]) -> None:
        task = noop if name == "noop" else note
        if len(numbers) == 1:
            await task.defer_async(number=numbers[0])
        else:
            await task.batch_defer_async(*({"number": number} for number in numbers))


if __name__ == "__main__":
    side.main(Procrastinate())
