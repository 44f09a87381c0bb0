"""When a waiting job is due: nothing promotes it, the claim compares its ``run_at`` with the database's clock."""

from __future__ import annotations

import psycopg

from django_pgjobs import sql
from tests.plugins.fix_db import RawDatabase, claim, job, register


def claimed_at_the_instant(raw: RawDatabase, offset: str) -> list[int]:
    """Register a job that is due so long after the instant of the claim itself, and claim.

    Statements of one message have the same ``statement_timestamp()``.
    """
    [job_id] = register()
    params = {
        "queues": ["default"], "priorities": [0], "run_ats": ["-infinity"], "ids": [0], "until_run_ats": [None],
        "until_ids": [None], "lines": [False], "limits": [9], "pair_lines": [1], "async_names": [], "most": 9,
        "id": None, "claim_id": "00000000-0000-4000-8000-000000000009",
        "worker": "00000000-0000-4000-8000-000000000001", "lease": 30.0, "allowance": 5.0, "grace": 10.0,
        "inline": 1000, "chars": 1000, "bytes": 1000,
    }  # fmt: skip
    move = f"UPDATE pgjobs_job SET run_at = statement_timestamp() + interval '{offset}' WHERE id = {job_id}"
    psycopg.ClientCursor(raw.raw).execute(f"{move}; {sql.statement('claim_jobs')}".encode(), params)
    return [job_id] if job(job_id).state == "running" else []


def test_a_job_is_due_at_its_very_instant_and_not_a_microsecond_before(raw: RawDatabase) -> None:
    """W29: inclusive."""
    assert len(claimed_at_the_instant(raw, "0")) == 1
    assert claimed_at_the_instant(raw, "1 microsecond") == []


def test_jobs_that_somebody_holds_keep_no_others_waiting(raw: RawDatabase, other: RawDatabase) -> None:
    """W30: scheduled or retrying, whatever is the matter with one of them."""
    scheduled, retrying = register(2), register(2)
    raw.query("UPDATE pgjobs_job SET attempt = 1 WHERE id = ANY (%s)", [retrying])
    other.lock(scheduled[0], retrying[0])
    assert claim(raw, 10).ids == [scheduled[1], retrying[1]]


def test_however_many_are_due_a_claim_takes_so_many_and_no_more(raw: RawDatabase) -> None:
    """W31: each batch is a transaction of its own, which touches no other row."""
    ids = register(1200)
    assert claim(raw, 500).ids == ids[:500]
    assert raw.value("SELECT count(DISTINCT xmin::text) FROM pgjobs_job WHERE claim_id IS NULL") == 1
    assert claim(raw, 500).ids == ids[500:1000]
    assert claim(raw, 500).ids == ids[1000:]
