"""Limits of how many jobs start in a time; and two who let jobs in at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from django_pgjobs import Limit
from django_pgjobs import job as define
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution.admission import AdmissionScan, Turn
from django_pgjobs.maintenance import expiry
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.models.keys import Admission
from django_pgjobs.store import admitting, notifying
from django_pgjobs.store.admitting import Admitted, Bounds, StartRate
from django_pgjobs.store.database import on, statement
from django_pgjobs.store.new_jobs import NewJob
from tests import jobs
from tests.db.limits_ground import PER_KEY, Connect, admitted_ids, blocked, end, entered, terms
from tests.plugins.fix_db import (
    Background,
    RawDatabase,
    claim,
)
from tests.plugins.sabotage import sabotage

# Starts in a time


def _move(raw: RawDatabase, seconds: float) -> None:
    """Let time pass for admitted starts; by way of the far future, so that no two rows collide."""
    for moved in (100 * 366 * 86400.0, -100 * 366 * 86400.0 - seconds):
        raw.query(
            "UPDATE pgjobs_admission SET admitted_at = admitted_at + make_interval(secs => %s), "
            "expires_at = expires_at + make_interval(secs => %s)",
            [moved, moved],
        )


def test_a_rate_holds_in_every_window_not_only_in_those_of_a_clock(raw: RawDatabase) -> None:
    rated = terms(of_job=Bounds(None, 10, 60.0))
    blocked(30)
    assert entered(raw, rated, limit=4) == 4
    claim(raw, 10)
    _move(raw, 40)
    assert entered(raw, rated) == 6
    claim(raw, 10)
    assert entered(raw, rated) == 0
    _move(raw, 19)
    assert entered(raw, rated) == 0
    _move(raw, 2)
    assert entered(raw, rated) == 4
    assert Admission.objects.filter(subject="job:test.job").count() == 3


def test_what_waits_for_a_worker_is_counted_when_it_can_start(raw: RawDatabase) -> None:
    """All workers were busy for longer than the window: jobs admitted earlier start now, and count now."""
    rated = terms(of_job=Bounds(None, 5, 60.0))
    blocked(30)
    assert entered(raw, rated) == 5
    for _ in range(4):
        _move(raw, 25)
        assert entered(raw, rated) == 0
    assert len(claim(raw, 3).ids) == 3
    _move(raw, 59)
    assert entered(raw, rated) == 0
    _move(raw, 1.2)
    assert entered(raw, rated) == 3
    assert len(admitted_ids()) == 8


def test_of_what_was_let_in_only_what_still_waits_is_dated_anew(raw: RawDatabase) -> None:
    """What has started keeps its instant: counted twice it would shut the rate, counted later it would shift it."""
    rated = terms(of_job=Bounds(None, 5, 60.0))
    blocked(9)
    assert entered(raw, rated) == 5
    assert len(claim(raw, 2).ids) == 2
    _move(raw, 25)
    assert entered(raw, rated) == 0
    assert [each.starts for each in Admission.objects.order_by("admitted_at")] == [2, 3]
    _move(raw, 36)
    assert entered(raw, rated) == 2


def test_who_takes_up_the_room_is_told_of_queue_name_and_key_each(raw: RawDatabase) -> None:
    """Each with its own jobs and starts: in the queue, under the name, under the key."""
    rated = {
        each: terms(name=each, job=each, names=(each,), of_queue=Bounds(None, 9, 60.0),
                    of_job=Bounds(None, 9, 60.0), of_key=Bounds(None, 9, 60.0))
        for each in ("mail.send", "mail.sort")
    }  # fmt: skip
    ids = [
        *blocked(1, "a", name="mail.send"), *blocked(1, "b", name="mail.send"), *blocked(1, "a", name="mail.sort")
    ]  # fmt: skip
    assert entered(raw, *rated.values()) == 3
    [last] = blocked(1, "a", name="mail.send")
    per = {"queue": 60.0, "job": 60.0, "key": 60.0}
    found = admitting.read_blockers(raw, last, job="mail.send", names=["mail.send"], per=per, limit=9)
    assert {each.kind: (each.jobs, sorted(each.ids or ()), each.starts) for each in found} == {
        "queue": (3, ids, 3), "job": (2, ids[:2], 2), "key": (1, ids[:1], 1),
    }  # fmt: skip


QUEUES = {"*": {"rate": 5, "per": 60}, "mail": {"concurrency": 9}}


@pytest.mark.parametrize(
    ("subject", "limits", "queues"),
    [
        ("job:test.job", [Limit(rate=5, per=60)], None),
        ("key:test.job\na", [Limit(rate=5, per=60, key=lambda value=None: "a")], None),
        ("queue:default", [], QUEUES),
    ],
)
def test_what_waits_for_a_worker_is_dated_anew_though_nothing_is_held_back(
    raw: RawDatabase, settings: Any, subject: str, limits: list[Limit], queues: object
) -> None:
    """All of a rate's jobs are let in while workers are busy: they start together, and no others beside them."""
    settings.PGJOBS = {"QUEUE_LIMITS": queues} if queues else {}
    blocked(5, "a")
    with registry.isolated():
        define(name="test.job", aliases=("test.old",), limits=limits)(jobs.succeeds.func)
        admission = AdmissionScan(lambda queue: True, get_conf())
        assert admission.turn(raw).jobs == 5
        for _ in range(4):
            _move(raw, 25)
            assert admission.turn(raw) == Turn()
        assert len(claim(raw, 5).ids) == 5
        blocked(5, "a")
        assert admission.turn(raw).jobs == 0
        assert [(each.subject, each.starts) for each in Admission.objects.all()] == [(subject, 5)]
        _move(raw, 61)
        assert admission.turn(raw).jobs == 5


