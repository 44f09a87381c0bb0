"""What is under way in one thread of a worker while another has decided to leave."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, blocked_by, wait_until
from tests.plugins.fix_worker import Workers, read

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
