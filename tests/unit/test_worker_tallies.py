"""What a worker has ended, added up: by outcome, with waits and runs, and within bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from django_pgjobs.decisions import Failure
from django_pgjobs.ends import kinds
from django_pgjobs.metrics import families as m
from django_pgjobs.metrics.families import render
from django_pgjobs.metrics.worker import families_of_ends
from django_pgjobs.store import numbers
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import ExpiredJob, Rescued
from django_pgjobs.store.numbers import AttemptFigures
from django_pgjobs.values.histogram import trimmed
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.shared.tallies import MOST_NAMES, MOST_PAIRS, MOST_QUEUES, Tallies, TallyKey
from django_pgjobs.worker.threads.minutes import MinuteWriter
from tests.unit.worker_fakes import DUE, run_of

FAILURE = Failure("ValueError", "no")


def ended(waited: float = 0.0, **changes: Any) -> HeldRun:
    claim = HeldClaim("c", 0.0, 1, scanned_at=DUE + timedelta(seconds=waited))
    return run_of(claim=claim, name="shop.mail", **changes)


def end(seconds: float | None = 0.5, **facts: Any) -> End:
    return End(1, "c", seconds, **facts)


@pytest.fixture
def tallies() -> Tallies:
    return Tallies(lambda name: name.startswith("shop."))


def counted(tallies: Tallies) -> dict[tuple[str, str, str], int]:
    return {tuple(key): tally.jobs for key, tally in tallies.read().items()}  # type: ignore[misc]


def test_an_end_is_counted_with_its_wait_and_its_run(tallies: Tallies) -> None:
    tallies.stored(kinds.SUCCESS, [(ended(3.0), end(0.5), None), (ended(0.0), end(0.0004), None)])
    [(key, tally)] = tallies.read().items()
    assert key == ("default", "shop.mail", "succeeded")
    assert (tally.jobs, tally.wait_seconds) == (2, 3.0)
    assert tally.run_seconds == pytest.approx(0.5004)
    assert trimmed(tally.run_histogram) == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]  # up to 1 ms, up to 512 ms
    assert trimmed(tally.wait_histogram) == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]  # up to 1 ms, up to 4.096 s


@pytest.mark.parametrize(
    ("kind", "changes", "facts", "outcome"),
    [
        (kinds.SUCCESS, {}, {}, "succeeded"),
        (kinds.END, {}, {"outcome": "abandoned", "cause": "failed"}, "abandoned"),
        (kinds.END, {}, {"outcome": "cancelled"}, "cancelled"),
        (kinds.END, {"ending": "abandoned"}, {"outcome": "abandoned"}, "abandoned"),
        (kinds.RETRY, {}, {"cause": "failed", "failure": FAILURE}, "retried"),
        (kinds.RETRY, {"ending": "abandoned"}, {"cause": "crashed", "failure": FAILURE}, None),
        (kinds.NEXT, {}, {"cause": "next"}, "stepped"),
        (kinds.SNOOZE, {}, {}, "snoozed"),
        (kinds.SUSPEND, {}, {"cause": "suspend"}, "suspended"),
        (kinds.AWAIT, {}, {"cause": "suspend"}, "suspended"),
        (kinds.SUSPEND, {}, {"cause": "failed", "failure": FAILURE}, "retried"),
        (kinds.RELEASE, {}, {"cause": "released"}, "released"),
        (kinds.RELEASE, {}, {}, None),
        (kinds.PARK, {}, {}, None),
        (kinds.HOLD, {}, {}, None),
    ],
)
def test_each_kind_of_end_has_its_outcome(
    tallies: Tallies, kind: kinds.EndKind, changes: dict[str, Any], facts: dict[str, Any], outcome: str | None
) -> None:
    """A callback that is run again is no attempt, nor is a job that was released before it started."""
    tallies.stored(kind, [(ended(**changes), end(**facts), None)])
    assert [key.outcome for key in tallies.read()] == ([] if outcome is None else [outcome])


def test_after_a_callback_the_run_of_the_body_counts(tallies: Tallies) -> None:
    run = ended(ending="abandoned")
    run.duration = 2.0
    tallies.stored(kinds.END, [(run, end(None, outcome="abandoned"), None)])
    [tally] = tallies.read().values()
    assert (tally.jobs, tally.run_seconds) == (1, 2.0)


def test_rescues_and_expiries_are_counted_without_times(tallies: Tallies) -> None:
    def rescued(outcome: str, ending: str, cause: str) -> Rescued:
        return Rescued(1, "shop.mail", "default", 0, 1, uuid4(), "why", outcome, ending, cause)

    tallies.were_rescued(
        [rescued("", "", "lost"), rescued("abandoned", "", "lost"), rescued("", "abandoned", "timeout")]
    )
    tallies.expired([ExpiredJob(1, "shop.mail", "default", 0, True), ExpiredJob(2, "shop.mail", "default", 0, False)])
    assert tallies.rescued == {"lost": 2, "timeout": 1}
    assert counted(tallies) == {
        ("default", "shop.mail", "retried"): 1,
        ("default", "shop.mail", "abandoned"): 1,
        ("default", "shop.mail", "cancelled"): 1,
    }
    assert all(not any(tally.run_histogram) for tally in tallies.read().values())


def test_names_and_queues_are_bounded(tallies: Tallies) -> None:
    """What any row may name cannot make a worker, a table or a metric grow."""
    for n in range(MOST_NAMES + 5):
        tallies.stored(kinds.SUCCESS, [(_of(name=f"shop.n{n}"), end(), None)])
    for n in range(MOST_QUEUES + 5):
        tallies.stored(kinds.SUCCESS, [(_of(queue=f"q{n}", name="shop.n0"), end(), None)])
    for hostile in ("elsewhere.unknown", "shop." + "x" * 1000, "shop.\n", "shop.\u202e", "shop.\0"):
        tallies.stored(kinds.SUCCESS, [(_of(name=hostile), end(), None)])
    found = tallies.read()
    assert len({key.name for key in found}) == MOST_NAMES + 1
    assert len({key.queue for key in found}) == MOST_QUEUES + 1
    assert found[TallyKey("default", "others", "succeeded")].jobs == 5 + 5
    assert sum(tally.jobs for tally in found.values()) == MOST_NAMES + 5 + MOST_QUEUES + 5 + 5


def test_pairs_of_a_queue_and_a_name_are_bounded_and_a_page_of_metrics_with_them(tallies: Tallies) -> None:
    """All pairs of the queues and names that are kept would be fifty megabytes for each scrape."""
    for q in range(MOST_QUEUES):
        for n in range(10 * MOST_PAIRS // MOST_QUEUES):
            tallies.stored(kinds.SUCCESS, [(_of(queue=f"q{q}", name=f"shop.n{n}"), end(), None)])
    found = tallies.read()
    pairs = {(key.queue, key.name) for key in found}
    assert MOST_PAIRS <= len(pairs) <= MOST_PAIRS + MOST_QUEUES
    assert sum(tally.jobs for tally in found.values()) == 10 * MOST_PAIRS
    again = [(_of(queue="q0", name="shop.n0"), end(), None)]
    tallies.stored(kinds.SUCCESS, again)
    assert tallies.read()[TallyKey("q0", "shop.n0", "succeeded")].jobs == 2
    rows = [AttemptFigures(*key, tally.jobs, 0.0, 1.0, [], tally.run_histogram) for key, tally in found.items()]
    page = render(families_of_ends(rows, m.ENDS, m.RUN_SECONDS, m.WAIT_SECONDS))
    assert len(page) < 3_000_000


def _of(**changes: Any) -> HeldRun:
    return run_of(claim=HeldClaim("c", 0.0, 1, scanned_at=DUE), **changes)


class Clockwork:
    """Answers ``write_minutes`` with the minute of its clock, and keeps whole rows as the table would."""

    def __init__(self) -> None:
        self.minute = "12:00"
        self.rows: dict[tuple[str, str], int] = {}
        self.statements = 0
        self.answers = True

    def fetch(self, name: str, params: Any) -> list[tuple[str]]:
        raise AssertionError

    def write(self, db: Any, figures: list[AttemptFigures], *, worker: Any, release: str, minute: str | None) -> str:
        self.statements += 1
        for each in figures:
            assert minute is not None
            self.rows[minute, each.outcome] = each.jobs
        if not self.answers:
            raise OSError("the answer is lost")
        return self.minute


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    server = Clockwork()
    monkeypatch.setattr(numbers, "write_minutes", server.write)
    return server


def succeed(tallies: Tallies, times: int = 1) -> None:
    tallies.stored(kinds.SUCCESS, [(ended(), end(), None)] * times)


def test_a_minute_is_written_anew_until_the_next_begins(tallies: Tallies, server: Clockwork) -> None:
    writer = MinuteWriter(tallies, "r1", 5.0)
    succeed(tallies, 2)
    writer(server)
    succeed(tallies)
    server.minute = "12:01"
    writer(server)
    succeed(tallies)
    writer(server)
    assert server.rows == {("12:00", "succeeded"): 3, ("12:01", "succeeded"): 1}


def test_a_worker_that_ends_nothing_asks_nothing(tallies: Tallies, server: Clockwork) -> None:
    writer = MinuteWriter(tallies, "r1", 5.0)
    writer(server)
    assert server.statements == 0
    succeed(tallies)
    writer(server)
    asked = server.statements
    writer(server)
    assert server.statements == asked


def test_a_repetition_after_a_lost_answer_counts_nothing_twice(tallies: Tallies, server: Clockwork) -> None:
    writer = MinuteWriter(tallies, "r1", 5.0)
    succeed(tallies)
    writer(server)
    succeed(tallies)
    server.answers = False
    with pytest.raises(OSError, match="lost"):
        writer(server)
    server.answers, server.minute = True, "12:01"
    succeed(tallies)
    writer(server)
    assert server.rows == {("12:00", "succeeded"): 3}


def test_what_ends_after_a_quiet_hour_belongs_to_its_own_minute(
    tallies: Tallies, server: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MinuteWriter(tallies, "r1", 5.0)
    succeed(tallies)
    writer(server)
    writer.asked_at -= 3600.0
    server.minute = "13:00"
    succeed(tallies, 2)
    writer(server)
    assert server.rows == {("12:00", "succeeded"): 1, ("13:00", "succeeded"): 2}
