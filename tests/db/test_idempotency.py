"""Idempotency keys: the effect once, the result each time; stored with the end or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError
from django.test import override_settings

from django_pgjobs import Backoff, Flow, Next, Snooze, job, signals, sql
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance import expiry
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.models import Job, StoredResult
from django_pgjobs.models.keys import KeyWindow
from django_pgjobs.store import atomic, finalising, keys
from django_pgjobs.store.finalising import End
from django_pgjobs.testing import backdate, run_job, run_jobs
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, wait_until
from tests.plugins.sabotage import lines_of, sabotage
from tests.unit.worker_fakes import claimed

pytestmark = pytest.mark.usefixtures("committed")

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@job(name="idempotency.charge", idempotency_key="order:{order}", max_attempts=3, backoff=Backoff(0))
def charge(order: int, fails: int = 0) -> dict[str, int]:
    ran.append(order)
    if len(ran) <= fails:
        raise ValueError("card refused")
    return {"order": order, "runs": len(ran)}


@job(name="idempotency.acharge", idempotency_key=lambda order: f"order:{order}" if order else None)
async def acharge(order: int) -> int:
    ran.append(order)
    return len(ran)


@job(name="idempotency.quiet", store_result=False)
def quiet() -> str:
    ran.append(0)
    return "unseen"


@job(name="idempotency.sleepy", idempotency_key="s")
def sleepy() -> None:
    ran.append(0)
    raise Snooze(0)


@job(name="idempotency.new", aliases=["idempotency.old"])
def renamed() -> int:
    ran.append(0)
    return len(ran)


def outcome(one: Job) -> tuple[str | None, Any]:
    one.refresh_from_db()
    return one.outcome, one.result


# Hits


def test_the_second_returns_the_result_of_the_first_without_running() -> None:
    """Rows C20, C21: one effect, two successes with equal results."""
    first, second = charge.register(7), charge.register(7)
    other = charge.register(8)
    assert run_jobs().succeeded == [first.pk, second.pk, other.pk]
    assert outcome(first) == outcome(second) == ("succeeded", {"order": 7, "runs": 1})
    assert ran == [7, 8]
    kept = StoredResult.objects.get(name=charge.name, key="order:7")
    assert (kept.job_id, kept.result) == (first.pk, {"order": 7, "runs": 1})
    assert outcome(run_job(charge.register(7))) == ("succeeded", {"order": 7, "runs": 1})


def test_async_jobs_too() -> None:
    """Rows C20, C21."""
    first, second = acharge.register(7), acharge.register(7)
    run_jobs()
    assert outcome(first) == outcome(second) == ("succeeded", 1)
    assert ran == [7]


@job(name="idempotency.token", max_attempts=3, backoff=Backoff(0))
def token(tenant: Any) -> str:
    ran.append(tenant)
    return f"token of {tenant}"


@job(name="idempotency.tenant")
def tenant_of(name: str) -> str:
    return name


@job(name="idempotency.step", takes_context=False)
def first_step(tenant: str) -> Next:
    return Next(token.bind(f"{tenant}, {len(ran)}"))


login = token.using(idempotency_key="login:7")


@pytest.mark.parametrize("kept", [True, False])
def test_other_arguments_under_the_key_do_not_get_its_result(kept: bool) -> None:
    with override_settings(PGJOBS={"RETENTION": {"succeeded": 86_400 if kept else 0}}):
        login.register("acme")
        run_jobs()
        other, same = login.register("umbrella"), login.register("acme")
        ended = run_jobs()
    assert (ran, ended.abandoned) == (["acme"], [other.pk])
    other.refresh_from_db()
    assert (other.attempt, other.result) == (1, None)
    assert "ran for the idempotency key 'login:7' with other arguments" in other.error
    assert "put into the key what tells them apart" in other.error
    assert not kept or outcome(same) == ("succeeded", "token of acme")


def test_results_of_other_jobs_as_arguments_are_not_compared_by_the_ids_of_these_jobs() -> None:
    for _ in range(2):
        flow = Flow()
        flow.add(login.bind(flow.add(tenant_of.bind("acme")).result))
        flow.register()
        assert not run_jobs().abandoned
    assert ran == ["acme"]


def test_a_step_machine_is_known_by_the_arguments_of_its_first_step() -> None:
    given = first_step.using(idempotency_key="login:7")
    registered = [given.register(tenant) for tenant in ("acme", "acme", "umbrella")]
    run_jobs()
    assert ran == ["acme, 0"]
    assert [outcome(one)[0] for one in registered] == ["succeeded", "succeeded", "abandoned"]


def test_the_key_is_the_jobs_own() -> None:
    """Row C20: the same key on two jobs, and both run."""
    charge.register(7)
    acharge.register(7)
    run_jobs()
    assert ran == [7, 7]


def test_a_renamed_job_knows_its_old_results() -> None:
    """Row C20: the old name's key is the new one's."""
    StoredResult.objects.create(name="idempotency.old", key="k", job_id=1, result="kept")
    assert outcome(run_job(renamed.using(idempotency_key="k").register())) == ("succeeded", "kept")
    assert ran == []


def test_without_a_key_every_job_runs(raw: RawDatabase) -> None:
    """Row C22: nothing is asked for and nothing stored."""
    acharge.register(0)
    acharge.register(0)
    charge.using(idempotency_key=None).register(5)
    charge.using(idempotency_key=None).register(5)
    run_jobs()
    assert ran == [0, 0, 5, 5]
    assert not StoredResult.objects.exists()


def test_a_result_of_nothing_is_remembered_too() -> None:
    """Row C21: None, and results that must not be stored."""
    quiet.using(idempotency_key="q").register()
    second = quiet.using(idempotency_key="q").register()
    run_jobs()
    assert outcome(second) == ("succeeded", None)
    assert ran == [0]


def test_a_job_is_told_to_have_started_then_to_be_a_hit_then_to_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Rows C19, C65: in this order; the hit names key, job and the one that ran."""
    first, second = charge.register(7), charge.register(7)
    run_job(first)
    told: list[tuple[Any, ...]] = []
    receivers: dict[Any, Callable[..., None]] = {
        signals.job_started: lambda context, **_: told.append(("started", context.id)),
        signals.idempotency_hit: lambda sender, context, idempotency_key, first_job_id, **_: told.append(
            ("hit", sender.name, context.id, idempotency_key, first_job_id)
        ),
        signals.attempt_ended: lambda context, decision, exception, **_: told.append(
            ("ended", type(decision).__name__, exception)
        ),
        signals.job_finished: lambda job_id, outcome, **_: told.append(("completed", job_id, outcome)),
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver, weak=False)
    try:
        with caplog.at_level(logging.INFO, "django_pgjobs.jobs"):
            run_job(second)
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    assert told == [
        ("started", second.pk),
        ("hit", charge.name, second.pk, "order:7", first.pk),
        ("ended", "Succeeded", None),
        ("completed", second.pk, "succeeded"),
    ]
    lines = [record.getMessage() for record in caplog.records if record.name == "django_pgjobs.jobs"]
    assert [line.split()[0] for line in lines] == ["START", "HIT", "END"]
    assert f"result of job {first.pk} key=order:7 name={charge.name} job={second.pk} attempt=1/3 " in lines[1]


