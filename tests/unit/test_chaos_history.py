"""The history checker finds what it is for: one forged history for each kind of violation, and what excuses it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos import history as h

LEASE = 2.0


def orderly() -> h.History:
    """One job, registered at 0, claimed at 1, run from 1 to 2, ended at 2."""
    return h.History(
        registrations=[h.Registration("k")],
        executions=[run("c", 1, 2)],
        changes=[
            h.Change(0, 1, "k"),
            h.Change(1, 1, "k", "c", 1),
            h.Change(2, 1, "k", "c", 1, outcome="succeeded"),
        ],
        leases=[h.Lease(1, "c", 1 + LEASE)],
        rows=[h.Row(1, "k", "succeeded", "succeeded", 1, 5)],
    )


def run(claim: str, started: float, last_seen: float, how: str = "returned", **facts: object) -> h.Execution:
    """An execution of job 1."""
    made = h.Execution("k", 1, claim, 1, 100, started, last_seen, how=how)
    return replace(made, **facts)  # type: ignore[arg-type]


def rescued(taken: float = 4.0, second: float = 4.5) -> h.History:
    """Claim *a* from 1 on, its lease until 3, taken away at ``taken``; claim *b* from ``second`` on ends the job."""
    history = orderly()
    history.executions = [run("a", 1, 1.5, ""), run("b", second, second + 1, pid=200)]
    history.changes = [
        h.Change(0, 1, "k"),
        h.Change(1, 1, "k", "a", 1),
        h.Change(taken, 1, "k", None, 1),
        h.Change(second, 1, "k", "b", 2),
        h.Change(second + 1, 1, "k", "b", 2, outcome="succeeded"),
    ]
    history.leases = [h.Lease(1, "a", 1 + LEASE), h.Lease(second, "b", second + LEASE)]
    history.attempts = [h.Attempt(1, "a", 1, "lost")]
    history.rows = [h.Row(1, "k", "succeeded", "succeeded", 2, 5)]
    return history


def found(history: h.History) -> set[str]:
    return set(h.check(history).kinds)


def test_an_orderly_history_and_an_orderly_rescue_are_in_order() -> None:
    report = h.check(orderly())
    assert not report.violations
    assert report.counts["registered"] == report.counts["succeeded"] == report.counts["starts"] == 1
    report = h.check(rescued())
    assert not report.violations
    assert report.recovery_seconds == pytest.approx(1.0)


def test_a_lost_job_is_found() -> None:
    history = orderly()
    history.registrations.append(h.Registration("gone"))
    report = h.check(history)
    assert [str(violation) for violation in report.violations] == ["lost: gone (job -) was committed and has no row"]
    assert "violations=1" in str(report)
    history.registrations[-1] = h.Registration("gone", h.UNKNOWN)
    assert not found(history)


def test_a_stranded_job_is_found() -> None:
    history = orderly()
    history.rows = [h.Row(1, "k", "running", None, 1, 5)]
    assert found(history) == {"stranded"}


@pytest.mark.parametrize("fate", [h.ROLLED_BACK, None])
def test_a_phantom_is_found_whether_it_ran_or_only_lies_there(fate: str | None) -> None:
    history = orderly()
    history.registrations = [h.Registration("k", fate)] if fate else []
    assert found(history) == {"phantom"}
    history.executions, history.changes = [], []
    assert found(history) == {"phantom"}


def test_a_second_end_is_found() -> None:
    history = orderly()
    history.changes.append(h.Change(3, 1, "k", "c", 1, outcome="abandoned"))
    assert found(history) == {"double end"}


def test_a_job_that_is_open_again_is_found_unless_somebody_asked_for_it() -> None:
    history = orderly()
    history.changes += [
        h.Change(3, 1, "k", None, 1),
        h.Change(4, 1, "k", "d", 2),
        h.Change(5, 1, "k", "d", 2, outcome="succeeded"),
    ]
    history.executions.append(run("d", 4, 5))
    assert found(history) == {"double end"}
    history.reopened = Counter({1: 1})
    assert not found(history)


def test_a_success_under_a_claim_that_returned_nothing_is_found() -> None:
    """The stale writer: its end stands under somebody else's claim."""
    history = rescued()
    history.executions = [run("a", 1, 4.7), run("b", 4.5, 6, "", pid=200)]
    assert found(history) == {"end without work"}


def test_an_overlap_is_found() -> None:
    """Taken away while the lease held."""
    history = rescued(taken=2.0, second=2.1)
    history.executions[0] = run("a", 1, 2.5)
    history.attempts = []
    assert found(history) == {"overlap"}


