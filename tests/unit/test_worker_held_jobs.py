"""Rows that no statement of ours writes, and deaths that meet wishes: what becomes of the held jobs."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import kinds
from django_pgjobs.ends.kinds import CALLBACK_STARTS, END, HOLD, MARK, PARK, RELEASE, RETRY, SUCCESS, EndKind, jobs_log
from django_pgjobs.store import claiming
from django_pgjobs.store.finalising import End, ReleasedJob
from django_pgjobs.store.keeping import Flag
from django_pgjobs.store.pausing import LimitInForce, Pauses
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns, SignalEvent, StopRun
from django_pgjobs.worker.shared.runs import ENDING, FRESH_SECONDS, SENT, HeldRun, RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.held_jobs import HeldJobs
from tests.unit.worker_fakes import child_of, claimed, end_of, run_of, under

FAILURE = Failure("ValueError", "no")


@define(name="holding.known")
def known() -> None: ...


@define(name="holding.atomic", atomic=True)
def atomic() -> None: ...


class Finaliser:
    """Keeps what is queued."""

    def __init__(self) -> None:
        self.puts: list[tuple[EndKind, End]] = []
        self.writer = SimpleNamespace(remembers=False)

    def put(self, kind: EndKind, run: HeldRun, end: End) -> None:
        self.puts.append((kind, end))

    def put_many(self, kind: EndKind, entries: list[tuple[HeldRun, End]]) -> None:
        for run, end in entries:
            self.put(kind, run, end)

    def delete(self, claim_ids: list[str]) -> None: ...


@pytest.fixture
def finaliser() -> Finaliser:
    return Finaliser()


@pytest.fixture
def held_jobs(finaliser: Finaliser) -> HeldJobs:
    parts: Any = (RunTable(), Dispatcher(), finaliser)
    return HeldJobs(*parts, wake_for=lambda pair: None, notify=lambda items, kinds=(): None, tallies=Tallies(bool))


@pytest.mark.parametrize("name", ["holding.known", "holding.unknown"])
@pytest.mark.parametrize(
    "facts",
    [
        {"ending": "forged"},
        {"ending": ""},
        {"headers": "x" * (claiming.MOST_CHARS + 1)},
        {"description": "x" * (claiming.MOST_CHARS + 1)},
        {"extras": {"options": True}},
    ],
)
def test_a_row_that_nobody_can_have_written_is_parked_and_ends_no_worker(
    held_jobs: HeldJobs, finaliser: Finaliser, facts: dict[str, Any], name: str
) -> None:
    """Every worker that claimed it would end of it, one after the other, for as long as it is there."""
    held_jobs.adopt(0.0, under("a", [claimed(1, name=name, **facts), claimed(2, name=name)]))
    [(kind, end)] = finaliser.puts
    assert (kind, end.id) == (PARK, 1)
    assert end.fingerprint == (registry.get(name)._fingerprint if name == "holding.known" else "")
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [2]


def test_a_callback_is_dispatched_with_its_stored_ending(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    held_jobs.adopt(0.0, under("a", [claimed(1, ending="abandoned", ending_attempt=1), claimed(2, cancelled=True)]))
    assert [(kind, end.id, end.outcome) for kind, end in finaliser.puts] == [(END, 2, "cancelled")]
    [run] = held_jobs.dispatcher.waiting[False]
    assert (run.kind, run.job.ending) == ("on_abandon", "abandoned")


def test_of_jobs_that_died_in_company_only_those_run_again_that_shall(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    again, cancelled, released = run_of(1), run_of(2, cancelled=True), run_of(3, released=True)
    held_jobs.settle(Death(-9, {}, "pgjobs 1", suspects=[again, cancelled, released]))
    assert list(held_jobs.dispatcher.suspects) == [again]
    assert again.after == "pgjobs 1"
    assert [(kind, end.id) for kind, end in finaliser.puts] == [(END, 2), (RELEASE, 3)]


@pytest.mark.parametrize(
    ("decision", "cause"),
    [
        (decide.Retried(5.0, FAILURE, "crashed"), "crashed"),
        (decide.Abandoned("no attempts left", FAILURE, "timeout"), "timeout"),
        (decide.Released("collateral", FAILURE), "released"),
        (decide.Snoozed(5.0), None),
    ],
)
def test_a_job_that_ended_before_its_cancel_got_there_keeps_why(
    held_jobs: HeldJobs, finaliser: Finaliser, decision: Unwritten, cause: str | None
) -> None:
    """The job is cancelled; its history says how the attempt failed."""
    held_jobs.ends.decided(run_of(1, cancelled=True), decision, 2.0)
    [(kind, end)] = finaliser.puts
    assert (kind, end.outcome, end.cause) == (END, "cancelled", cause)


def test_a_suspect_that_comes_back_unstarted_is_still_a_suspect(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    """Else it would run in company after all, and take the next ones along. Those sent together stay together."""
    held_jobs.settle(Death(-9, {}, suspects=[run_of(1), run_of(2), run_of(3), run_of(4)]))
    first, second = held_jobs.dispatcher.groups
    held_jobs.dispatcher.groups.remove(first)
    held_jobs.settle(Death(-9, {}, unstarted=[*first, run_of(5)]))
    assert held_jobs.dispatcher.groups == [second, first]
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [5]
    child = child_of()
    held_jobs.dispatcher.groups.remove(second)
    for number, run in enumerate(second, 1):
        run.run = number
        child.add(run)
    held_jobs.unstarted(child, [1, 2, 3])
    assert held_jobs.dispatcher.groups == [first, second]


def test_a_worker_that_drains_hands_back_those_that_died_in_company(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    held_jobs.starts.draining = True
    held_jobs.settle(Death(-9, {}, suspects=[run_of(1), run_of(2)]))
    assert [(kind, end.id) for kind, end in finaliser.puts] == [(RELEASE, 1), (RELEASE, 2)]
    assert SUCCESS not in dict(finaliser.puts)


SUSPECT = {"limit_key": "x", "suspect": True}


def test_suspects_that_are_handed_back_stay_suspects(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    """By a drain, a pause, an operator, an end in doubt; the next worker runs them as one group, without callbacks."""
    held_jobs.settle(Death(-9, {}, suspects=[run_of(1, released=True), run_of(2), run_of(4, name="holding.atomic")]))
    held_jobs.ends.release(held_jobs.dispatcher.withdraw(lambda run: True))
    held_jobs.ends.release([run_of(3)])
    assert [(end.id, end.suspect) for _, end in finaliser.puts] == [(1, True), (4, True), (2, True), (3, False)]
    jobs = [
        claimed(1, extras=SUSPECT),
        claimed(2, extras=SUSPECT),
        claimed(3, extras={"limit_key": "x"}),
        claimed(4, extras=SUSPECT, ending="abandoned", ending_attempt=1),
    ]
    held_jobs.adopt(0.0, under("a", jobs))
    assert [[run.job.id for run in group] for group in held_jobs.dispatcher.groups] == [[1, 2]]
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [3, 4]


def test_a_callback_that_died_in_company_is_counted_and_runs_alone_from_then_on(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    """Three starts at most: the next claim counts this one. Alone no neighbour's end can use the others up."""
    callback = run_of(1, ending="abandoned")
    body = run_of(2)
    held_jobs.settle(Death(-11, {}, suspects=[callback, body]))
    [(kind, end)] = finaliser.puts
    assert (kind, end.id, end.cause) == (RETRY, 1, "crashed")
    assert end.failure is not None
    assert "SIGSEGV" in end.failure.message
    assert list(held_jobs.dispatcher.suspects) == [body]
    held_jobs.adopt(0.0, under("a", [claimed(1, ending="abandoned", ending_attempt=2)]))
    assert [run.job.id for run in held_jobs.dispatcher.suspects] == [2, 1]
    assert not held_jobs.dispatcher.waiting[False]


