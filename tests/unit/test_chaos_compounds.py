"""The judge of jobs that consist of others finds what it is for: one forged end for each kind of violation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_pgjobs.states import GATHERING, NOT_MET, UNDO, FlowFlag
from tests.chaos import compound_judging as c
from tests.chaos import history as h

SAGA, BATCH, MEMBER, AFTER, UNDOER, COMPENSATION, OTHER = 1, 2, 3, 4, 5, 6, 7
MEMBER_BITS = int(FlowFlag.MEMBER)


def orderly() -> c.Compounds:
    """A saga of one step, abandoned and undone; a batch of one member with what comes after its success."""
    undone = int(FlowFlag.REMEMBERS | FlowFlag.UNDOABLE | FlowFlag.UNDONE)
    return c.Compounds(
        parts=[
            c.Part(SAGA, "saga", "s", "abandoned", undone),
            c.Part(UNDOER, UNDO, UNDO, "succeeded", int(FlowFlag.REMEMBERS), target_id=SAGA),
            c.Part(
                COMPENSATION, "take_back", "s/undo/6", "succeeded", MEMBER_BITS, target_id=SAGA, target=(SAGA, "do-0")
            ),
            c.Part(BATCH, GATHERING[0], GATHERING[0], "succeeded", int(FlowFlag.GATED | FlowFlag.NEEDED)),
            c.Part(MEMBER, c.UNDOABLE_MEMBERS, "b/m0", "succeeded", MEMBER_BITS, parent=BATCH),
            c.Part(AFTER, c.UNDOABLE_MEMBERS, "b/succeeded", "succeeded", int(FlowFlag.GATED)),
        ],
        memos=[
            c.Remembered(SAGA, "token", "step", 1.5, result="t"),
            c.Remembered(SAGA, "do-0", "step", 2.0, undoable=True),
        ],
        effects=[(SAGA, "s", "do-0"), (COMPENSATION, "s", "undo")],
        links=[(BATCH, AFTER, "succeeded")],
        gates=[c.Counted(BATCH, 0, 1, 1, 0, 0), c.Counted(AFTER, 0, 1, 1, 0, 0)],
        called=[c.Called(SAGA, "claim", "t")],
        executions=[h.Execution("s", SAGA, "claim", 1, 100, 1.0, 3.0)],
        owners=("saga",),
    )


def found(known: c.Compounds) -> set[str]:
    return {violation.kind for violation in c.check(known)}


def change(known: c.Compounds, job: int, **facts: object) -> None:
    known.parts = [replace(part, **facts) if part.job == job else part for part in known.parts]  # type: ignore[arg-type]


def drop(known: c.Compounds, job: int) -> None:
    known.parts = [part for part in known.parts if part.job != job]


def test_an_orderly_end_is_in_order() -> None:
    assert c.check(orderly()) == []
    counts = c.counts(orderly())
    assert (counts["pgjobs.undo:succeeded"], counts["compound.part:succeeded"], counts["undone_parts"]) == (1, 2, 1)


@pytest.mark.parametrize("job", [SAGA, BATCH, MEMBER, UNDOER])
def test_what_has_not_ended_is_found_whoever_it_belongs_to(job: int) -> None:
    known = orderly()
    change(known, job, outcome=None)
    assert "asleep" in found(known)


def test_a_job_that_is_still_to_be_undone_is_found() -> None:
    known = orderly()
    change(known, SAGA, flow=int(FlowFlag.REMEMBERS | FlowFlag.UNDOABLE | FlowFlag.UNDONE | FlowFlag.UNDOING))
    assert found(known) == {"asleep"}


def test_what_a_body_noted_is_found() -> None:
    known = orderly()
    known.wrong = [("s", SAGA, "gather a gave 'x' for s/a0")]
    assert [str(each) for each in c.check(known)] == ["wrong result: s (job 1) gather a gave 'x' for s/a0"]


def test_what_was_pruned_while_it_was_needed_is_found() -> None:
    known = orderly()
    known.parts.append(c.Part(OTHER, "part", "x", "succeeded", gone=True))
    assert not found(known)
    change(known, OTHER, needed=True)
    assert found(known) == {"pruned too early"}
    known.forged = frozenset({OTHER})
    assert not found(known)


def test_an_effect_that_was_had_twice_or_without_its_memo_or_not_at_all_is_found() -> None:
    known = orderly()
    known.effects.append((SAGA, "s", "do-0"))
    assert found(known) == {"twice in effect"}
    known.effects[-1] = (SAGA, "s", "do-1")
    assert found(known) == {"effect without memo"}
    known.effects = [known.effects[1]]
    assert found(known) == {"effect without memo"}
    known = orderly()
    del known.effects[1]
    assert found(known) == {"effect without memo"}
    known = orderly()
    change(known, COMPENSATION, outcome="abandoned")
    assert found(known) == {"effect without memo", "not undone"}


def test_a_step_that_was_called_though_it_was_remembered_is_found() -> None:
    known = orderly()
    known.called.append(c.Called(SAGA, "late", "another"))
    known.executions.append(h.Execution("s", SAGA, "late", 2, 200, 1.4, 3.0))
    assert not found(known), "it began before the memo was there"
    known.executions[-1].started = 2.5
    assert found(known) == {"memo forgotten"}


def test_what_was_undone_twice_or_not_is_found() -> None:
    known = orderly()
    again = replace(known.parts[2], job=OTHER)
    known.parts.append(again)
    known.effects.append((OTHER, "s", "undo"))
    assert found(known) == {"undone twice"}
    known = orderly()
    drop(known, COMPENSATION)
    assert found(known) == {"not undone"}
    known = orderly()
    change(known, SAGA, flow=int(FlowFlag.REMEMBERS | FlowFlag.UNDOABLE))
    assert found(known) == {"undone unasked"}


def test_a_failed_job_that_nothing_undoes_is_found_unless_its_undo_was_called_off() -> None:
    known = orderly()
    drop(known, COMPENSATION)
    known.effects.pop()
    change(known, SAGA, flow=int(FlowFlag.REMEMBERS | FlowFlag.UNDOABLE))
    change(known, UNDOER, outcome="cancelled")
    assert not found(known)
    drop(known, UNDOER)
    assert found(known) == {"not undone"}
    change(known, SAGA, outcome="succeeded")
    assert not found(known)


def test_a_member_of_an_undone_batch_that_was_not_undone_is_found() -> None:
    known = orderly()
    known.parts.append(c.Part(OTHER, c.UNDOABLE_MEMBERS, "b/m1", "abandoned", MEMBER_BITS, parent=BATCH))
    change(
        known,
        BATCH,
        outcome="abandoned",
        flow=int(FlowFlag.GATED | FlowFlag.NEEDED | FlowFlag.UNDOABLE | FlowFlag.UNDONE),
    )
    change(known, AFTER, outcome="cancelled", cancel_by=NOT_MET)
    known.gates = [c.Counted(BATCH, 0, 2, 1, 1, 0), c.Counted(AFTER, 0, 1, 0, 1, 0)]
    assert found(known) == {"not undone"}
    known.parts.append(c.Part(8, "part.undo", "b/m0/undo/8", "succeeded", target_id=MEMBER, target=(MEMBER, "")))
    known.effects.append((8, "b/m0", "undo"))
    assert not found(known)


def test_a_gate_that_counts_otherwise_than_the_rows_is_found() -> None:
    known = orderly()
    known.gates[0] = c.Counted(BATCH, 0, 1, 0, 1, 0)
    assert found(known) == {"gate is off"}
    known.gates[0] = c.Counted(BATCH, 1, 1, 0, 0, 0)
    assert found(known) == {"gate is off"}
    for job in (MEMBER, BATCH):
        known.forged = frozenset({job})
        assert not found(known)


def test_a_batch_that_ended_otherwise_than_its_members_is_found_unless_somebody_had_a_hand_in_it() -> None:
    known = orderly()
    change(known, MEMBER, outcome="abandoned")
    known.gates[0] = c.Counted(BATCH, 0, 1, 0, 1, 0)
    assert found(known) == {"wrong end"}
    known.touched = frozenset({MEMBER})
    assert not found(known)


def test_what_ran_behind_a_batch_against_the_rule_is_found() -> None:
    known = orderly()
    known.links = [(BATCH, AFTER, "failed")]
    assert found(known) == {"wrong callback"}
    change(known, AFTER, outcome="cancelled", cancel_by=NOT_MET)
    assert not found(known)
    known.links = [(BATCH, AFTER, "succeeded")]
    assert found(known) == {"wrong callback"}