def test_an_overlap_is_excused_by_an_expired_lease_a_crash_or_a_freeze() -> None:
    late = rescued()
    late.executions[0] = run("a", 1, 4.8)
    report = h.check(late)
    assert not report.violations
    assert report.counts["excused_expired"] == 1

    frozen = rescued(taken=2.0, second=2.1)
    frozen.executions[0] = run("a", 1, 2.5)
    frozen.attempts = []
    frozen.faults = [h.Fault(h.FREEZE, 1.2, 2.4, frozenset({100}))]
    assert not found(frozen)
    frozen.faults = [h.Fault(h.FREEZE, 1.2, 2.4, frozenset({999}))]
    assert found(frozen) == {"overlap"}

    crashed = rescued(taken=2.0, second=2.1)
    crashed.executions[0] = run("a", 1, 2.5)
    crashed.changes = [
        h.Change(0, 1, "k"),
        h.Change(2.1, 1, "k", "b", 1),
        h.Change(3.1, 1, "k", "b", 1, outcome="succeeded"),
    ]
    crashed.attempts, crashed.leases = [], [h.Lease(2.1, "b", 9)]
    assert found(crashed) == {"overlap", "unaccounted attempt"}
    crashed.faults = [h.Fault(h.CRASH, 1.5, 1.9)]
    assert not found(crashed)


def test_two_starts_under_one_claim_are_found_unless_the_first_process_died() -> None:
    history = orderly()
    history.executions = [run("c", 1, 1.2, "raised"), run("c", 1.5, 2, pid=200)]
    assert found(history) == {"ran twice"}
    history.faults = [h.Fault(h.KILL, 1.3, 1.3, frozenset({100}))]
    assert not found(history), "on the board it was still running"
    history.faults = [h.Fault(h.KILL, 1.3, 1.3, frozenset({999})), h.Fault(h.KILL, 9, 9, frozenset({100}))]
    assert found(history) == {"ran twice"}
    history.executions[0] = run("c", 1, 1.2, "")
    assert not found(history)
    history.executions[1] = run("c", 1.5, 2)
    assert found(history) == {"ran twice"}
    history.executions[1] = run("c", 1.5, 2, job=2)
    assert "ran twice" not in found(history), "another job of the same key, in the same claim"


def test_a_body_under_a_claim_for_the_callback_is_found() -> None:
    history = orderly()
    history.changes = [
        h.Change(0, 1, "k", ending="abandoned"),
        h.Change(1, 1, "k", "c", 0, ending="abandoned"),
        h.Change(2, 1, "k", "c", 0, outcome="abandoned", ending="abandoned"),
    ]
    assert found(history) == {"body in the ending"}
    history.executions = [run("c", 1, 2, part="on_abandon")]
    assert not found(history)


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_claim_that_does_not_count_is_found(attempt: int) -> None:
    history = orderly()
    history.changes = [replace(change, attempt=attempt if change.claim else 0) for change in history.changes]
    assert found(history) == {"attempt arithmetic"}


def test_an_attempt_that_was_given_back_after_it_ran_is_found() -> None:
    history = rescued()
    history.executions[0] = run("a", 1, 1.5, "raised")
    history.attempts = []
    history.changes = [replace(c, attempt=c.attempt - 1) if c.at >= 4 else c for c in history.changes]
    assert found(history) == {"unaccounted attempt"}
    history.attempts = [h.Attempt(1, "a", 1, "released")]
    assert not found(history)
    history.attempts = []
    history.executions[0].how = "snoozed"
    assert not found(history)


def test_an_attempt_under_a_claim_that_no_row_had_is_found() -> None:
    history = orderly()
    history.executions.append(run("ghost", 2.5, 2.6, "raised"))
    assert found(history) == {"unaccounted attempt"}


def test_a_report_tells_all_of_the_job_of_a_violation() -> None:
    """Without its story, a violation of a random run could only be guessed at."""
    history = orderly()
    history.executions.append(run("ghost", 2.5, 2.6, "raised"))
    history.faults = [h.Fault(h.KILL, 2.4, 2.4, frozenset({100})), h.Fault(h.KILL, 2.4, 2.4, frozenset({999}))]
    told = str(h.check(history))
    assert "of job 1:" in told
    assert told.count("Change(") == len(history.changes)
    assert told.count("Execution(") == len(history.executions)
    assert told.count("Fault(") == 1, "the other one struck no process of this job"


def test_an_attempt_beyond_the_maximum_is_found() -> None:
    history = rescued()
    history.executions[0] = run("a", 1, 1.5, "raised")
    history.rows = [replace(history.rows[0], max_attempts=1)]
    history.changes = [replace(change, max_attempts=1) for change in history.changes]
    assert found(history) == {"beyond maximum"}


def test_a_durable_function_that_has_got_on_begins_to_count_again() -> None:
    history = orderly()
    history.executions = [run("a", 1, 1.5, "raised"), run("b", 3, 3.5, "suspended"), run("c", 5, 5.5)]
    history.attempts = [h.Attempt(1, "a", 1, "failed")]
    history.changes = [
        h.Change(0, 1, "k", max_attempts=1),
        h.Change(1, 1, "k", "a", 1, 1),
        h.Change(2, 1, "k", None, 1, 1),
        h.Change(2.5, 1, "k", None, 0, 1),
        h.Change(3, 1, "k", "c", 1, 1),
        h.Change(6, 1, "k", "c", 1, 1, outcome="succeeded"),
    ]
    history.rows = [replace(history.rows[0], max_attempts=1)]
    assert "beyond maximum" in found(history)
    history.remembering = frozenset({1})
    assert "beyond maximum" not in found(history)


