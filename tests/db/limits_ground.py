"""Shared by the tests of limits: limited jobs, terms, and one turn of an admitter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django_pgjobs.models import Job
from django_pgjobs.store import admitting, finalising
from django_pgjobs.store.admitting import Admitted, Bounds, StartRate, Terms
from django_pgjobs.store.claiming import Pair
from django_pgjobs.store.database import Transacting
from tests.plugins.fix_db import (
    AUTHOR,
    RawDatabase,
    claim,
    job,
    register,
)

Connect = Callable[..., RawDatabase]


def blocked(count: int = 1, key: str = "", **fields: Any) -> list[int]:
    """Register jobs that limits hold back."""
    return register(count, limit_key=key, **fields)


def terms(**fields: Any) -> Terms:
    return Terms(**{"queue": "default", "name": "test.job", "job": "test.job", "names": ("test.job",), **fields})


PER_KEY = terms(of_key=Bounds(1))


def admit(db: Transacting, *given: Terms, **options: Any) -> list[Admitted]:
    """Take one turn; fail if somebody else is at it."""
    sizes = {"lanes": 500, "limit": 500, "lookahead": 1000, "notify": False, **options}
    found = admitting.admit_jobs(db, given or [terms()], rates=list(dict.fromkeys(rates(*given))), **sizes)
    assert found is not None
    return found


def rates(*given: Terms) -> Iterator[StartRate]:
    for each in given:
        yield StartRate("queue", each.of_queue.per, queue=each.queue)
        for kind, bounds in (("job", each.of_job), ("key", each.of_key)):
            if bounds.per is not None:
                for name in each.names:
                    yield StartRate(f"{kind}:{each.job}", bounds.per, name=name, keyed=kind == "key")


def entered(db: Transacting, *given: Terms, **options: Any) -> int:
    return sum(each.jobs for each in admit(db, *given, **options))


def admitted_ids() -> list[int]:
    return list(Job.objects.filter(hold=None, finished_at=None).order_by("id").values_list("id", flat=True))


def end(db: RawDatabase, *ids: int) -> None:
    """End jobs as a worker does, whichever they are."""
    for each in ids:
        claimed = claim(db, 1, [Pair(job(each).queue, job(each).priority, *_before(each))])
        assert claimed.ids == [each]
        finalising.finalise_success(db, claimed.ends(), AUTHOR)


def _before(job_id: int) -> tuple[Any, int]:
    found = job(job_id)
    return found.run_at, found.id - 1
