"""Who is stopped for the memory of a process: never one that shares it, always someone while it is too much."""

from __future__ import annotations

import random
from typing import Any

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs.presentation.job_rows import peaks_of
from django_pgjobs.worker.shared.channel_messages import StopRun
from django_pgjobs.worker.shared.ladders import MEMORY
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.supervisor import executor_process, memory_guard
from django_pgjobs.worker.supervisor.escalation import judged
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import KILLED, READY, ExecutorProcess
from django_pgjobs.worker.supervisor.memory_guard import MemoryGuard, with_peak
from django_pgjobs.worker.supervisor.recycling import MEGABYTE, Recycling
from tests.unit.worker_fakes import child_of, end_of, run_of


class Ground:
    """An executor whose size the test says, in megabytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int | None = None, size: int = 50) -> None:
        self.size, self.looks, self.now, self.runs = size, 0, 100.0, 0
        self.kept: list[tuple[int, str]] = []
        monkeypatch.setattr(memory_guard, "_size", self._look)
        monkeypatch.setattr(executor_process, "_signal_group", lambda pid, number: None)
        self.guard = MemoryGuard(most, lambda run, peaks: self.kept.append((run.job.id, peaks)))
        self.child = child_of(threads=8)
        assert self.guard.got_ready(self.child) == ""
        self.looks = 0

    def _look(self, pid: int) -> int:
        self.looks += 1
        return self.size * MEGABYTE

    def start(self, memory: int | None = None, **changes: Any) -> HeldRun:
        """Let a job start."""
        self.runs += 1
        extras = None if memory is None else {"options": {"memory": memory}}
        run = run_of(self.runs, number=self.runs, extras=extras, started_at=self.now, **changes)
        self.child.add(run)
        run.child = self.child
        slot = next(slot for slot in range(8) if slot not in self.slots)
        self.slots[slot] = run.run
        self.child.board.start(slot, run.run, int(self.now * 1e9), "sync")
        return run

    @property
    def slots(self) -> dict[int, int]:
        """Slot → run."""
        return self.__dict__.setdefault("_slots", {})  # type: ignore[no-any-return]

    def end(self, run: HeldRun, *, told: bool = True) -> None:
        """Let a job end; the supervisor may not know yet."""
        slot = next(slot for slot, number in self.slots.items() if number == run.run)
        del self.slots[slot]
        self.child.board.clear(slot)
        if told:
            self.learn(run)

    def learn(self, run: HeldRun) -> None:
        """Tell the supervisor that a job has ended."""
        self.child.remove(run.run)
        self.child.learn(0.1, 1)

    def look(self, size: int, seconds: float = 1.0) -> None:
        """Let time pass, and the guard look at a process of this size."""
        self.size, self.now = size, self.now + seconds
        self.guard.check(self.child, self.now)

    @property
    def interrupted(self) -> list[int]:
        """The runs that were interrupted."""
        return [message.run for message in end_of(self.child).sent if isinstance(message, StopRun)]


def dead(child: ExecutorProcess) -> Death:
    return Death.of(child, -9, 200.0)


def test_without_a_limit_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch)
    ground.start()
    for size in (50, 5000, 50_000):
        ground.look(size)
    assert (ground.looks, ground.kept, ground.child.state) == (0, [], READY)


def test_a_job_alone_is_interrupted_and_its_failure_has_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that it took before the first look counts, as nothing else was there."""
    ground = Ground(monkeypatch)
    run = ground.start(memory=100)
    ground.look(149)
    assert (ground.interrupted, ground.kept) == ([], [(1, "1:50-149")])
    ground.look(151)
    assert (ground.interrupted, ground.child.state, list(run.stops)) == ([1], READY, [MEMORY])
    decision = judged(run, decide.Retried(1.0, decide.Failure("MemoryError", "no more", (("MemoryError", "no more"),))))
    assert isinstance(decision, decide.Retried)
    words = (
        "Its process grew by 101 MB, more than 100 MB (memory=100): from 50 MB at the start of the attempt to 151 MB."
    )
    assert decision.failure.summary == f"MemoryExceeded: {words} ← MemoryError: no more"
    assert decision.cause == "failed"
    assert judged(run, decide.Succeeded()) == decide.Succeeded()
    assert ground.kept[-1] == (1, "1:50-151")


def test_one_that_is_deaf_is_killed_and_charged_not_abandoned_as_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch)
    run = ground.start(memory=100)
    run.job.extras["options"]["on_crash"] = "abandon"  # type: ignore[index]
    ground.look(200)
    ground.child.culprits[run.run] = MEMORY
    [(charged, decision)] = dead(ground.child).decisions()
    assert (charged, type(decision)) == (run, decide.Retried)


def test_in_company_the_executor_is_killed_and_nobody_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch)
    runs = [ground.start(), ground.start(memory=100)]
    ground.look(50)
    ground.look(151)
    assert (ground.child.state, ground.interrupted) == (KILLED, [])
    death = dead(ground.child)
    assert (death.suspects, death.charged, death.collateral) == (runs, [], [])
    assert death.reason(KILLED, booting=False) == "memory"
    assert "was killed: Its process grew by 101 MB" in death.failure().message


