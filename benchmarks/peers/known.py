"""The peers: what to install, which settings to try, where they keep their instants, what they do not do.

The settings are those that their documentation names for throughput; the best of them counts. The notes were checked
in the code of the versions named there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Peer:
    """``settings`` are tried for the drain, each with so many ``processes``; ``idle`` is for the pickup latency.

    ``span`` returns the instants of the first start and of the last end, ``done`` how many jobs have succeeded,
    ``left`` how many have not. A peer that deletes what has succeeded has only ``left``: its workers answer with the
    instants and with the numbers of the jobs that they ran. ``on`` says what it runs on; ``requirements`` are pip's, or
    on Node the name of the project, whose version its lock file pins.
    """

    name: str
    requirements: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]
    idle: dict[str, Any]
    jobs: int
    notes: tuple[str, ...]
    module: str
    span: str = ""
    done: str = ""
    left: str = ""
    on: Literal["python", "node"] = "python"

    @property
    def project(self) -> str:
        """Return the name of the project on the package index."""
        return self.requirements[0].partition("[")[0]

    @property
    def side(self) -> str:
        """Return the name of the file with the peer's side."""
        return f"{self.module}.{'py' if self.on == 'python' else 'cjs'}"


PROCRASTINATE = Peer(
    name="procrastinate",
    requirements=("procrastinate", "psycopg[binary,pool]"),
    settings=(
        {"processes": 1, "concurrency": 20},
        {"processes": 2, "concurrency": 20},
        {"processes": 4, "concurrency": 10},
    ),
    idle={"concurrency": 10},
    jobs=5_000,
    span=(
        "SELECT extract(epoch FROM min(at) FILTER (WHERE type = 'started'))::float8,"
        " extract(epoch FROM max(at) FILTER (WHERE type = 'succeeded'))::float8 FROM procrastinate_events"
    ),
    done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    notes=(
        "No fence: an end is accepted for any job that is `todo` or `doing`, whoever writes it (3.10).",
        "A killed worker's jobs stay `doing` until a periodic task that you write retries them.",
        "One statement to fetch and one to end per job; keeps jobs and an event per transition; keeps no results.",
    ),
    module="procrastinate_side",
)

PGQUEUER = Peer(
    name="PGQueuer",
    requirements=("pgqueuer[psycopg]", "asyncpg", "uvloop"),
    settings=(
        {"processes": 1, "batch": 500, "driver": "asyncpg"},
        {"processes": 2, "batch": 500, "driver": "asyncpg"},
        {"processes": 2, "batch": 1000, "driver": "asyncpg"},
        {"processes": 2, "batch": 500, "driver": "psycopg"},
    ),
    idle={"batch": 10, "driver": "asyncpg"},
    jobs=150_000,
    span=(
        "SELECT extract(epoch FROM min(created) FILTER (WHERE status = 'picked'))::float8,"
        " extract(epoch FROM max(created) FILTER (WHERE status = 'successful'))::float8 FROM pgqueuer_log"
    ),
    done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    notes=(
        "No fence: an end deletes the job by its id alone, so a worker that was given up can end another's run (1.6).",
        "A finished job's row is gone; a log keeps id, entrypoint and status, not payload or result.",
        "A lost worker's jobs are taken again 30 s after its last heartbeat.",
        "The fastest settings claim up to a whole batch for one process, whatever the jobs take.",
    ),
    module="pgqueuer_side",
)

DJANGO_TASKS_DB = Peer(
    name="django-tasks-db",
    requirements=("django-tasks-db", "psycopg[binary]"),
    settings=({"processes": 1}, {"processes": 2}, {"processes": 4}),
    idle={"interval": 0.01},
    jobs=5_000,
    span=(
        "SELECT extract(epoch FROM min(started_at))::float8, extract(epoch FROM max(finished_at))::float8"
        " FROM django_tasks_database_dbtaskresult"
    ),
    done="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
    notes=(
        "No fence: an end is a `save()` by primary key (0.13).",
        "No lease and no retry: what a killed worker ran stays `RUNNING` for ever.",
        "No NOTIFY: it polls, by default each second; measured at 10 ms, which asks the database 100 times a second.",
        "One job at a time per process. Runs on other databases than PostgreSQL too.",
    ),
    module="tasks_db_side",
)

OBAN = Peer(
    name="oban",
    requirements=("oban", "uvloop", "psycopg[binary,pool]"),
    settings=(
        {"processes": 1, "limit": 200},
        {"processes": 2, "limit": 200},
        {"processes": 2, "limit": 1000},
    ),
    idle={"limit": 10},
    jobs=60_000,
    span=(
        "SELECT extract(epoch FROM min(attempted_at))::float8, extract(epoch FROM max(completed_at))::float8"
        " FROM oban_jobs"
    ),
    done="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
    notes=(
        "Fenced by the instant of the attempt (0.7); keeps history for a day.",
        "A lost worker's jobs are found by age: what has run for 300 s is run again, even if it is alive.",
        "Jobs are coroutines on one event loop a process; unique jobs and precise rescue are in its paid edition.",
        "No Django: a pool and a schema of its own; joins a transaction only on an async connection.",
    ),
    module="oban_side",
)

GRAPHILE_WORKER = Peer(
    name="graphile-worker",
    requirements=("graphile-worker",),
    settings=(
        {"processes": 1, "concurrency": 24, "local_queue": 500, "complete_delay": 0},
        {"processes": 2, "concurrency": 24, "local_queue": 500, "complete_delay": 0},
        {"processes": 4, "concurrency": 24, "local_queue": 500, "complete_delay": 0},
    ),
    idle={"concurrency": 10},
    jobs=200_000,
    left="SELECT count(*) FROM graphile_worker._private_jobs",
    notes=(
        "No fence: a completion deletes the job by its id alone, whoever runs it by then (0.18).",
        "A job that succeeds is deleted: no history, no result, and the least to write of all the queues here.",
        "A killed worker's jobs stay locked for four hours, unless somebody unlocks them by the id of its pool.",
        "Node instead of Python: jobs are functions on one event loop a process, and cannot use Django.",
        "The settings are those of its documentation of performance: each process locks up to 500 jobs ahead, and"
        " completes them in batches.",
    ),
    module="graphile_side",
    on="node",
)

PEERS = {peer.project: peer for peer in (PROCRASTINATE, PGQUEUER, DJANGO_TASKS_DB, OBAN, GRAPHILE_WORKER)}