def test_without_attempts_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch, raw: RawDatabase) -> None:
    """Rows C17, C18: abandoned, though a result is there."""
    StoredResult.objects.create(name=charge.name, key="order:7", job_id=1, result=1)
    one = charge.register(7)
    raw.query("UPDATE pgjobs_job SET attempt = max_attempts")
    looked: list[str] = []
    monkeypatch.setattr(keys, "find_result", lambda *_: looked.append("looked"))
    assert run_jobs().abandoned == [one.pk]
    assert (ran, looked) == ([], [])


# Which results are stored


def test_a_failed_attempt_stores_nothing() -> None:
    """Row C24: the retry runs."""
    one = charge.register(7, fails=1)
    run_jobs(include_scheduled=True)
    assert ran == [7, 7]
    assert outcome(one) == ("succeeded", {"order": 7, "runs": 2})
    assert StoredResult.objects.get().result == {"order": 7, "runs": 2}


def test_an_abandoned_job_stores_nothing() -> None:
    """Row C24: a second job of the key runs."""
    charge.register(7, fails=3)
    run_jobs(include_scheduled=True)
    assert not StoredResult.objects.exists()
    assert outcome(run_job(charge.register(7))) == ("succeeded", {"order": 7, "runs": 4})


def test_a_snooze_stores_nothing() -> None:
    sleepy.register()
    run_jobs(limit=1)
    assert not StoredResult.objects.exists()


