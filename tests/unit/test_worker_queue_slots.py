"""Places of queues: never more runs than places, and what is full keeps nothing else waiting (I26)."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.supervisor.dispatcher import ALONE_SECONDS, Dispatcher
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.queue_slots import FIRST_SECONDS, QueueSlots
from django_pgjobs.worker.threads.claim_room import ClaimRoom
from tests.unit.worker_fakes import child_of, claimed, run_of

NOW = 50.0
PLACES = {"mail": 2, "report": 1, "free": None, "*": 3}


class Ground:
    """A dispatcher with places and one or two executors, the clock standing still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, executors: int = 1, threads: int = 8) -> None:
        self.now = NOW
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self.slots = QueueSlots(PLACES)
        self.dispatcher = Dispatcher(slots=self.slots)
        self.children = [child_of(threads=threads, mean_seconds=1.0) for _ in range(executors)]
        self.ids = 0

    def add(self, queue: str, count: int = 1, **changes: Any) -> list[HeldRun]:
        runs = []
        for _ in range(count):
            self.ids += 1
            runs.append(run_of(self.ids, queue=queue, name=f"slots.{self.ids}", **changes))
        self.dispatcher.add(runs, self.now)
        return runs

    def dispatch(self) -> None:
        self.dispatcher.dispatch(self.children, self.now)

    def running(self) -> Counter[str]:
        return Counter(run.job.queue for child in self.children for run in child.runs.values())

    def end(self, queue: str, count: int = 1) -> None:
        for _ in range(count):
            child, number = next(
                (child, number)
                for child in self.children
                for number, run in child.runs.items()
                if run.job.queue == queue
            )
            self.take(child, number)

    def take(self, child: ExecutorProcess, number: int) -> HeldRun:
        run = child.remove(number)
        assert run is not None
        self.dispatcher.count([run], -1)
        return run


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(monkeypatch)


def test_a_queue_that_is_full_keeps_no_other_waiting(ground: Ground) -> None:
    ground.add("mail", 5)
    ground.add("other", 1)
    ground.add("another", 1)
    ground.dispatch()
    assert ground.running() == {"mail": 2, "other": 1, "another": 1}
    assert ground.dispatcher.room(ground.children) == (4, 3), "what waits for its queue takes no room from others"
    assert (len(ground.dispatcher), ground.dispatcher.waits()["mail"]) == (3, 3)
    ground.end("mail")
    ground.dispatch()
    assert ground.running()["mail"] == 2


def test_all_queues_without_places_of_their_own_share_those_of_the_star(ground: Ground) -> None:
    ground.add("a", 2)
    ground.add("b", 2)
    ground.dispatch()
    assert ground.running() == {"a": 2, "b": 1}
    ground.end("a")
    ground.dispatch()
    assert ground.running() == {"a": 1, "b": 2}


@pytest.mark.parametrize("queue", ["free", "pgjobs"])
def test_a_queue_without_a_number_and_our_own_are_not_counted(ground: Ground, queue: str) -> None:
    ground.add(queue, 7)
    ground.dispatch()
    assert ground.running() == {queue: 7}
    assert not any(ground.slots.taken.values())


def test_the_best_of_a_full_queue_is_the_next(ground: Ground) -> None:
    ground.add("report")
    ground.dispatch()
    ground.add("report", 2)
    ground.dispatch()
    [urgent] = ground.add("report", priority=9)
    ground.dispatch()
    ground.end("report")
    ground.dispatch()
    assert urgent.child is not None


def test_what_has_waited_for_a_slot_can_be_withdrawn_and_then_none_is_claimed_ahead(ground: Ground) -> None:
    ground.slots.mean_seconds["mail"] = 0.001
    assert ground.slots.rooms(Counter(), 1)["mail"] == 42
    ground.add("mail", 5)
    ground.dispatch()
    taken = ground.dispatcher.withdraw(lambda run: run.job.queue == "mail")
    ground.slots.waited(taken, 2.0)
    assert len(taken) == 3
    assert (len(ground.dispatcher), ground.slots.rooms(Counter(), 1)["mail"]) == (0, 0)


def test_suspects_have_their_slots_before_others_of_their_queue(ground: Ground) -> None:
    suspects = ground.add("mail", 2)
    ground.dispatch()
    for number in list(ground.children[0].runs):
        ground.take(ground.children[0], number)
    ground.add("mail", 4)
    ground.dispatcher.halve(suspects, NOW, after="dead")
    ground.dispatch()
    assert ground.running()["mail"] == 0
    ground.dispatcher.backends_ended("dead")
    ground.dispatch()
    assert [run.job.id for run in ground.children[0].runs.values()] == [suspects[0].job.id]


