"""Running an entry now while somebody else makes a job of it: on committed rows, from several connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from tests.plugins.fix_db import Background, RawDatabase, blocked_by, patience, wait_until

LONG_PAST = datetime(2026, 1, 1, tzinfo=UTC)


def clean() -> None: ...


@pytest.fixture(autouse=True)
def known(raw: RawDatabase) -> Iterator[None]:
    """One entry, in its row."""
    with registry.isolated():
        declared = Cron("0 3 * * *", job(name="shop.clean")(clean).bind(), name="clean", overlap="skip").declared()
        firing.declare_cron(raw, declared, overwrite=True, fresh_seconds=0)
        yield


def entry() -> CronEntry:
    return CronEntry.objects.get(pk="clean")


def run(db: RawDatabase) -> object:
    return firing.run_cron(db, "clean")


def fire(db: RawDatabase) -> object:
    [read] = firing.list_crons(db, everything=True)
    return firing.fire_cron(db, read, [LONG_PAST], None, notify=False)


@pytest.mark.parametrize("make", [run, fire])
def test_a_job_that_was_not_committed_yet_is_seen_once_it_is(
    make: Callable[[RawDatabase], object], raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """A25: after waiting for the entry's row, it checks again for an unfinished job."""
    assert make(other)
    second = background(lambda: entry().run_now(by="ann").pk)
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the second waits for the entry's row")
    other.commit()
    with pytest.raises(InvalidJob, match="its overlap policy forbids two"):
        second.result(patience(5))
    assert Job.objects.count() == 1


def test_a_job_that_never_was_forbids_nothing(raw: RawDatabase, other: RawDatabase, background: Background) -> None:
    run(other)
    second = background(lambda: entry().run_now(by="ann").pk)
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the second waits for the entry's row")
    other.rollback()
    made = second.result(patience(5))
    assert Job.objects.get().pk == made
