"""Concurrency limits in the database: which jobs are held and admitted, in which order, and how slots free up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs.models import Job, QueueState
from django_pgjobs.models.keys import Admission
from django_pgjobs.queues import Queue
from django_pgjobs.store import finalising, keeping, registering, steering
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.claiming import Pair
from django_pgjobs.store.finalising import End
from django_pgjobs.store.new_jobs import NewJob
from tests.db.limits_ground import PER_KEY, _before, admit, admitted_ids, blocked, end, entered, terms
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    Claimed,
    RawDatabase,
    alike,
    claim,
    job,
    register,
)


def admitted_keys() -> Counter[str | None]:
    return Counter(Job.objects.filter(hold=None, finished_at=None).values_list("limit_key", flat=True))


# What is held, and what the claim sees of it


def test_a_job_with_a_limit_is_registered_held_by_every_way(raw: RawDatabase) -> None:
    """A limit holds its jobs back from the moment of their registration: one, many, and by COPY."""
    one = registering.register_job("default", NewJob("test.job", "{}", limit_key="a"))
    assert one is not None
    mixed = registering.register_jobs(
        "default",
        [alike(NewJob("test.job", "{}", limit_key=key)) for key in ("a", None, "b\tc\\d\n", "")],
        limited=True,
    )
    found = {each.id: (each.hold, each.limit_key, each.state) for each in Job.objects.all()}
    assert found == {
        one.id: ("limited", "a", "limited"),
        mixed[0]: ("limited", "a", "limited"),
        mixed[1]: (None, None, "ready"),
        mixed[2]: ("limited", "b\tc\\d\n", "limited"),
        mixed[3]: ("limited", "", "limited"),
    }
    assert claim(raw, 10).ids == [mixed[1]]


def test_without_numbers_everything_due_is_let_in(raw: RawDatabase) -> None:
    """The code has no limit any more: the jobs that it held run."""
    due = blocked(3, "a") + blocked(2)
    later = blocked(1, "a", delay_seconds=60)
    [found] = admit(raw)
    assert (found.jobs, found.priorities, found.closed, found.due) == (5, [0], False, True)
    assert admitted_ids() == due
    [found] = admit(raw)
    assert (found.jobs, found.due) == (0, False)
    assert 50 < (found.seconds or 0) <= 60
    assert job(later[0]).state == "limited"
    assert sorted(claim(raw, 10).ids) == due


def test_a_job_is_let_in_at_its_instant(raw: RawDatabase) -> None:
    [later] = blocked(1, "a", delay_seconds=60)
    assert entered(raw) == 0
    raw.query("UPDATE pgjobs_job SET run_at = run_at - interval '61 s'")
    assert entered(raw) == 1
    assert admitted_ids() == [later]


# How many


@pytest.mark.parametrize(
    ("bounds", "at_once"),
    [
        ({"of_job": Bounds(3)}, 3),
        ({"of_queue": Bounds(2)}, 2),
        ({"of_key": Bounds(1)}, 2),
        ({"of_job": Bounds(3), "of_key": Bounds(2)}, 3),
        ({"of_job": Bounds(1), "of_queue": Bounds(5)}, 1),
        ({"of_job": Bounds(None, 4, 60.0)}, 4),
        ({"of_queue": Bounds(6, 4, 60.0)}, 4),
        ({"of_key": Bounds(None, 3, 60.0)}, 6),
        ({"of_key": Bounds(3, 1, 60.0)}, 2),
    ],
)
def test_no_more_are_let_in_than_each_limit_allows(raw: RawDatabase, bounds: dict[str, Bounds], at_once: int) -> None:
    blocked(10, "a")
    blocked(10, "b")
    assert entered(raw, terms(**bounds)) == at_once
    assert entered(raw, terms(**bounds)) == 0
    assert len(admitted_ids()) == at_once


def test_a_keyed_limit_does_not_concern_a_job_without_a_key(raw: RawDatabase) -> None:
    blocked(4)
    assert entered(raw, PER_KEY) == 4


def test_jobs_of_one_key_go_by_priority_then_by_age(raw: RawDatabase) -> None:
    first = blocked(1, "a")[0]
    second = blocked(1, "a")[0]
    urgent = blocked(1, "a", priority=5)[0]
    for expected in (urgent, first, second):
        assert entered(raw, PER_KEY) == 1
        assert admitted_ids() == [expected]
        end(raw, expected)


def test_a_limit_of_a_name_counts_aliases_and_other_queues(raw: RawDatabase) -> None:
    blocked(3, name="old.name", queue="mail")
    blocked(3)
    both = {"job": "test.job", "names": ("test.job", "old.name"), "of_job": Bounds(4)}
    assert entered(raw, terms(**both), terms(**both, name="old.name", queue="mail")) == 4
    assert entered(raw, terms(**both), terms(**both, name="old.name", queue="mail")) == 0


def test_a_limit_of_a_queue_counts_every_name_in_it(raw: RawDatabase) -> None:
    blocked(3, name="a")
    blocked(3, name="b")
    names = [terms(name=name, job=name, names=(name,), of_queue=Bounds(4)) for name in ("a", "b")]
    assert entered(raw, *names) == 4
    assert Counter(Job.objects.filter(hold=None).values_list("name", flat=True)) == {"a": 2, "b": 2}


# Fair between keys


def test_a_key_registered_last_is_not_behind_the_five_thousand_of_another(raw: RawDatabase) -> None:
    blocked(5000, "many")
    [last] = blocked(1, "one")
    assert entered(raw, terms(of_job=Bounds(2))) == 2
    assert last in admitted_ids()


def test_places_are_dealt_out_between_keys_by_turns(raw: RawDatabase) -> None:
    """Four places, ten keys: each is given as much as any other, whatever it has blocked."""
    for number in range(10):
        blocked(50 if number else 500, f"k{number}")
    after = None
    given: Counter[str | None] = Counter()
    for _ in range(20):
        [found] = admit(raw, terms(of_job=Bounds(4), after=after))
        assert found.jobs == 4
        given += admitted_keys()
        after = (found.last_key or "", found.last_priority or 0)
        end(raw, *admitted_ids())
    assert set(given.values()) == {8}


def test_a_walk_that_is_cut_says_where_it_ended_and_goes_round(raw: RawDatabase) -> None:
    for number in range(25):
        blocked(1, f"k{number:02}")
    seen: Counter[str | None] = Counter()
    after = None
    for _ in range(5):
        [found] = admit(raw, terms(of_key=Bounds(1), after=after), lanes=10, limit=4)
        seen.update(admitted_keys())
        after = (found.last_key or "", found.last_priority or 0)
        end(raw, *admitted_ids())
    assert seen == {f"k{number:02}": 1 for number in range(20)}
    assert after == ("k19", 0)


def test_a_walk_that_ends_at_the_lane_where_it_began_has_gone_round(raw: RawDatabase) -> None:
    """Else no round would ever be complete, and the next turn always follow at once."""
    for number in range(10):
        blocked(1, f"k{number}")
    [found] = admit(raw, terms(of_key=Bounds(1), after=("k0", 0)), lanes=10)
    assert (found.cut, found.turned, found.scanned_key) == (True, True, "k0")


def test_priority_goes_before_fairness(raw: RawDatabase) -> None:
    blocked(5, "a", priority=5)
    blocked(5, "b")
    assert entered(raw, terms(of_job=Bounds(3))) == 3
    assert admitted_keys() == {"a": 3}


def test_of_one_pair_no_more_than_a_bound_wait_for_a_worker(raw: RawDatabase) -> None:
    blocked(30)
    assert entered(raw, lookahead=10) == 10
    assert entered(raw, lookahead=10) == 0
    claim(raw, 4)
    assert entered(raw, lookahead=10) == 4


# What frees a slot


def _again(job_id: int) -> bool:
    return job(job_id).hold == "limited"


FREES: dict[str, Callable[[RawDatabase, Claimed], object]] = {
    "success": lambda db, held: finalising.finalise_success(db, held.ends(), AUTHOR),
    "abandoned": lambda db, held: finalising.finalise_end(db, held.ends(outcome="abandoned", failure=FAILURE), AUTHOR),
    "deleted": lambda db, held: finalising.finalise_delete(db, held.ends()),
    "retry": lambda db, held: finalising.finalise_retry(
        db, held.ends(delay=60.0, cause="failed", failure=FAILURE), AUTHOR
    ),
    "snooze": lambda db, held: finalising.finalise_snooze(db, held.ends(delay=60.0)),
    "release": lambda db, held: finalising.release_jobs(db, held.ends(), AUTHOR),
    "park": lambda db, held: finalising.park_jobs(db, held.ends(reason="x")),
}


@pytest.mark.parametrize("way", FREES)
def test_whatever_ends_an_attempt_frees_its_place(raw: RawDatabase, way: str) -> None:
    first, second = blocked(2, "a")
    assert entered(raw, PER_KEY) == 1
    held = claim(raw)
    assert held.ids == [first]
    FREES[way](raw, held)
    kept = {"retry": "limited", "snooze": "limited", "release": "limited", "park": "parked"}.get(way)
    assert Job.objects.filter(id=first).values_list("hold", flat=True).first() == kept
    assert entered(raw, PER_KEY) == 1
    assert admitted_ids() == [first if way == "release" else second]


def test_a_rescue_frees_the_place_of_a_worker_that_is_gone(raw: RawDatabase) -> None:
    [first, _] = blocked(2, "a")
    assert entered(raw, PER_KEY) == 1
    held = claim(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    taken = keeping.rescue_jobs(
        raw,
        limit=5,
        quiet_seconds=0,
        grace_seconds=10,
        stale_seconds=60,
        without_on_cancel=[],
        without_on_abandon=[],
    )
    assert len(taken) == 1
    assert held.ids == [first]
    assert (_again(first), admitted_ids()) == (True, [])
    assert entered(raw, PER_KEY) == 1


def test_a_callback_needs_no_place_of_its_own(raw: RawDatabase) -> None:
    """Only the callback is left: it is claimed at once, whatever its limits say."""
    [first] = blocked(1, "a")
    steering.cancel_jobs(raw, [first], mode="ask", by="", reason="", with_callback=["test.job"])
    assert (job(first).hold, job(first).ending) == (None, "cancelled")
    held = claim(raw)
    finalising.finalise_retry(raw, held.ends(delay=0.0, cause="crashed", failure=FAILURE), AUTHOR)
    assert job(first).hold is None


@pytest.mark.parametrize(
    "bounds", [{"of_job": Bounds(5, 5, 60.0)}, {"of_queue": Bounds(5, 5, 60.0)}, {"of_key": Bounds(5, 5, 60.0)}]
)
def test_callbacks_that_wait_take_up_no_place_and_no_start(raw: RawDatabase, bounds: dict[str, Bounds]) -> None:
    """A mass cancel does not shut a rate for its window, nor a limit for as long as a queue is paused."""
    ids = blocked(20, "a")
    steering.cancel_jobs(raw, ids[:10], mode="ask", by="", reason="", with_callback=["test.job"])
    assert entered(raw, terms(**bounds)) == 5
    assert Admission.objects.get().starts == 5
    assert job(ids[15]).state == "limited"
    assert claim(raw, 5, [Pair("default", 0, *_before(ids[0]))]).ids == ids[:5]
    assert entered(raw, terms(**bounds)) == 0


def test_steering_gives_a_place_back(raw: RawDatabase) -> None:
    """An operator who cancels, retries, unparks or reschedules leaves no place taken and exceeds no limit."""
    [first, second] = blocked(2, "a")
    assert entered(raw, PER_KEY) == 1
    assert Job.objects.filter(id=first).reschedule(delay=60).changed == 1
    assert (_again(first), entered(raw, PER_KEY), admitted_ids()) == (True, 1, [second])
    assert Job.objects.filter(id=second).cancel().changed == 1
    assert Job.objects.filter(id=first).cancel().changed == 1
    assert Job.objects.filter(id__in=[first, second]).retry().changed == 2
    assert (_again(first), _again(second), entered(raw, PER_KEY)) == (True, True, 1)
    [running] = claim(raw).ids
    finalising.park_jobs(raw, [End(running, str(job(running).claim_id), reason="x", fingerprint="old")])
    assert entered(raw, PER_KEY) == 1
    assert len(keeping.unpark_jobs(raw, {"test.job": "new"}, limit=10)) == 1
    assert (_again(running), entered(raw, PER_KEY)) == (True, 0)


def test_a_job_moved_into_a_limited_queue_is_limited_there(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 1}}}
    [moved] = register()
    assert Job.objects.filter(id=moved).reschedule(queue="mail").changed == 1
    assert (job(moved).hold, job(moved).limit_key) == ("limited", "")
    [stays] = register()
    assert Job.objects.filter(id=stays).reschedule(queue="other").changed == 1
    assert (job(stays).hold, job(stays).limit_key) == (None, None)


@pytest.mark.parametrize(("kind", "name"), [("queue", "default"), ("job", "test.job")])
def test_what_is_paused_is_not_let_in(raw: RawDatabase, kind: str, name: str) -> None:
    blocked(1, "a")
    paused = QueueState.objects.create(kind=kind, name=name)
    assert admit(raw) == []
    raw.query("UPDATE pgjobs_queue_state SET until = statement_timestamp() - interval '1 s'")
    assert entered(raw) == 1
    paused.delete()


def test_what_was_let_in_beside_a_pause_gives_its_place_back(raw: RawDatabase, other: RawDatabase) -> None:
    """The pause saw nothing let in, and the admission no pause; its places are free for others at the next turn."""
    ids = blocked(3, "a")
    [elsewhere] = blocked(1, "a", queue="mail")
    both = [terms(of_job=Bounds(3)), terms(of_job=Bounds(3), queue="mail")]
    other.query("SELECT 1")
    assert entered(other, both[0]) == 3
    Queue("default").pause()
    other.commit()
    assert admitted_ids() == ids
    assert entered(raw, *both) == 1
    assert admitted_ids() == [elsewhere]
    assert {job(each).hold for each in ids} == {"limited"}


def test_what_runs_or_has_its_callback_left_is_given_back_by_nobody(raw: RawDatabase) -> None:
    ids = blocked(2, "a")
    assert entered(raw, limit=1) == 1
    steering.cancel_jobs(raw, ids[1:], mode="ask", by="", reason="", with_callback=["test.job"])
    claim(raw, 1)
    QueueState.objects.create(kind="queue", name="default")
    assert admit(raw) == []
    assert [job(each).hold for each in ids] == [None, None]


def test_what_somebody_holds_is_left_and_the_others_go(raw: RawDatabase, other: RawDatabase) -> None:
    """A long transaction of an operator stops no admission."""
    [locked] = blocked(1, "a")
    [free] = blocked(1, "b")
    other.lock(locked)
    assert entered(raw, PER_KEY) == 1
    assert admitted_ids() == [free]
    other.rollback()
    assert entered(raw, PER_KEY) == 1