def test_suspects_beyond_the_places_wait_and_reserve_no_bench(ground: Ground) -> None:
    ground.add("report")
    ground.dispatch()
    ground.dispatcher.suspect([run_of(99, queue="report")], NOW)
    ground.add("other")
    ground.dispatch()
    assert ground.running() == {"report": 1, "other": 1}
    assert not ground.children[0].reserved


def test_a_group_of_suspects_that_is_full_stands_in_the_way_of_none(ground: Ground) -> None:
    """With one executor, a bench that waits for a full queue would stop the worker."""
    ground.add("report")
    ground.dispatch()
    ground.dispatcher.suspect([run_of(98, queue="report")], NOW)
    ground.dispatcher.suspect([run_of(99, queue="mail")], NOW)
    ground.now += 2 * ALONE_SECONDS
    ground.dispatch()
    ground.now += 2 * ALONE_SECONDS
    ground.dispatch()
    assert ground.running() == {"report": 1, "mail": 1}
    ground.end("mail")
    ground.now += 2 * ALONE_SECONDS
    ground.add("other")
    ground.dispatch()
    assert ground.running() == {"report": 1, "other": 1}, "what is left of them reserves no bench"


def test_suspects_whose_queue_is_full_keep_none_of_their_group_from_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch, threads=2)
    ground.add("report")
    ground.dispatch()
    ground.dispatcher.suspect([*(run_of(id, queue="report") for id in (96, 97, 98)), run_of(99, queue="mail")], NOW)
    ground.dispatch()
    ground.now += 2 * ALONE_SECONDS
    ground.dispatch()
    assert ground.running() == {"report": 1, "mail": 1}
    assert [run.job.id for run in ground.dispatcher.suspects] == [96, 97, 98]


def test_short_jobs_are_claimed_ahead_and_long_ones_are_not(ground: Ground) -> None:
    assert ground.slots.rooms(Counter(), 1) == {"mail": 2, "report": 1, "*": 3}
    for _ in range(60):
        ground.add("mail", 2)
        ground.dispatch()
        ground.now += 0.002
        ground.end("mail", 2)
    assert ground.slots.mean_seconds["mail"] < 0.01 < FIRST_SECONDS
    room = ground.slots.rooms(Counter(), 1)["mail"]
    assert room > 4
    ground.add("mail", 2)
    ground.dispatch()
    assert ground.slots.rooms(Counter(mail=room - 2), 1)["mail"] == 0, "less than half of it is free"
    for _ in range(3):
        ground.now += 60.0
        ground.end("mail", 2)
        ground.add("mail", 2)
        ground.dispatch()
    assert ground.slots.rooms(Counter(), 1)["mail"] == 0