def keyed(raw: RawDatabase, *keys: str | None) -> list[End]:
    """Claim a job for each idempotency key, and return their ends."""
    for key in keys:
        quiet.using(idempotency_key=key).register()
    ends = claim(raw, len(keys)).ends()
    for number, end in enumerate(ends):
        end.result = str(number)
    return ends


def stored() -> dict[str, Any]:
    return dict(StoredResult.objects.values_list("key", "result"))


def test_one_statement_ends_them_and_stores_their_results(raw: RawDatabase) -> None:
    """Row C23: jobs with a key; of two with the same key, the first by id."""
    ends = keyed(raw, "b", None, "a", "b")
    assert sorted(finalising.finalise_success(raw, ends, AUTHOR, remember=True)) == sorted(end.id for end in ends)
    assert stored() == {"a": 2, "b": 0}
    assert list(Job.objects.order_by("pk").values_list("outcome", "result")) == [("succeeded", n) for n in range(4)]


def test_the_first_that_ends_is_remembered(raw: RawDatabase) -> None:
    """Two run at once, both run: the result of the second is its own, and not stored."""
    first, second = keyed(raw, "k", "k")
    finalising.finalise_success(raw, [second], AUTHOR, remember=True)
    finalising.finalise_success(raw, [first], AUTHOR, remember=True)
    assert stored() == {"k": 1}
    assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == [0, 1]


def test_two_workers_that_end_jobs_of_the_same_keys_meet_in_no_deadlock(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """Results are stored in the order of their keys; who comes second waits for a short statement."""
    ends = keyed(raw, "b", "a", "a", "b")
    finalising.finalise_success(other, ends[:2], AUTHOR, remember=True)
    second = background(finalising.finalise_success, raw, ends[2:], AUTHOR, remember=True)
    wait_until(lambda: blocked_by(other, other.pid), 10, "the second waits for the first")
    other.commit()
    assert len(second.result(30)) == 2
    assert stored() == {"a": 1, "b": 0}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "deleted"])
def test_a_result_that_somebody_deletes_holds_up_no_end(raw: RawDatabase, other: RawDatabase, *, kept: bool) -> None:
    """Row C23: his transaction may be open for long; the ends beside this one do not wait for it either."""
    ends = keyed(raw, "k", None)
    StoredResult.objects.create(name=quiet.name, key="k", job_id=1, result="old")
    other.query("DELETE FROM pgjobs_stored_result")
    raw.query("SET statement_timeout = '2s'")
    if kept:
        done = finalising.finalise_success(raw, ends, AUTHOR, remember=True)
    else:
        done = finalising.finalise_delete(raw, ends, remember=True)
    assert sorted(done) == sorted(end.id for end in ends)
    other.commit()
    assert stored() == {}