def test_a_neighbour_that_has_just_ended_may_have_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So not even a single suspect is charged."""
    ground = Ground(monkeypatch)
    other, run = ground.start(), ground.start(memory=100)
    ground.look(60)
    ground.end(other)
    ground.look(170)
    assert ground.child.state == KILLED
    death = dead(ground.child)
    assert (death.suspects, death.charged) == ([run], [])


def test_what_earlier_jobs_took_is_not_its_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch)
    ground.guard.wanted = True
    ground.end(ground.start())
    ground.start(memory=100)
    ground.look(500)
    ground.look(599)
    assert (ground.child.state, ground.interrupted) == (READY, [])
    ground.look(601)
    assert ground.interrupted == [2]


def test_one_whose_end_is_on_its_way_may_have_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch)
    ground.guard.wanted = True
    before = ground.start()
    ground.look(50)
    ground.end(before, told=False)
    ground.start(memory=100)
    ground.look(550)
    assert ground.interrupted == []
    ground.learn(before)
    ground.look(550)
    assert (ground.interrupted, ground.child.state) == ([], READY)


def test_who_inherits_a_full_process_does_not_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch, most=300)
    before = ground.start()
    ground.look(290)
    ground.end(before)
    ground.start()
    ground.look(301)
    assert (ground.interrupted, ground.child.state) == ([], KILLED)
    death = dead(ground.child)
    assert death.charged == []


def test_an_executor_has_a_limit_whatever_its_jobs_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch, most=300)
    run = ground.start()
    ground.look(300)
    assert ground.interrupted == []
    ground.look(301)
    assert ground.interrupted == [1]
    assert run.memory is not None
    assert run.memory.words == (
        "Its process held 301 MB, more than 300 MB (EXECUTOR_KILL_MEGABYTES), "
        "50 MB of them at the start of the attempt."
    )


def test_one_that_is_too_large_without_jobs_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch, most=300)
    ground.size = 151
    told = "an executor without jobs holds 151 MB, EXECUTOR_KILL_MEGABYTES is 300"
    assert ground.guard.got_ready(ground.child) == told
    assert [Recycling(None, *each).most_megabytes for each in ((None, None), (None, 300), (200, 300))] == [
        None,
        225,
        200,
    ]


def test_where_nothing_can_be_measured_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ground = Ground(monkeypatch)
    ground.start(memory=1)
    for _ in range(3):
        ground.look(0)
    assert [record.message for record in caplog.records] == [
        "memory of executors cannot be measured here, its limits do nothing"
    ]


def test_an_executor_that_is_ending_does_not_switch_the_limits_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no pages any more, and is READY until its end is seen."""
    ground = Ground(monkeypatch)
    ground.start(memory=100)
    ground.look(60)
    monkeypatch.setattr(memory_guard, "_size", lambda pid: 0 if pid == ground.child.pid else MEGABYTE)
    ground.look(0)
    assert not ground.guard.blind


def test_short_attempts_leave_no_peak_and_long_ones_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(monkeypatch, most=1000)
    ground.start(attempt=7)
    for size in range(50, 450):
        ground.look(size, 0.25)
        assert len(ground.kept) <= (ground.now - 100.0) / memory_guard.SHORT_SECONDS
    assert 10 < len(ground.kept) < 60
    assert not any(peaks.startswith("7:50-5 ") for _, peaks in ground.kept)
    short = Ground(monkeypatch, most=1000)
    short.start()
    short.look(400, 0.5)
    assert short.kept == []


@pytest.mark.parametrize("before", [None, 7, "", "nonsense", ["1:2-3"]])
def test_peaks_of_the_latest_attempts_are_kept(before: object) -> None:
    peaks = before
    for attempt in (1, 2, 2, 3, 4, 5, 6):
        peaks = with_peak(peaks, attempt, 80 * MEGABYTE, (500 + attempt) * MEGABYTE)
    assert peaks == "3:80-503 4:80-504 5:80-505 6:80-506"
    job: Any = type("Row", (), {"options_text": f'{{"memory": 1, "peaks": "{peaks}"}}'})
    assert peaks_of(job) == {attempt: (80, 500 + attempt) for attempt in (3, 4, 5, 6)}


@pytest.mark.parametrize("seed", range(60))
def test_at_random_nobody_is_charged_that_shared_its_process(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Jobs start, grow and end in any order; all memory is some job's, and stays."""
    chance = random.Random(seed)
    ground = Ground(monkeypatch, most=chance.choice([None, 400]))
    alive: dict[HeldRun, int] = {}
    shared: set[HeldRun] = set()
    size = 50
    for _ in range(200):
        move = chance.random()
        if move < 0.25 and len(alive) < 8:
            alive[ground.start(memory=chance.choice([None, 60, 200]))] = 0
            if len(alive) > 1:
                shared |= set(alive)
        elif move < 0.45 and alive:
            run = chance.choice(list(alive))
            del alive[run]
            ground.end(run)
        elif alive:
            run, more = chance.choice(list(alive)), chance.choice([0, 5, 40])
            size += more
            alive[run] += more
        ground.look(size, 0.25)
        stopped = [run for run in alive if MEMORY in run.stops]
        for run in stopped:
            assert run not in shared
            own = run.job.memory_limit
            assert (own is not None and alive[run] > own) or (
                ground.guard.most is not None and size > ground.guard.most
            )
        over = [run for run in alive if run.job.memory_limit is not None and alive[run] > run.job.memory_limit]
        if over or (ground.guard.most is not None and size > ground.guard.most and alive):
            assert stopped or ground.child.state == KILLED
        if stopped or ground.child.state == KILLED:
            assert any(run.memory is not None and run.memory.words for run in alive)
            return
