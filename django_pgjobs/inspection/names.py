"""The names in the rows of unfinished jobs, and whether this code knows them: for a look before and after a deploy."""

from __future__ import annotations

from typing import NamedTuple

from django_pgjobs.definition.registry import registry
from django_pgjobs.store import counting
from django_pgjobs.store.database import configure, on
from django_pgjobs.store.transactions import at_read_committed


class NeededName(NamedTuple):
    """A name that ``rows`` unfinished jobs need; for the ``use`` *undo*, as many remembered steps of such jobs.

    ``use``: *job*; *member* of a batch or flow; *step*, the next one of a step machine; or *undo*.
    """

    name: str
    use: str
    rows: int
    known: bool


def needed(using: str, **settings: str) -> list[NeededName]:
    """Return all of them, by name; ``settings`` apply to the statement, such as ``statement_timeout``.

    Reads every unfinished job.
    """
    with at_read_committed(using):
        db = on(using)
        if settings:
            configure(db, settings, local=True)
        return [NeededName(*row, registry.resolved(row.name) is not None) for row in counting.count_names(db)]