def test_attempts_of_two_jobs_with_one_key_are_not_added_up() -> None:
    history = orderly()
    history.rows = [replace(history.rows[0], max_attempts=1), h.Row(2, "k", "succeeded", "succeeded", 1, 1)]
    history.changes = [replace(change, max_attempts=1) for change in history.changes]
    history.changes += [
        h.Change(3, 2, "k", max_attempts=1),
        h.Change(4, 2, "k", "d", 1, max_attempts=1),
        h.Change(5, 2, "k", "d", 1, max_attempts=1, outcome="succeeded"),
    ]
    history.executions.append(run("d", 4, 5, job=2))
    assert not found(history)


def uncharged() -> h.History:
    """Of claim *c* the body begins at 1 in process 100, which is killed at 1.5, and again at 1.8 in process 200."""
    history = orderly()
    history.executions = [
        run("c", 1, 1.5, "", worker=10),
        run("c", 1.8, 2, pid=200, worker=10),
    ]
    history.faults = [h.Fault(h.KILL, 1.5, 1.5, frozenset({100}))]
    history.attempts = [h.Attempt(1, "note", 1, "crashed", 1.5, 1.2, uncharged=True)]
    return history


def test_an_uncharged_crash_of_which_nothing_died_is_found() -> None:
    history = uncharged()
    report = h.check(history)
    assert (report.kinds, report.counts["attempts_crashed_uncharged"]) == (Counter(), 1)
    history.attempts.append(replace(history.attempts[0], claim="another note"))
    assert found(history) == {"false crash"}
    history.attempts[1] = replace(history.attempts[1], seconds=0.1)
    assert not found(history), "it may not have come to its first line"
    history = orderly()
    history.attempts = [h.Attempt(1, "note", 1, "crashed", 1.5, 1.2, uncharged=True)]
    assert found(history) == {"false crash"}


def test_a_death_that_left_no_uncharged_crash_is_found_unless_its_worker_had_no_time() -> None:
    history = uncharged()
    history.attempts = []
    assert found(history) == {"unknown crash"}
    for excuse in (h.Fault(h.KILL, 2, 2, frozenset({10})), h.Fault(h.LEAVE, 2, 2, frozenset({10}))):
        history.faults[1:] = [excuse]
        assert not found(history)
    history.faults[1:] = [h.Fault(h.CRASH, 1.9, 2)]
    assert not found(history)
    history.faults[1:] = [h.Fault(h.LEAVE, 2, 2, frozenset({11}))]
    assert found(history) == {"unknown crash"}


def test_a_durable_function_counts_its_attempts_anew_and_nobody_else_does() -> None:
    history = rescued()
    history.executions[0].how = "suspended"
    history.attempts = []
    history.changes[1:3] = [replace(history.changes[1], attempt=2), replace(history.changes[2], attempt=0)]
    history.changes = [history.changes[0], h.Change(0.5, 1, "k", "z", 1), h.Change(0.6, 1, "k", None, 1)] + [
        replace(change, attempt=1) if change.claim == "b" else change for change in history.changes[1:]
    ]
    assert found(history) == {"attempt arithmetic"}
    history.remembering = frozenset({1})
    assert not found(history)


def test_what_waited_for_others_may_be_open_again_and_so_may_what_was_forged() -> None:
    history = orderly()
    history.changes += [h.Change(3, 1, "k", None, 1), h.Change(4, 1, "k", None, 1, outcome="cancelled")]
    assert found(history) == {"double end"}
    history.revivable = frozenset({1})
    assert not found(history)
    history.changes.append(h.Change(5, 1, "k", None, 1, outcome="abandoned"))
    assert found(history) == {"double end"}
    history.forged = frozenset({1})
    assert not found(history)


def test_what_a_job_registers_is_a_phantom_only_if_that_job_is_one() -> None:
    history = orderly()
    history.rows.append(h.Row(2, "k/a0", "succeeded", "succeeded", 1, 5))
    history.executions.append(run("c", 1, 2, job=2, key="k/a0"))
    history.changes.append(h.Change(1, 2, "k/a0", "c", 1))
    assert not found(history)
    history.registrations = [h.Registration("k", h.ROLLED_BACK)]
    assert {violation.key for violation in h.check(history).violations} == {"k", "k/a0"}


def test_a_late_rescue_is_found_unless_the_way_was_troubled() -> None:
    history = rescued(taken=9.0, second=9.5)
    assert found(history) == {"slow recovery"}
    history.faults = [h.Fault("blackhole", 4, 8)]
    assert not found(history)


def test_a_standstill_after_the_last_fault_is_found() -> None:
    history = orderly()
    history.healed_at = 1.9
    assert not found(history)
    history.healed_at = 2.5
    assert found(history) == {"no progress"}


def test_what_is_left_is_found() -> None:
    history = orderly()
    history.processes_left = ["pid 7"]
    history.connections_left = ["pgjobs x finalise"]
    history.claims_left = ["c/0"]
    assert found(history) == {"orphan process", "leaked connection", "claim left"}
