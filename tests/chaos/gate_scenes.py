"""What the explorer plays about gates: jobs that wait for others or for members, and who ends, adds, steers and sweeps.

The rows of a scene are made by the real code. Jobs have names: ``a`` and ``b`` run under claims of their own, ``child``
needs some of them, ``batch`` waits for its members ``a`` and ``b``, ``after`` comes behind the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from uuid import UUID

import psycopg
from django.db import connection

from django_pgjobs import Batch, job
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.exceptions import BatchClosed
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.store import atomic, finalising, gates, keeping
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import End
from tests.chaos.explorer import Actor
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim

OTHER_WORKER = UUID("00000000-0000-4000-8000-000000000002")
ABANDONED = "abandoned"


@job(name="scenes.counted", max_attempts=1)
def counted() -> None: ...


# --- scenes ----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The jobs of one run by their names, whose ends are to be written, and what programs were told."""

    db: RawDatabase
    jobs: dict[str, int] = field(default_factory=dict)
    batch: Batch = field(default_factory=Batch)
    claims: dict[str, str] = field(default_factory=dict)
    counts: dict[str, bool] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    mends: bool = False
    """Whether the leader has to count once more: it passes a gate that somebody has locked."""

    def tell(self, actor: Actor, released: int) -> None:
        """Note how many jobs a program was told to have released."""
        self.told[actor.name] = self.told.get(actor.name, 0) + released

    def end(self, name: str, outcome: str = "") -> End:
        """The end of a running job, as its owner writes it."""
        facts = {"outcome": outcome, "cause": "failed", "failure": FAILURE} if outcome else {"result": "1"}
        return End(self.jobs[name], self.claims[name], 0.0, **facts)

    def write(self, name: str, outcome: str = "") -> None:
        """Write an end and all that it releases, before anybody plays."""
        with self.db.transaction():
            recorded, _ = kinds.write_counted(self.db, [self.end(name, outcome)], AUTHOR)
        assert recorded, name


def run(world: World, *names: str) -> None:
    """Claim what is ready, a claim for each job, in the order of the names."""
    for name in names:
        taken = claim(world.db, 1)
        assert taken.ids == [world.jobs[name]], name
        world.claims[name] = str(taken.claim_id)
        world.counts[name] = finalise.is_counted(taken.jobs[0].extras)


def alone(world: World) -> None:
    """``a`` runs, and nobody needs it yet."""
    world.jobs["a"] = counted.register().pk
    run(world, "a")


def needed(world: World, count: int = 1) -> None:
    parents = [counted.register() for _ in range(count)]
    world.jobs = dict(zip("ab", [parent.pk for parent in parents], strict=False))
    world.jobs["child"] = counted.using(after=parents).register().pk
    run(world, *"ab"[:count])


def one_needed(world: World) -> None:
    """``child`` needs ``a``, which runs."""
    needed(world)


def two_needed(world: World) -> None:
    """``child`` needs ``a`` and ``b``, which run."""
    needed(world, 2)


def two_children(world: World) -> None:
    """Two jobs need ``a`` and ``b``, one of them if both go well, one whatever becomes of them."""
    needed(world, 2)
    parents = Job.objects.filter(pk__in=(world.jobs["a"], world.jobs["b"]))
    world.jobs["other"] = counted.using(after=list(parents), when="settled").register().pk


def needed_child(world: World) -> None:
    """``child`` needs ``a``, and ``grandchild`` the child: what ends that is left to a worker."""
    needed(world)
    world.jobs["grandchild"] = counted.using(after=[world.jobs["child"]]).register().pk


def refused(world: World) -> None:
    """``a`` was abandoned, ``b`` runs; the end of ``child``, which needed both, is left to a worker."""
    needed(world, 2)
    world.write("a", ABANDONED)


def level(world: World) -> None:
    """``a`` was abandoned; ``child`` was cancelled for that, and ``grandchild`` is about to be."""
    parent = counted.register()
    child = counted.using(after=parent).register()
    world.jobs = {"a": parent.pk, "child": child.pk, "grandchild": counted.using(after=child).register().pk}
    run(world, "a")
    world.write("a", ABANDONED)
    run(world, "child")
    world.write("child", "cancelled")


