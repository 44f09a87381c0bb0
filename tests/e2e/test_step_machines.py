"""Step machines with a real worker: attempts of each step, delays, turns, cancels, and a crash in a step."""

from __future__ import annotations

import os
import signal

from django_pgjobs.models.attempts import Claim
from tests.e2e import jobs, machines
from tests.e2e.machine_traces import finished, started, starts
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

WORKER: dict[str, object] = {"threads": 1, "conf": {"POLL_SECONDS": 60}}
ARGUMENTS: tuple[str, ...] = ()


def test_a_machine_runs_step_by_step_and_each_step_has_its_own_attempts(shared_worker: WorkerProcess) -> None:
    """P29, P26: no poll comes in between; the second step fails as often as it may, and the third begins anew."""
    (plain, flaky) = ended(
        machines.first.register("plain", queue="default"), machines.first.register("flaky", queue="default")
    )
    assert (plain.outcome, plain.result, plain.name, plain.attempt) == ("succeeded", "plain", "machines.third", 1)
    assert finished(plain) == [("machines.first", 1), ("machines.second", 1)]
    assert (flaky.outcome, flaky.attempt, history(flaky)) == ("succeeded", 1, [(1, "failed"), (2, "failed")])
    assert finished(flaky) == [("machines.first", 1), ("machines.second", 3)]
    assert starts(shared_worker.stage, "flaky") == ["first", "second", "second", "second", "third"]


def test_a_step_waits_for_its_delay(shared_worker: WorkerProcess) -> None:
    """P30: by the server's clock, and not for the next poll."""
    ended(machines.first.register("later", 1.5, queue="default"))
    [first] = shared_worker.stage.traces("first", "later")
    [second] = shared_worker.stage.traces("second", "later")
    assert 1.4 < second.at - first.at < 20


def test_a_step_that_cannot_be_stored_ends_the_job_with_its_reason(shared_worker: WorkerProcess) -> None:
    """P31: no crash, no retry."""
    (after,) = ended(machines.first.register("broken", then="unstorable"))
    assert (after.outcome, after.attempt, finished(after)) == ("abandoned", 1, [])
    assert after.error.startswith("UnstorableResult: The next step cannot be stored: job 'machines.second': ")
    assert "InvalidJob" in after.error


def test_after_each_step_others_get_their_turn(shared_worker: WorkerProcess) -> None:
    """P34: with one thread, what was registered meanwhile runs before the third step; the second needs no thread."""
    machine = machines.first.register("fair", 0, "fair", queue="default")
    started(shared_worker.stage, "first", "fair")
    other = jobs.effect.register("fair")
    shared_worker.stage.open("fair")
    ended(machine, other)
    order = [trace.words[0] for trace in shared_worker.stage.traces() if trace.words[1:] == ("fair",)]
    assert sorted(order) == ["effect", "first", "second", "third"]
    assert order.index("effect") < order.index("third")
    wait_until(lambda: not Claim.objects.exists(), 10, "no lease is left")


def test_a_cancelled_machine_does_not_enter_its_next_step(shared_worker: WorkerProcess) -> None:
    """A54: asked only, it returns its next step all the same."""
    machine = machines.first.register("cancelled", 0, "go", queue="default")
    started(shared_worker.stage, "first", "cancelled")
    machine.cancel(mode="ask", reason="enough")
    shared_worker.stage.open("go")
    (after,) = ended(machine)
    assert (after.outcome, after.name, after.cancel_reason) == ("cancelled", "machines.first", "enough")
    assert (finished(after), starts(shared_worker.stage, "cancelled")) == ([], ["first"])


def test_a_crash_in_a_step_repeats_that_step_and_no_earlier_one(shared_worker: WorkerProcess) -> None:
    """P32: kill -9 of the executor in the third step; it is that step's attempt that is charged."""
    machine = machines.first.register("waits-crash", queue="default")
    started(shared_worker.stage, "third", "waits-crash")
    [trace] = shared_worker.stage.traces("third", "waits-crash")
    os.kill(trace.pid, signal.SIGKILL)
    shared_worker.stage.open("waits-crash")
    (after,) = ended(machine)
    assert starts(shared_worker.stage, "waits-crash") == ["first", "second", "third", "third"]
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 2, [(1, "crashed")])
