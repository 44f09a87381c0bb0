"""Every order in which statements can meet at gates, each checked by what it did to the rows.

No job is left asleep, each is released once and as its gate says, gates count what the rows say, and nobody deadlocks.
A failure names its schedule; ``test_one_schedule[scene/program+program/digits]`` plays it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.chaos import gate_judging
from tests.chaos import gate_scenes as gates
from tests.chaos.gate_scenes import Program, Scene, World
from tests.chaos.playing import Judge, Stage, asked_for, called, staged
from tests.plugins.fix_db import patience
from tests.plugins.sabotage import lines_of, sabotage

JUDGE = Judge(
    gate_judging.set_up,
    gate_judging.wrong,
    gate_judging.MAKE_AUDIT,
    gate_judging.DROP_AUDIT,
    may_deadlock=False,
)

OWN = ("add_gates", "reopen_gates", "revive_jobs", "cancel_jobs", "retry_jobs", "lock_pruning", "lock_turns")
"""They touch only rows which their transaction has locked or inserted before: no statement of others meets them. No job
here is in a sequence."""


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage[World]]:
    """The explorer on the test database, with triggers that keep every change of a job and of a gate."""
    with staged(django_db_blocker, JUDGE, OWN) as stage:
        yield stage


@pytest.mark.parametrize(("scene", "programs"), gates.QUICK, ids=called)
def test_a_few_pairs_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """No job is left asleep, whoever comes first, and in the middle of whose statement."""
    assert stage.must_hold(scene, [programs]) > 5


@pytest.mark.chaos
@pytest.mark.timeout(patience(1800))
@pytest.mark.parametrize("scene", gates.CAST, ids=called)
def test_all_pairs_in_every_order(stage: Stage[World], scene: Scene) -> None:
    """The same for every two that can meet in a scene."""
    assert stage.must_hold(scene, gates.pairs(gates.CAST[scene])) > 100


@pytest.mark.chaos
@pytest.mark.timeout(patience(1800))
@pytest.mark.parametrize(("scene", "programs"), gates.TRIPLES, ids=called)
def test_triples_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """The same for three who meet at one gate."""
    # Where it is due from the beginning, whoever lists it later than others open it does what a pair shows.
    with stage.passing(*(["list_due_gates"] if scene is gates.due else [])):
        assert stage.must_hold(scene, [programs]) > 5


# --- it can fail -----------------------------------------------------------------------------------------------------

LOCK = "FOR NO KEY UPDATE"
SKIPS, WAITS = "FOR NO KEY UPDATE OF j SKIP LOCKED", "FOR NO KEY UPDATE OF j"
UNLOCKED = "SELECT id, outcome FROM pgjobs_job WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id"

SABOTAGES: tuple[tuple[str, str, str, Scene, tuple[Program, ...]], ...] = (
    ("settle_ends", LOCK, "", gates.two_needed, (gates.a_succeeds, gates.b_succeeds)),
    ("settle_ends", "WHERE locked.opens", "WHERE true", gates.two_needed, (gates.a_succeeds, gates.b_succeeds)),
    ("settle_ends", "j.hold IS NOT DISTINCT", "", gates.needed_child, (gates.a_succeeds, gates.cancels_child)),
    ("settle_ends", SKIPS, WAITS, gates.failing_batch, (gates.b_succeeds, gates.cancels_batch)),
    ("settle_ends", "due = CASE", "due = false,", gates.one_needed, (gates.a_succeeds, gates.needs_child)),
    ("open_gates", LOCK, "", gates.empty_batch, (gates.closes, gates.adds)),
    ("open_gates", "ELSE NOT %(locked)s", "ELSE false", gates.empty_batch, (gates.closes, gates.needs_the_batch)),
    ("open_gates", SKIPS, WAITS, gates.empty_batch, (gates.closes, gates.cancels_batch)),
    ("need_jobs", "FOR NO KEY UPDATE", UNLOCKED, gates.alone, (gates.a_succeeds, gates.needs_a)),
    ("finalise_success_fast", "j.flow & 7 = 0", "", gates.alone, (gates.a_succeeds, gates.needs_a)),
    ("finalise_end", "j.flow & 7 = 0", "", gates.alone, (gates.a_fails, gates.needs_a)),
    ("add_members", "AND g.opened_at IS NULL", "", gates.empty_batch, (gates.closes, gates.adds)),
    ("lock_gates", "FOR NO KEY UPDATE", "", gates.two_needed, (gates.a_succeeds, gates.recounts)),
    ("lock_flow", "FOR NO KEY UPDATE", "", gates.failed_batch, (gates.retries_a, gates.claims_and_ends)),
    ("read_gates", "FOR NO KEY UPDATE", "", gates.refused, (gates.b_fails, gates.retries_a)),
    ("rescue_jobs", "WHEN dead.counted", "", gates.dying, (gates.rescues, gates.recounts)),
)
"""A statement, part of a line of it, what stands in its place, and who then does harm in some order."""


@pytest.mark.parametrize(
    ("name", "part", "instead", "scene", "programs"),
    SABOTAGES,
    ids=[f"{name}-{part.strip()}-{called(programs)}" for name, part, _, _, programs in SABOTAGES],
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
    """The sabotaged twin of a statement at gates: a job sleeps or runs too early, figures are off, or two deadlock."""
    lines = {line for _, line in lines_of(part, [name])}
    [line] = lines & {part} or lines
    sabotage(monkeypatch, name, line, instead)
    _, found = stage.play(scene, programs)
    assert found != []


# --- one schedule ----------------------------------------------------------------------------------------------------

REMEMBERED = (
    "alone/a_succeeds+needs_a/0011",
    "failed_batch/retries_a+claims_and_ends/0001110111",  # what came after the batch counted two ends
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the test of any schedule that is named on the command line."""
    if metafunc.function is test_one_schedule:
        metafunc.parametrize("name", asked_for(metafunc.config) or REMEMBERED)


def test_one_schedule(stage: Stage[World], name: str) -> None:
    """Play one schedule again, as a failure has named it: scene/program+program/digits."""
    stage.play_named(gates, name)