def test_a_lock_on_the_stored_results_holds_up_only_ends_with_a_key(raw: RawDatabase, other: RawDatabase) -> None:
    """So a job without a key ends by statements that do not open that table."""
    ends = keyed(raw, *[None] * 5, "k", "k")
    other.query("LOCK TABLE pgjobs_stored_result IN ACCESS EXCLUSIVE MODE")
    raw.query("SET lock_timeout = '200ms'")
    assert finalising.finalise_success(raw, ends[:1], AUTHOR) == [ends[0].id]
    assert finalising.finalise_success_fast(raw, ends[1:2], AUTHOR) == [ends[1].id]
    assert finalising.finalise_delete(raw, ends[2:3]) == [ends[2].id]
    assert finalising.finalise_delete_fast(raw, ends[3:4]) == [ends[3].id]
    assert atomic.end_atomic(raw, ends[4]) is not None
    for end_of in (partial(finalising.finalise_success, author=AUTHOR), finalising.finalise_delete):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            end_of(raw, ends[5:6], remember=True)
    other.rollback()
    assert finalising.finalise_success(raw, ends[5:], AUTHOR, remember=True) == [end.id for end in ends[5:]]


def test_what_is_deleted_at_its_end_leaves_its_result(raw: RawDatabase) -> None:
    """Row C23, at retention 0: a success does, an abandoned job not."""
    ends = keyed(raw, "a", "b", None)
    ends[1].outcome = "abandoned"
    assert len(finalising.finalise_delete(raw, ends, remember=True)) == 3
    assert not Job.objects.exists()
    assert stored() == {"a": 0}


@pytest.mark.parametrize("name", ["finalise_success_keyed", "finalise_delete_keyed"])
@pytest.mark.parametrize("sabotaged", ["", "claim_id", "outcome"])
def test_a_claim_without_a_right_stores_no_result(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, sabotaged: str
) -> None:
    """Row C23, C47: fenced; and without a line of its fence it would."""
    [end] = keyed(raw, "k")
    if sabotaged == "outcome":
        finalising.finalise_end(raw, [End(end.id, end.claim_id, outcome="abandoned")], AUTHOR)
    else:
        finalising.release_jobs(raw, [end], AUTHOR)
        claim(raw)
    if sabotaged:
        [line] = [line for _, line in lines_of("-- fence", (name,)) if f".{sabotaged} " in line]
        sabotage(monkeypatch, name, line)
    if name == "finalise_success_keyed":
        finalising.finalise_success(raw, [end], AUTHOR, remember=True)
    else:
        finalising.finalise_delete(raw, [end], remember=True)
    assert StoredResult.objects.exists() is bool(sabotaged)


def test_a_success_without_the_statement_of_its_own_would_be_forgotten(raw: RawDatabase) -> None:
    """The plain statement knows nothing of keys: that costs the jobs without one nothing."""
    finalising.finalise_success(raw, keyed(raw, "k"), AUTHOR)
    assert stored() == {}
    assert "stored_result" not in sql.statement("finalise_success") + sql.statement("finalise_delete")


# Trouble


@pytest.mark.parametrize(
    "error", [OperationalError("away"), ProgrammingError("no such table"), psycopg.OperationalError("away")]
)
@pytest.mark.parametrize("definition", [charge, acharge])
def test_a_job_whose_key_cannot_be_looked_up_is_not_run(
    monkeypatch: pytest.MonkeyPatch, definition: Any, error: Exception
) -> None:
    """Its body may have run already; the attempt is not charged."""

    def away(*_: Any) -> None:
        raise error

    one = definition.register(7)
    monkeypatch.setattr(keys, "find_result", away)
    assert run_jobs().snoozed == [one.pk]
    one.refresh_from_db()
    assert (one.attempt, one.outcome, ran) == (0, None, [])
    monkeypatch.undo()
    assert run_jobs(include_scheduled=True).succeeded == [one.pk]


def test_a_key_that_is_none_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidJob, match="idempotency_key must be 1 to 200 printable characters"):
        charge.using(idempotency_key=lambda order, fails=0: "x" * 201).register(1)
    with pytest.raises(InvalidJob, match="idempotency_key must return a text or None, not 7"):
        charge.using(idempotency_key=lambda order, fails=0: 7).register(1)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidJob, match="idempotency_key cannot be made from the arguments: ZeroDivisionError"):
        charge.using(idempotency_key=lambda order, fails=0: str(1 / 0)).register(1)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("extras", "key"),
    [(None, None), ({"limit_key": "x"}, None), ({"limit_key": "x", "idempotency_key": "k"}, "k")],
)
def test_the_claim_says_who_has_a_key(extras: dict[str, Any] | None, key: str | None) -> None:
    assert claimed(extras=extras).idempotency_key == key


