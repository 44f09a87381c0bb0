"""Who gets which job: the best first, to the emptiest first, nothing behind a long job, suspects in groups."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from django_pgjobs import job as define
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns, RunJobs
from django_pgjobs.worker.shared.run_groups import SentRun, sent_runs
from django_pgjobs.worker.shared.runs import ENDING, RELEASING, SENT, WAITING, HeldClaim, HeldRun
from django_pgjobs.worker.supervisor.dispatcher import ALONE_SECONDS, START_WITHIN_SECONDS, Dispatcher
from django_pgjobs.worker.supervisor.executor_process import PAYLOAD_BYTES, STARTING, ExecutorProcess
from tests.unit.worker_fakes import DUE, child_of, end_of, run_of

NOW = 50.0


@define(name="dispatching.plain")
def body() -> None: ...


@define(name="dispatching.asynchronous")
async def coroutine() -> None: ...


def plain(id: int, **changes: Any) -> HeldRun:
    return run_of(id, name="dispatching.plain", **changes)


def asynchronous(id: int) -> HeldRun:
    return run_of(id, name="dispatching.asynchronous")


def sent(child: ExecutorProcess) -> list[int]:
    """The ids of the jobs that were sent to an executor, in order."""
    return [run.job.id for run in runs_sent(child)]


def runs_sent(child: ExecutorProcess) -> list[SentRun]:
    """What an executor makes of the jobs that were sent to it, in order."""
    messages = [message for message in end_of(child).sent if isinstance(message, RunJobs)]
    groups = [(group, message.start_by) for message in messages for group in message.groups]
    return [run for group, start_by in groups for run in sent_runs(group, start_by)[0]]


def dispatcher_of(*runs: HeldRun) -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.add(runs, NOW)
    return dispatcher


def test_a_job_goes_to_an_executor_with_everything_it_needs() -> None:
    child, run = child_of(), plain(7, payload='{"args":[1]}', headers='{"a":1}', description="seven", error="before")
    run.job = run.job._replace(extras={"idempotency_key": "k"})
    dispatcher_of(run).dispatch([child], NOW)
    [sent_run] = runs_sent(child)
    assert (sent_run.run, sent_run.start_by, sent_run.requested) == (1, NOW + START_WITHIN_SECONDS, False)
    assert sent_run.job._asdict() == {**run.job._asdict(), "run_at": DUE.timestamp(), "error": ""}
    assert sent_run.job.run_at == DUE
    assert (run.state, run.child, run.run, run.since) == (SENT, child, 1, NOW)
    assert child.runs == {1: run}


def test_what_jobs_have_in_common_travels_once_and_what_differs_with_each() -> None:
    """An executor gets every field of every job, however they are grouped."""
    claim = HeldClaim("shared", 0.0, 20, 1e12)
    changes: list[dict[str, Any]] = [
        {}, {}, {"payload": '{"args":[2]}'}, {"headers": "{}"}, {"headers": "{}"}, {"queue": "mail"}, {"attempt": 2},
        {"attempt": 4}, {"name": "dispatching.other"}, {"timeout_seconds": None}, {"max_attempts": 7},
        {"description": "one"}, {"description": "one"}, {"extras": {"cron_entry": "c"}}, {"ending": "abandoned"},
        {"cancelled": True}, {"extras": {"until": 99.0}}, {"ending": "cancelled", "cancelled": True},
        {"is_async": True},
        {"run_at": DUE + timedelta(seconds=1)},
    ]  # fmt: skip
    child = child_of(threads=50)
    runs = [run_of(id, claim=claim, **{"name": "dispatching.plain", **each}) for id, each in enumerate(changes, 1)]
    Dispatcher()._send(child, runs, NOW)
    [message] = end_of(child).sent
    assert [len(group[1]) for group in message.groups][:2] == [3, 2]
    for run, each in zip(runs, runs_sent(child), strict=True):
        assert (each.run, each.requested, each.job.claim_id) == (run.run, run.cancelled, "shared")
        assert each.job.run_at == run.job.run_at
        assert each.job._replace(run_at=run.job.run_at) == run.job
    on_loop = [number for group in message.groups if sent_runs(group, NOW)[1] for number in group[0]]
    assert on_loop == [run.run for run in runs if run.is_async]


def test_only_a_callback_is_told_what_went_wrong() -> None:
    child, run = child_of(), plain(7)
    run.job = run.job._replace(error="as stored")
    for ending in (None, "abandoned"):
        run.job = run.job._replace(ending=ending)
        dispatcher_of(run).dispatch([child], NOW)
    assert [run.job.error for run in runs_sent(child)] == ["", "as stored"]


def test_each_dispatch_has_a_number_of_its_own() -> None:
    child, run = child_of(), plain(7)
    dispatcher = dispatcher_of(run)
    dispatcher.dispatch([child], NOW)
    child.remove(run.run)
    run.started_at = NOW
    dispatcher.add([run], NOW)
    assert (run.state, run.child, run.run) == (WAITING, None, 0)
    assert run.started_at == 0.0, "else its deadline would count from the start before"
    dispatcher.dispatch([child], NOW)
    assert run.run == 2


def test_the_best_go_first_also_when_others_wait_already() -> None:
    dispatcher = dispatcher_of(plain(5), plain(9))
    dispatcher.add([plain(3), plain(8, priority=4), plain(7, run_at=DUE - timedelta(seconds=1))], NOW)
    child = child_of(threads=5)
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [8, 7, 3, 5, 9]
    assert len(dispatcher) == 0


def test_jobs_are_spread_and_the_emptiest_gets_the_first() -> None:
    busy, empty = child_of(threads=3), child_of(threads=3)
    busy.add(plain(90, number=90))
    dispatcher = dispatcher_of(*(plain(id) for id in range(1, 9)))
    dispatcher.dispatch([busy, empty], NOW)
    assert (sent(empty), sent(busy)) == ([1, 2, 3], [4, 5])
    assert len(dispatcher) == 3


def test_one_job_is_sent_to_one_executor() -> None:
    executors = [child_of(), child_of()]
    dispatcher_of(plain(1)).dispatch(executors, NOW)
    assert sorted(len(end_of(child).sent) for child in executors) == [0, 1]


def test_jobs_go_only_to_threads_or_places_on_the_loop_as_their_code_wants() -> None:
    child = child_of(threads=1, async_slots=2)
    dispatcher = dispatcher_of(plain(1), plain(2), asynchronous(3), asynchronous(4), asynchronous(5), run_of(6))
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [1, 3, 4]
    assert child.outstanding == {False: 1, True: 2}
    assert [run.job.id for run in dispatcher.waiting[False]] == [2, 6]  # a name nobody knows is parked by a thread


def test_a_job_whose_claim_may_be_lost_is_not_sent() -> None:
    child, stale = child_of(), plain(1)
    dispatcher = dispatcher_of(stale, plain(2))
    stale.fresh_until = NOW - 0.1
    dispatcher.dispatch([child], NOW)
    assert sent(child) == []


def test_an_executor_is_sent_no_more_payload_than_it_shall_hold_but_one_job_always() -> None:
    child = child_of(threads=9)
    dispatcher = dispatcher_of(*(plain(id, size=PAYLOAD_BYTES // 2 + 1) for id in range(1, 6)))
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [1, 2]
    huge = child_of(threads=9)
    dispatcher_of(plain(1, size=9 * PAYLOAD_BYTES), plain(2)).dispatch([huge], NOW)
    assert sent(huge) == [1]


def test_there_is_room_for_what_executors_take_less_what_waits() -> None:
    """Each colour has its own: what waits for a loop takes no thread's place."""
    executors = [child_of(threads=2, async_slots=7), child_of(threads=3, async_slots=7), child_of(state=STARTING)]
    dispatcher = Dispatcher()
    assert (dispatcher.room(executors), dispatcher.idle_threads(executors)) == ((5, 14), 5)
    dispatcher.add([plain(1), plain(2)], NOW)
    assert (dispatcher.room(executors), dispatcher.idle_threads(executors)) == ((3, 14), 3)
    dispatcher.add([asynchronous(id) for id in range(3, 40)], NOW)
    assert dispatcher.room(executors) == (3, 0)