def due(world: World) -> None:
    """``a`` succeeded while somebody had ``child`` locked: its gate is due."""
    needed(world)
    with locked(world.jobs["child"]):
        world.write("a")
    assert world.db.value("SELECT due FROM pgjobs_gate")


def due_refused(world: World) -> None:
    """``a`` was abandoned while somebody had ``child`` locked."""
    needed(world)
    with locked(world.jobs["child"]):
        world.write("a", ABANDONED)


def wrong_gate(world: World) -> None:
    """The gate of ``child``, which needs ``a``, counts one job too many."""
    needed(world)
    world.db.query("UPDATE pgjobs_gate SET pending = pending + 1")
    world.mends = True


def dying(world: World) -> None:
    """``child`` needs ``a``, which its worker has left in its last attempt."""
    needed(world)
    expire(world)


def expire(world: World) -> None:
    world.db.query("UPDATE pgjobs_claim SET lease_expires_at = now() - interval '1 s', check_at = lease_expires_at")
    world.db.query("UPDATE pgjobs_claim SET check_at = lease_expires_at")


def gathering(world: World, count: int = 2, *, close: bool = True) -> None:
    world.batch = Batch(settled=counted.bind()).open()
    world.batch.add_many(counted.bind() for _ in range(count))
    if close:
        world.batch.close()
    world.jobs["batch"] = world.batch.job.pk
    members = Job.objects.filter(parent_id=world.jobs["batch"]).order_by("pk").values_list("pk", flat=True)
    world.jobs |= dict(zip("ab", members, strict=False))
    world.jobs["after"] = Job.objects.get(needs__parent=world.jobs["batch"]).pk
    run(world, *"ab"[:count])


def open_batch(world: World) -> None:
    """A batch that is open for members; one of its members runs."""
    gathering(world, 1, close=False)


def closed_batch(world: World) -> None:
    """A batch that takes no more from outside; both of its members run."""
    gathering(world)


def empty_batch(world: World) -> None:
    """An open batch whose members have all ended."""
    gathering(world, 1, close=False)
    world.write("a")


def failing_batch(world: World) -> None:
    """A closed batch, one of whose members was abandoned while the other runs."""
    gathering(world)
    world.write("a", ABANDONED)


def failed_batch(world: World) -> None:
    """All members have ended, one as abandoned: the end of the batch is left to a worker."""
    gathering(world, 1)
    world.write("a", ABANDONED)


def dying_batch(world: World) -> None:
    """A closed batch whose members' workers are gone."""
    gathering(world)
    expire(world)


@contextmanager
def locked(job_id: int) -> Iterator[None]:
    """Lock a job's row meanwhile, as somebody's transaction may."""
    params = connection.get_connection_params()
    known = {key: params[key] for key in ("dbname", "host", "port", "user", "password") if params.get(key)}
    with psycopg.connect(**known) as other:
        other.execute("SELECT FROM pgjobs_job WHERE id = %s FOR UPDATE", [job_id])
        yield


Scene = Callable[[World], None]

# --- programs --------------------------------------------------------------------------------------------------------

Program = Callable[[World, Actor], None]


def record(world: World, db: Database, name: str, outcome: str = "") -> int | None:
    """Write an end as a finaliser does; return how many jobs it released, None if it has to come again."""
    end = world.end(name, outcome)
    if not world.counts[name]:
        if (
            finalising.finalise_end(db, [end], AUTHOR)
            if outcome
            else finalising.finalise_success_fast(db, [end], AUTHOR)
        ):
            return 0
        reading = finalising.read_fences(db, [(end.id, end.claim_id)]).get(end.id)
        if reading is None or not reading.ours or reading.ended:
            return 0
        if not reading.counted:
            return None
    with db.transaction():  # type: ignore[attr-defined]
        recorded, opened = kinds.write_counted(db, [end], AUTHOR)
    if recorded:
        return len(opened)
    reading = finalising.read_fences(db, [(end.id, end.claim_id)]).get(end.id)
    return 0 if reading is None or not reading.ours or reading.ended else None


def _ends(world: World, actor: Actor, name: str, outcome: str = "") -> None:
    released = record(world, actor, name, outcome)
    if released is None:
        world.left[name] = outcome
    else:
        world.tell(actor, released)


def a_succeeds(world: World, actor: Actor) -> None:
    """The owner of ``a`` records its success, and what that releases."""
    _ends(world, actor, "a")


