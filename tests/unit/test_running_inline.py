"""The inline worker: what of the keep thread's messages reaches the running job."""

from __future__ import annotations

import pytest

from django_pgjobs.running.inline import InlineWorker
from django_pgjobs.running.runtime import Worker, WorkerOptions
from django_pgjobs.store.statements import Flag
from django_pgjobs.worker.threads.inbox_messages import FlagsRead, Renewed

CLAIM = "6b1c7f0e-0000-4000-8000-000000000001"
EARLIER = "6b1c7f0e-0000-4000-8000-000000000002"


@pytest.mark.parametrize(("job", "claim", "heeded"), [(7, CLAIM, True), (7, EARLIER, False), (8, CLAIM, False)])
def test_only_a_flag_of_the_running_claim_reaches_the_job(job: int, claim: str, heeded: bool) -> None:
    """A54 §5: one that was read for an earlier job, or an earlier claim of this one, may come late."""
    worker = InlineWorker(Worker.of(WorkerOptions()))
    worker.held[7] = CLAIM
    worker.post(Renewed(0.0, {CLAIM}))
    worker.post(FlagsRead(0.0, {job}, [Flag(job, claim, False, True, "ask", "operator", "too late", False)]))
    expected = (True, "operator", "too late") if heeded else (False, "", "")
    assert (worker.control.requested, worker.control.by, worker.control.reason) == expected
