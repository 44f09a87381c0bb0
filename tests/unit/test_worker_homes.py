"""Several homes in one worker: the room is shared, reports find the home of their run, and none waits for another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.ends.kinds import SUCCESS
from django_pgjobs.logs import speaks_of
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Flag
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.worker.shared.channel_messages import Notify, ReleaseRuns, RunJobs, TrustUntil
from django_pgjobs.worker.shared.runs import RunTable, trust_seconds
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.queue_slots import Demand, offers
from django_pgjobs.worker.supervisor.recycling import WorkerLimits
from django_pgjobs.worker.supervisor.run_events import EVERY_KIND
from django_pgjobs.worker.supervisor.supervisor import Supervisor
from django_pgjobs.worker.threads.inbox_messages import (
    Claimed,
    FlagsRead,
    HomeOpened,
    Idle,
    PausesRead,
    Renewed,
    Stored,
)
from django_pgjobs.worker.threads.loop import Loop, Outage
from tests.unit.test_worker_supervisor import NOW, Admitter, Claimer, Finaliser, makers_of
from tests.unit.worker_fakes import child_of, claimed, end_of, under


class HungryClaimer(Claimer):
    """Says what it is told to say of its hunger."""

    hungry = True

    def is_hungry(self, is_async: bool, now: float) -> bool:
        return self.hungry


class HomeFinaliser(Finaliser):
    """Keeps which dead executors it is told of, and the successes."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []
        self.done: list[int] = []

    def terminate(self, application_name: str) -> None:
        self.ended.append(application_name)

    def put_many(self, kind: object, entries: list[Any]) -> None:
        self.done += [end.id for _, end in entries]


class Several:
    """A supervisor with two homes, and an executor that reaches both."""

    def __init__(self, **limits: Any) -> None:
        self.a, self.b = (self.home(alias) for alias in ("a", "b"))
        recipe: Any = SimpleNamespace(template=None)
        self.main = Supervisor(recipe, WorkerLimits(**{"processes": 1, **limits}), [self.a, self.b])
        self.main.last_tick = NOW

    def home(self, alias: str) -> Home:
        parts: Any = (HungryClaimer(), HomeFinaliser(), ["it", alias], Admitter(), (), Tallies(bool))
        made = Home(alias, Inbox(), RunTable(), *parts)
        made.knows_pauses = True
        return made

    def executor(self, *aliases: str, **changes: Any) -> ExecutorProcess:
        child = child_of(**changes)
        self.main.pool.children.append(child)
        self.main.pool.booted = True
        for alias in aliases or ("a", "b"):
            self.main._on_reached(child, alias, ["it", alias])
        return child

    def claims(self, home: Home, *ids: int, asked_at: float = NOW) -> None:
        jobs = [claimed(number, database=home.alias) for number in ids]
        self.main._on_message(home, Claimed(asked_at, under(f"of {home.alias}", jobs)))

    def asked(self, home: Home) -> Any:
        claimer: Any = home.claimer
        return claimer.requests[-1]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from makers_of(Several, monkeypatch)


def sent(child: ExecutorProcess) -> list[tuple[str, int]]:
    """Return the (alias, id) of all jobs that were sent to an executor, in their order."""
    groups = [group for message in end_of(child).sent if isinstance(message, RunJobs) for group in message.groups]
    return [(group[4][-1], job_id) for group in groups for job_id in group[1]]


def numbers(child: ExecutorProcess) -> list[int]:
    groups = [group for message in end_of(child).sent if isinstance(message, RunJobs) for group in message.groups]
    return [number for group in groups for number in group[0]]


def test_the_room_is_shared_out_whole_and_the_lowest_are_filled_first() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        demands = [Demand(chance.randint(0, 9), True, chance.random()) for _ in range(chance.randint(1, 6))]
        room = chance.randint(0, 40)
        got = offers(room, demands)
        levels = [demand.held + some for demand, some in zip(demands, got, strict=True)]
        assert sum(got) == room
        filled = [level for level, some in zip(levels, got, strict=True) if some]
        assert not filled or max(filled) - min(levels) <= 1, (room, demands, got)