def a_fails(world: World, actor: Actor) -> None:
    """The owner of ``a`` abandons it."""
    _ends(world, actor, "a", ABANDONED)


def b_succeeds(world: World, actor: Actor) -> None:
    """The owner of ``b`` records its success."""
    _ends(world, actor, "b")


def b_fails(world: World, actor: Actor) -> None:
    """The owner of ``b`` abandons it."""
    _ends(world, actor, "b", ABANDONED)


def both_succeed(world: World, actor: Actor) -> None:
    """One finaliser has the ends of both, the later first."""
    with actor.transaction():
        recorded, opened = kinds.write_counted(actor, [world.end("b"), world.end("a")], AUTHOR)
    world.tell(actor, len(opened))
    world.left |= {name: "" for name in "ab" if world.jobs[name] not in recorded}


def a_succeeds_in_its_transaction(world: World, actor: Actor) -> None:
    """``a`` is atomic: its end, and what that releases, are part of the transaction of its effects."""
    with actor.transaction():
        end = atomic.end_atomic(actor, world.end("a"))
        if end is not None and end.counted:
            world.tell(actor, len(gates.settle_ends(actor, [world.jobs["a"]])))


def needs_a(world: World, actor: Actor) -> None:
    """Somebody registers a job that needs ``a``."""
    counted.using(after=[world.jobs["a"]]).register()


def needs_a_failed(world: World, actor: Actor) -> None:
    """Somebody registers a job that is to run if ``a`` does not succeed."""
    counted.using(after=[world.jobs["a"]], when="failed").register()


def needs_both(world: World, actor: Actor) -> None:
    """Somebody registers a job that needs ``a`` and ``b``."""
    counted.using(after=[world.jobs["b"], world.jobs["a"]]).register()


def needs_child(world: World, actor: Actor) -> None:
    """Somebody registers a job that needs the one that waits, which is locked meanwhile."""
    counted.using(after=[world.jobs["child"]], when="settled").register()


def needs_the_batch(world: World, actor: Actor) -> None:
    """Somebody registers a job that needs the batch."""
    counted.using(after=[world.jobs["batch"]], when="settled").register()


def closes(world: World, actor: Actor) -> None:
    """The producer closes the batch."""
    world.batch.close()


def adds(world: World, actor: Actor) -> None:
    """Somebody adds two members."""
    try:
        world.batch.add_many(counted.bind() for _ in range(2))
    except BatchClosed:
        world.refused += 1


def retries_a(world: World, actor: Actor) -> None:
    """An operator retries ``a``."""
    Job.objects.filter(pk=world.jobs["a"]).retry(by="anna")


def cancels_a(world: World, actor: Actor) -> None:
    """An operator cancels ``a``: its worker is asked, or only its end is left."""
    Job.objects.filter(pk=world.jobs["a"]).cancel(by="anna")


def cancels_child(world: World, actor: Actor) -> None:
    """An operator cancels the job that waits."""
    Job.objects.filter(pk=world.jobs["child"]).cancel(by="anna")


def cancels_batch(world: World, actor: Actor) -> None:
    """An operator cancels the batch."""
    Job.objects.filter(pk=world.jobs["batch"]).cancel(by="anna")


def sweeps(world: World, actor: Actor) -> None:
    """A worker opens gates that are due."""
    world.tell(actor, open_due_gates(actor))


def recounts(world: World, actor: Actor) -> None:
    """The leader counts waiting gates anew."""
    Recount()(actor)


def rescues(world: World, actor: Actor) -> None:
    """A worker takes back what is dead: its end counts in a gate, so that is left to whoever claims it."""
    keeping.rescue_jobs(
        actor,
        limit=10,
        quiet_seconds=0,
        grace_seconds=1,
        stale_seconds=60,
        without_on_cancel=[counted.name],
        without_on_abandon=[counted.name],
    )


def claims_and_ends(world: World, actor: Actor) -> None:
    """Another worker claims a job and ends it, or writes the end that was left to a worker."""
    taken = claim(actor, 1, worker=OTHER_WORKER)
    for each, end in zip(taken.jobs, taken.ends(), strict=True):
        end.outcome = each.ending or ""
        if not finalise.is_counted(each.extras):
            write = finalising.finalise_end if end.outcome else finalising.finalise_success
            if write(actor, [end], AUTHOR):
                return
        with actor.transaction():
            recorded, opened = kinds.write_counted(actor, [end], AUTHOR)
        if not recorded:
            world.left[name_for(world, each.id, str(taken.claim_id))] = end.outcome
        world.tell(actor, len(opened))


