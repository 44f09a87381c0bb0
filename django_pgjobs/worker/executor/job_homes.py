"""In the executor: what the jobs of each database need of it. Most workers serve one."""

from __future__ import annotations

from functools import partial

from django_pgjobs.execution.atomic_end import AtomicEnds
from django_pgjobs.execution.durable import Memories
from django_pgjobs.worker.executor.prepare import find_result, read_failure


class JobHome:
    """A database of jobs, by its alias: what is read and written there while they run."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.recall = partial(find_result, database)
        self.history = partial(read_failure, database)
        self.transaction = AtomicEnds(database)
        self.memories = Memories(database)


def homes_of(databases: str) -> dict[str, JobHome]:
    """Return the homes by what jobs say of theirs; ``databases``: the aliases, separated by commas.

    Jobs of a worker that serves one only say nothing.
    """
    aliases = databases.split(",")
    return {alias if aliases[1:] else "": JobHome(alias) for alias in aliases}
