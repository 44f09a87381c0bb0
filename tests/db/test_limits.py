"""Limits in the database: what is let in, in which order, what frees a place, and that two admitters never exceed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from django_pgjobs import Limit, register_many
from django_pgjobs import job as define
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution import admission as admitting
from django_pgjobs.execution.admission import AdmissionScan, Turn
from django_pgjobs.maintenance import expiry
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.models import Admission, Job, QueueState
from django_pgjobs.pausing import pause_queue
from django_pgjobs.store import statements as store
from django_pgjobs.store.admitting import LOCK_CLASS
from django_pgjobs.store.statements import Admitted, Bounds, StartRate, Terms
from django_pgjobs.testing import run_job, run_jobs
from django_pgjobs.values.limit import read_job_limits
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests import jobs
from tests.plugins.explaining import Explaining, analysed_while_empty, faults, nodes
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    Background,
    Claimed,
    RawDatabase,
    alike,
    claim,
    job,
    register,
    wait_until,
)
from tests.plugins.sabotage import sabotage

Connect = Callable[..., RawDatabase]


def blocked(count: int = 1, key: str = "", **fields: Any) -> list[int]:
    """Register jobs that limits hold back."""
    return register(count, limit_key=key, **fields)


def terms(**fields: Any) -> Terms:
    return Terms(**{"queue": "default", "name": "test.job", "job": "test.job", "names": ("test.job",), **fields})


PER_KEY = terms(of_key=Bounds(1))


def admit(db: store.Transacting, *given: Terms, **options: Any) -> list[Admitted]:
    """Take one turn; fail if somebody else is at it."""
    sizes = {"lanes": 500, "limit": 500, "lookahead": 1000, "notify": False, **options}
    found = store.admit_jobs(db, given or [terms()], rates=list(dict.fromkeys(rates(*given))), **sizes)
    assert found is not None
    return found


def rates(*given: Terms) -> Iterator[StartRate]:
    for each in given:
        yield StartRate("queue", each.of_queue.per, queue=each.queue)
        for kind, bounds in (("job", each.of_job), ("key", each.of_key)):
            if bounds.per is not None:
                for name in each.names:
                    yield StartRate(f"{kind}:{each.job}", bounds.per, name=name, keyed=kind == "key")


def entered(db: store.Transacting, *given: Terms, **options: Any) -> int:
    return sum(each.jobs for each in admit(db, *given, **options))


def admitted_ids() -> list[int]:
    return list(Job.objects.filter(hold=None, finished_at=None).order_by("id").values_list("id", flat=True))


def admitted_keys() -> Counter[str | None]:
    return Counter(Job.objects.filter(hold=None, finished_at=None).values_list("limit_key", flat=True))


def end(db: RawDatabase, *ids: int) -> None:
    """End jobs as a worker does, whichever they are."""
    for each in ids:
        claimed = claim(db, 1, [store.Pair(job(each).queue, job(each).priority, *_before(each))])
        assert claimed.ids == [each]
        store.finalise_success(db, claimed.ends(), AUTHOR)


def _before(job_id: int) -> tuple[Any, int]:
    found = job(job_id)
    return found.run_at, found.id - 1


# What is held, and what the claim sees of it


def test_a_job_with_a_limit_is_registered_held_by_every_way(raw: RawDatabase) -> None:
    """A limit holds its jobs back from the moment of their registration: one, many, and by COPY."""
    one = store.register_special("default", store.NewJob("test.job", "{}", limit_key="a"))
    assert one is not None
    mixed = store.register_jobs(
        "default",
        [alike(store.NewJob("test.job", "{}", limit_key=key)) for key in ("a", None, "b\tc\\d\n", "")],
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
    """The limit is gone from the code: what it held back goes on."""
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


# What frees a place


def _again(job_id: int) -> bool:
    return job(job_id).hold == "limited"


FREES: dict[str, Callable[[RawDatabase, Claimed], object]] = {
    "success": lambda db, held: store.finalise_success(db, held.ends(), AUTHOR),
    "abandoned": lambda db, held: store.finalise_end(db, held.ends(outcome="abandoned", failure=FAILURE), AUTHOR),
    "deleted": lambda db, held: store.finalise_delete(db, held.ends()),
    "retry": lambda db, held: store.finalise_retry(db, held.ends(delay=60.0, cause="failed", failure=FAILURE), AUTHOR),
    "snooze": lambda db, held: store.finalise_snooze(db, held.ends(delay=60.0)),
    "release": lambda db, held: store.release_jobs(db, held.ends(), AUTHOR),
    "park": lambda db, held: store.park_jobs(db, held.ends(reason="x")),
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
    taken = store.rescue_jobs(
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
    store.cancel_jobs(raw, [first], mode="ask", by="", reason="", with_callback=["test.job"])
    assert (job(first).hold, job(first).ending) == (None, "cancelled")
    held = claim(raw)
    store.finalise_retry(raw, held.ends(delay=0.0, cause="crashed", failure=FAILURE), AUTHOR)
    assert job(first).hold is None


@pytest.mark.parametrize(
    "bounds", [{"of_job": Bounds(5, 5, 60.0)}, {"of_queue": Bounds(5, 5, 60.0)}, {"of_key": Bounds(5, 5, 60.0)}]
)
def test_callbacks_that_wait_take_up_no_place_and_no_start(raw: RawDatabase, bounds: dict[str, Bounds]) -> None:
    """A mass cancel does not shut a rate for its window, nor a limit for as long as a queue is paused."""
    ids = blocked(20, "a")
    store.cancel_jobs(raw, ids[:10], mode="ask", by="", reason="", with_callback=["test.job"])
    assert entered(raw, terms(**bounds)) == 5
    assert Admission.objects.get().starts == 5
    assert job(ids[15]).state == "limited"
    assert claim(raw, 5, [store.Pair("default", 0, *_before(ids[0]))]).ids == ids[:5]
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
    store.park_jobs(raw, [store.End(running, str(job(running).claim_id), reason="x", fingerprint="old")])
    assert entered(raw, PER_KEY) == 1
    assert len(store.unpark_jobs(raw, {"test.job": "new"}, limit=10)) == 1
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
    pause_queue("default")
    other.commit()
    assert admitted_ids() == ids
    assert entered(raw, *both) == 1
    assert admitted_ids() == [elsewhere]
    assert {job(each).hold for each in ids} == {"limited"}


def test_what_runs_or_has_its_callback_left_is_given_back_by_nobody(raw: RawDatabase) -> None:
    ids = blocked(2, "a")
    assert entered(raw, limit=1) == 1
    store.cancel_jobs(raw, ids[1:], mode="ask", by="", reason="", with_callback=["test.job"])
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


# Starts in a time


def _move(raw: RawDatabase, seconds: float) -> None:
    """Let time pass for what was let in; by way of the far future, where no row is in the way of another."""
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
    """All workers were busy for longer than the window: what was let in before starts now, and counts now."""
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
    found = store.read_blockers(raw, last, job="mail.send", names=["mail.send"], per=per, limit=9)
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
    found = store.read_blockers(raw, last, job=longer, names=[longer], per=per, limit=9)
    assert {each.kind: each.starts for each in found}["key"] == 0
    assert entered(raw, rated[longer]) == 3
    assert [each.starts for each in Admission.objects.all()] == [3, 3]


def test_a_queue_that_is_named_has_not_the_rate_of_every_other(raw: RawDatabase) -> None:
    blocked(2, "a", queue="mail")
    assert entered(raw, terms(queue="mail")) == 2
    given = [StartRate("queue", 60.0, queue="*"), StartRate("queue", None, queue="mail")]
    store.admit_jobs(raw, [], rates=given, lanes=1, limit=1, lookahead=1, notify=False)
    assert not Admission.objects.exists()
    store.admit_jobs(raw, [], rates=given[:1], lanes=1, limit=1, lookahead=1, notify=False)
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
    found = store.admit_jobs(second, [PER_KEY], lanes=10, limit=10, lookahead=10, notify=False)
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
    line = next(line for line in store.statement("lock_admission").splitlines() if "pg_try_advisory_xact_lock" in line)
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
            given = store.admit_jobs(db, [PER_KEY], lanes=10, limit=10, lookahead=1000, notify=False)
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
    """The count has a snapshot taken after the lock: what was committed while it was waited for is seen."""
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
    new = [store.NewJob("test.job", "{}", limit_key=key, priority=3) for key in ("a", None)]
    store.notify_queues(store.on("default"), {job.wakes for job in new})
    heard = [each.payload for each in raw.raw.notifies(timeout=0.5)]
    assert sorted(heard) == ["3:default", "limited:default"]


# What a job waits for


def _declared(monkeypatch: pytest.MonkeyPatch, *limits: Limit) -> None:
    definition = registry.get("tests.jobs.succeeds")
    monkeypatch.setattr(definition, "limits", read_job_limits(list(limits)))
    monkeypatch.setattr(definition, "is_limited", True)
    monkeypatch.setattr(definition, "_limit_rule", definition._checked_limit_rule())


NAMED = {"name": "tests.jobs.succeeds"}


def test_a_blocked_job_says_by_which_limit_and_by_whom(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    _declared(monkeypatch, Limit(8), Limit(1, rate=3, key=lambda value=None: str(value)))
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"concurrency": 9}}}
    running = blocked(7, "others", **NAMED)
    of_key = blocked(1, "a", **NAMED)
    waits = job(blocked(1, "a", **NAMED)[0])
    assert waits.blocked_by() == []
    assert entered(raw, terms(**_names())) == 9
    raw.query("UPDATE pgjobs_job SET hold = 'limited' WHERE id = %s", [waits.id])
    found = {blocker.kind: blocker for blocker in waits.blocked_by()}
    assert found["job"].words == "job tests.jobs.succeeds: 8 of 8 slots are taken"
    assert found["job"].job_ids == tuple(running[:5])
    assert found["key"].words == "key a: 1 of 1 slots are taken"
    assert found["key"].job_ids == tuple(of_key)
    assert set(found) == {"job", "key"}
    assert job(of_key[0]).blocked_by() == []
    raw.query("UPDATE pgjobs_job SET run_at = run_at + interval '1 hour' WHERE id = %s", [waits.id])
    assert waits.blocked_by() == [], "it is not due"


def test_a_callback_that_waits_blocks_nobody(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(1, key=lambda value=None: str(value)))
    cancelled, waits = blocked(2, "a", **NAMED)
    store.cancel_jobs(raw, [cancelled], mode="ask", by="", reason="", with_callback=[NAMED["name"]])
    assert job(waits).blocked_by() == []
    assert f"#{cancelled}" not in str(job(waits).why())


def _names() -> dict[str, Any]:
    return {"name": "tests.jobs.succeeds", "job": "tests.jobs.succeeds", "names": ("tests.jobs.succeeds",)}


def test_a_job_that_waits_for_a_window_says_so(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(rate=2, per=30))
    first = blocked(3, **NAMED)
    assert entered(raw, terms(**_names(), of_job=Bounds(None, 2, 30.0))) == 2
    [blocker] = job(first[2]).blocked_by()
    assert blocker.words == "job tests.jobs.succeeds: 2 of 2 starts in 30 seconds are used up"
    assert blocker.job_ids == ()


def test_jobs_with_keys_and_limits_are_registered_together(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of its own changes nothing about a limit, for one job and for many."""
    _declared(monkeypatch, Limit(1, key=lambda value=None: f"v{value}"))
    definition = jobs.succeeds
    one = definition.using(key="one").register(1)
    assert (one.state, one.limit_key, one.hold) == ("limited", "v1", "limited")
    many = register_many([definition.bind(2).using(key="two"), definition.bind(3), jobs.sleeps.bind(0)])
    again = definition.register(4).register_again()
    found = [
        (each.state, each.limit_key) for each in Job.objects.filter(id__in=[one.pk, *many, again.pk]).order_by("id")
    ]
    assert found == [("limited", "v1"), ("limited", "v2"), ("limited", "v3"), ("ready", None), ("limited", "v4")]


