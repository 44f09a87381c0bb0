"""Every order in which a few of our statements can meet, each checked by what it did to the rows.

A failure names its schedule; ``test_one_schedule[scene/program+program/digits]`` plays it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from tests.chaos import judging, scenes
from tests.chaos.playing import Judge, Stage, asked_for, called, staged
from tests.chaos.scenes import Program, Scene, World
from tests.plugins.fix_db import patience
from tests.plugins.sabotage import fence_lines, line_id, lines_of, sabotage

JUDGE = Judge(judging.set_up, judging.wrong, judging.MAKE_AUDIT, judging.DROP_AUDIT)


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage[World]]:
    """The explorer on the test database, with the trigger that keeps every change of a job."""
    with staged(django_db_blocker, JUDGE, ("lock_pruning",)) as stage:  # no actor prunes
        yield stage


@pytest.mark.parametrize("scene", scenes.QUICK, ids=called)
def test_a_few_pairs_in_every_order(stage: Stage[World], scene: Scene) -> None:
    """X1, X8, C40, C44, C46, C55, A54, W20: one effective end, and nothing is changed by who has lost the job."""
    assert stage.must_hold(scene, scenes.pairs(scenes.QUICK[scene])) > 5


@pytest.mark.chaos
@pytest.mark.timeout(patience(900))
@pytest.mark.parametrize("scene", scenes.CAST, ids=called)
def test_all_pairs_in_every_order(stage: Stage[World], scene: Scene) -> None:
    """The same for every two statements that can meet in a scene."""
    assert stage.must_hold(scene, scenes.pairs(scenes.CAST[scene])) > 100


@pytest.mark.chaos
@pytest.mark.timeout(patience(900))
@pytest.mark.parametrize(("scene", "programs"), scenes.TRIPLES, ids=called)
def test_triples_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """The same for three who are after one job."""
    assert stage.must_hold(scene, [programs]) > 5


# --- it can fail -----------------------------------------------------------------------------------------------------

PROGRAM_OF: dict[str, Program] = {
    "finalise_success": scenes.succeeds,
    "finalise_success_keyed": scenes.remembers,
    "end_atomic": scenes.succeeds_in_its_transaction,
    "finalise_success_fast": scenes.succeeds_fast,
    "finalise_delete_fast": scenes.leaves_nothing_fast,
    "finalise_delete": scenes.leaves_nothing,
    "finalise_delete_keyed": scenes.leaves_its_result,
    "finalise_retry": scenes.fails,
    "finalise_snooze": scenes.snoozes,
    "suspend_jobs": scenes.suspends,
    "write_memo": scenes.remembers_a_step,
    "finish_wait": scenes.remembers_an_event,
    "begin_gather": scenes.begins_to_gather,
    "next_step": scenes.goes_on,
    "finalise_end": scenes.ends,
    "mark_ending": scenes.gives_up,
    "hold_jobs": scenes.puts_aside,
    "release_jobs": scenes.releases,
    "write_progress": scenes.reports,
    "read_payload": scenes.reads_payload,
    "write_cursor": scenes.keeps_its_cursor,
    "read_cursors": scenes.reads_its_cursors,
    "answer_stack": scenes.tells_where_it_is,
    "write_lines": scenes.logs_a_line,
    "rescue_jobs": scenes.rescues,
}
"""Who runs each fenced statement."""


def first_violation(stage: Stage[World], program: Program, cases: Iterable[tuple[Scene, Program]]) -> list[str]:
    for scene, other in cases:
        _, found = stage.play(scene, (program, other))
        if found:
            return found
    return []


def test_every_fenced_statement_is_played() -> None:
    assert {name for name, _ in fence_lines()} == PROGRAM_OF.keys()


@pytest.mark.parametrize(("name", "line"), fence_lines(), ids=line_id)
def test_without_a_line_of_a_fence_some_order_does_harm(
    stage: Stage[World], monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin: the explorer finds a schedule, given who ends a job and who takes it away."""
    sabotage(monkeypatch, name, line)
    rivals = (scenes.rescues, scenes.releases, scenes.succeeds)
    cases = [(scene, rival) for scene in (scenes.expired, scenes.last) for rival in rivals]
    assert first_violation(stage, PROGRAM_OF[name], cases) != []


@pytest.mark.parametrize(
    ("name", "line"),
    lines_of(
        "cancel_requested_at IS NULL",
        ("finalise_retry", "next_step", "finalise_snooze", "suspend_jobs", "hold_jobs", "release_jobs"),
    ),
    ids=line_id,
)
def test_without_its_guard_a_job_to_be_cancelled_would_go_back(
    stage: Stage[World], monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """A54."""
    sabotage(monkeypatch, name, line)
    assert first_violation(stage, PROGRAM_OF[name], [(scenes.running, scenes.cancels)]) != []


def test_without_its_guard_a_claim_would_be_struck_too_early(
    stage: Stage[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job would run, and no rescue would ever find it."""
    [(name, line)] = lines_of("j.id = ANY (k.job_ids)", ("delete_claims",))
    sabotage(monkeypatch, name, line, instead="WHERE false")
    assert first_violation(stage, scenes.succeeds, [(scenes.batch, scenes.forgets)]) != []


def test_a_deadlock_is_an_outcome(stage: Stage[World]) -> None:
    """Two operators' transactions in opposite orders: the server ends one, and the rows are as the other left them."""
    before = stage.deadlocks
    programs = (scenes.cancels_one_by_one, scenes.cancels_one_by_one_backwards)
    course, found = stage.play_one(scenes.batch, programs, [0, 0, 1, 1])
    assert not found, "\n  ".join(found)
    assert stage.deadlocks == before + 1, course.told


# --- one schedule ----------------------------------------------------------------------------------------------------

REMEMBERED = (
    "expired/succeeds+rescues/0110",
    "last/rescues+retries/01110",
    "batch/succeeds+forgets/0010",
    "overdue/gives_up+rescues/010010",  # the deadline that the callback had been given was not seen
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the test of any schedule that is named on the command line."""
    if metafunc.function is test_one_schedule:
        metafunc.parametrize("name", asked_for(metafunc.config) or REMEMBERED)


def test_one_schedule(stage: Stage[World], name: str) -> None:
    """Play one schedule again, as a failure has named it: scene/program+program/digits."""
    stage.play_named(scenes, name)
