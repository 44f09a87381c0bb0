"""A rescue after a silence of the server or the network: live workers renew first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance.rescue import Rescuer
from django_pgjobs.store import keeping
from tests.db.test_rescue_rows import Old, at_once, claimed_one, expire, pass_deadlines, rescue  # noqa: F401 (fixtures)
from tests.plugins.fix_db import (
    Claimed,
    RawDatabase,
    claim,
    job,
    register,
    wait_until,
)
from tests.plugins.sabotage import line_id, lines_of, sabotage


def before_a_silence(raw: RawDatabase) -> tuple[datetime, Claimed]:
    """Claim a job, look at the server's time, and let the lease run out since."""
    claimed = claimed_one(raw, max_attempts=1)
    seen, _ = keeping.check_claims(raw, soon_seconds=0)
    raw.query(
        "UPDATE pgjobs_claim SET lease_expires_at = %s::timestamptz + interval '1 ms', check_at = %s",
        [seen, seen + timedelta(milliseconds=1)],
    )
    wait_until(lambda: keeping.check_claims(raw, soon_seconds=0)[1], 5, "the lease has run out")
    return seen, claimed


def late(raw: RawDatabase, seen: datetime | None = None, held: Sequence[str] = ()) -> list[int]:
    found = keeping.rescue_jobs(
        raw, limit=10, quiet_seconds=0, grace_seconds=10, stale_seconds=60, without_on_cancel=["test.job"],
        without_on_abandon=["test.job"], seen=seen, held=held,
    )  # fmt: skip
    return [rescued.id for rescued in found]


def test_a_rescue_that_was_sent_before_a_silence_knows_no_more_than_it_did(raw: RawDatabase) -> None:
    """P39 P41: it arrives before the renewals of those who live; what had run out when it was sent is dead even so."""
    seen, claimed = before_a_silence(raw)
    before = raw.row(claimed.ids[0])
    assert late(raw, seen) == []
    assert raw.row(claimed.ids[0]) == before
    assert late(raw, keeping.check_claims(raw, soon_seconds=0)[0]) == claimed.ids


