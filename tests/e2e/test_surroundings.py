"""What a job leaves in its thread's context, the next one does not find: of either colour, by every kind of worker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import surroundings
from tests.plugins.fix_worker import WorkerProcess, Workers, ended

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 1}


@pytest.mark.parametrize("how", surroundings.LEFT)
def test_the_next_job_finds_its_context_clean(shared_worker: WorkerProcess, how: str) -> None:
    """One that was never left is clean alike, so the order of the two does not matter."""
    for _ in range(2):
        left = ended(surroundings.leaves.register(how), surroundings.aleaves.register(how))
        assert [job.outcome for job in left] == ["succeeded"] * 2, [job.error for job in left]
        plain, coroutine = ended(surroundings.finds.register(), surroundings.afinds.register())
        assert plain.result == surroundings.CLEAN, plain.error
        assert coroutine.result == [surroundings.CLEAN] * 2, coroutine.error


def test_jobs_of_an_inline_worker_find_their_context_clean(worker: Workers) -> None:
    """It has one thread, in which nothing else ends."""
    rows: list[Any] = []
    for how in surroundings.LEFT:
        rows += [surroundings.leaves.register(how), surroundings.aleaves.register(how)]
        rows += [surroundings.finds.register(), surroundings.afinds.register()]
    process = worker("--inline", "--until-idle", ready=False)
    results = [job.result for job in ended(*rows)]
    assert results[2::4] == [surroundings.CLEAN] * len(surroundings.LEFT)
    assert results[3::4] == [[surroundings.CLEAN] * 2] * len(surroundings.LEFT)
    assert process.wait() == 0
