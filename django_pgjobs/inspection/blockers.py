"""The blockers of a limited job: the limits without room, and the jobs that hold their slots."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.store import admitting
from django_pgjobs.store.admitting import Blocking
from django_pgjobs.store.database import on
from django_pgjobs.values.limit import JobLimits, Limit

SHOWN = 5
"""Maximum number of job ids that a blocker names."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A limit without room: ``words`` name it, ``job_ids`` are some of the jobs that hold its slots.

    ``kind`` is ``queue``, ``job`` or ``key``. Rates have no holders: wait for the window.
    """

    kind: str
    words: str
    job_ids: tuple[int, ...] = ()


def blockers_of(job_id: int, name: str, queue: str, using: str) -> list[Blocker]:
    """Return the limits that hold a job now, by the numbers in this process's code; none if there is room.

    Reads the database. Nothing blocks a job that is not ``limited`` or not due.
    """
    definition = registry.resolved(name)
    limits = definition.limits if definition is not None else JobLimits()
    by_kind = {"queue": get_conf().queue_limits.of(queue), "job": limits.own, "key": limits.keyed}
    found = admitting.read_blockers(
        on(using),
        job_id,
        job=name if definition is None else definition.name,
        names=[name] if definition is None else [definition.name, *definition.aliases],
        per={kind: limit.per for kind, limit in by_kind.items() if limit is not None},
        limit=SHOWN,
    )
    return [
        blocker
        for seen in found
        if (limit := by_kind[seen.kind]) is not None
        for blocker in _without_room(name, seen, limit)
    ]


def _without_room(name: str, seen: Blocking, limit: Limit) -> list[Blocker]:
    what = {
        "queue": _("queue %(name)s") % {"name": seen.queue},
        "job": _("job %(name)s") % {"name": name},
        "key": _("key %(name)s") % {"name": seen.key},
    }[seen.kind]
    found = []
    if limit.concurrency is not None and seen.jobs >= limit.concurrency:
        words = _("%(what)s: %(jobs)d of %(most)d slots are taken")
        words %= {"what": what, "jobs": seen.jobs, "most": limit.concurrency}
        found.append(Blocker(seen.kind, words, tuple(seen.ids or ())))
    if limit.rate is not None and seen.starts >= limit.rate:
        words = _("%(what)s: %(starts)d of %(most)d starts in %(seconds)g seconds are used up")
        words %= {"what": what, "starts": seen.starts, "most": limit.rate, "seconds": limit.per}
        found.append(Blocker(seen.kind, words))
    return found