@pytest.mark.parametrize(("name", "line"), lines_of("%(seen)s", ["rescue_jobs"]), ids=line_id)
def test_without_its_bound_a_late_rescue_takes_the_jobs_of_the_living(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the tests above."""
    seen, claimed = before_a_silence(raw)
    sabotage(monkeypatch, name, line, "SELECT statement_timestamp() AS until")
    assert late(raw, seen) == claimed.ids


def test_a_worker_leaves_alone_what_it_holds_itself(raw: RawDatabase) -> None:
    """D16: until it has read that it has lost it; others take it by the lease."""
    claimed = claimed_one(raw)
    expire(raw)
    assert late(raw, held=[str(claimed.claim_id)]) == []
    assert late(raw) == claimed.ids


@pytest.mark.parametrize(("name", "line"), lines_of("<> ALL (%(held)s", ["rescue_jobs"]), ids=line_id)
def test_without_its_guard_a_worker_would_take_its_own(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw)
    expire(raw)
    sabotage(monkeypatch, name, line)
    assert late(raw, held=[str(claimed.claim_id)]) == claimed.ids


@pytest.mark.parametrize(("within", "due"), [(0.0, False), (5.0, True)])
def test_a_look_tells_whether_anything_is_due_or_soon_will_be(raw: RawDatabase, within: float, due: bool) -> None:
    claimed_one(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = statement_timestamp() + interval '4 s', check_at = now()")
    assert keeping.check_claims(raw, soon_seconds=within)[1] is due


def test_a_ledger_row_that_somebody_holds_is_left_for_the_next_look(raw: RawDatabase, other: RawDatabase) -> None:
    """D18 X2: otherwise every rescue would wait for it, pass after pass, until its statement is given up."""
    held, free = claimed_one(raw), claimed_one(raw)
    expire(raw)
    other.query("SELECT claim_id FROM pgjobs_claim WHERE claim_id = %s FOR UPDATE", [held.claim_id])
    raw.query("SET lock_timeout = '100ms'")
    assert [found.id for found in rescue(raw)] == free.ids
    other.rollback()
    assert [found.id for found in rescue(raw)] == held.ids


def test_a_job_whose_row_somebody_holds_is_looked_for_again_a_second_later(
    raw: RawDatabase, other: RawDatabase
) -> None:
    """Else each look would begin with those that it could not take the last time."""
    claimed = claimed_one(raw)
    expire(raw)
    other.query("SELECT id FROM pgjobs_job WHERE id = ANY (%s) FOR UPDATE", [claimed.ids])
    assert rescue(raw) == []
    assert 0 < raw.value("SELECT extract(epoch FROM check_at - now())::float8 FROM pgjobs_claim") <= 1
    other.rollback()
    expire(raw)
    assert [found.id for found in rescue(raw)] == claimed.ids


@pytest.mark.usefixtures("at_once")
def test_a_look_that_finds_nothing_says_nothing(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """W25."""
    claimed_one(raw)
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        assert Rescuer(lambda rescued: None)(Old(raw.raw)) == []
    assert caplog.records == []


@pytest.mark.usefixtures("at_once")
def test_a_job_is_given_up_with_one_error_though_its_callback_is_rescued_as_well(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """P38: its last attempt was lost with its worker, then its callback with another one."""
    claimed_one(raw, name="no.such", max_attempts=1)
    look, db = Rescuer(lambda rescued: None), Old(raw.raw)
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        for ending_attempt in (0, 1, 2):
            expire(raw)
            assert len(look(db)) == 1
            assert claim(raw).jobs[0].ending_attempt == ending_attempt + 1
    lines = [record.levelname for record in caplog.records if record.msg.startswith("job rescued")]
    assert lines == ["ERROR", "WARNING", "WARNING"]


def test_nobody_rescues_right_after_the_server_has_come_up(raw: RawDatabase) -> None:
    """No storm: live workers renew first. Nobody rescues on a server younger than a renewal period."""
    claimed_one(raw)
    expire(raw)
    assert rescue(raw, quiet=1e9) == []
    assert len(rescue(raw)) == 1


@pytest.mark.usefixtures("at_once")
def test_nobody_rescues_just_after_a_standby_was_promoted(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """P39: connections are older than the promotion, and so is the server; before it nobody could renew."""
    claimed_one(raw)
    expire(raw)
    began = clock.monotonic()
    period = get_conf().renew_seconds
    db, rescue = Old(raw.raw), Rescuer(lambda rescued: None)
    db.connected_at = began
    raw.query("SET default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        rescue(db)
    raw.query("SET default_transaction_read_only = off")
    for passed, found in ((period + 1, 0), (1.9 * period, 0), (2 * period + 2, 1)):
        monkeypatch.setattr(clock, "monotonic", lambda passed=passed: began + passed)
        assert len(rescue(db)) == found


@pytest.mark.parametrize("callbacks", [False, True])
@pytest.mark.parametrize("way", ["lease", "deadline"])
def test_a_job_that_must_not_run_again_is_abandoned(raw: RawDatabase, way: str, *, callbacks: bool) -> None:
    """Whoever lost it, and however many attempts are left: nobody knows how far it came."""
    ids = register(2)
    raw.query('UPDATE pgjobs_job SET options = \'{"on_crash": "abandon"}\', max_attempts = 5 WHERE id = %s', [ids[0]])
    taken = claim(raw, 2)
    if way == "lease":
        expire(raw)
    else:
        pass_deadlines(raw, 11)
    overdue = [] if way == "lease" else taken.fences()
    assert len(rescue(raw, callbacks=callbacks, overdue=overdue)) == 2
    once, other = job(ids[0]), job(ids[1])
    assert (once.outcome, once.ending) == ((None, "abandoned") if callbacks else ("abandoned", None))
    assert once.error.endswith('It is not run again: on_crash="abandon".')
    assert once.attempts.get().cause == ("lost" if way == "lease" else "timeout")
    assert (other.state, other.ending, "on_crash" in other.error) == ("ready", None, False)


def test_its_last_attempt_and_its_cancel_are_worded_as_ever(raw: RawDatabase) -> None:
    ids = register(2)
    raw.query('UPDATE pgjobs_job SET options = \'{"on_crash": "abandon"}\', max_attempts = 1')
    claim(raw, 2)
    raw.query("UPDATE pgjobs_job SET cancel_requested_at = statement_timestamp() WHERE id = %s", [ids[1]])
    expire(raw)
    rescue(raw)
    assert [job(one).outcome for one in ids] == ["abandoned", "cancelled"]
    assert not any("on_crash" in job(one).error for one in ids)
