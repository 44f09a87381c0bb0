"""The blockers of a limited job: the limits without room, and the jobs that hold their slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.store import admitting, limiting
from django_pgjobs.store.admitting import Blocking, Bounds
from django_pgjobs.store.database import on
from django_pgjobs.store.limiting import Override
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
    """Return the limits that hold a job now; none if there is room.

    By the numbers that operators have set, else by those in this process's code.

    Reads the database. Nothing blocks a job that is not ``limited`` or not due.
    """
    definition = registry.resolved(name)
    limits = definition.limits if definition is not None else JobLimits()
    names = [name] if definition is None else [definition.name, *definition.aliases]
    db = on(using)
    overrides = limiting.read_limits(db)
    declared = {"queue": get_conf().queue_limits.of(queue), "job": limits.own, "key": limits.keyed}
    by_kind = {
        kind: _InForce(_bounds(limit), limiting.found_for(overrides, kind, [queue] if kind == "queue" else names))
        for kind, limit in declared.items()
    }
    found = admitting.read_blockers(
        db,
        job_id,
        job=names[0],
        names=names,
        per={kind: limit.bounds.per for kind, limit in by_kind.items() if limit.bounds.per is not None},
        limit=SHOWN,
    )
    return [blocker for seen in found for blocker in _without_room(name, seen, by_kind[seen.kind])]


class _InForce(NamedTuple):
    """The code's numbers, and what an operator has set in their place."""

    code: Bounds
    override: Override | None

    @property
    def bounds(self) -> Bounds:
        return limiting.merged(self.code, self.override)


def _bounds(limit: Limit | None) -> Bounds:
    return Bounds() if limit is None else Bounds(limit.concurrency, limit.rate, limit.per)


def _without_room(name: str, seen: Blocking, limit: _InForce) -> list[Blocker]:
    what = {
        "queue": _("queue %(name)s") % {"name": seen.queue},
        "job": _("job %(name)s") % {"name": name},
        "key": _("key %(name)s") % {"name": seen.key},
    }[seen.kind]
    found = []
    bounds, override = limit.bounds, limit.override
    if bounds.concurrency is not None and seen.jobs >= bounds.concurrency:
        words = _("%(what)s: %(jobs)d of %(most)d slots are taken")
        words %= {"what": what, "jobs": seen.jobs, "most": bounds.concurrency}
        if override is not None and override.concurrency is not None:
            words += _set_by(override, limit.code.concurrency)
        found.append(Blocker(seen.kind, words, tuple(seen.ids or ())))
    if bounds.rate is not None and seen.starts >= bounds.rate:
        words = _("%(what)s: %(starts)d of %(most)d starts in %(seconds)g seconds are used up")
        words %= {"what": what, "starts": seen.starts, "most": bounds.rate, "seconds": bounds.per or 0.0}
        if override is not None and override.rate is not None:
            words += _set_by(override, limit.code.rate)
        found.append(Blocker(seen.kind, words))
    return found


def _set_by(override: Override, code: int | None) -> str:
    """Say that an operator has set the number, who, and which one the code has."""
    who = override.set_by or _("an operator")
    if code is None:
        return _(" (set by %(who)s; the code has no such limit)") % {"who": who}
    return _(" (set by %(who)s; the code says %(most)d)") % {"who": who, "most": code}
