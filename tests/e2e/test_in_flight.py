"""What is under way in one thread of a worker while another has decided to leave."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, blocked_by, wait_until
from tests.plugins.fix_worker import Workers, ended, read

GATE = 4711


@pytest.fixture
def gated_claims(raw: RawDatabase) -> Iterator[None]:
    """A claim that has taken a job waits for an advisory lock before it commits."""
    raw.query(
        "CREATE FUNCTION pgjobs_test_gate() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END $$"
    )
    raw.query(
        "CREATE TRIGGER pgjobs_test_gate BEFORE INSERT ON pgjobs_claim FOR EACH ROW EXECUTE FUNCTION pgjobs_test_gate()"
    )
    yield
    raw.query("DROP FUNCTION pgjobs_test_gate() CASCADE")


def test_a_claim_that_comes_back_while_the_worker_drains_goes_back_uncharged(
    worker: Workers, raw: RawDatabase, other: RawDatabase, gated_claims: None
) -> None:
    """Left behind it would wait for its lease, be charged, and with one attempt be abandoned without having run."""
    process = worker()
    other.query(f"SELECT pg_advisory_xact_lock({GATE})")
    job = jobs.effect.using(max_attempts=1).register("once")
    wait_until(lambda: blocked_by(raw, other.pid), 15, "a claim is under way")
    process.signal(signal.SIGTERM)
    wait_until(lambda: not process.executors(), 15, "the worker's executors have left")
    assert process.process.poll() is None
    other.rollback()
    assert process.wait() == 0, process.log
    left = read(job)
    assert (left.state, left.attempt) == ("ready", 0)


@pytest.fixture
def unheard_of(raw: RawDatabase) -> Iterator[Callable[[], None]]:
    """The server refuses each end with an error that nothing of ours knows, until the function is called."""
    raw.query(
        "CREATE FUNCTION pgjobs_test_odd() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a reason nobody has thought of'; END $$"
    )
    raw.query(
        "CREATE TRIGGER pgjobs_test_odd BEFORE UPDATE ON pgjobs_job FOR EACH ROW "
        "WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION pgjobs_test_odd()"
    )

    def let_it() -> None:
        raw.query("DROP FUNCTION pgjobs_test_odd() CASCADE")

    yield let_it
    raw.query("DROP FUNCTION IF EXISTS pgjobs_test_odd() CASCADE")


def test_an_end_refused_for_an_unheard_of_reason_is_kept_and_written_later(
    worker: Workers, raw: RawDatabase, stage: Stage, unheard_of: Callable[[], None]
) -> None:
    """C51: told as an error, tried again until it is written; the job runs once, under its lease."""
    process = worker()
    job = jobs.effect.register("once")
    process.wait_for_log("worker loop failed(?s:.)*RaiseException: a reason nobody has thought of")
    worker.expect("worker loop failed")
    assert read(job).state == "running"
    unheard_of()
    [after] = ended(job)
    assert (after.outcome, after.attempt, stage.count("effect", "once")) == ("succeeded", 1, 1)
