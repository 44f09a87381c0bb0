"""``on_conflict="postpone"``: a registration moves the waiting job of its key, and never loses a call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgjobs import JobContext, Limit, Unique, job, register_many, sql
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.maintenance.expiry import JobExpirer
from django_pgjobs.models import Job
from django_pgjobs.signals import job_registered
from django_pgjobs.store import finalising, keys
from django_pgjobs.store.finalising import End
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import backdate, run_jobs
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, wait_until
from tests.plugins.sabotage import sabotage

pytestmark = pytest.mark.usefixtures("committed")


@job(name="postponing.index", unique=Unique("index:{shop}", on_conflict="postpone"))
def index(shop: str, note: str = "") -> str:
    return note


@job(name="postponing.once", unique=Unique("once", until="finished", on_conflict="postpone"))
def once() -> None: ...


@job(name="postponing.limited", unique=Unique("limited", on_conflict="postpone"), limits=Limit(1))
def limited() -> None: ...


@job(name="postponing.plain")
def plain(number: int = 0) -> None: ...


later = index.using(delay=60)


def seconds_ahead(one: Job) -> float:
    """How long after the registration, by the database's clock, the job starts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM run_at - statement_timestamp()) FROM pgjobs_job WHERE id = %s", [one.pk]
        )
        return float(cursor.fetchone()[0])


def test_a_second_call_moves_the_waiting_job_to_its_own_start() -> None:
    """One job, with the arguments of the first call, that starts a delay after the latest."""
    first = later.register("a", note="first")
    backdate(Job.objects.all(), run_at=50)
    again = later.register("a", note="second")
    assert again.pk == first.pk
    assert 55 < seconds_ahead(first) <= 60
    assert again.run_at == Job.objects.get().run_at
    assert again.payload["kwargs"] == {"note": "first"}
    at = timezone.now() + timedelta(hours=2)
    assert index.using(run_at=at).register("a").run_at == at
    assert seconds_ahead(index.register("a")) <= 0, "without a delay it may start at once"
    assert later.register("b").pk != first.pk
    assert later.using(queue="mail").register("a").pk not in (first.pk, None)


def test_a_moved_job_sends_no_signal_of_a_new_one() -> None:
    heard: list[Any] = []
    job_registered.connect(receiver := lambda **facts: heard.append(facts["job"].pk))
    try:
        first = later.register("a")
        later.register("a")
        register_many([later.bind("a")])
    finally:
        job_registered.disconnect(receiver)
    assert heard == [first.pk]


def test_a_call_that_is_rolled_back_moves_nothing() -> None:
    before = later.register("a").run_at
    with transaction.atomic():
        index.using(delay=7200).register("a")
        transaction.set_rollback(True)
    assert Job.objects.get().run_at == before


def test_a_call_while_the_job_runs_is_a_job_of_its_own(raw: RawDatabase) -> None:
    """The running one may have read its data before: by default the key is free from the start on."""
    running = index.register("a")
    assert running.key_scope == "until_started"
    claim(raw)
    following = later.register("a")
    assert following.pk != running.pk
    assert later.register("a").pk == following.pk
    running.refresh_from_db()
    assert running.state == "running"


def test_a_key_that_is_kept_until_the_end_refuses_a_call_while_its_job_runs(raw: RawDatabase) -> None:
    """Nothing of a started job can be moved, and a call that changes nothing would be lost: the caller learns of it."""
    running = once.register()
    claim(raw)
    with transaction.atomic(), pytest.raises(DuplicateJob, match="has started: it cannot be postponed") as told:
        once.register()
    assert told.value.existing_id == running.pk
    with pytest.raises(DuplicateJob, match="has started"):
        register_many([plain.bind(1), once.bind()])
    assert Job.objects.count() == 1, "nothing was stored"


def test_a_job_that_waits_for_its_retry_never_comes_back_earlier(raw: RawDatabase) -> None:
    one = once.register()
    [end] = claim(raw).ends()
    finalising.finalise_retry(raw, [End(end.id, end.claim_id, 0.0, delay=600.0, cause="failed")], AUTHOR)
    assert once.using(delay=5).register().pk == one.pk
    assert 590 < seconds_ahead(one) <= 600
    once.using(delay=900).register()
    assert 890 < seconds_ahead(one) <= 900


def test_the_deadline_of_the_latest_call_counts() -> None:
    """With that of the first one, a job that is moved again and again would pass it and never run."""
    soon, far = (timezone.now() + timedelta(hours=hours) for hours in (1, 5))
    one = index.using(deadline=soon, delay=60).register("a")
    assert index.using(deadline=far, delay=7200).register("a").deadline == far
    assert index.using(delay=60).register("a").deadline is None
    assert Job.objects.get().pk == one.pk


def test_an_admitted_job_gives_its_slot_back_while_it_waits(raw: RawDatabase) -> None:
    one = limited.register()
    raw.query("UPDATE pgjobs_job SET hold = NULL")  # as the admitter does
    assert limited.using(delay=60).register().pk == one.pk
    assert Job.objects.get().state == "limited"