@pytest.mark.parametrize(
    ("room", "demands", "got"),
    [
        (8, [Demand(0, False)], [8]),
        (8, [Demand(0, True), Demand(0, False)], [8, 4]),
        (4, [Demand(4, True), Demand(0, False)], [4, 4]),
        (1, [Demand(3, True), Demand(3, False), Demand(9, False)], [1, 1, 1]),
        (1, [Demand(0, True, 5.0), Demand(0, True, 4.0)], [0, 1]),
        (0, [Demand(3, True), Demand(0, False)], [0, 0]),
    ],
)
def test_one_that_is_hungry_alone_gets_all_and_another_may_claim_at_once(
    room: int, demands: list[Demand], got: list[int]
) -> None:
    assert offers(room, demands) == got


def test_jobs_of_one_number_are_told_apart_by_their_runs(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=2)
    both.claims(both.a, 7)
    both.claims(both.b, 7)
    both.main._advance()
    assert sorted(sent(child)) == [("a", 7), ("b", 7)]
    assert numbers(child) == [1, 2], "they ascend over all homes"
    of_b = next(number for number, run in child.runs.items() if run.job.database == "b")
    both.main.pool.held_jobs.succeeded(child, [of_b], [1000], [None])
    assert (both.a.finaliser.done, both.b.finaliser.done) == ([], [7])
    assert (both.a.dispatcher.outstanding[False], both.b.dispatcher.outstanding[False]) == (1, 0)
    both.main.pool.held_jobs.done(child, [[3 - of_b, 0.1, "succeeded", None]])
    assert [job_id for _, job_id in both.a.finaliser.puts] == [7]


def test_a_request_is_of_the_home_that_read_it(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=2)
    both.claims(both.a, 7)
    both.claims(both.b, 7)
    both.main._advance()
    claim = both.b.table.held[7].job.claim_id
    flag = Flag(7, claim, lost=False, cancelled=True, mode="ask", by="", reason="", released=False)
    both.main._on_message(both.b, FlagsRead(NOW, {7}, [flag]))
    assert (both.a.table.held[7].cancelled, both.b.table.held[7].cancelled) == (False, True)
    end_of(child).sent.clear()
    both.main._on_message(both.a, PausesRead(Pauses(frozenset({"default"}), {})))
    run = next(number for number, run in child.runs.items() if run.job.database == "a")
    assert end_of(child).sent == [ReleaseRuns([run])], "a pause is of one home, too"


def test_the_home_with_fewer_jobs_is_served_first(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=4)
    both.b.claimer.hungry = False
    both.claims(both.a, 1, 2, 3, 4)
    both.main._advance()
    both.claims(both.a, 5, 6)
    both.claims(both.b, 1)
    both.main._advance()
    assert len(sent(child)) == 4
    both.main.pool.held_jobs.succeeded(child, [1], [1000], [None])
    both.main._advance()
    assert sent(child)[4:] == [("b", 1)], "though the others came first"


def test_hungry_homes_get_the_same_number_of_jobs(worker: Any) -> None:
    both = worker()
    both.executor(threads=8)
    both.claims(both.a, 1, 2, 3, 4)
    both.main._advance()
    assert (both.asked(both.a)[0], both.asked(both.b)[0]) == (0, 4)
    both.b.claimer.hungry = False
    both.main._advance()
    assert (both.asked(both.a)[0], both.asked(both.b)[0]) == (4, 4)


def test_a_home_that_no_executor_reaches_claims_nothing(worker: Any) -> None:
    both = worker()
    child = both.executor("a", threads=8)
    both.main._advance()
    assert (both.asked(both.a)[0], both.asked(both.b)[0]) == (8, 0), "nor does it keep places from the others"
    both.main._on_reached(child, "b", ["another"])
    assert "b" not in child.reached
    both.main._on_reached(child, "b", ["it", "b"])
    both.main._advance()
    assert both.asked(both.b)[0] == 4


