"""The cancel of a batch: its gate lets no more members in, and a job of ours cancels those that have not ended."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgjobs.store.database import Database, on
from django_pgjobs.store.gates import notices_of, open_gates
from django_pgjobs.store.notifying import Notification, wake_up
from django_pgjobs.store.servants import cancel_of, register_servants
from django_pgjobs.store.steering import Gathering


def list_running_members(db: Database, ids: Sequence[int]) -> list[int]:
    """Return the members of these batches that workers have claimed."""
    return [row[0] for row in db.fetch("list_running_members", {"ids": list(ids)})]


def cancel_members(using: str, batches: Sequence[Gathering], *, mode: str, by: str, reason: str) -> list[Notification]:
    """Register the cancel of the members of these batches, in the transaction that has asked the batches to end.

    Return the notifications to send after the commit.
    """
    if not batches:
        return []
    notices = notices_of(open_gates(on(using), [batch.id for batch in batches], close=True))
    servants = [cancel_of(batch.id, mode=mode, by=by, reason=reason) for batch in batches]
    notices |= {wake_up(one.queue, one.priority) for one in register_servants(on(using), servants)}
    return list(notices)
