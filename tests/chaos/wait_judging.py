"""Judges what programs have done to jobs that wait: none sleeps on once the event was sent; the first one counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from django_pgjobs.maintenance.gates import open_due_gates
from tests.chaos.wait_scenes import EVERYTHING, Once, Program, Scene, World, approval
from tests.plugins.fix_db import AUTHOR, TABLES, RawDatabase, claim

EMPTY = ("; ".join(f"DELETE FROM {table}" for table in TABLES),)

ASLEEP = """
    SELECT j.id FROM pgjobs_job AS j
    WHERE j.finished_at IS NULL AND j.claim_id IS NULL AND j.run_at > statement_timestamp() AND (
        j.cancel_requested_at IS NOT NULL OR EXISTS (
            SELECT FROM pgjobs_memo AS m JOIN pgjobs_event AS e ON e.name = m.event AND e.sent_at IS NOT NULL
            WHERE m.job_id = j.id AND m.finished_at IS NULL
        )
    )
"""
"""Jobs that sleep although their event was sent, or although somebody has cancelled them."""

LAST = "sent in the end"


def set_up(db: RawDatabase, scene: Scene) -> World:
    """Make the scene's rows, and nothing else."""
    for statement in EMPTY:
        db.raw.execute(statement, prepare=False)
    world = World(db)
    scene(world)
    return world


def wrong(world: World, programs: dict[str, Program], failed: Collection[str]) -> list[str]:
    """Return what is not as it must be: ``programs`` did it, and those of ``failed`` were rolled back."""
    _write_what_was_left(world)
    found = [*_wrong_sends(world), *_asleep(world.db, "when all have stopped")]
    if not world.sent:
        if not approval.send(payload=LAST):
            found.append("the event counts as sent, and nobody was told that he has sent it")
        world.sent["judge"] = LAST
        found += _asleep(world.db, "when the event was sent in the end")
    return found or [*_wrong_in_the_end(world)]


def _write_what_was_left(world: World) -> None:
    left: list[Any] = []
    for each in world.left:
        Once(world.db, AUTHOR, left=left).again(*each)
    for each in left:  # cancelled meanwhile
        Once(world.db, AUTHOR).again(*each)
    world.left.clear()


def _asleep(db: RawDatabase, when: str) -> Iterator[str]:
    for (job_id,) in db.query(ASLEEP):
        yield f"job {job_id} is asleep {when}"


def _wrong_sends(world: World) -> Iterator[str]:
    """What was taken back counts no more: from then on only the stored payload was sent."""
    stored = world.db.query(
        "SELECT payload #>> '{}' FROM pgjobs_event WHERE name = %s AND sent_at IS NOT NULL", [approval.name]
    )
    left = len(world.sent) - world.withdrawn
    if left not in (0, 1):
        yield f"{len(world.sent)} were told that they have sent the event, {world.withdrawn} that they took it back"
    if len(stored) != left or not {payload for (payload,) in stored} <= set(world.sent.values()):
        yield f"the event has {stored}, and those were told that they have sent it: {world.sent}"
    world.sent = {"stored": stored[0][0]} if stored else {}


def _wrong_in_the_end(world: World) -> Iterator[str]:
    """Workers run what is left: then all have ended, with what the first sender has sent."""
    for held in world.held:  # those that have played are refused
        world.perform(world.db, held)
    _write_what_was_left(world)
    for _ in range(10):
        open_due_gates(world.db)
        taken = claim(world.db, 20, EVERYTHING)
        for each in taken.jobs:
            world.perform(world.db, each)
    [payload] = ["sent by a member"] if world.gathers else set(world.sent.values())
    asked = "SELECT id, name, outcome, result #>> '{}', error, attempt FROM pgjobs_job ORDER BY id"
    for job_id, name, outcome, result, error, attempt in world.db.query(asked):
        if job_id in world.jobs and outcome not in world.outcomes:
            yield f"job {job_id} {name} was {outcome}, not one of {world.outcomes}: {error}"
        if job_id in world.jobs and outcome == "succeeded" and result != payload:
            yield f"job {job_id} got {result}, and {payload} was sent"
        if job_id in world.jobs and outcome == "abandoned" and "WaitTimedOut" not in error:
            yield f"job {job_id} was abandoned: {error}"
        if attempt > 2:
            yield f"job {job_id} was charged {attempt} attempts"