def test_each_of_several_homes_is_offered_one_slot_at_least(ground: Ground) -> None:
    assert ground.slots.rooms(Counter(), 2) == {"mail": 1, "report": 1, "*": 1}
    assert ground.slots.rooms(Counter(mail=2, report=1), 2) == {"mail": 0, "report": 0, "*": 1}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_queue_has_more_runs_than_places_and_none_waits_for_another(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Jobs come, end, come back, are withdrawn, and executors die, at random; in the end all have run."""
    dice = random.Random(seed)
    ground = Ground(monkeypatch, executors=2, threads=4)
    ended = 0
    for _ in range(300):
        what = dice.random()
        busy = [(child, number) for child in ground.children for number in child.runs]
        if what < 0.35:
            queue = dice.choice(["mail", "report", "free", "a", "b", "pgjobs"])
            ground.add(queue, dice.randint(1, 4), priority=dice.randint(-1, 1))
        elif what < 0.75 and busy:
            ground.take(*dice.choice(busy))
            ended += 1
        elif what < 0.85 and busy:
            ground.dispatcher.add([ground.take(*dice.choice(busy))], ground.now)
        elif what < 0.9:
            rest = dice.randrange(5)
            ended += len(ground.dispatcher.withdraw(partial(is_nth, rest)))
        elif busy:
            at = dice.randrange(2)
            runs = [ground.take(ground.children[at], number) for number in list(ground.children[at].runs)]
            ground.children[at] = child_of(threads=4, mean_seconds=1.0)
            if runs:
                ground.dispatcher.halve(runs, ground.now, after="")
        ground.now += dice.random() * 20
        check(ground)
    while len(ground.dispatcher) or any(child.runs for child in ground.children):
        for child in ground.children:
            for number in list(child.runs):
                ground.take(child, number)
                ended += 1
        ground.now += 40.0
        check(ground)
    assert ended == ground.ids


def is_nth(rest: int, run: HeldRun) -> bool:
    return run.job.id % 5 == rest


def check(ground: Ground) -> None:
    ground.dispatch()
    running = ground.running()
    groups = Counter({"mail": running["mail"], "report": running["report"], "*": running["a"] + running["b"]})
    assert groups == Counter(ground.slots.taken), "what is counted is what runs"
    assert all(count <= (PLACES[group] or 0) for group, count in groups.items()), groups
    if any(child.exclusive or child.reserved for child in ground.children):
        return
    free = sum(child.room(is_async=False) for child in ground.children)
    waiting = {run.job.queue for run in ground.dispatcher.waiting[False]}
    assert not (free and waiting), f"{waiting} wait though threads are free"


# What a claim asks for


def test_a_claim_asks_for_what_has_room_only() -> None:
    room = ClaimRoom(queues={"mail", "pgjobs"})
    room.offer(8, 0, None, {"mail": 2, "*": 5})
    assert room.asked() == {False: 3, (False, "mail"): 2, (False, "pgjobs"): 3}
    room.dry = dict.fromkeys(room.dry, True) | {False: False}
    assert room.asked() == {False: 5, (False, "mail"): 1, (False, "pgjobs"): 1}
    room.took([claimed(1, queue="mail"), claimed(2, queue="mail")])
    assert room.is_full("mail")
    assert not room.is_full("other")
    assert (False, "mail") not in room.asked()
    room.took([claimed(id, queue="other") for id in range(3, 8)])
    assert room.is_full("other")
    assert not room.is_full("pgjobs")
    room.offer(8, 0, None, {"mail": 2, "*": 5})
    assert room.slots == {"mail": 0, "*": 0}, "main speaks of room that jobs on their way to it take"
    room.adopted([claimed(1, queue="mail")])
    room.offer(7, 0, None, {"mail": 1, "*": 5})
    assert room.slots == {"mail": 0, "*": 0}


def test_jobs_of_both_colours_share_the_places_of_their_queue_by_turns() -> None:
    room = ClaimRoom(frozenset({"on.loop"}), {"mail"})
    room.offer(8, 50, None, {"mail": 1})
    first, second = ({line for line in room.asked() if not isinstance(line, bool)} for _ in range(2))
    assert sorted(first | second) == [(False, "mail"), (True, "mail")]
    assert first != second
    room.took([claimed(1, queue="mail", name="on.loop")])
    assert set(room.asked()) == {False, True}


@pytest.mark.parametrize("on_loop", [frozenset(), frozenset({"on.loop"})])
def test_each_line_is_the_first_in_turn_to_get_the_last_jobs_of_a_worker(on_loop: frozenset[str]) -> None:
    """Else ``--max-jobs`` would take the last ones from the same queue always."""
    room = ClaimRoom(on_loop, {"mail", "report"})
    room.offer(8, 8, 1, {"mail": 1, "report": 1})
    firsts = {next(iter(room.asked())) for _ in range(2 * len(room.dry))}
    assert firsts == set(room.dry)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_asked_for_is_never_much_more_than_there_is_room_for(seed: int) -> None:
    """One job beyond it for each line at most, and no line with room that may have jobs is left out for long."""
    dice = random.Random(seed)
    room = ClaimRoom(frozenset({"on.loop"}) if dice.random() < 0.5 else frozenset(), {"mail", "report"})
    room.offer(
        dice.randint(0, 9),
        dice.randint(0, 9),
        None,
        {"mail": dice.randint(-1, 3), "report": 1, "*": dice.randint(0, 9)},
    )
    room.dry = {line: dice.random() < 0.4 for line in room.dry}
    asked = [room.asked() for _ in range(2)]
    for each in asked:
        assert all(0 < number <= room.of(line) for line, number in each.items())
        for colour, wanted in room.wanted.items():
            some = [line for line in each if line == colour or (isinstance(line, tuple) and line[0] is colour)]
            assert sum(each[line] for line in some) <= max(wanted, 0) + len(some)
    able = {line for line in room.dry if room.of(line) > 0}
    assert {*asked[0], *asked[1]} == able