def name_for(world: World, job_id: int, claim_id: str) -> str:
    """Give a claim that is left over a name of its own."""
    name = f"{job_id} of another worker"
    world.jobs[name], world.claims[name], world.counts[name] = job_id, claim_id, True
    return name


ENDS_A = (a_succeeds, a_fails, a_succeeds_in_its_transaction)
ENDS_B = (b_succeeds, b_fails)
LEADS = (sweeps, recounts)

CAST: dict[Scene, tuple[Program, ...]] = {
    alone: (*ENDS_A, needs_a, needs_a_failed, cancels_a),
    one_needed: (*ENDS_A, needs_a, needs_child, cancels_a, cancels_child, *LEADS),
    two_needed: (*ENDS_A, *ENDS_B, both_succeed, needs_both, needs_child, cancels_child, *LEADS),
    two_children: (a_succeeds, b_succeeds, a_fails, b_fails, both_succeed),
    needed_child: (*ENDS_A, needs_a, needs_child, cancels_child, claims_and_ends),
    refused: (*ENDS_B, retries_a, needs_a, cancels_child, claims_and_ends, *LEADS),
    level: (retries_a, claims_and_ends, needs_a, *LEADS),
    due: (*LEADS, cancels_child, needs_a, needs_child, claims_and_ends),
    due_refused: (*LEADS, retries_a, cancels_child, needs_child, claims_and_ends),
    wrong_gate: (a_succeeds, needs_a, cancels_child, *LEADS),  # the figures of one that has opened stay as they are
    dying: (a_succeeds, a_fails, rescues, claims_and_ends, needs_a, cancels_a, recounts),
    open_batch: (*ENDS_A, closes, adds, cancels_a, cancels_batch, *LEADS),
    closed_batch: (*ENDS_A, *ENDS_B, both_succeed, adds, cancels_a, cancels_batch, needs_the_batch, *LEADS),
    empty_batch: (closes, adds, cancels_batch, needs_the_batch, *LEADS),
    failing_batch: (*ENDS_B, retries_a, adds, cancels_batch, *LEADS),
    failed_batch: (retries_a, claims_and_ends, adds, cancels_batch, *LEADS),
    dying_batch: (a_succeeds, b_succeeds, rescues, claims_and_ends, cancels_batch),
}
"""Who plays in which scene."""

ENDS_OF: dict[Program, str] = {
    **dict.fromkeys(ENDS_A, "a"),
    **dict.fromkeys(ENDS_B, "b"),
    both_succeed: "ab",
}
"""Whose attempts a program ends: each is ended once, by its owner."""


def pairs(cast: tuple[Program, ...]) -> Iterator[tuple[Program, ...]]:
    """Return every two programs of a cast that can meet."""
    for programs in combinations_with_replacement(cast, 2):
        first, second = (set(ENDS_OF.get(program, "")) for program in programs)
        if not first & second and set(programs) != {cancels_batch}:  # thousands of orders, and a cancel may be repeated
            yield programs


QUICK: tuple[tuple[Scene, tuple[Program, Program]], ...] = (
    (alone, (a_succeeds, needs_a)),
    (two_needed, (a_succeeds, b_succeeds)),
    (two_needed, (a_succeeds, b_fails)),
    (one_needed, (a_succeeds, needs_child)),
    (one_needed, (a_fails, recounts)),
    (open_batch, (a_succeeds, closes)),
    (empty_batch, (closes, adds)),
    (closed_batch, (a_succeeds_in_its_transaction, b_succeeds)),
    (due, (sweeps, cancels_child)),
    (dying, (a_succeeds, rescues)),
)
"""Played in every run of the suite."""

TRIPLES: tuple[tuple[Scene, tuple[Program, ...]], ...] = (
    (two_needed, (a_succeeds, b_succeeds, sweeps)),
    (alone, (a_succeeds, needs_a, sweeps)),
    (due, (sweeps, sweeps, cancels_child)),
    (empty_batch, (closes, sweeps, recounts)),
    (open_batch, (a_succeeds, closes, sweeps)),
)
"""Three that meet at one gate."""