def test_the_rates_of_two_jobs_share_no_window_whatever_their_names_and_keys(raw: RawDatabase) -> None:
    """A name may hold a colon, and so may a key: what separates them is in no name."""
    name, longer = "report", "report:daily"
    rated = {each: terms(name=each, job=each, names=(each,), of_key=Bounds(None, 3, 60.0)) for each in (name, longer)}
    blocked(4, "daily:5", name=name)
    last = blocked(4, "5", name=longer)[-1]
    assert entered(raw, rated[name]) == 3
    assert len(claim(raw, 3).ids) == 3
    per = {"queue": 60.0, "job": 60.0, "key": 60.0}
    found = admitting.read_blockers(raw, last, job=longer, names=[longer], per=per, limit=9)
    assert {each.kind: each.starts for each in found}["key"] == 0
    assert entered(raw, rated[longer]) == 3
    assert [each.starts for each in Admission.objects.all()] == [3, 3]


def test_a_queue_that_is_named_has_not_the_rate_of_every_other(raw: RawDatabase) -> None:
    blocked(2, "a", queue="mail")
    assert entered(raw, terms(queue="mail")) == 2
    given = [StartRate("queue", 60.0, queue="*"), StartRate("queue", None, queue="mail")]
    admitting.admit_jobs(raw, [], rates=given, lanes=1, limit=1, lookahead=1, notify=False)
    assert not Admission.objects.exists()
    admitting.admit_jobs(raw, [], rates=given[:1], lanes=1, limit=1, lookahead=1, notify=False)
    assert [(each.subject, each.starts) for each in Admission.objects.all()] == [("queue:mail", 2)]


def test_a_job_that_ends_gives_its_place_back_and_its_start_not(raw: RawDatabase) -> None:
    both = terms(of_job=Bounds(1, 2, 60.0))
    blocked(5)
    for _ in range(2):
        assert entered(raw, both) == 1
        end(raw, *admitted_ids())
    assert entered(raw, both) == 0


def test_starts_are_forgotten_when_their_window_is_over(raw: RawDatabase) -> None:
    blocked(3)
    assert entered(raw, terms(of_job=Bounds(None, 3, 60.0), of_queue=Bounds(None, 3, 3600.0))) == 3
    _move(raw, 61)
    assert Expirer()(raw) == 1
    assert [each.subject for each in Admission.objects.all()] == ["queue:default"]


