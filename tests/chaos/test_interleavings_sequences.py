"""Every order in which registrations, ends and operators can meet in a sequence; triggers judge each of them.

Nobody gets the turn beside another or before its time, no sequence stands still, and nobody deadlocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import pytest

from django_pgjobs import Sequence as InSequence
from django_pgjobs import job
from django_pgjobs.ends import kinds
from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.store import atomic, turns
from django_pgjobs.store.finalising import End
from tests.chaos import gate_scenes as scenes
from tests.chaos.explorer import Actor
from tests.chaos.gate_scenes import (
    ABANDONED,
    Program,
    Scene,
    World,
    a_fails,
    a_succeeds,
    b_succeeds,
    cancels_child,
    claims_and_ends,
    retries_a,
    run,
    sweeps,
)  # fmt: skip
from tests.chaos.playing import Judge, Stage, called, staged
from tests.db import sequences_ground as ground
from tests.plugins.fix_db import AUTHOR, TABLES, RawDatabase, claim, patience
from tests.plugins.sabotage import sabotage


@job(name="scenes.ordered", sequence="all", max_attempts=1)
def ordered() -> None: ...


@job(name="scenes.skipping", sequence=InSequence("all", on_abandon="skip"), max_attempts=1)
def skipping() -> None: ...


# --- scenes ----------------------------------------------------------------------------------------------------------


def begun(world: World) -> None:
    """``a`` runs, and nobody stands behind it."""
    world.jobs["a"] = ordered.register().pk
    run(world, "a")


def waiting(world: World) -> None:
    """``a`` runs, ``child`` waits."""
    begun(world)
    world.jobs["child"] = ordered.register().pk


def two_waiting(world: World) -> None:
    """``a`` runs, ``child`` and another wait."""
    waiting(world)
    world.jobs["last"] = ordered.register().pk


def held_up(world: World) -> None:
    """``a`` was abandoned, ``child`` waits for what becomes of it."""
    waiting(world)
    world.write("a", ABANDONED)


def passed(world: World) -> None:
    """``a`` was abandoned and skipped, ``b`` runs, ``child`` waits."""
    world.jobs["a"] = skipping.register().pk
    run(world, "a")
    world.write("a", ABANDONED)
    world.jobs["b"] = skipping.register().pk
    world.jobs["child"] = skipping.register().pk
    run(world, "b")


# --- programs --------------------------------------------------------------------------------------------------------


def a_succeeds_in_its_transaction(world: World, actor: Actor) -> None:
    """``a`` is atomic."""
    with actor.transaction():
        end = atomic.end_atomic(actor, world.end("a"))
        if end is not None and end.counted:
            turns.settle_ends(actor, [world.jobs["a"]])


def registers(world: World, actor: Actor) -> None:
    """Somebody registers one more."""
    skipping.register()


def registers_two(world: World, actor: Actor) -> None:
    """Somebody registers two in one call."""
    ordered.register_many([(), ()])


def unblocks_child(world: World, actor: Actor) -> None:
    """An operator lets the one that waits pass abandoned ones."""
    Job.objects.filter(pk=world.jobs["child"]).unblock(by="anna")


CAST: dict[Scene, tuple[Program, ...]] = {
    begun: (a_succeeds, a_fails, a_succeeds_in_its_transaction, registers, registers_two),
    waiting: (a_succeeds, a_fails, registers, cancels_child, unblocks_child, sweeps),
    two_waiting: (a_succeeds, cancels_child, claims_and_ends, registers),
    held_up: (retries_a, unblocks_child, cancels_child, registers, claims_and_ends),
    passed: (b_succeeds, retries_a, cancels_child, claims_and_ends, registers),
}

OWNED = ({a_succeeds, a_fails, a_succeeds_in_its_transaction}, {b_succeeds})
"""Each end is written once, by its owner."""


def pairs(cast: tuple[Program, ...]) -> Iterator[tuple[Program, ...]]:
    for programs in combinations_with_replacement(cast, 2):
        if not any(set(programs) <= owned for owned in OWNED):
            yield programs


QUICK: tuple[tuple[Scene, tuple[Program, Program]], ...] = (
    (begun, (a_succeeds, registers)),
    (begun, (registers, registers_two)),
    (begun, (a_succeeds_in_its_transaction, registers)),
    (waiting, (a_succeeds, cancels_child)),
    (held_up, (retries_a, unblocks_child)),
    (passed, (b_succeeds, retries_a)),
)


# --- judging ---------------------------------------------------------------------------------------------------------

EMPTY = ("; ".join(f"DELETE FROM {table}" for table in (*TABLES, "broken_order", "begun_order")),)


def set_up(db: RawDatabase, scene: Scene) -> World:
    for statement in EMPTY:
        db.raw.execute(statement, prepare=False)
    world = World(db)
    scene(world)
    return world


def wrong(world: World, programs: dict[str, Program], failed: Collection[str]) -> list[str]:
    """Return what the triggers noted, and who stands still: at rest, and when a worker has run what is left."""
    while open_due_gates(world.db):
        pass
    found = _at_rest(world.db)
    if found:
        return found
    for name in world.claims:
        scenes.record(world, world.db, name, world.left.get(name, ""))
    while True:
        taken = claim(world.db, 20)
        if not taken.jobs and not open_due_gates(world.db):
            break
        ends = [End(each.id, str(taken.claim_id), 0.0, outcome=each.ending or "") for each in taken.jobs]
        with world.db.transaction():
            kinds.write_counted(world.db, ends, AUTHOR)
    found = _at_rest(world.db)
    left = world.db.query(
        "SELECT j.id FROM pgjobs_job AS j WHERE j.finished_at IS NULL AND NOT EXISTS (SELECT FROM pgjobs_job AS o"
        " WHERE o.outcome = 'abandoned' AND o.flow & 128 = 0 AND o.id < j.id)"
    )
    return found + [f"job {job_id} has not ended" for (job_id,) in left]


def _at_rest(db: RawDatabase) -> list[str]:
    notes = db.query("SELECT what, id, other FROM broken_order")
    still = db.query(ground.STUCK)
    return [f"{what}: job {job_id}, beside {other}" for what, job_id, other in notes] + [
        f"sequence {sequence} stands still before job {job_id}" for sequence, job_id in still
    ]


JUDGE: Judge[World] = Judge(set_up, wrong, (ground.MAKE,), (ground.DROP,), may_deadlock=False)

OWN = (
    "add_gates",
    "reopen_gates",
    "revive_jobs",
    "cancel_jobs",
    "retry_jobs",
    "lock_pruning",
    "wait_again",
    "read_gates",
)
"""They touch only rows which their transaction has locked or inserted before, or that nobody else asks for here."""


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage[World]]:
    """The explorer on the test database, with triggers that judge."""
    with staged(django_db_blocker, JUDGE, OWN) as stage:
        yield stage


@pytest.mark.parametrize(("scene", "programs"), QUICK, ids=called)
def test_a_few_pairs_in_every_order(stage: Stage[World], scene: Scene, programs: Sequence[Program]) -> None:
    """Whoever comes first, and in the middle of whose statement."""
    assert stage.must_hold(scene, [programs]) > 3


@pytest.mark.chaos
@pytest.mark.timeout(patience(1800))
@pytest.mark.parametrize("scene", CAST, ids=called)
def test_all_pairs_in_every_order(stage: Stage[World], scene: Scene) -> None:
    """The same for every two that can meet in a scene."""
    assert stage.must_hold(scene, pairs(CAST[scene])) > 20


LOCK = "SELECT count(pg_advisory_xact_lock(%(class)s::integer, s.bucket))"
NO_LOCK = "SELECT count(s.bucket + 0 * %(class)s::integer)"
LEVEL = ", current_setting('transaction_isolation')"

SABOTAGES: tuple[tuple[str, str, str, Scene, tuple[Program, ...]], ...] = (
    ("lock_sequences", LOCK + LEVEL, NO_LOCK + LEVEL, begun, (registers, a_succeeds)),
    ("lock_turns", LOCK + " AS n", NO_LOCK + " + 1 AS n", begun, (registers, a_succeeds)),
    ("lock_turns", LOCK + " AS n", NO_LOCK + " + 1 AS n", passed, (b_succeeds, retries_a)),
)
"""A statement, a line of it, what stands in its place, and who then does harm in some order."""


@pytest.mark.parametrize(
    ("name", "line", "instead", "scene", "programs"),
    SABOTAGES,
    ids=[f"{name}-{called(scene)}-{called(programs)}" for name, _, _, scene, programs in SABOTAGES],
)
def test_without_its_lock_some_order_does_harm(
    stage: Stage[World],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
    instead: str,
    scene: Scene,
    programs: Sequence[Program],
) -> None:
    """A job is forgotten, or two have the turn."""
    sabotage(monkeypatch, name, line, instead)
    _, found = stage.play(scene, programs)
    assert found != []