def dead(*ids: int) -> list[HeldRun]:
    """Runs that were running when their executor died."""
    return [plain(id) for id in ids]


def ran(child: ExecutorProcess) -> None:
    """What runs there ends, and leaves the executor whole."""
    for number in list(child.runs):
        child.remove(number)


def test_suspects_run_in_halves_on_one_executor_while_the_others_go_on() -> None:
    """One bad job among many holds up neither those that ran beside it nor anybody else."""
    bench, other = child_of(threads=4), child_of(threads=4)
    dispatcher = Dispatcher()
    dispatcher.halve(dead(1, 2, 3, 4, 5), NOW, after="pgjobs 1")
    dispatcher.backends_ended("pgjobs 1")
    dispatcher.add([plain(id) for id in range(10, 14)], NOW)
    dispatcher.dispatch([bench, other], NOW)
    assert (sent(bench), sent(other)) == ([1, 2, 3], [10, 11, 12, 13])
    assert (bench.exclusive, dispatcher.room([bench, other])) == (True, (0, 3)), "nobody else beside them"
    dispatcher.dispatch([bench, other], NOW)
    ran(bench)
    dispatcher.add([plain(20)], NOW)
    dispatcher.dispatch([bench, other], NOW)
    assert (sent(bench), sent(other)) == ([1, 2, 3, 4, 5], [10, 11, 12, 13])
    ran(bench)
    dispatcher.dispatch([bench, other], NOW)
    assert sent(bench) == [1, 2, 3, 4, 5, 20]


