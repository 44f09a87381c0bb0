"""What an executor reads for the job that is about to start, on a connection that the job before has used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, connection, connections

from django_pgjobs.store import finalising
from django_pgjobs.worker.executor import cleanup, prepare
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, register


@pytest.fixture(autouse=True)
def kept(committed: None) -> Iterator[None]:
    connection.ensure_connection()
    yield
    cleanup.discard(connections["default"])


def test_a_callback_is_told_how_the_latest_attempt_failed(raw: RawDatabase) -> None:
    [job_id] = register(max_attempts=2)
    assert prepare.read_failure("default", job_id) is None
    finalising.finalise_retry(raw, claim(raw).ends(failure=FAILURE, cause="failed"), AUTHOR)
    found = prepare.read_failure("default", job_id)
    assert found is not None
    assert (found.kind, found.message) == (FAILURE.kind, FAILURE.message)


def test_a_kept_connection_that_refuses_is_replaced_and_a_new_one_is_not(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """The next job does not pay for an earlier job's settings; the log names a server that refuses everybody."""
    [job_id] = register(max_attempts=2)
    finalising.finalise_retry(raw, claim(raw).ends(failure=FAILURE, cause="failed"), AUTHOR)
    before = connection.connection
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = nowhere")
    found = prepare.read_failure("default", job_id)
    assert found is not None
    assert found.message == FAILURE.message
    assert before is not None
    assert before.closed
    assert "kept connection cannot read of the next job, replaced alias=default" in caplog.text
    connections["default"].close()
    with pytest.raises(DatabaseError):
        prepare.asked("default", lambda db: db.fetch("read_failure", {}))
