"""What one executor does, or cannot do, costs that executor and not the worker."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs.decisions import Succeed
from django_pgjobs.worker import channel, children
from django_pgjobs.worker.children import READY, STARTING, TERMINATING, Child
from django_pgjobs.worker.crew import DEAF_SECONDS, TELL_BYTES, Crew
from django_pgjobs.worker.decided import pack_decision
from django_pgjobs.worker.holding import Event
from tests.unit.worker_fakes import child_of, end_of, run_of

HELLO = {"protocol": channel.PROTOCOL, "identity": ["it"], "listens": True, "jobs": 1, "rss": 0}


class Selector:
    def register(self, *_: Any) -> None: ...
    def unregister(self, *_: Any) -> None: ...


class Holding:
    """Takes outcomes; one named "bad" cannot be taken."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def done(self, child: Child, items: list[Any]) -> None:
        if items == ["bad"]:
            raise ValueError("not a decision")
        self.outcomes += items

    def settle(self, death: Any) -> None: ...


class Acker:
    def terminate(self, name: str) -> None: ...


@pytest.fixture
def failed() -> list[str]:
    return []


@pytest.fixture
def crew(failed: list[str], monkeypatch: pytest.MonkeyPatch) -> Crew:
    monkeypatch.setattr(children, "spawn", lambda recipe, number: child_of(number=number, state=STARTING, pidfd=None))
    parts: Any = {"selector": Selector(), "holding": Holding(), "acker": Acker(), "failed": failed.append}
    return Crew(None, 3, ["it"], **parts)  # type: ignore[arg-type]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on no process can be started."""

    def refuse() -> None:
        def spawn(recipe: Any, number: int) -> Child:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(children, "spawn", spawn)

    return refuse


def ready(crew: Crew, **changes: Any) -> Child:
    child = child_of(**changes)
    crew.children.append(child)
    crew.booted = True
    return child


def test_the_others_are_started_once_the_first_is_ready(crew: Crew) -> None:
    crew.tick(0.0)
    [first] = crew.children
    crew._on_message(first, [channel.READY, HELLO])
    assert (first.state, crew.booted, len(crew.children)) == (READY, True, 3)
    crew._on_message(crew.children[1], [channel.READY, HELLO])
    assert len(crew.children) == 3


def test_a_process_that_cannot_be_started_is_tried_again_later(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    """No memory, no process left: the jobs of the other executors go on, however long that lasts."""
    child = ready(crew)
    refused()
    for _ in range(9):
        crew.boot_after = 0.0
        crew.tick(10.0)
    assert (failed, crew.children, child.state) == ([], [child], READY)
    assert crew.boot_after > 0.0


def test_a_worker_whose_first_executor_cannot_be_started_stops(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    refused()
    crew.tick(10.0)
    assert failed == ["an executor cannot boot"]


def test_starting_the_others_does_not_go_on_for_ever_when_that_fails(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    crew.tick(0.0)
    refused()
    crew._on_message(crew.children[0], [channel.READY, HELLO])
    assert (len(crew.children), failed) == (1, [])


def test_an_executor_that_sends_nonsense_is_killed_after_what_it_said_before(crew: Crew) -> None:
    child, other = ready(crew), ready(crew)
    end_of(child).arriving = [[channel.DONE, [1]], [channel.DONE, ["bad"]]]
    crew._on_frames(child)
    assert crew.holding.outcomes == [1]  # type: ignore[attr-defined]
    assert (child.state, other.state) == (TERMINATING, READY)
    assert "not a decision" in end_of(child).broken


def test_an_executor_whose_stream_is_broken_is_killed_once(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    child = ready(crew)
    end_of(child).eof, end_of(child).broken = True, "a frame of 4294967295 bytes"
    with caplog.at_level(logging.ERROR):
        crew._on_frames(child)
        crew._on_frames(child)
    assert child.state == TERMINATING
    assert len(caplog.records) == 1


def test_an_executor_that_has_closed_its_channel_and_lives_on_is_killed(crew: Crew) -> None:
    """None of its runs would ever end. One that is about to exit has closed it too, so a moment is waited."""
    crew.processes = 1
    child = ready(crew)
    end_of(child).eof = True
    states = []
    for now in (50.0, 50.0 + DEAF_SECONDS, 50.1 + DEAF_SECONDS, 60.0):
        crew.tick(now)
        states.append(child.state)
    assert states == [READY, READY, TERMINATING, TERMINATING]


def events(number: int) -> Callable[[], list[Event]]:
    return lambda: [("finished", {"job_id": number})]


def test_signals_wait_here_while_the_only_listener_does_not_read(crew: Crew) -> None:
    """A job holds its interpreter, perhaps for long: what waits for its socket has no bound, what waits here has."""
    crew.processes = 2
    deaf, hears = ready(crew, listens=True), ready(crew, listens=True)
    crew.listened = True
    end_of(deaf).kept = TELL_BYTES
    crew.tell(events(1))
    assert (end_of(deaf).sent, end_of(hears).sent) == ([], [[channel.STORED, [("finished", {"job_id": 1})]]])
    end_of(hears).kept = TELL_BYTES
    crew.tell(events(2))
    crew.tell(events(3))
    assert [facts["job_id"] for _, facts in crew.untold] == [2, 3]
    end_of(deaf).kept = 0
    crew.tick(1.0)
    assert [facts["job_id"] for _, facts in end_of(deaf).sent[0][1]] == [2, 3]
    assert not crew.untold


def test_nobody_is_told_where_nobody_listens(crew: Crew) -> None:
    crew.tell(lambda: pytest.fail("asked for"))
    assert not crew.untold


def test_an_outcome_that_cannot_be_read_leaves_its_run_to_the_death_of_its_executor() -> None:
    """And what came before it in the same frame counts."""
    from django_pgjobs.worker.holding import Holding as Real

    class Acking:
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put_many(self, kind: str, entries: list[Any]) -> None:
            self.ids += [end.id for _, end in entries]

    acking: Any = Acking()
    holding = Real(None, None, acking, hear=lambda pair: None, tell=lambda items: None)  # type: ignore[arg-type]
    child = child_of()
    one, two = run_of(10, number=1), run_of(20, number=2)
    child.add(one)
    child.add(two)
    with pytest.raises(ValueError, match="not a decision"):
        holding.done(child, [[1, 0.1, *pack_decision(Succeed("1"))], [2, 0.1, "dance"]])
    assert acking.ids == [10]
    assert child.runs == {2: two}
