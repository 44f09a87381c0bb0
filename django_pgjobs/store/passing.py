"""The results that a flow passes on to the nodes that need them."""

from __future__ import annotations

from django_pgjobs.serialization import references
from django_pgjobs.store.database import Database


def with_results(db: Database, job_id: int, payload: str, *, partly: bool = False) -> str:
    """Return the payload of a job with results in the places of references to jobs that it needs.

    ``partly``: with null for the result of a job that did not succeed, else that is an error.
    Raises ``UnreadablePayload``, also for a reference to another job: only a flow may make one.
    """
    if not references.has_any(payload) or not (needed := references.named(payload)):
        return payload
    rows = db.fetch("read_results", {"ids": sorted(needed), "id": job_id})
    if not partly:
        references.check_ended(rows)
    return references.filled(payload, {parent_id: result for parent_id, _, result in rows})