def test_after_a_while_others_start_beside_a_suspect() -> None:
    """A worker with one executor does not stand still for as long as a suspect runs."""
    only = child_of(threads=4)
    dispatcher = Dispatcher()
    dispatcher.halve(dead(1, 2), NOW, after="pgjobs 1")
    dispatcher.backends_ended("pgjobs 1")
    dispatcher.add([plain(10)], NOW)
    dispatcher.dispatch([only], NOW)
    assert (sent(only), dispatcher.apart([only])) == ([1], ([1], [2]))
    dispatcher.add([plain(10)], later := NOW + ALONE_SECONDS - 0.1)
    dispatcher.dispatch([only], later)
    assert sent(only) == [1]
    _renew(dispatcher, later := NOW + ALONE_SECONDS)
    dispatcher.dispatch([only], later)
    assert (sent(only), only.exclusive, dispatcher.apart([only])) == ([1, 2], True, ([1, 2], [])), "they go first"
    _renew(dispatcher, later := NOW + 2 * ALONE_SECONDS)
    dispatcher.dispatch([only], later)
    assert (sent(only)[:3], dispatcher.apart([only])) == ([1, 2, 10], None)


def test_a_suspect_runs_apart_for_twice_as_long_after_each_death() -> None:
    """However late it kills its executor, in the end it does so alone."""
    dispatcher, [run], now, seconds = Dispatcher(), dead(1), NOW, []
    for _ in range(5):
        child = child_of(threads=4)
        dispatcher.halve([run], now, after="")
        _renew(dispatcher, now)
        dispatcher.dispatch([child], now)
        seconds.append(child.alone_until - now)
        now += 1000.0
    assert seconds == [ALONE_SECONDS * factor for factor in (1, 2, 4, 8, 16)]


def test_a_group_waits_for_a_free_thread_of_a_bench_that_never_gets_empty() -> None:
    only = child_of(threads=1)
    dispatcher = dispatcher_of(plain(10))
    dispatcher.dispatch([only], NOW)
    dispatcher.halve(dead(1), NOW, after="")
    for later in (0.0, ALONE_SECONDS, 2 * ALONE_SECONDS):
        _renew(dispatcher, NOW + later)
        dispatcher.dispatch([only], NOW + later)
    assert (sent(only), only.exclusive, only.reserved) == ([10], False, True)
    ran(only)
    dispatcher.dispatch([only], NOW + 2 * ALONE_SECONDS)
    assert (sent(only), only.exclusive) == ([10, 1], True)


@pytest.mark.parametrize("strikes", [0.0, 20.0, 100.0, 700.0])
@pytest.mark.parametrize("guilty", [1, 4, 6])
def test_the_guilty_one_is_found_however_late_it_strikes_beside_jobs_that_never_end(
    guilty: int, strikes: float
) -> None:
    """The others of its only executor run for ever, and other jobs come all the time."""
    dispatcher, child, now, deaths = Dispatcher(), child_of(threads=20), NOW, 1
    dispatcher.halve(dead(1, 2, 3, 4, 5, 6), now, after="")
    beside = 100
    while deaths < 20:
        now += 5.0
        if dispatcher.room([child])[0] and not dispatcher.waiting[False]:
            dispatcher.add([plain(beside)], now)
            beside += 1
        _renew(dispatcher, now)
        dispatcher.dispatch([child], now)
        runs = sorted(child.runs.values(), key=lambda run: -run.since)
        if any(run.job.id == guilty and now - run.since >= strikes for run in runs):
            if len(runs) == 1:
                break
            deaths += 1
            child = child_of(threads=20)
            dispatcher.halve(runs, now, after="")
            _renew(dispatcher, now)
    assert deaths <= 15
    assert beside > 100 or strikes < ALONE_SECONDS, "others have started meanwhile"


