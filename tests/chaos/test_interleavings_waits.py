"""Every order in which those who wait for an event, send it, withdraw it, cancel and release can meet, each checked.

Nobody is asleep once the event was sent, whoever came first and in the middle of whose statement; the first sender
counts and no other is told so; nobody goes on with a payload that was withdrawn; nobody deadlocks. A failure names
its schedule; ``test_one_schedule[scene/program+program/digits]`` plays it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_pgjobs.store import memos
from tests.chaos import wait_judging
from tests.chaos import wait_scenes as waits
from tests.chaos.playing import Judge, Stage, asked_for, called, staged
from tests.chaos.wait_scenes import Program, Scene, World
from tests.plugins.fix_db import patience
from tests.plugins.sabotage import lines_of, sabotage

JUDGE = Judge(wait_judging.set_up, wait_judging.wrong, (), (), may_deadlock=False)


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage[World]]:
    """The explorer on the test database."""
    with staged(django_db_blocker, JUDGE) as stage:
        yield stage


@pytest.mark.parametrize(("scene", "programs"), waits.QUICK, ids=called)
def test_a_few_pairs_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """None is asleep."""
    assert stage.must_hold(scene, [programs]) > 3


@pytest.mark.chaos
@pytest.mark.timeout(patience(1800))
@pytest.mark.parametrize("scene", waits.CAST, ids=called)
def test_all_pairs_in_every_order(stage: Stage[World], scene: Scene) -> None:
    """The same for every two that can meet in a scene."""
    assert stage.must_hold(scene, waits.pairs(waits.CAST[scene])) > 100


@pytest.mark.chaos
@pytest.mark.timeout(patience(1800))
@pytest.mark.parametrize(("scene", "programs"), waits.TRIPLES, ids=called)
def test_triples_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """The same for three who meet at one event, or two who do much."""
    assert stage.must_hold(scene, [programs]) > 100


# --- it can fail -----------------------------------------------------------------------------------------------------

ONLY_A_LOCK = "SET waits = e.waits + 1 WHERE false"

SABOTAGES: tuple[tuple[str, str, str, Scene, tuple[Program, ...]], ...] = (
    ("await_events", "SET waits", ONLY_A_LOCK, waits.known, (waits.goes_on, waits.sends_at_repeatable_read)),
    ("suspend_jobs", "WHEN dated.sent THEN", "", waits.known, (waits.goes_on, waits.sends)),
    ("suspend_jobs", "j.cancel_requested_at IS NULL", "", waits.running, (waits.goes_on, waits.cancels)),
    ("send_event", "WHERE e.sent_at IS NULL", "", waits.waiting, (waits.sends, waits.sends)),
    ("withdraw_event", "e.read_at IS NULL", "", waits.approved, (waits.goes_on, waits.withdraws)),
    ("finish_wait", "FOR NO KEY UPDATE OF e", "", waits.approved, (waits.goes_on, waits.withdraws)),
    ("finish_wait", "SET read_at", "SET read_at = NULL", waits.approved, (waits.goes_on, waits.withdraws)),
    ("finish_wait", "count(*) FROM event", "", waits.woken, (waits.corrects, waits.claims_and_runs)),
)
"""A statement, part of a line of it, what stands in its place, and who then does harm in some order."""


@pytest.mark.parametrize(
    ("name", "part", "instead", "scene", "programs"),
    SABOTAGES,
    ids=[f"{name}-{part}-{called(programs)}" for name, part, _, _, programs in SABOTAGES],
)
def test_without_its_guard_some_order_does_harm(
    stage: Stage[World],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    part: str,
    instead: str,
    scene: Scene,
    programs: Sequence[Program],
) -> None:
    """The sabotaged twin of a statement: a job is asleep, or two are told that they were the first."""
    [line] = {line for _, line in lines_of(part, [name])}
    sabotage(monkeypatch, name, line, instead)
    _, found = stage.play(scene, programs)
    assert found != []
    assert "SyntaxError" not in str(found)


def test_without_the_lock_of_the_event_some_job_sleeps_on(stage: Stage[World], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: a waiter that does not lock the event before it looks whether it was sent."""
    monkeypatch.setattr(memos, "await_events", lambda *_, **__: None)
    _, found = stage.play(waits.known, (waits.goes_on, waits.sends))
    assert "is asleep" in found[1]


# --- one schedule ----------------------------------------------------------------------------------------------------

REMEMBERED = ("known/goes_on+sends/0011",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the test of any schedule that is named on the command line."""
    if metafunc.function is test_one_schedule:
        metafunc.parametrize("name", asked_for(metafunc.config) or REMEMBERED)


def test_one_schedule(stage: Stage[World], name: str) -> None:
    """Play one schedule again, as a failure has named it: scene/program+program/digits."""
    stage.play_named(waits, name)
