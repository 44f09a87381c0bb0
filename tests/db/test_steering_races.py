"""Steering beside workers and other operators: what changes between picking and locking, races, locks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection, transaction

from django_pgjobs.models import Job
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import finalising, steering
from tests.db.steering_ground import ACTIONS, ARGUMENTS, BECOMES, abandoned, cancelled, ready, running, succeeded
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, job, register, wait_until


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.1)


# --- what changes between picking and locking ------------------------------------------------------------------------


def test_a_job_that_is_claimed_meanwhile_is_not_killed_as_a_ready_one(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """A54: the filter said ready, and the job runs by the time its row is had."""
    [one] = register()
    claim(other)
    done = background(lambda: Job.objects.filter(state="ready").cancel(mode="kill"))
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the cancel waits for the row")
    other.commit()
    assert done.result() == Steered(0, {"changed": 1})
    assert (job(one).state, job(one).cancel_mode, job(one).cancel_requested_at) == ("running", "", None)


def test_a_job_that_leaves_the_filter_meanwhile_is_left_alone(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """What another table says counts too: a filter may join."""
    moved, told = register(2)
    other.query("UPDATE pgjobs_job SET queue = 'mail' WHERE id = %s", [moved])
    other.lock(told)
    other.query(
        "INSERT INTO pgjobs_attempt (job_id, claim_id, number, cause) VALUES (%s, gen_random_uuid(), 1, 'failed')",
        [told],
    )
    done = background(lambda: Job.objects.filter(queue="default", attempts=None).abandon())
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the abandon waits for a row")
    other.commit()
    assert done.result() == Steered(0, {"changed": 2})
    assert [job(one).state for one in (moved, told)] == ["ready", "ready"]


@pytest.mark.parametrize(
    ("action", "maker"),
    [
        ("cancel", succeeded), ("abandon", cancelled), ("abandon", running), ("retry", succeeded), ("retry", ready),
        ("release", ready), ("reschedule", running), ("reschedule", abandoned),
    ],
)  # fmt: skip
def test_no_row_is_locked_that_the_action_cannot_change(
    raw: RawDatabase, other: RawDatabase, action: str, maker: Callable[[RawDatabase], int]
) -> None:
    """Another transaction holds it, and nobody waits; a hundred thousand ended jobs are read but not written."""
    one = maker(raw)
    state = job(one).state
    other.lock(one)
    assert getattr(Job.objects.filter(queue="default"), action)(**ARGUMENTS.get(action, {})) == Steered(0, {state: 1})


# --- races and locks -------------------------------------------------------------------------------------------------


def test_a_cancel_waits_for_an_uncommitted_claim_and_then_asks(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """A cancel must not be lost between "not claimed" and "claimed" (postgres review, 9)."""
    [one] = register()
    claim(other)
    answer = background(lambda: job(one).cancel(by="anna"))
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the cancel waits for the claim")
    other.commit()
    assert answer.result() == Steered(1)
    found = job(one)
    assert (found.state, found.outcome, found.cancel_by) == ("running", None, "anna")
    assert found.cancel_requested_at is not None


def test_a_cancel_that_meets_an_uncommitted_end_comes_too_late(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """C46."""
    register()
    claimed = claim(raw)
    finalising.finalise_success(other, claimed.ends(), AUTHOR)
    answer = background(lambda: job(claimed.ids[0]).cancel())
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the cancel waits for the end")
    other.commit()
    assert answer.result() == Steered(0, {"succeeded": 1})
    assert job(claimed.ids[0]).cancel_requested_at is None


def test_the_statement_itself_sees_a_claim_that_commits_while_it_waits(
    raw: RawDatabase, other: RawDatabase, background: Background, db_connection: Callable[..., RawDatabase]
) -> None:
    """Without the lock that steering takes first: CASE is evaluated on the row as it is, not as it was."""
    [one] = register()
    claim(other)
    operator = db_connection()
    answer = background(steering.cancel_jobs, operator, [one], mode="ask", by="", reason="", with_callback=[])
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the statement waits for the claim")
    other.commit()
    assert answer.result().ids == [one]
    assert job(one).state == "running"
    assert job(one).cancel_requested_at is not None


def test_a_claim_leaves_out_what_an_operator_is_changing(raw: RawDatabase) -> None:
    ids = register(2)
    with transaction.atomic():
        job(ids[0]).cancel()
        assert claim(raw, 5).ids == [ids[1]]
        transaction.set_rollback(True)
    assert claim(raw, 5).ids == [ids[0]]


@pytest.mark.usefixtures("short_locks")
@pytest.mark.parametrize("action", ACTIONS)
def test_what_stays_locked_is_busy_and_the_others_are_changed(
    raw: RawDatabase, other: RawDatabase, action: str
) -> None:
    """An operator gets an answer, and never waits forever."""
    maker = next(iter(BECOMES[action]))
    free, locked = maker(raw), maker(raw)
    other.lock(locked)
    assert getattr(Job.objects.all(), action)(**ARGUMENTS.get(action, {})) == Steered(1, {"busy": 1})
    other.rollback()
    assert free != locked


@pytest.mark.usefixtures("short_locks")
def test_the_transaction_of_the_caller_goes_on_after_busy(raw: RawDatabase, other: RawDatabase) -> None:
    """Its setting is as before, what it wrote is kept, and what the action wrote is part of it."""
    free, locked, mine = register(3)
    other.lock(locked)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        Job.objects.filter(pk=mine).update(description="mine")
        assert Job.objects.filter(pk__in=[free, locked]).cancel() == Steered(1, {"busy": 1})
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)
        assert raw.row(free)["outcome"] is None
    assert (job(free).state, job(locked).state, job(mine).description) == ("cancelled", "ready", "mine")
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_the_setting_is_given_back_after_a_change_too(raw: RawDatabase) -> None:
    one = ready(raw)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        job(one).cancel()
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)


def test_a_change_inside_a_transaction_is_rolled_back_with_it(raw: RawDatabase) -> None:
    one = ready(raw)
    with transaction.atomic():
        job(one).cancel()
        transaction.set_rollback(True)
    assert job(one).state == "ready"
