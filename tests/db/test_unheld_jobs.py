"""Jobs that run by their rows, under a claim of a living worker, that this worker does not hold."""

from __future__ import annotations

import logging

import pytest

from django_pgjobs import clock
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.threads.unheld_jobs import SETTLED_SECONDS, UnheldJobs
from tests.plugins.fix_db import AUTHOR, Claimed, RawDatabase, claim, register

pytestmark = pytest.mark.usefixtures("committed")

OTHER = "UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s"


def adopted(claimed: Claimed, *, age: float) -> RunTable:
    table = RunTable()
    table.adopt(clock.monotonic() - age, claimed.jobs)
    return table


def let_go(table: RunTable, *ids: int) -> None:
    """Drop jobs, with no end written."""
    table.remove([table.held[job_id] for job_id in ids])


def test_unfinished_jobs_of_these_claims_are_found_and_no_others(raw: RawDatabase) -> None:
    register(6)
    claimed, other = claim(raw, 5), claim(raw, 1)
    held, unheld, ended, taken, late = claimed.ids
    finalising.finalise_success(raw, [End(ended, str(claimed.claim_id))], AUTHOR)
    raw.query(OTHER, [taken])
    claim_id = str(claimed.claim_id)
    assert sorted(keeping.list_unheld(raw, [claim_id], [held], most=9)) == [(unheld, claim_id), (late, claim_id)]
    assert len(keeping.list_unheld(raw, [claim_id], [held], most=1)) == 1
    assert keeping.list_unheld(raw, [claim_id], claimed.ids, most=9) == []
    assert keeping.list_unheld(raw, [str(other.claim_id)], [], most=9) == other.fences()


def test_a_job_is_given_up_that_was_found_twice(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    register(3)
    claimed = claim(raw, 3)
    table = adopted(claimed, age=SETTLED_SECONDS)
    look = UnheldJobs(table)
    assert look(raw) == 0
    let_go(table, *claimed.ids[:2])
    assert look(raw) == 0, "its end may be under way"
    raw.query(OTHER, [claimed.ids[1]])
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        assert look(raw) == look(raw) == 1
    assert table.overdue() == [claimed.fences()[0]]
    assert [record.getMessage() for record in caplog.records] == [
        f"jobs of this worker that it does not hold are given up after their deadlines jobs=1: {claimed.ids[0]}"
    ]
    raw.query(OTHER, [claimed.ids[0]])
    assert look(raw) == 0
    assert table.overdue() == []


def test_a_young_claim_is_not_looked_at(raw: RawDatabase) -> None:
    register(2)
    claimed = claim(raw, 2)
    table = adopted(claimed, age=SETTLED_SECONDS / 2)
    let_go(table, claimed.ids[0])
    look = UnheldJobs(table)
    assert [look(raw), look(raw)] == [0, 0]