def test_a_home_starts_when_its_database_is_open(worker: Any) -> None:
    both = worker()
    both.b.identity = []
    child = both.executor(threads=8)
    assert "b" not in child.reached
    started: list[int] = []
    both.b.loops = [SimpleNamespace(start=lambda: started.append(1))]
    both.main._on_message(both.b, HomeOpened(["it", "b"]))
    assert (started, "b" in child.reached) == ([1], True)


def test_a_home_whose_ends_cannot_be_written_stops_only_itself(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=4)
    both.claims(both.a, 1)
    both.claims(both.b, 2)
    both.b.finaliser.full = True
    both.main._advance()
    assert sent(child) == [("a", 1)]
    assert both.asked(both.b) == (0, 0, None)


def test_what_cannot_start_in_a_home_that_is_away_takes_no_room_from_the_others(worker: Any) -> None:
    both = worker()
    both.executor(threads=4)
    for home, other in ((both.a, both.b), (both.b, both.a)):
        home.claimer.hungry, other.claimer.hungry = False, True
        both.claims(home, *range(10), asked_at=NOW - 60)  # as callbacks that wait since it is away
        both.main._advance()
        assert both.asked(other)[0] == 4
        home.dispatcher.withdraw(lambda run: True)


def test_many_callbacks_of_a_home_leave_places_to_another_that_may_claim(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=4)
    both.claims(both.a, *range(10))
    both.main._advance()
    assert len(sent(child)) == 2
    assert both.asked(both.b)[0] == 2
    both.claims(both.b, 1, 2)
    both.b.claimer.hungry = False
    both.main._advance()
    assert [alias for alias, _ in sent(child)] == ["a", "a", "b", "b"]


def test_a_home_that_is_quiet_takes_nothing_from_callbacks_of_another(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=1)
    both.a.controls.quiet = both.b.controls.quiet = True
    both.a.claimer.hungry, both.b.claimer.hungry = False, True  # what was registered there is not claimed
    both.claims(both.a, 1)
    both.main._advance()
    assert [alias for alias, _ in sent(child)] == ["a"]


def test_a_bench_is_left_when_the_ends_of_its_home_cannot_be_written(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=4)
    both.claims(both.b, 1)
    both.main._advance()
    both.claims(both.a, 2, 3)
    [*suspects] = both.a.dispatcher.withdraw(lambda run: True)
    both.a.dispatcher.suspect(suspects, NOW)
    both.main._advance()
    assert child.reserved, "it is kept for suspects of the other"
    both.a.finaliser.full = True
    both.main._advance()
    assert not child.reserved


def test_what_is_said_of_a_connection_that_is_cut_says_the_home(worker: Any) -> None:
    both = worker()
    both.main.pool.tick = lambda now: None
    said: list[str] = []
    for home in both.main.homes:
        home.loops = [SimpleNamespace(watch=lambda now: said.append(speaks_of.get()))]
    both.main._tick(NOW)
    assert said == ["a", "b"]


def test_suspects_of_a_home_that_is_away_keep_no_bench(worker: Any) -> None:
    both = worker()
    child = both.executor(threads=4)
    both.claims(both.b, 1, 2)
    both.main._advance()
    for number, run in child.runs.items():
        child.board.start(number - 1, number, 1, "sync")
        run.fresh_until = NOW - 1
    both.main.pool.held_jobs.settle(Death.of(child, -9, NOW), by_itself=True)
    assert [run.job.database for run in both.b.dispatcher.suspects] == ["b", "b"]
    assert (both.a.table.deaths.count, both.b.table.deaths.count) == (1, 1)
    child.board.clear(0)
    child.board.clear(1)
    both.main._advance()
    assert not child.reserved
    both.claims(both.a, 3)
    both.main._advance()
    assert sent(child)[2:] == [("a", 3)]


