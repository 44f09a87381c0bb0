"""Each guard of a sequence does something: without it an order breaks, or one stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from tests.db.sequences_ground import broken, stuck
from tests.db.test_sequences import blocked_by_sequence, done, end, failing, judge, skips, step  # noqa: F401 (fixtures)
from tests.plugins.fix_db import Background, RawDatabase, claim, wait_until
from tests.plugins.sabotage import sabotage

pytestmark = pytest.mark.usefixtures("committed")


def _two_begin(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    with transaction.atomic():
        step.register(1)
        late = background(step.register, 2)
        wait_until(
            lambda: late.done() or blocked_by_sequence(other, connection.connection.info.backend_pid), 5, "it is over"
        )
    late.result()


def _overtaken(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    failing.add(1)
    _, _ = step.register(1), step.register(2)
    run_jobs()


def _two_at_a_retry(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    failing.add(1)
    first = skips.register(1)
    run_jobs()
    skips.register(2)
    claim(raw)
    first.retry()


def _cancelled_behind(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    _, second, _ = (step.register(n) for n in (1, 2, 3))
    taken = claim(raw)
    second.cancel()
    end(raw, taken)


def _due_beside(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    failing.add(1)
    first = skips.register(1)
    run_jobs()
    _, third = skips.register(2), skips.register(3)
    taken = claim(raw)
    other.lock(third.pk)
    end(raw, taken)
    first.retry()
    other.rollback()
    open_due_gates(raw)


def _end_beside(raw: RawDatabase, background: Background, other: RawDatabase) -> None:
    step.register(1)
    taken = claim(raw)
    with transaction.atomic():
        step.register(2)
        pid = connection.connection.info.backend_pid
        ended = background(end, raw, taken)
        wait_until(lambda: ended.done() or blocked_by_sequence(other, pid), 5, "it is over")
    ended.result()


LOCK = "SELECT count(pg_advisory_xact_lock(%(class)s::integer, s.bucket))"
SABOTAGES = [
    (
        "lock_sequences",
        LOCK + ", current_setting('transaction_isolation')",
        LOCK.replace("pg_advisory_xact_lock(%(class)s::integer, s.bucket)", "s.bucket + 0 * %(class)s::integer")
        + ", current_setting('transaction_isolation')",
        _two_begin,
    ),
    ("lock_turns", LOCK + " AS n", "SELECT 1 + 0 * %(class)s::integer AS n", _end_beside),
    (
        "list_standing",
        "AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))",
        "AND j.finished_at IS NOT NULL",
        _cancelled_behind,
    ),
    (
        "next_in_turn",
        "ELSE other.abandoned AND other.id < head.id AND NOT %(despite)s::boolean",
        "ELSE %(despite)s::boolean",
        _overtaken,
    ),
    (
        "next_in_turn",
        "THEN true",
        "THEN false",
        _two_at_a_retry,
    ),
    ("next_in_turn", "WHERE g.due AND j.sequence IS NOT NULL AND j.finished_at IS NULL", "WHERE false", _due_beside),
    ("wait_again", "SET hold = 'blocked', flow = j.flow | 16", "SET flow = j.flow | 16", _two_at_a_retry),
]


@contextmanager
def unjudged() -> Iterator[None]:
    """Forget what was noted: it was meant."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM broken_order")


@pytest.mark.parametrize(
    ("name", "line", "instead", "play"),
    SABOTAGES,
    ids=[f"{one[0]}-{one[3].__name__}-{n}" for n, one in enumerate(SABOTAGES)],
)
def test_without_a_guard_an_order_breaks_or_a_sequence_stands_still(
    raw: RawDatabase,
    background: Background,
    other: RawDatabase,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
    instead: str,
    play: Callable[[RawDatabase, Background, RawDatabase], None],
) -> None:
    """Red twins: with the statement as it is nothing is noted; with the line taken out something is."""
    with unjudged():
        sabotage(monkeypatch, name, line, instead)
        play(raw, background, other)
        turns = Job.objects.exclude(sequence=None).filter(finished_at=None, ending=None)
        two = turns.exclude(hold="blocked").count() + turns.filter(hold=None).count() > 1
        assert broken() or stuck() or two


@pytest.mark.parametrize("play", [_two_begin, _overtaken, _two_at_a_retry, _cancelled_behind, _due_beside, _end_beside])
def test_with_all_guards_no_order_breaks(
    raw: RawDatabase,
    background: Background,
    other: RawDatabase,
    play: Callable[[RawDatabase, Background, RawDatabase], None],
) -> None:
    play(raw, background, other)
    assert (broken(), stuck()) == ([], [])
