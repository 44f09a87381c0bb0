"""Attempts past their deadline, which their own worker could not stop."""

from __future__ import annotations

import pytest

from django_pgjobs.maintenance.rescue import Rescuer
from django_pgjobs.models import Attempt
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.keeping import Rescued
from tests.db.test_rescue_rows import Old, Own, at_once, beat, claimed_one, expire, pass_deadlines, rescue  # noqa: F401 (fixtures)
from tests.plugins.fix_db import (
    AUTHOR,
    RawDatabase,
    claim,
    job,
    patience,
    register,
    wait_until,
)
from tests.plugins.sabotage import line_id, lines_of, sabotage


def test_no_job_is_taken_from_a_worker_whose_lease_runs(raw: RawDatabase) -> None:
    """D25 W17: its worker alone knows when it started and whether it is being stopped; others wait for the lease."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    beat(raw, 0.0)
    pass_deadlines(raw, 1e6)
    before = raw.row(claimed.ids[0])
    assert [rescue(raw) for _ in range(3)] == [[], [], []]
    assert raw.row(claimed.ids[0]) == before
    assert not keeping.check_claims(raw, soon_seconds=0)[1], "it is nothing to look at again and again either"
    expire(raw)
    [found] = rescue(raw)
    assert (found.cause, found.id) == ("lost", claimed.ids[0])


@pytest.mark.parametrize(("name", "line"), lines_of("lease_expires_at <= (", ["rescue_jobs"]), ids=line_id)
def test_without_that_line_a_rescue_takes_the_jobs_of_the_living(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    pass_deadlines(raw, 1e6)
    sabotage(monkeypatch, name, line, "true")
    assert [found.id for found in rescue(raw)] == claimed.ids


def test_a_job_claimed_long_after_its_own_deadline_is_left_to_whoever_claimed_it(raw: RawDatabase) -> None:
    """It abandons it without calling its body; a rescue would charge it, and another worker claim it again."""
    [one] = register()
    raw.query("UPDATE pgjobs_job SET deadline = statement_timestamp() - interval '1 day' WHERE id = %s", [one])
    claimed = claim(raw)
    assert (claimed.ids, rescue(raw)) == ([one], [])
    assert finalising.finalise_end(raw, claimed.ends(outcome="abandoned"), AUTHOR) == [one]


def test_a_worker_rescues_its_own_job_that_it_could_not_stop(raw: RawDatabase) -> None:
    """D25 D26 D30 W19 A69: a process that outlives SIGKILL; the old run is fenced, and its neighbours stay."""
    ids = register(2, timeout_seconds=1.5)
    claimed = claim(raw, 2)
    beat(raw, 0.0)
    overdue = [(ids[0], str(claimed.claim_id))]
    pass_deadlines(raw, 9.9)
    assert rescue(raw, overdue=overdue) == [], "ten seconds longer, for the ladder"
    pass_deadlines(raw, 10.1)
    [found] = rescue(raw, overdue=overdue)
    assert (found.id, found.cause, found.ending, found.outcome) == (ids[0], "timeout", "", "")
    assert "ran past its deadline" in found.message
    assert [(attempt.job_id, attempt.cause) for attempt in Attempt.objects.all()] == [(ids[0], "timeout")]
    assert [job(one).state for one in ids] == ["ready", "running"]
    written = finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    assert written == [ids[1]], "what it writes at last for the other one counts"


@pytest.mark.parametrize(("name", "line"), lines_of("= ANY (%(overdue)s", ["rescue_jobs"]), ids=line_id)
def test_without_that_line_a_worker_would_rescue_jobs_that_have_just_started(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above: the deadline on a row counts from its claim."""
    ids = register(2, timeout_seconds=1.5)
    claimed = claim(raw, 2)
    pass_deadlines(raw, 10.1)
    sabotage(monkeypatch, name, line, "OR true")
    found = rescue(raw, overdue=[(ids[0], str(claimed.claim_id))])
    assert sorted(each.id for each in found) == ids