def test_the_signal_of_an_end_says_the_home(worker: Any) -> None:
    both = worker()
    child = both.executor(listens=True)
    both.main.relay.interested(child, EVERY_KIND)
    both.claims(both.b, 7)
    both.main._advance()
    run = both.b.table.held[7]
    both.main._on_message(both.b, Stored(SUCCESS, [(run, End(run.job.id, run.job.claim_id, 0.1), None)]))
    [told] = [message for message in end_of(child).sent if isinstance(message, Notify)]
    assert [(what, about["job_id"], about["database"]) for what, about in told.events] == [("finished", 7, "b")]


def test_a_dead_executor_leaves_nothing_on_any_server(worker: Any) -> None:
    both = worker()
    both.main._end_backends("pgjobs 1")
    assert (both.a.finaliser.ended, both.b.finaliser.ended) == (["pgjobs 1"], ["pgjobs 1"])


def test_trust_is_of_one_home_and_a_late_one_sets_no_deadline(worker: Any) -> None:
    both = worker()
    child = both.executor()
    both.claims(both.a, 1, asked_at=NOW - 5)
    both.claims(both.b, 1, asked_at=NOW - 60)
    end_of(child).sent.clear()
    both.main._on_message(both.a, Renewed(NOW - 2, {"of a"}))
    assert end_of(child).sent == [TrustUntil(NOW - 2 + trust_seconds(), "a")]
    assert both.main.pool.guard.until == NOW - 2 + trust_seconds()
    both.main.pool.guard.until = NOW
    both.main.pool.guard.tick(NOW)
    assert both.main.pool.guard.until == NOW - 2 + trust_seconds(), "not a lease from now: others have a's jobs then"


def test_a_worker_leaves_when_all_homes_are_idle(worker: Any) -> None:
    both = worker(until_idle=True)
    both.executor()
    both.main._on_message(both.a, Idle(NOW))
    both.main._advance()
    assert both.main.draining_until is None
    assert (both.a.claimer.polls, both.b.claimer.polls) == (0, 1), "the other is asked"
    both.main._on_message(both.b, Idle(NOW))
    both.main._advance()
    assert both.main.draining_until is not None


def test_with_a_number_of_jobs_only_one_home_claims_at_a_time(worker: Any) -> None:
    both = worker(max_jobs=3)
    both.executor(threads=8)
    both.main._advance()
    assert (both.asked(both.a), both.asked(both.b)) == ((3, 3, 3), (0, 0, 0))
    both.a.claimer.busy = True
    both.main.requests.take_turns()
    assert both.main.requests.turn is both.a, "its claim may still deliver"
    both.a.claimer.busy = False
    both.main.requests.take_turns()
    both.main._advance()
    assert (both.asked(both.a), both.asked(both.b)) == ((0, 0, 0), (3, 3, 3))


class Away(Loop):
    """A loop whose connection ends at once."""

    role = "away"


def test_the_threads_of_a_home_say_once_that_it_is_away(caplog: pytest.LogCaptureFixture) -> None:
    outage, inbox = Outage(), Inbox()
    loops = [Away(lambda: None, inbox) for _ in range(3)]  # type: ignore[arg-type, return-value]
    for loop in loops:
        loop.belong("b", outage)
        loop.db = SimpleNamespace(connected_at=clock.monotonic(), statements=0)  # type: ignore[assignment]
        loop.stopping.set()
    one, two, three = loops
    for loop in (one, two):
        loop._trouble(psycopg.OperationalError("gone"), 1, gone=True)
    one.connect = lambda: SimpleNamespace(connected_at=0.0, statements=0)  # type: ignore[assignment, return-value]
    one._reconnect(None)
    three._trouble(psycopg.OperationalError("gone"), 1, gone=True)  # it has only just asked on its old connection
    said = [record.getMessage() for record in caplog.records]
    assert said == ["database trouble, will try again loop=away: gone", "database is back loop=away"]
    inbox.close()