def test_however_many_starts_are_over_they_are_forgotten(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate by key leaves a row for each key, and code that has no rate any more has them too."""
    monkeypatch.setattr(expiry, "BATCH", 2)
    for number in range(5):
        blocked(1, f"k{number}")
    assert entered(raw, terms(of_key=Bounds(None, 1, 60.0))) == 5
    expirer = Expirer()
    assert (expirer(raw), Admission.objects.count()) == (0, 5)
    _move(raw, 61)
    assert (expirer(raw), Admission.objects.count()) == (5, 0)


# Two at once


def _two_at_once(first: RawDatabase, second: RawDatabase) -> list[Admitted] | None:
    """One admitter has counted and not committed; a more urgent job comes, which the other would take."""
    blocked(1, "a")
    assert entered(first, PER_KEY) == 1
    blocked(1, "a", priority=1)
    found = admitting.admit_jobs(second, [PER_KEY], lanes=10, limit=10, lookahead=10, notify=False)
    first.commit()
    second.commit()
    return found


def test_one_admitter_at_a_time(raw: RawDatabase, db_connection: Connect) -> None:
    """While one has counted and not committed, another's count would not see what it lets in."""
    first, second = db_connection(autocommit=False), db_connection(autocommit=False)
    for each in (first, second):
        each.query("SELECT 1")  # opens the transaction
    assert _two_at_once(first, second) is None
    assert (len(admitted_ids()), entered(raw, PER_KEY)) == (1, 0)


def test_without_the_lock_two_exceed_the_limit(db_connection: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin."""
    line = next(line for line in statement("lock_admission").splitlines() if "pg_try_advisory_xact_lock" in line)
    sabotage(monkeypatch, "lock_admission", line, "    (%(class)s::integer > 0)::text,")
    first, second = db_connection(autocommit=False), db_connection(autocommit=False)
    for each in (first, second):
        each.query("SELECT 1")
    assert [each.jobs for each in _two_at_once(first, second) or ()] == [1]
    assert len(admitted_ids()) == 2


def _race(raw: RawDatabase, db_connection: Connect, background: Background) -> int:
    """Let four admitters take turns at once; return how many they let in."""
    blocked(400, "a")
    connections = [db_connection() for _ in range(4)]

    def turns(db: RawDatabase) -> int:
        found = 0
        for _ in range(25):
            given = admitting.admit_jobs(db, [PER_KEY], lanes=10, limit=10, lookahead=1000, notify=False)
            found += sum(each.jobs for each in given or ())
        return found

    running: Sequence[Any] = [background(turns, db) for db in connections]
    return sum(future.result() for future in running)


def test_admitters_that_race_let_in_no_more_than_one_for_a_key(
    raw: RawDatabase, db_connection: Connect, background: Background
) -> None:
    assert _race(raw, db_connection, background) == 1
    assert len(admitted_ids()) == 1


def test_a_turn_that_follows_another_counts_what_it_let_in(raw: RawDatabase, other: RawDatabase) -> None:
    """The count takes its snapshot after the lock, so it sees commits made during the wait."""
    blocked(2, "a")
    other.query("SELECT 1")
    assert entered(raw, PER_KEY) == 1
    assert entered(other, PER_KEY) == 0
    other.commit()


def test_waking_names_each_pair_once(raw: RawDatabase) -> None:
    blocked(3, "a", priority=2)
    blocked(3, "b")
    raw.query("LISTEN pgjobs")
    assert entered(raw, terms(), notify=True) == 6
    heard = sorted(each.payload for each in raw.raw.notifies(timeout=0.5))
    assert heard == ["0:default", "2:default"]


def test_a_registration_that_a_limit_holds_wakes_those_who_let_in(raw: RawDatabase) -> None:
    raw.query("LISTEN pgjobs")
    new = [NewJob("test.job", "{}", limit_key=key, priority=3) for key in ("a", None)]
    notifying.notify_queues(on("default"), {job.wakes for job in new})
    heard = [each.payload for each in raw.raw.notifies(timeout=0.5)]
    assert sorted(heard) == ["3:default", "limited:default"]