def test_a_job_that_has_come_to_its_callback_meanwhile_is_left_alone(raw: RawDatabase) -> None:
    claimed = claimed_one(raw, timeout_seconds=1.5)
    pass_deadlines(raw, 60)
    finalising.mark_ending(raw, claimed.ends(outcome="abandoned", cause="failed"), AUTHOR, allowance_seconds=60)
    assert rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))]) == []


@pytest.mark.parametrize(("name", "line"), lines_of("AND j.overdue_at +", ["rescue_jobs"]), ids=line_id)
def test_without_reading_the_deadline_again_its_callback_would_be_taken_for_its_body(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    claimed = claimed_one(raw, timeout_seconds=1.5)
    finalising.mark_ending(raw, claimed.ends(outcome="abandoned", cause="failed"), AUTHOR, allowance_seconds=60)
    sabotage(monkeypatch, name, line)
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    assert len(rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))])) == 1


def test_the_deadline_keeps_fractions_of_a_second(raw: RawDatabase) -> None:
    """D27: 1.5 s is 1.5 s; so is the pause before its worker gives it up."""
    register(timeout_seconds=1.5)
    claimed = claim(raw, allowance=0.25)
    window = raw.value("SELECT extract(epoch FROM overdue_at - claimed_at)::float8 FROM pgjobs_job")
    assert window == pytest.approx(1.75, abs=1e-6)
    pass_deadlines(raw, 10 - patience(0.5))
    overdue = [(claimed.ids[0], str(claimed.claim_id))]
    assert rescue(raw, overdue=overdue) == []
    wait_until(
        lambda: [found.id for found in rescue(raw, overdue=overdue)] == claimed.ids, 5, "the fraction has passed too"
    )


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_without_a_deadline_a_renewed_job_is_never_taken(raw: RawDatabase, timeout: float | None) -> None:
    """D26 D28 W18: no timeout, or a deadline that somebody has taken away by SQL."""
    claimed = claimed_one(raw, timeout_seconds=timeout)
    raw.query("UPDATE pgjobs_job SET overdue_at = NULL, claimed_at = '2001-01-01'")
    raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
    assert rescue(raw) == rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))]) == []
    assert job(claimed.ids[0]).state == "running"


def test_after_a_passed_deadline_the_next_start_has_a_new_one(raw: RawDatabase) -> None:
    """D29: the timeout is kept, the deadline counts from the new claim."""
    claimed = claimed_one(raw, timeout_seconds=60.0)
    pass_deadlines(raw, 11)
    rescue(raw, overdue=[(claimed.ids[0], str(claimed.claim_id))])
    assert (job(claimed.ids[0]).overdue_at, job(claimed.ids[0]).timeout_seconds) == (None, 60.0)
    claim(raw, allowance=5.0)
    left = raw.value("SELECT extract(epoch FROM overdue_at - statement_timestamp())::float8 FROM pgjobs_job")
    assert 60 < left <= 65


def test_a_job_whose_lease_and_deadline_have_both_passed_is_rescued_once(raw: RawDatabase) -> None:
    """D31."""
    claimed_one(raw, timeout_seconds=1.0)
    pass_deadlines(raw, 11)
    expire(raw)
    [found] = rescue(raw)
    assert (found.cause, rescue(raw)) == ("lost", [])
    assert Attempt.objects.count() == 1


@pytest.mark.usefixtures("at_once")
def test_a_lone_worker_rescues_the_job_that_it_could_not_stop(raw: RawDatabase) -> None:
    """D30: in the turn of its own rescuer, though it holds the claim and nobody's lease has run out."""
    claimed = claimed_one(raw, timeout_seconds=1.0)
    raw.query("UPDATE pgjobs_job SET overdue_at = '2001-01-01'")
    raw.query("UPDATE pgjobs_claim SET check_at = '2001-01-01'")
    told: list[Rescued] = []
    own = Own([str(claimed.claim_id)])
    look = Rescuer(told.extend, own)
    db = Old(raw.raw)
    look(db)
    assert told == []
    own.given_up = [(claimed.ids[0], str(claimed.claim_id))]
    look(db)
    assert [(found.id, found.cause) for found in told] == [(claimed.ids[0], "timeout")]
    assert job(claimed.ids[0]).state == "ready"