def test_a_callback_that_crashed_too_often_is_started_no_more_and_its_job_ends(
    held_jobs: HeldJobs, finaliser: Finaliser, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end one process after the other."""
    held_jobs.adopt(0.0, under("a", [claimed(1, ending="abandoned", ending_attempt=CALLBACK_STARTS + 1)]))
    assert [(kind, end.id, end.outcome) for kind, end in finaliser.puts] == [(END, 1, "abandoned")]
    assert not held_jobs.dispatcher
    assert (
        f"callback lost {CALLBACK_STARTS} processes or workers, the job ends without it callback=on_abandon"
        in caplog.text
    )


def test_a_job_that_is_handed_back_again_and_again_is_told(
    held_jobs: HeldJobs, caplog: pytest.LogCaptureFixture
) -> None:
    """Uncharged it could go on for ever: too long for every drain, or always beside a job that is killed."""
    for times in (0, 1, 2, 3):
        [run] = held_jobs.table.adopt(0.0, under(f"claim {times}", [claimed(7)]))
        held_jobs.stored(RELEASE, [(run, End(7, run.claim.claim_id), ReleasedJob(7, "default", 0, times))])
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("job was released while it ran, once more times=3 ")
    assert "job=7" in line
    caplog.clear()
    [run] = held_jobs.table.adopt(0.0, under("behind a row", [claimed(7)]))
    by_itself = End(7, run.claim.claim_id, cause="released", failure=decide.Failure("", "The job released itself."))
    held_jobs.stored(RELEASE, [(run, by_itself, ReleasedJob(7, "default", 0, 4))])
    assert not caplog.records


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_batch_of_ends_costs_one_question_unless_its_lines_are_read(
    held_jobs: HeldJobs, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A70: a worker may end 50,000 jobs a second."""
    asked: list[int] = []
    is_enabled_for = jobs_log.isEnabledFor

    def ask(level: int) -> bool:
        asked.append(level)
        return is_enabled_for(level)

    told: list[int] = []
    tell = kinds.log_stored

    def count(kind: EndKind, end: End, *rest: Any) -> None:
        told.append(end.id)
        tell(kind, end, *rest)

    monkeypatch.setattr(jobs_log, "isEnabledFor", ask)
    monkeypatch.setattr(kinds, "log_stored", count)
    runs = held_jobs.table.adopt(0.0, under("a", [claimed(number) for number in range(1, 101)]))
    with caplog.at_level(level, "django_pgjobs.jobs"):
        held_jobs.stored(SUCCESS, [(run, End(run.job.id, "a", 0.25), run.job.id) for run in runs])
    if level == logging.INFO:
        assert (asked, told, caplog.records) == ([logging.DEBUG], [], [])
    else:
        assert len(caplog.records) == len(told) == 100
        assert caplog.messages[6].endswith(" job=7 attempt=1/3 claim=a queue=default outcome=succeeded seconds=0.2500")


def test_a_job_that_this_worker_has_again_is_taken_from_its_earlier_run(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    """C45 W23: rescued from under it and claimed by it once more: the earlier run is told, for nobody else would."""
    held_jobs.adopt(0.0, under("first", [claimed(1), claimed(2)]))
    child = child_of()
    waiting, running = held_jobs.dispatcher.withdraw(lambda run: True)
    running.run, running.child, running.state = 7, child, SENT
    child.add(running)
    held_jobs.dispatcher.add([waiting], 0.0)
    held_jobs.adopt(1.0, under("second", [claimed(1), claimed(2)]))
    assert [type(message) for message in end_of(child).sent] == [ReleaseRuns, StopRun]
    assert [run.claim.claim_id for run in held_jobs.dispatcher.waiting[False]] == ["second", "second"]
    assert [fence[1] for fence in held_jobs.table.fences()] == ["second", "second"]
    assert held_jobs.table.claims["first"].open == 1


def test_what_the_loop_took_says_nothing_about_how_long_jobs_hold_a_thread(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    """One executor runs both: long async jobs must not keep short ones from being sent to its threads in advance."""
    child = child_of(mean_seconds=0.001)
    child.add(run_of(1, number=1), run_of(2, number=2, is_async=True), run_of(3, number=3, is_async=True))
    held_jobs.succeeded(child, [1, 2], [1000, 60_000_000], [None, None])
    held_jobs.done(child, [[3, 60.0, "snoozed", 1.0]])
    assert child.done == 3
    assert child.mean_seconds == pytest.approx(0.001)


PAUSED = Pauses(frozenset({"mail"}), {"holding.known": "as anna says"})


def paused(held_jobs: HeldJobs, *executors: Any) -> None:
    held_jobs.starts.pause(PAUSED, executors)


def ends(finaliser: Finaliser) -> list[tuple[EndKind, int, str]]:
    return [(kind, end.id, end.reason) for kind, end in finaliser.puts]


BACK = [(RELEASE, 1, ""), (HOLD, 2, "as anna says")]
"""A job of a paused queue goes back; one of a paused name is held, for it would be claimed again."""


def test_what_is_claimed_of_a_paused_queue_or_name_does_not_start(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    paused(held_jobs)
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail"), claimed(2, name="holding.known"), claimed(3)]))
    assert ends(finaliser) == BACK
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [3]


def test_what_waits_when_the_pause_comes_does_not_start(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail"), claimed(2, name="holding.known"), claimed(3)]))
    paused(held_jobs)
    assert ends(finaliser) == BACK
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [3]


def test_what_was_sent_is_taken_back_and_what_has_started_goes_on(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    """Only its executor knows which has started: what it gives back had not."""
    child = child_of()
    runs = [
        run_of(n, number=n, queue=queue, state=SENT, child=child) for n, queue in ((1, "mail"), (2, "mail"), (3, "b"))
    ]
    child.add(*runs)
    paused(held_jobs, child)
    assert end_of(child).sent == [ReleaseRuns([1, 2])]
    assert not finaliser.puts
    held_jobs.unstarted(child, [1])
    assert ends(finaliser) == BACK[:1]
    held_jobs.succeeded(child, [2], [1000], [None])
    assert [kind for kind, _ in finaliser.puts] == [RELEASE, SUCCESS]


def test_a_callback_does_not_start_either(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    """Claimed for it, the first time or after a crash, or come so far in this very claim: no code of the job starts."""
    paused(held_jobs)
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail", ending="abandoned", ending_attempt=1)]))
    held_jobs.adopt(0.0, under("b", [claimed(2, name="holding.known", ending="abandoned", ending_attempt=2)]))
    assert ends(finaliser) == BACK
    [run] = held_jobs.table.adopt(0.0, under("c", [claimed(3, queue="mail")]))
    held_jobs.stored(MARK, [(run, End(3, "c", outcome="abandoned"), None)])
    assert ends(finaliser)[2:] == [(RELEASE, 3, "")]
    assert not held_jobs.dispatcher


def test_a_callback_has_a_deadline_once_the_end_before_it_is_written(held_jobs: HeldJobs) -> None:
    """Its worker may be unable to stop it: then it has to give it up."""
    [run] = held_jobs.table.adopt(0.0, under("c", [claimed(3, name="holding.known")]))
    run.state = ENDING
    held_jobs.stored(MARK, [(run, End(3, "c", outcome="abandoned"), None)])
    run.started_at = 1.0
    assert held_jobs.table.overdue() == [(3, "c")]


def test_a_cancelled_job_of_a_paused_queue_ends(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    paused(held_jobs)
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail", cancelled=True)]))
    assert [(kind, end.outcome) for kind, end in finaliser.puts] == [(END, "cancelled")]


def test_jobs_that_died_in_company_do_not_run_again_while_they_are_paused(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    paused(held_jobs)
    held_jobs.settle(Death(-9, {}, suspects=[run_of(1, queue="mail"), run_of(2, name="holding.known")]))
    assert ends(finaliser) == BACK
    assert not held_jobs.dispatcher.suspects


def test_suspects_that_wait_are_put_aside_and_others_start_again(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    held_jobs.settle(Death(-9, {}, suspects=[run_of(1, queue="mail")]))
    paused(held_jobs)
    assert ends(finaliser) == BACK[:1]
    held_jobs.dispatcher.dispatch([], 1.0)
    assert held_jobs.dispatcher.suspected_at is None


def test_after_the_pause_everything_starts_as_before(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    paused(held_jobs)
    held_jobs.starts.pause(Pauses(), [])
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail"), claimed(2, name="holding.known")]))
    assert not finaliser.puts
    assert len(held_jobs.dispatcher) == 2


LIMITED = Pauses(limits=frozenset({LimitInForce("queue", "mail", 2, None, None)}))


def test_what_an_operators_limit_does_not_count_yet_is_held_and_does_not_start(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    """Claimed, or waiting here when the worker learns of it.

    What is counted, only calls back, or has a name that only executors know, starts.
    """
    known = partial(claimed, name="holding.known", queue="mail")
    waits = [known(1), known(2, extras={"limit_key": ""}), claimed(3)]
    held_jobs.adopt(0.0, under("a", waits))
    held_jobs.starts.pause(LIMITED, [])
    later = [known(4), known(5, extras={"limit_key": "k"}), claimed(6), claimed(8, name="holding.lazy", queue="mail")]
    held_jobs.adopt(0.0, under("b", [*later, known(7, ending="abandoned", ending_attempt=1)]))
    assert [(kind, end.id, end.outcome) for kind, end in finaliser.puts] == [(HOLD, 1, "limited"), (HOLD, 4, "limited")]
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [2, 3, 5, 6, 7, 8]


def test_a_pause_goes_before_a_limit(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    held_jobs.starts.pause(Pauses(PAUSED.queues, PAUSED.names, LIMITED.limits), [])
    held_jobs.adopt(0.0, under("a", [claimed(1, queue="mail"), claimed(2, name="holding.known")]))
    assert ends(finaliser) == BACK


def test_a_job_with_an_idempotency_key_is_noted_with_its_claim(held_jobs: HeldJobs) -> None:
    """Its end is written by a statement of its own; other things that few jobs have change nothing."""
    without, key = {"limit_key": "x"}, {"limit_key": "x", "idempotency_key": "k"}
    for extras, remembers in ((without, False), (key, True)):
        held_jobs.finaliser.writer.remembers = False
        held_jobs.adopt(0.0, under("a", [claimed(1), claimed(2, extras=extras)]))
        assert held_jobs.finaliser.writer.remembers is remembers
        assert [run.job.id for run in held_jobs.table.held.values() if run.remembers] == ([2] if remembers else [])


# What others want of the jobs held, and what becomes of them when they are lost


def on_an_executor(held_jobs: HeldJobs, *runs: HeldRun) -> Any:
    """Return an executor to which these runs were sent."""
    child = child_of()
    for number, run in enumerate(runs, 1):
        run.run, run.child, run.state = number, child, SENT
    child.add(*runs)
    return child


def flag(id: int, **wishes: Any) -> Flag:
    return Flag(**{"id": id, "claim_id": "a", "lost": False, "cancelled": False, "mode": "ask", "by": "", "reason": "",
                   "released": False, **wishes})  # fmt: skip


def flagged(held_jobs: HeldJobs, *flags: Flag) -> None:
    held_jobs.fresh(1.0, {each.id for each in flags}, list(flags))


def test_what_is_flagged_while_it_waits_here_does_not_start(held_jobs: HeldJobs, finaliser: Finaliser) -> None:
    """One that was lost is written nothing of; the others of the claim go on."""
    held_jobs.adopt(0.0, under("a", [claimed(n) for n in (1, 2, 3, 4)]))
    flagged(held_jobs, flag(1, lost=True), flag(2, cancelled=True, reason="no"), flag(3, released=True))
    assert [(kind, end.id, end.outcome) for kind, end in finaliser.puts] == [(END, 2, "cancelled"), (RELEASE, 3, "")]
    assert [run.job.id for run in held_jobs.dispatcher.waiting[False]] == [4]
    assert 1 not in held_jobs.table.held


def test_what_is_flagged_on_an_executor_is_taken_back_or_stopped_once(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    """Each wish has a ladder of its own; read again a second later it says nothing new."""
    child = on_an_executor(held_jobs, *held_jobs.table.adopt(0.0, under("a", [claimed(n) for n in (1, 2, 3, 4)])))
    for _ in range(2):
        flagged(held_jobs, flag(1, lost=True), flag(2, cancelled=True), flag(3, released=True), flag(4))
    asked = [message.runs for message in end_of(child).sent if isinstance(message, ReleaseRuns)]
    stops = [message for message in end_of(child).sent if isinstance(message, StopRun)]
    assert asked == [[1], [2], [3]]
    assert [(stop.run, stop.cause) for stop in stops if stop.rung == "flag"] == [
        (1, "lost"), (2, "cancelled"), (3, "released"),
    ]  # fmt: skip
    assert {run.job.id: set(run.stops) for run in child.runs.values()} == {
        1: {"lost"}, 2: {"cancelled"}, 3: {"released"}, 4: set(),
    }  # fmt: skip


def test_only_a_harder_cancel_replaces_one(held_jobs: HeldJobs) -> None:
    [run] = held_jobs.table.adopt(0.0, under("a", [claimed(1)]))
    on_an_executor(held_jobs, run)
    for mode, by in (("interrupt", "anna"), ("ask", "bob")):
        flagged(held_jobs, flag(1, cancelled=True, mode=mode, by=by))
    assert (run.cancel_mode, run.cancel_by) == ("interrupt", "anna")


def test_a_callback_is_neither_cancelled_nor_released(held_jobs: HeldJobs) -> None:
    """Its job has its outcome; what is left is to tell the project."""
    [run] = held_jobs.table.adopt(0.0, under("a", [claimed(1, ending="abandoned")]))
    child = on_an_executor(held_jobs, run)
    flagged(held_jobs, flag(1, cancelled=True, released=True))
    assert (end_of(child).sent, dict(run.stops)) == ([], {})


def test_what_is_flagged_is_as_fresh_as_its_neighbours_unless_it_was_lost(held_jobs: HeldJobs) -> None:
    """A callback of a cancelled job waits on: not fresh, it would never start."""
    runs = held_jobs.table.adopt(0.0, under("a", [claimed(n, ending="cancelled") for n in (1, 2, 3)]))
    for run in runs:
        run.fresh_until = 0.0
    flagged(held_jobs, flag(1, cancelled=True), flag(2, lost=True))
    held_jobs.fresh(1.0, {3}, [])
    assert [run.fresh_until for run in runs] == [1.0 + FRESH_SECONDS, 0.0, 1.0 + FRESH_SECONDS]


@pytest.mark.parametrize("batched", [True, False], ids=["among successes", "alone"])
def test_a_success_of_a_job_that_was_taken_away_is_told_as_lost_and_not_written(
    finaliser: Finaliser, caplog: pytest.LogCaptureFixture, batched: bool
) -> None:
    """Its fence would refuse it; whoever holds the job now says how it ends."""
    told: list[SignalEvent] = []
    parts: Any = (RunTable(), Dispatcher(), finaliser)
    held_jobs = HeldJobs(
        *parts, wake_for=lambda pair: None, notify=lambda events, kinds=(): told.extend(events()), tallies=Tallies(bool)
    )
    child = on_an_executor(held_jobs, *held_jobs.table.adopt(0.0, under("a", [claimed(1), claimed(2)])))
    flagged(held_jobs, flag(1, lost=True))
    if batched:
        held_jobs.succeeded(child, [1, 2], [1000, 1000], ["1", "2"])
    else:
        held_jobs.done(child, [[1, 0.001, "succeeded", "1"], [2, 0.001, "succeeded", "2"]])
    assert [(kind, end.id) for kind, end in finaliser.puts] == [(SUCCESS, 2)]
    assert list(held_jobs.table.held) == [2]
    assert [(name, about["job_id"], about["action"]) for name, about in told] == [("lost", 1, "record how it ended")]
    assert "lease lost, nothing of the job was changed" in caplog.text


def test_a_callback_that_came_to_an_end_ends_its_job_and_one_that_failed_is_tried_again(
    held_jobs: HeldJobs, finaliser: Finaliser
) -> None:
    runs = held_jobs.table.adopt(0.0, under("a", [claimed(n, ending="abandoned") for n in (1, 2, 3)]))
    child = on_an_executor(held_jobs, *runs)
    held_jobs.succeeded(child, [1], [1000], [None])
    held_jobs.done(child, [[2, 0.1, "succeeded", None], [3, 0.1, "retried", 5.0, ["E", "no", [], ""], "failed"]])
    assert [(kind, end.id, end.outcome) for kind, end in finaliser.puts] == [
        (END, 1, "abandoned"), (END, 2, "abandoned"), (RETRY, 3, ""),
    ]  # fmt: skip


def test_only_jobs_that_have_reached_their_end_are_counted(held_jobs: HeldJobs) -> None:
    """By this ``--max-jobs`` ends a worker."""
    counted = [held_jobs.table.ended]
    for kind in (SUCCESS, END, RETRY, RELEASE):
        [run] = held_jobs.table.adopt(0.0, under(str(kind), [claimed(1)]))
        held_jobs.stored(kind, [(run, End(1, str(kind)), None)])
        counted.append(held_jobs.table.ended)
    assert counted == [0, 1, 2, 2, 2]