def _renew(dispatcher: Dispatcher, now: float) -> None:
    """Let the claims of all that wait hold now."""
    for run in (*dispatcher.suspects, *dispatcher.waiting[False]):
        run.fresh_until, run.claim.trusted_until = now + 10, now + 10


@pytest.mark.parametrize("guilty", [1, 23, 24, 46])
def test_the_guilty_one_of_forty_six_is_alone_after_six_deaths_at_most(guilty: int) -> None:
    """And nobody has started oftener than that."""
    dispatcher = Dispatcher()
    starts: dict[int, int] = dict.fromkeys(range(1, 47), 1)
    runs, deaths = [asynchronous(id) for id in starts], 1
    for run in runs:
        run.is_async = True
    dispatcher.halve(runs, NOW, after="")
    while dispatcher.groups:
        bench = child_of(async_slots=50)
        dispatcher.dispatch([bench], NOW)
        group = list(bench.runs.values())
        for run in group:
            starts[run.job.id] += 1
        ran(bench)
        if guilty in [run.job.id for run in group]:
            deaths += 1
            if len(group) > 1:
                dispatcher.halve(group, NOW, after="")
    assert deaths <= 7
    assert max(starts.values()) <= 7
    assert min(starts.values()) == 2


def test_a_suspect_has_started_and_is_sent_without_its_expiry() -> None:
    """A job that has started goes on, whatever its expiry."""
    bench = child_of(threads=4)
    dispatcher = Dispatcher()
    dispatcher.halve([run_of(1, extras={"expires": 5.0})], NOW, after="")
    dispatcher.dispatch([bench], NOW)
    other = child_of(threads=4)
    dispatcher.add([run_of(2, extras={"expires": 5.0})], NOW)
    dispatcher.dispatch([other], NOW)
    assert [run.job.expires for child in (bench, other) for run in runs_sent(child)] == [None, 5.0]


def test_a_group_that_comes_back_unstarted_stays_together_and_runs_after_those_that_wait() -> None:
    dispatcher = Dispatcher()
    dispatcher.halve(dead(1, 2), NOW, after="")
    dispatcher.suspect(dead(3, 4), NOW)
    dispatcher.suspect([], NOW)
    assert [[run.job.id for run in group] for group in dispatcher.groups] == [[1], [2], [3, 4]]
    dispatcher.halve(dead(5, 6, 7), NOW, after="")
    assert [run.job.id for run in dispatcher.suspects] == [5, 6, 7, 1, 2, 3, 4]
    assert len(dispatcher) == 7


def test_the_bench_is_who_is_empty_else_who_comes_else_who_is_nearly_empty() -> None:
    """Work goes on elsewhere: nobody with work to do is kept from more where another comes anyhow."""
    busy, busier, starting = child_of(), child_of(), child_of(state=STARTING)
    busy.add(plain(90, number=90))
    busier.add(plain(91, number=91), plain(92, number=92))
    dispatcher = Dispatcher()
    dispatcher.suspect(dead(1), NOW)
    dispatcher.dispatch([busier, busy, starting], NOW)
    assert dispatcher.room([busier, busy, starting]) == (1, 6), "they go on"
    dispatcher.dispatch([busier, busy], NOW)
    assert (sent(busy), dispatcher.room([busier, busy])) == ([], (0, 3)), "it becomes empty"
    busy.remove(90)
    dispatcher.dispatch([busy, starting], NOW)
    assert (sent(busy), dispatcher.room([busy, starting])) == ([], (2, 3)), "the last one that others can go on in"
    dispatcher.dispatch([busier, busy], NOW)
    assert (sent(busy), sent(busier), busy.exclusive, busy.reserved) == ([1], [], True, True)
    ran(busy)
    dispatcher.dispatch([busier, busy], NOW)
    assert dispatcher.room([busier, busy]) == (2, 6)


def test_with_one_executor_nothing_else_runs_while_there_are_suspects() -> None:
    child = child_of(threads=2)
    dispatcher = dispatcher_of(plain(9))
    dispatcher.halve(dead(1, 2), NOW, after="")
    for expected in ([1], [1, 2], [1, 2, 9]):
        dispatcher.dispatch([child], NOW)
        assert sent(child) == expected
        ran(child)


def test_no_more_suspects_are_sent_at_once_than_there_are_places() -> None:
    """What waited in its buffer would start when another had ended, and be no neighbour of it."""
    child = child_of(threads=2, async_slots=1)
    runs = [*dead(1, 2, 3), asynchronous(4), asynchronous(5)]
    for run in runs[3:]:
        run.is_async = True
    dispatcher = Dispatcher()
    dispatcher.suspect(runs, NOW)
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [1, 2, 4]
    ran(child)
    dispatcher.dispatch([child], NOW)
    assert sent(child)[3:] == [3, 5]