def test_the_claim_says_nothing_of_others(raw: RawDatabase) -> None:
    quiet.register()
    quiet.using(idempotency_key="k").register()
    assert [one.idempotency_key for one in claim(raw, 2).jobs] == [None, "k"]


# Forgetting


@pytest.fixture
def many(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "TURN_SECONDS", 60.0)  # a slow machine ends no turn early
    raw.query(
        "INSERT INTO pgjobs_stored_result (name, key, job_id, stored_at)"
        " SELECT 'x', n::text, n, now() - interval '10 days' FROM generate_series(1, 2500) AS n"
    )
    raw.query(
        "INSERT INTO pgjobs_key_window (queue, key, begins_at, ends_at, job_id)"
        " SELECT 'q', n::text, now() - interval '2 hours', now() - interval '1 hour', n"
        " FROM generate_series(1, 2500) AS n"
    )
    StoredResult.objects.create(name="y", key="young", job_id=1)
    raw.query("INSERT INTO pgjobs_key_window VALUES ('q', 'live', now(), now() + interval '1 hour', 1)")


@pytest.mark.usefixtures("many")
@override_settings(PGJOBS={"RETENTION": {"stored_results": timedelta(days=9)}})
def test_what_is_over_is_forgotten_in_batches(raw: RawDatabase) -> None:
    """The leader's; windows that are over, results beyond their time, and nothing else."""
    assert Expirer()(raw) == 5000
    assert list(StoredResult.objects.values_list("key", flat=True)) == ["young"]
    assert list(KeyWindow.objects.values_list("key", flat=True)) == ["live"]
    assert Expirer()(raw) == 0


@pytest.mark.usefixtures("many")
@override_settings(PGJOBS={"RETENTION": {"stored_results": None}})
def test_results_may_be_kept_for_ever(raw: RawDatabase) -> None:
    assert Expirer()(raw) == 2500
    assert StoredResult.objects.count() == 2501


@pytest.mark.usefixtures("many")
def test_forgetting_waits_for_nobody_and_stops_when_it_is_to(raw: RawDatabase, other: RawDatabase) -> None:
    other.query("SELECT FROM pgjobs_key_window WHERE key IN ('7', '8') FOR UPDATE")
    answers = iter([True, True, False])
    assert Expirer(lambda: next(answers, False))(raw) == 2000
    expirer = Expirer()
    assert expirer(raw) == 498
    other.rollback()
    assert expirer(raw) == 2


@pytest.mark.usefixtures("many")
def test_a_walk_begins_anew_now_and_then(raw: RawDatabase) -> None:
    """What lies behind it, as it was locked, goes some minutes later."""
    expirer = Expirer()
    expirer(raw)
    raw.query("INSERT INTO pgjobs_key_window VALUES ('q', 'late', '2001-01-01', '2001-01-02', 1)")
    assert expirer(raw) == 0
    expirer.windows.anew_at = 0.0
    assert expirer(raw) == 1


@pytest.mark.usefixtures("many")
def test_a_turn_is_bounded(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "TURN_SECONDS", 0.0)
    expirer = Expirer()
    assert [expirer(raw) for _ in range(4)] == [1000, 1000, 500, 0]


def test_a_forgotten_result_is_none(raw: RawDatabase) -> None:
    """As long as it is there it counts, and no longer."""
    run_job(charge.register(7))
    backdate(StoredResult.objects.all(), stored_at=731 * 3600)
    assert outcome(run_job(charge.register(7)))[1] == {"order": 7, "runs": 1}
    assert Expirer()(raw) == 1
    assert outcome(run_job(charge.register(7)))[1] == {"order": 7, "runs": 2}