def test_places_behind_those_that_one_turn_looks_at_have_their_turn(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue for each customer: jobs of the first ones that cannot be let in keep nobody from those of the last."""
    monkeypatch.setattr(admitting, "GROUPS", 2)
    for queue in ("a", "b", "c"):
        blocked(1, queue=queue)
    QueueState.objects.bulk_create([QueueState(kind="queue", name=queue) for queue in ("a", "b")])
    with registry.isolated():
        define(name="test.job")(jobs.succeeds.func)
        admission = AdmissionScan(lambda queue: True, get_conf())
        turns = [admission.turn(raw) for _ in range(4)]
    assert [(turn.jobs, turn.due, turn.again) for turn in turns] == [
        (0, True, True), (1, True, True), (0, True, True), (0, False, False),
    ]  # fmt: skip
    assert [job(each).queue for each in admitted_ids()] == ["c"]


def test_of_many_keys_it_is_known_after_a_round_that_none_is_due(raw: RawDatabase) -> None:
    """More than one turn looks at: a worker until idle would never end, and every worker look all night long."""
    for number in range(600):
        blocked(1, f"k{number}", delay_seconds=3600)
    with registry.isolated():
        define(name="test.job", limits=Limit(1, key=lambda value=None: "k"))(jobs.succeeds.func)
        admission = AdmissionScan(lambda queue: True, get_conf())
        turns = [admission.turn(raw) for _ in range(4)]
        assert [(turn.due, turn.again) for turn in turns] == [(True, True)] + 3 * [(False, False)]
        assert 3500 < (turns[-1].seconds or 0) <= 3600
        [due] = blocked(1, "k5")
        raw.query("UPDATE pgjobs_job SET hold = NULL WHERE limit_key = 'k5' AND id <> %s", [due])
        admission.begin_anew()
        assert all(admission.turn(raw).due for _ in range(6))
        raw.query("UPDATE pgjobs_job SET hold = 'limited' WHERE limit_key = 'k5' AND id <> %s", [due])
        assert sum(admission.turn(raw).jobs for _ in range(2)) == 1
        assert [admission.turn(raw).due for _ in range(5)][-1] is False


def test_run_jobs_is_held_up_by_no_limit(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    _declared(monkeypatch, Limit(1, rate=1))
    ids = jobs.succeeds.register_many([(n,) for n in range(150)])
    later = jobs.succeeds.using(delay=60).register("later")
    assert run_jobs().succeeded == ids
    assert run_job(later).outcome == "succeeded"
    again = jobs.succeeds.using(delay=60).register("later")
    assert run_jobs(include_scheduled=True).succeeded == [again.pk]


# What it costs

BLOCKED = store.NewJob("test.job", "{}", limit_key="a", run_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_ten_thousand_blocked_jobs_cost_the_claim_nothing(db_connection: Connect, raw: RawDatabase) -> None:
    """They stand before all others in their queue: a claim touches as many pages as without them, by the same plan."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    found = []
    for held in (0, 10_000):
        with analysed_while_empty(raw):
            store.register_jobs("default", [alike(BLOCKED, held)], limited=True)
            register(500)
            claim(explaining, 100)
            worker.rollback()
            assert faults(explaining.plan, jobs=100) == []
            kinds = [(node["Node Type"], node.get("Index Name")) for node in nodes(explaining.plan)]
            found.append((kinds, explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"]))
    assert found[0][0] == found[1][0]
    assert abs(found[0][1] - found[1][1]) < 20


@pytest.mark.parametrize("keys", [1, 100_000])
def test_a_turn_costs_its_bounds_and_not_what_is_blocked(db_connection: Connect, raw: RawDatabase, keys: int) -> None:
    """100,000 jobs of one key, or of as many: pages of a turn that lets in one, and of one that lets in nothing."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, queue, limit_key, hold) "
            "SELECT 'test.job', '{}', 'default', 'k' || n %% %s, 'limited' FROM generate_series(1, 100000) AS n",
            [keys],
        )
        bounds = {"of_key": Bounds(1), "of_job": Bounds(1)}
        for after in (None, ("k5", 0)):
            admit_explained(explaining, terms(**bounds, after=after))
            worker.rollback()
            assert faults(explaining.plan, jobs=500, vain=12) == []
        assert entered(raw, terms(**bounds)) == 1
        admit_explained(explaining, terms(**bounds))
        assert explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"] < 100


def test_a_turn_passes_what_an_old_snapshot_keeps_no_oftener_than_it_must(
    db_connection: Connect, raw: RawDatabase
) -> None:
    """Once to count what is let in, once in each key's count, once on the way to each key's first job."""
    dead, keys = 5000, 250
    pinned, worker = db_connection(autocommit=False), db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        given = terms(of_key=Bounds(1), of_job=Bounds(5000))
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, queue, limit_key, hold) "
            "SELECT 'test.job', '{}', 'default', 'k' || mod(n, %s), 'limited' FROM generate_series(1, %s) AS n",
            [keys, 2 * dead],
        )
        first, last = raw.query("SELECT min(id), min(id) + %s FROM pgjobs_job", [dead - 1])[0]
        admit_explained(explaining, given)
        worker.rollback()
        free = pages(explaining)
        pinned.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.query("SELECT count(*) FROM pgjobs_job")
        for change in (
            "hold = NULL",
            "claim_id = gen_random_uuid()",
            "outcome = 'succeeded', finished_at = statement_timestamp()",
        ):
            raw.query(f"UPDATE pgjobs_job SET {change} WHERE id BETWEEN %s AND %s", [first, last])
        admit_explained(explaining, given)
        assert pages(explaining) - free < 6.3 * dead
    pinned.rollback()


def pages(explaining: Explaining) -> int:
    return int(explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"])


def admit_explained(explaining: Explaining, *given: Terms) -> None:
    assert store.admit_jobs(explaining, given, lanes=500, limit=500, lookahead=1000, notify=False) == []


# A worker's own connection


@pytest.fixture(params=[False, True], ids=["direct", "pooled"])
def worker_connection(request: pytest.FixtureRequest, raw: RawDatabase) -> Iterator[WorkerConnection]:
    db = WorkerConnection("default", "pgjobs test admit", statement_seconds=1)
    db.pooled = request.param
    yield db
    db.close()


LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"


def test_a_turn_is_one_message_and_leaves_nothing_behind(worker_connection: WorkerConnection, raw: RawDatabase) -> None:
    """No transaction is open afterwards and no lock is held, whatever came of it."""
    blocked(2, "a")
    assert [each.jobs for each in admit(worker_connection, PER_KEY)] == [1]
    assert worker_connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert raw.value(LOCKS, [LOCK_CLASS]) == 0
    raw.query("BEGIN")
    raw.query("LOCK TABLE pgjobs_job")
    with pytest.raises(psycopg.errors.QueryCanceled):
        admit(worker_connection, PER_KEY)
    assert raw.value(LOCKS, [LOCK_CLASS]) == 0
    raw.query("ROLLBACK")
    assert worker_connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert [each.jobs for each in admit(worker_connection, PER_KEY)] == [0]


def test_a_turn_is_read_committed_whatever_the_role_says(worker_connection: WorkerConnection) -> None:
    """At a higher level the count would have the snapshot of the lock, and be late."""
    if worker_connection.pooled:
        worker_connection.connection.execute("SET default_transaction_isolation = 'serializable'")
    *_, [(count, isolation)] = worker_connection.fetch_together([("lock_queues", {"class": LOCK_CLASS, "keys": [1]})])
    assert (count, isolation) == (1, "read committed")


def test_a_worker_that_freezes_at_its_turn_holds_nobody_up(
    worker_connection: WorkerConnection, raw: RawDatabase
) -> None:
    """All is sent before any answer is read: who never reads it has let in, and holds nothing."""
    blocked(2, "a")
    sent: list[bytes] = []

    class Frozen(Exception):
        """It stands still from here on."""

    def freeze(statements: Sequence[tuple[str, store.Params]]) -> list[store.Rows]:
        cursor = psycopg.ClientCursor(worker_connection.connection)
        text = ";".join(f"{cursor.mogrify(store.statement(name), params)}\n" for name, params in statements)
        sent.append(text.encode())
        raise Frozen

    db = SimpleNamespace(fetch_together=freeze)
    with pytest.raises(Frozen):
        admit(db, PER_KEY)
    worker_connection.connection.pgconn.send_query(sent[0])
    worker_connection.connection.pgconn.flush()
    wait_until(lambda: len(admitted_ids()) == 1, 10, "it has let in, though nobody read the answer")
    wait_until(lambda: raw.value(LOCKS, [LOCK_CLASS]) == 0, 10, "the lock is free")
    assert entered(raw, PER_KEY) == 0


def test_the_page_of_a_blocked_job_says_by_whom(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    _declared(monkeypatch, Limit(1))
    running, waits = blocked(2, **NAMED)
    assert entered(raw, terms(**_names(), of_job=Bounds(1))) == 1
    user = get_user_model().objects.create_superuser("limits", "", "x")
    try:
        client.force_login(user)
        page = client.get(reverse("admin:pgjobs_job_change", args=[waits])).content.decode()
        assert "Blocked by" in page
        assert "1 of 1 slots are taken" in page
        assert f'href="/admin/pgjobs/job/{running}/change/"' in page
        other = client.get(reverse("admin:pgjobs_job_change", args=[running])).content.decode()
        assert "slots are taken" not in other
    finally:
        user.delete()
