"""Content of a worker's page of metrics: its parts read by the thread that answers a scrape, without a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_pgjobs import __version__, clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.duties import MEASURE_SECONDS, TimedDuty
from django_pgjobs.metrics.families import Family, of_databases, render
from django_pgjobs.metrics.fleet import FleetGauges
from django_pgjobs.metrics.server import MetricsServer
from django_pgjobs.metrics.worker import WorkerFigures, families_of
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.numbers import AttemptFigures
from django_pgjobs.worker.supervisor.executor_process import READY

if TYPE_CHECKING:
    from django_pgjobs.running.served_database import ServedDatabase
    from django_pgjobs.worker.supervisor.supervisor import Supervisor

    Served = Callable[[], Iterable[ServedDatabase]]


@dataclass(frozen=True, slots=True)
class WorkerSizes:
    """Number of executors of a worker, and of jobs that each runs at once."""

    processes: int
    threads: int
    async_slots: int


class Metered:
    """The metrics of one worker. Without a port it serves nothing and asks for no duty."""

    def __init__(self, host: str, port: int | None, author: Author, sizes: WorkerSizes) -> None:
        self.host = host
        self.port = port
        self.author = author
        self.sizes = sizes
        self.fleets: dict[str, FleetGauges] = {}
        self.server: MetricsServer | None = None

    def duties(self, alias: str) -> list[TimedDuty]:
        """Return the duty that reads the fleet's figures in a database; ``alias`` is empty if only one is served."""
        self.fleets[alias] = FleetGauges()
        return [TimedDuty("metrics", self.fleets[alias], MEASURE_SECONDS)] if self.port else []

    def _fleet(self) -> list[Family]:
        found = {alias: gauges.families() for alias, gauges in self.fleets.items()}
        return found[""] if "" in found else of_databases(found)

    def start(self, supervisor: Supervisor, served: Served) -> None:
        """Serve the page from now on; ``served`` returns the databases, or schemas, that are served now."""
        if self.port:
            self.server = MetricsServer(self.host, self.port, self._page(supervisor, served))
            self.server.start()

    def stop(self) -> None:
        """Serve it no more."""
        if self.server is not None:
            self.server.stop()

    def _page(self, supervisor: Supervisor, served: Served) -> Callable[[], bytes]:
        def page() -> bytes:
            found = figures_of(self.author, self.sizes, supervisor, list(served()))
            return render([*families_of(found), *self._fleet()])

        return page


def figures_of(
    author: Author, sizes: WorkerSizes, supervisor: Supervisor, served: Sequence[ServedDatabase]
) -> WorkerFigures:
    """Read a worker's parts, of all its homes together; called by any thread."""
    tallies, homes, children = supervisor.tallies.total(), supervisor.homes.copy(), list(supervisor.pool.children)
    now = clock.monotonic()
    asynchronous = any(definition.is_async for definition in registry.definitions())
    return WorkerFigures(
        ends=[
            AttemptFigures(
                *key, tally.jobs, tally.run_seconds, tally.wait_seconds, tally.run_histogram, tally.wait_histogram
            )
            for key, tally in tallies.read().items()
        ],
        claims=tallies.claims,
        jobs_claimed=tallies.jobs_claimed,
        runs_sent=supervisor.numbers.last,
        leases_lost=tallies.lost,
        rescues=tallies.rescued,
        executor_deaths=supervisor.pool.deaths.copy(),
        slots={
            "thread": sizes.processes * sizes.threads,
            "coroutine": sizes.processes * sizes.async_slots * asynchronous,
        },
        slots_busy=sum(child.busy for child in children),
        claims_held=sum(len(home.table.claims) for home in homes),
        jobs_held=supervisor.held,
        ends_unwritten=sum(home.finaliser.count for home in homes),
        executors=sum(child.state == READY for child in children),
        renewal_age_seconds=max((now - at.keeper.renewed_at for at in served if at.keeper.connections), default=0.0),
        leads=any(at.leader.leads for at in served),
        worker=author.name,
        version=__version__,
        release=author.release,
    )
