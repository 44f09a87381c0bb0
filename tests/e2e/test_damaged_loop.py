"""What jobs do to the event loop they run on, beyond what their neighbours can be spared without help."""

from __future__ import annotations

from tests.e2e import hostile
from tests.plugins.fix_worker import Workers, ended, history


def test_a_task_that_ends_without_an_outcome_gets_one(worker: Workers) -> None:
    """G1, B8: Python lets no coroutine end in a GeneratorExit of its own; the attempt is charged all the same."""
    worker()
    worker.expect("executor failed around")
    (after,) = ended(hostile.araises.register("generator"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])