def test_suspects_wait_while_the_claim_of_one_may_be_lost() -> None:
    child, (one, two) = child_of(), dead(1, 2)
    dispatcher = Dispatcher()
    dispatcher.suspect([one, two], NOW)
    one.fresh_until = NOW - 1
    dispatcher.dispatch([child], NOW)
    assert sent(child) == []


def test_a_suspect_waits_until_nothing_of_its_dead_executor_is_left_on_the_server() -> None:
    """Protocol trap 7: a statement of the dead process might commit beside the new run."""
    child = child_of()
    dispatcher = Dispatcher()
    dispatcher.halve(dead(1), NOW, after="pgjobs 1")
    dispatcher.halve(dead(2), NOW, after="pgjobs 2")
    dispatcher.dispatch([child], NOW)
    assert sent(child) == []
    dispatcher.backends_ended("pgjobs 1")
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [1]
    dispatcher.backends_ended("pgjobs 2")
    ran(child)
    dispatcher.dispatch([child], NOW)
    assert sent(child) == [1, 2]


def test_it_is_said_when_there_are_suspects_and_when_none_is_left(caplog: pytest.LogCaptureFixture) -> None:
    child = child_of()
    dispatcher = Dispatcher()
    with caplog.at_level(logging.INFO):
        dispatcher.halve(dead(1, 2), NOW, after="")
        dispatcher.suspect(dead(4), NOW + 1)
        for number in (1, 2, 3):
            dispatcher.dispatch([child], NOW + number)
            ran(child)
        dispatcher.dispatch([child], NOW + 4)
        dispatcher.suspect(dead(5), NOW + 9)
        dispatcher.withdraw(lambda run: True)
        dispatcher.dispatch([child], NOW + 10)
    first = "suspects run again in groups, on one executor, until one has done it alone jobs="
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{first}2"),
        ("INFO", "no suspects are left starts=3 seconds=4.0"),
        ("WARNING", f"{first}1"),
        ("INFO", "no suspects are left starts=1 seconds=1.0"),
    ]


def test_only_what_has_been_sent_is_asked_back_and_once() -> None:
    child, idle = child_of(threads=3), child_of()
    one, two, three = plain(1), plain(2), plain(3)
    dispatcher = dispatcher_of(one, two, three)
    dispatcher.dispatch([child], NOW)
    three.state = ENDING
    end_of(child).sent.clear()
    dispatcher.release_unstarted([child, idle], lambda run: run.job.id != 2)
    assert end_of(child).sent == [ReleaseRuns([one.run])]
    assert (one.state, two.state, three.state) == (RELEASING, SENT, ENDING)
    assert child.asked_at is not None
    asked = child.asked_at = 5.0
    dispatcher.release_unstarted([child, idle], lambda run: True)
    assert end_of(child).sent[1:] == [ReleaseRuns([two.run])]
    assert child.asked_at == asked  # it has not answered since
    assert (end_of(idle).sent, idle.asked_at) == ([], None)


def test_what_waits_can_be_withdrawn_wherever_it_waits() -> None:
    dispatcher = dispatcher_of(plain(1), plain(2), asynchronous(3))
    dispatcher.suspect([plain(4), plain(5)], NOW)
    taken = dispatcher.withdraw(lambda run: run.job.id in (2, 3, 5))
    assert sorted(run.job.id for run in taken) == [2, 3, 5]
    assert len(dispatcher) == 2
    assert [run.job.id for run in dispatcher.suspects] == [4]


def test_nothing_starts_after_the_instant_until_which_its_claim_is_trusted() -> None:
    """P11: whatever waits longer in an executor than that comes back from it as late."""
    sooner, later = plain(1), plain(2)
    sooner.claim.trusted_until, later.claim.trusted_until = NOW + 0.2, NOW + 60.0
    child = child_of(threads=2)
    dispatcher_of(sooner, later).dispatch([child], NOW)
    [message] = end_of(child).sent
    assert message.start_by == NOW + 0.2


def test_what_is_not_trusted_any_more_is_not_sent() -> None:
    run = plain(1)
    run.claim.trusted_until = NOW
    dispatcher, child = dispatcher_of(run), child_of()
    dispatcher.dispatch([child], NOW)
    assert end_of(child).sent == []
    run.claim.trusted_until = NOW + 30
    dispatcher.dispatch([child], NOW)
    assert len(end_of(child).sent) == 1
