"""The writes of a job's life stay heap-only (HOT): they touch no index, so they cost the same at any size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_pgjobs.models import Job
from django_pgjobs.store import finalising, keeping, memos, registering, steering
from django_pgjobs.store.new_jobs import NewJob, NewJobs
from tests.plugins.fix_db import AUTHOR, Claimed, RawDatabase, autovacuum_off, claim, register

JOBS = 10_000
BATCH = 500

HOT_COLUMNS = {
    "claim_id", "claimed_at", "overdue_at", "attempt", "ending_attempt", "ending", "worker", "waited",
    "cancel_requested_at", "cancel_mode", "cancel_by", "cancel_reason", "release_requested_at", "progress",
    "error", "duration_seconds", "result", "headers", "description", "payload", "max_attempts",
}  # fmt: skip
"""What claim, cancel request, progress, release and ending change: in no index, and in no index condition."""


def test_no_index_holds_or_names_a_column_that_hot_writes_change(raw: RawDatabase) -> None:
    """One such index turns every claim into a non-HOT update and costs a third of the speed."""
    named = raw.query(
        "SELECT i.indexrelid::regclass::text, a.attname FROM pg_index AS i "
        "JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid "
        "AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid "
        "JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid "
        "WHERE i.indrelid = 'pgjobs_job'::regclass"
    )
    columns = {name for _, name in named}
    assert {"queue", "run_at", "finished_at", "hold"} <= columns
    assert columns & HOT_COLUMNS == set()
    expressions = raw.query(
        "SELECT indexrelid::regclass::text FROM pg_index "
        "WHERE indrelid = 'pgjobs_job'::regclass AND indexprs IS NOT NULL"
    )
    assert expressions == []


def test_the_list_above_names_real_columns(committed: None) -> None:
    assert {field.column for field in Job._meta.concrete_fields} >= HOT_COLUMNS


def test_nothing_refers_to_a_job(raw: RawDatabase) -> None:
    """A foreign key made pruning three times dearer, and lets one row stop a batch."""
    assert (
        raw.query("SELECT conname FROM pg_constraint WHERE confrelid = 'pgjobs_job'::regclass AND contype = 'f'") == []
    )


def test_no_check_relates_the_attempts(raw: RawDatabase) -> None:
    """One row beyond its attempts would stop every claim forever."""
    assert (
        raw.query("SELECT conname FROM pg_constraint WHERE conrelid = 'pgjobs_job'::regclass AND contype = 'c'") == []
    )


@pytest.fixture(autouse=True)
def no_snapshot_but_ours(raw: RawDatabase) -> Iterator[None]:
    """A page is cleaned for its next version only of what no snapshot may see, and ANALYZE takes one."""
    with autovacuum_off(raw):
        yield


@contextmanager
def hot_share(raw: RawDatabase, at_least: float) -> Iterator[None]:
    """Check which share of the updates inside was HOT."""
    before = counters(raw)
    yield
    updates, hot = (after - then for after, then in zip(counters(raw), before, strict=True))
    assert updates > 0
    assert hot / updates >= at_least, f"{hot} of {updates} updates were HOT"


def counters(raw: RawDatabase) -> tuple[int, int]:
    raw.query("SELECT pg_stat_force_next_flush()")
    raw.query("SELECT 1")
    raw.query("SELECT pg_stat_clear_snapshot()")
    updates, hot = raw.query(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'pgjobs_job'::regclass"
    )[0]
    return updates, hot


def claim_all(raw: RawDatabase) -> list[Claimed]:
    claims = [claim(raw, BATCH) for _ in range(JOBS // BATCH)]
    assert sum(len(claimed.ids) for claimed in claims) == JOBS
    return claims


@pytest.fixture
def filled(raw: RawDatabase) -> None:
    raw.query("TRUNCATE pgjobs_job")
    register(JOBS, payload=f'{{"args": ["{"x" * 120}"], "kwargs": {{}}}}', timeout_seconds=1800.0)


@pytest.mark.usefixtures("filled")
def test_claims_are_hot(raw: RawDatabase) -> None:
    """Each page is filled by half, so the second version of every row fits beside the first."""
    with hot_share(raw, 0.9):
        claim_all(raw)


def test_most_claims_of_the_smallest_jobs_are_hot(raw: RawDatabase) -> None:
    """A claim adds 24 to 32 bytes to a row of 180: a page filled by half with them has no room for the last few."""
    raw.query("TRUNCATE pgjobs_job")
    register(JOBS, payload='{"args": [], "kwargs": {}}', name="a.b")
    with hot_share(raw, 0.75):
        claim_all(raw)


@pytest.mark.usefixtures("filled")
def test_requests_progress_and_releases_are_hot(raw: RawDatabase) -> None:
    claims = claim_all(raw)
    with hot_share(raw, 0.9):
        for claimed in claims[:4]:
            steering.cancel_jobs(raw, claimed.ids, mode="ask", by="anna", reason="late", with_callback=[])
        for claimed in claims[4:7]:
            given = {"progress": '{"n": 1, "total": 10}', "peaks": '"1:84-512"'}
            finalising.write_progress(raw, [(*fence, given) for fence in claimed.fences()])
        for fence in claims[7].fences():
            assert memos.write_cursor(raw, *fence, name="each", cursor='{"n": 1, "at": 7}', progress='{"n": 1}')
        for claimed in claims[8:12]:
            finalising.release_jobs(raw, claimed.ends(), AUTHOR)
        for claimed in claims[12:16]:
            steering.request_release(raw, claimed.ids)
        for claimed in claims[16:]:
            finalising.mark_ending(raw, claimed.ends(outcome="abandoned"), AUTHOR, allowance_seconds=5)


@pytest.mark.usefixtures("filled")
def test_a_renewal_writes_no_job(raw: RawDatabase) -> None:
    """P16: the lease lives in the ledger."""
    claims = claim_all(raw)
    before = counters(raw)
    keeping.renew_claims(raw, {str(claimed.claim_id): 30.0 for claimed in claims}, lease_seconds=30.0)
    assert counters(raw) == before


@pytest.mark.usefixtures("filled")
def test_a_refused_write_writes_nothing(raw: RawDatabase) -> None:
    """C57: what a zombie sends changes no counter."""
    [claimed, *_] = claim_all(raw)
    finalising.release_jobs(raw, claimed.ends(), AUTHOR)
    before = counters(raw)
    finalising.finalise_success(raw, claimed.ends(), AUTHOR)
    finalising.finalise_snooze(raw, claimed.ends())
    assert counters(raw) == before


def test_claims_of_jobs_with_keys_are_hot(raw: RawDatabase) -> None:
    """The claim leaves the key of such a job as it is; only one with the scope ``until_started`` gives it up."""
    raw.query("TRUNCATE pgjobs_job")
    payload = f'{{"args": ["{"x" * 120}"], "kwargs": {{}}}}'
    new = [NewJob("test.job", payload, key=f"k{n}", key_scope="until_finished") for n in range(JOBS)]
    registering.register_special_jobs("default", [NewJobs.of(one) for one in new])
    with hot_share(raw, 0.9):
        claim_all(raw)
    raw.query("TRUNCATE pgjobs_job")
    registering.register_special_jobs("default", [NewJobs.of(one._replace(key_scope="until_started")) for one in new])
    before = counters(raw)
    claim_all(raw)
    updates, hot = (after - then for after, then in zip(counters(raw), before, strict=True))
    assert (updates, hot) == (JOBS, 0)
