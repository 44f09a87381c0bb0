"""Leases, row by row: how long one lasts, and whose end counts when it has run out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from django_pgjobs.store import finalising, keeping
from tests.db.test_rescue_rows import OTHER, claimed_one, expire, rescue
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, from_the_beginning, job, register


def test_a_lease_lasts_as_long_as_it_is_told_on_the_databases_clock(raw: RawDatabase, other: RawDatabase) -> None:
    """C4 C7 P10 P12: also in a transaction that began long before, as short as a microsecond, as long as ten years."""
    left = "SELECT extract(epoch FROM lease_expires_at - statement_timestamp())::float8 FROM pgjobs_claim"
    other.query("SELECT pg_sleep(0.2)")
    for seconds in (30.0, 1e-6, 3650 * 86400.0):
        register()
        claim(other, lease=seconds)
        assert other.value(left) == pytest.approx(seconds, abs=0.15)
        other.query("DELETE FROM pgjobs_claim")


def test_a_lease_cannot_lack_its_end(raw: RawDatabase) -> None:
    """C42: the column refuses it; a claim whose whole row is lost is found by the audit."""
    claimed_one(raw)
    for column in ("lease_expires_at", "check_at"):
        with pytest.raises(psycopg.errors.NotNullViolation):
            raw.query(f"UPDATE pgjobs_claim SET {column} = NULL")


@pytest.mark.parametrize("action", ["success", "retry", "snooze", "end", "mark", "park", "release"])
@pytest.mark.parametrize("first", ["owner", "rescue"])
def test_the_late_end_is_recorded_or_the_rescue_is(raw: RawDatabase, action: str, first: str) -> None:
    """C41 P17 P35 X1: an expired lease belongs to its owner until a rescue; never to both, never to neither."""
    claimed = claimed_one(raw, max_attempts=3)
    expire(raw)
    ends = claimed.ends(seconds=0.1, cause="failed", failure=FAILURE, outcome="abandoned", reason="r", fingerprint="f")
    writes: dict[str, Callable[[], list[Any]]] = {
        "success": lambda: finalising.finalise_success(raw, claimed.ends(seconds=0.1), AUTHOR),
        "retry": lambda: list(finalising.finalise_retry(raw, ends, AUTHOR)),
        "snooze": lambda: list(finalising.finalise_snooze(raw, claimed.ends(delay=9.0))),
        "end": lambda: finalising.finalise_end(raw, ends, AUTHOR),
        "mark": lambda: finalising.mark_ending(raw, ends, AUTHOR, allowance_seconds=60),
        "park": lambda: finalising.park_jobs(raw, ends),
        "release": lambda: list(finalising.release_jobs(raw, claimed.ends(), AUTHOR)),
    }
    done = [
        write()
        for write in (
            [writes[action], lambda: rescue(raw)] if first == "owner" else [lambda: rescue(raw), writes[action]]
        )
    ]
    owner, rescued = done if first == "owner" else done[::-1]
    if action == "mark" and first == "owner":
        # Its owner continues to the callback under the same claim, which is as expired as before.
        assert (len(owner), [found.ending for found in rescued]) == (1, ["abandoned"])
    else:
        assert (len(owner), len(rescued)) == ((1, 0) if first == "owner" else (0, 1))


def test_a_claim_leaves_a_held_lease_alone_and_takes_it_once_it_is_rescued(raw: RawDatabase) -> None:
    """P1 P2: (id, payload, attempt); due or not, claimed or not."""
    [due] = register()
    [future] = register(delay_seconds=100)
    first = claim(raw, 5)
    assert first.ids == [due]
    assert (first.jobs[0].payload is not None, first.jobs[0].attempt) == (True, 1)
    assert claim(raw, 5).ids == [], "claimed, and its lease runs"
    expire(raw)
    assert claim(raw, 5).ids == [], "claimed, and nobody has rescued it"
    rescue(raw)
    assert claim(raw, 5, from_the_beginning(("default", 0)), worker=OTHER).ids == [due]
    assert job(future).state == "ready"


def test_the_first_runs_late_end_is_refused_though_the_same_worker_has_the_job_again(raw: RawDatabase) -> None:
    """P37 C45: one worker, two claims of one job."""
    first = claimed_one(raw)
    expire(raw)
    rescue(raw)
    second = claim(raw)
    assert second.ids == first.ids
    assert finalising.finalise_success(raw, first.ends(result='"first"'), AUTHOR) == []
    assert finalising.finalise_success(raw, second.ends(result='"second"'), AUTHOR) == second.ids
    assert job(second.ids[0]).result == "second"


def test_a_renewal_after_the_rescue_renews_nothing(raw: RawDatabase) -> None:
    """P17 P19 P20: the answer lacks the claim; the others are renewed by the same statement."""
    lost = claimed_one(raw)
    expire(raw)
    rescue(raw)
    raw.query("UPDATE pgjobs_job SET run_at = statement_timestamp() + interval '1 h'")
    kept = claimed_one(raw)
    asked = {str(lost.claim_id): 60.0, str(kept.claim_id): 60.0, str(uuid4()): 60.0}
    assert keeping.renew_claims(raw, asked, lease_seconds=30) == {str(kept.claim_id)}