def test_among_many_rows_the_last_with_a_key_says_when() -> None:
    """As if they were registered one by one: the first one's arguments, the last one's start."""
    old = later.register("old")
    rows = [later.bind("a", note="1"), later.using(delay=600).bind("old"), later.using(delay=1200).bind("a", note="2")]
    ids = register_many(rows)
    assert ids[1] == old.pk
    assert ids[0] == ids[2]
    new = Job.objects.get(pk=ids[0])
    assert new.payload["kwargs"] == {"note": "1"}
    assert 1190 < seconds_ahead(new) <= 1200
    assert 590 < seconds_ahead(old) <= 600
    mixed = [index.using(unique=Unique(on_conflict="existing"), delay=60).bind("a"), later.using(delay=1800).bind("a")]
    assert register_many(mixed) == [new.pk, new.pk]
    assert 1790 < seconds_ahead(new) <= 1800
    with pytest.raises(DuplicateJob):
        register_many([index.using(unique=Unique(on_conflict="raise")).bind("a"), later.bind("a")])


def test_a_claim_that_comes_first_makes_the_call_a_new_job(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """The call waits for the claim's row lock, sees that the job has started, and is stored: no call is lost."""
    running = index.register("a")
    claim(other)
    call = background(lambda: later.register("a").pk)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the call waits for the claim")
    other.commit()
    assert call.result(30) != running.pk
    assert sorted(Job.objects.values_list("state", flat=True)) == ["ready", "running"]


def test_a_call_that_comes_first_keeps_the_job_from_a_claim(raw: RawDatabase) -> None:
    """Before its commit the claim skips the locked row, after it the row is not due; after a rollback it is."""
    one = index.register("a")
    with transaction.atomic():
        later.register("a")
        assert not claim(raw).jobs
    assert not claim(raw).jobs
    index.register("a")
    with transaction.atomic():
        later.register("a")
        transaction.set_rollback(True)
    assert [taken.id for taken in claim(raw).jobs] == [one.pk]


GUARDS = [line for line in sql.statement("postpone_jobs").splitlines() if "claim_id IS NULL" in line]


def test_without_its_guard_a_call_would_move_a_running_job(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: a started job, whose call must not be swallowed, is moved instead."""
    one = once.register()
    claim(raw)
    assert len(GUARDS) == 2
    sabotage(monkeypatch, "postpone_jobs", GUARDS[0])
    assert not keys.postpone_jobs(raw, [_wanted(60)]).ids, "the second guard alone holds"
    monkeypatch.undo()
    sabotage(monkeypatch, "postpone_jobs", GUARDS[1], GUARDS[1].replace(" AND j.claim_id IS NULL", ""))
    assert not keys.postpone_jobs(raw, [_wanted(60)]).ids, "and so does the first"
    sabotage(monkeypatch, "postpone_jobs", GUARDS[0])
    assert keys.postpone_jobs(raw, [_wanted(60)]).ids == {0: one.pk}


def _wanted(delay: float) -> NewJob:
    return NewJob("postponing.once", "{}", key="once", key_scope="until_finished", delay_seconds=delay)


def test_calls_whose_keys_cross_meet_in_no_deadlock(background: Background) -> None:
    shops = [f"s{n}" for n in range(100)]
    register_many([later.bind(shop) for shop in shops])
    turns = [shops[:: (1 if n % 2 else -1)] for n in range(6)]
    calls = [background(register_many, [later.bind(shop) for shop in turn]) for turn in turns]
    assert {tuple(sorted(call.result(60))) for call in calls} == {
        tuple(sorted(Job.objects.values_list("pk", flat=True)))
    }
    assert Job.objects.count() == 100


def test_postponed_jobs_run_once_after_the_last_call() -> None:
    index.using(delay=60).register("a", note="only")
    assert run_jobs().ran == []
    one = index.register("a")
    run_jobs()
    one.refresh_from_db()
    assert (one.state, one.result) == ("succeeded", "only")


@pytest.mark.parametrize("window", [60, timedelta(minutes=1)])
def test_a_window_cannot_be_postponed(window: Any) -> None:
    words = r"on_conflict='postpone' and a window exclude each other"
    with pytest.raises(InvalidJob, match=words), transaction.atomic():
        job(name="postponing.wrong", unique=Unique("k", window=window, on_conflict="postpone"))(wrong)
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=words):
            index.using(unique=Unique(window=window))
        assert plain.register().pk, "the transaction goes on"


def wrong() -> None: ...


@job(name="postponing.told", unique=Unique("told", on_conflict="postpone"))
def told() -> None: ...


@told.on_cancel
def never_ran(context: JobContext) -> None: ...


@told.on_abandon
def given_up(context: JobContext) -> None: ...


@pytest.mark.parametrize("how", ["cancelled", "expired", "abandoned"])
def test_a_job_that_will_never_start_is_not_moved_and_does_not_refuse_the_call(raw: RawDatabase, how: str) -> None:
    """Only its callback is left, perhaps for long: its queue may be paused. No call is lost, and none fails."""
    first = told.using(delay=60, expires=3600).register()
    if how == "cancelled":
        first.cancel()
    elif how == "abandoned":
        first.abandon(reason="by hand")
    else:
        raw.query("UPDATE pgjobs_job SET expires_at = statement_timestamp()")
        JobExpirer(lambda jobs: None)(raw)
    first.refresh_from_db()
    assert (first.ending, first.unique_key) == ("abandoned" if how == "abandoned" else "cancelled", None)
    second = told.using(delay=60).register()
    assert second.pk != first.pk
    assert told.using(delay=70).register().pk == second.pk


def test_the_scope_of_a_call_is_the_one_that_its_policy_needs() -> None:
    """Only where the scope is not declared."""
    assert plain.using(unique=Unique("k", on_conflict="postpone")).register().key_scope == "until_started"
    assert plain.using(unique="l").register().key_scope == "until_finished"
    assert once.register().key_scope == "until_finished"
