"""What the interleaving explorer plays: scenes (how a job stands), programs (what is done to it), and casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any
from uuid import UUID

import psycopg
from django.db import transaction

from django_pgjobs.models import Job
from django_pgjobs.states import FlowFlag
from django_pgjobs.store import atomic, finalising, keeping, memos, stacks, steering
from django_pgjobs.store.finalising import End, SteppedJob
from django_pgjobs.store.memos import NewMemo
from tests.chaos.explorer import Actor
from tests.plugins.fix_db import AUTHOR, FAILURE, Claimed, RawDatabase, claim

PLAIN, WITH_CALLBACKS = "test.job", "tests.jobs.calls_back"
OTHER_WORKER = UUID("00000000-0000-4000-8000-000000000002")
QUEUE = "default"
SLEEP = '{"memo": "sleep", "kind": "sleep", "event": null, "delay": 60, "failures": 0, "progressed": false}'
STEP = f'{{"name": "{PLAIN}", "queue": "{QUEUE}", "max_attempts": 3, "payload": {{}}}}'

# --- scenes ----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The rows of one run, and what its actors were told."""

    db: RawDatabase
    claimed: Claimed = field(default_factory=lambda: Claimed(UUID(int=0), []))
    job_ids: list[int] = field(default_factory=list)
    rights: dict[str, set[str]] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    history: set[tuple[int, str]] = field(default_factory=set)
    lease_is_good: bool = False

    def answer(self, actor: Actor, count: int) -> int:
        """Note how many writes the actor was told to have made."""
        self.answered[actor.name] = self.answered.get(actor.name, 0) + count
        return count

    def end(self, **facts: Any) -> list[End]:
        """The owner's end of the first job."""
        return [End(self.job_ids[0], str(self.claimed.claim_id), **facts)]


def register(world: World, count: int = 1, *, name: str = PLAIN, max_attempts: int = 5) -> None:
    world.job_ids = [
        row[0]
        for row in world.db.query(
            "INSERT INTO pgjobs_job (name, payload, max_attempts, run_at) "
            "SELECT %s, '{}', %s, now() - interval '1 minute' FROM generate_series(1, %s) RETURNING id",
            [name, max_attempts, count],
        )
    ]


def expire(world: World) -> None:
    world.db.query("UPDATE pgjobs_claim SET lease_expires_at = now() - interval '1 s', check_at = lease_expires_at")
    world.db.query("UPDATE pgjobs_claim SET check_at = lease_expires_at")


def ready(world: World) -> None:
    """A job nobody has claimed."""
    register(world)


def running(world: World, *, count: int = 1, name: str = PLAIN, max_attempts: int = 5) -> None:
    """A job that its owner runs under a good lease."""
    register(world, count, name=name, max_attempts=max_attempts)
    world.claimed = claim(world.db, count)


def expired(world: World) -> None:
    """Its owner was away and does not know that the lease has run out."""
    running(world)
    expire(world)


def last(world: World) -> None:
    """The same in its last attempt: a rescue ends it, and leaves the claim on the row."""
    running(world, max_attempts=1)
    expire(world)


def overdue(world: World) -> None:
    """The lease is good, the deadline has passed."""
    running(world)
    world.db.query("UPDATE pgjobs_job SET overdue_at = now() - interval '1 hour'")
    world.db.query("UPDATE pgjobs_claim SET check_at = now() - interval '1 hour'")


def asked(world: World) -> None:
    """It was asked to end as cancelled, and its lease has run out."""
    running(world)
    steering.cancel_jobs(world.db, world.job_ids, mode="ask", by="", reason="", with_callback=[])
    expire(world)


def last_with_callbacks(world: World) -> None:
    """A rescue leaves its callback to whoever claims it next."""
    running(world, name=WITH_CALLBACKS, max_attempts=1)
    expire(world)


def ready_with_callbacks(world: World) -> None:
    """Cancelled or abandoned now, only its callback is left."""
    register(world, name=WITH_CALLBACKS)


def calling_back(world: World) -> None:
    """Its owner runs the callback; the lease has run out."""
    running(world, name=WITH_CALLBACKS)
    finalising.mark_ending(
        world.db, world.end(outcome="abandoned", cause="failed", failure=FAILURE), AUTHOR, allowance_seconds=5
    )
    expire(world)


def abandoned(world: World) -> None:
    """It has ended under its owner's claim, which is still in the ledger."""
    running(world)
    finalising.finalise_end(world.db, world.end(outcome="abandoned", cause="failed", failure=FAILURE), AUTHOR)


def parked(world: World) -> None:
    """Its owner could not run it."""
    running(world)
    finalising.park_jobs(world.db, world.end(reason="not known", fingerprint="old"))


def batch(world: World) -> None:
    """Two jobs under one expired claim; programs of the owner end the first."""
    running(world, count=2)
    expire(world)


Scene = Callable[[World], None]


# --- programs --------------------------------------------------------------------------------------------------------

Program = Callable[[World, Actor], object]


def claims(world: World, actor: Actor) -> Claimed:
    """Another worker claims what is ready."""
    claimed = claim(actor, 1, worker=OTHER_WORKER)
    world.rights.setdefault(actor.name, set()).add(str(claimed.claim_id))
    world.answer(actor, len(claimed.jobs))
    return claimed


def claims_and_ends(world: World, actor: Actor) -> None:
    """Another worker claims a job and runs it, or its callback."""
    claimed = claims(world, actor)
    for taken in claimed.jobs:
        ends = claimed.ends(outcome=taken.ending or "")
        write = finalising.finalise_end if taken.ending else finalising.finalise_success
        world.answer(actor, len(write(actor, ends, AUTHOR)))


def succeeds(world: World, actor: Actor) -> None:
    """The owner records a success, then strikes the claim."""
    world.answer(actor, len(finalising.finalise_success(actor, world.end(result="1"), AUTHOR)))
    forgets(world, actor)


def succeeds_fast(world: World, actor: Actor) -> None:
    """The owner records a success as the finaliser does: fast, and past a locked row after a deadlock."""
    ends = world.end(result="1")
    try:
        written = finalising.finalise_success_fast(actor, ends, AUTHOR)
    except psycopg.errors.DeadlockDetected:
        written = finalising.finalise_success(actor, ends, AUTHOR)
    world.answer(actor, len(written))
    forgets(world, actor)


def leaves_nothing(world: World, actor: Actor) -> None:
    """The owner ends a job of which nothing is kept, then strikes the claim."""
    world.answer(actor, len(finalising.finalise_delete(actor, world.end())))
    forgets(world, actor)


def leaves_nothing_fast(world: World, actor: Actor) -> None:
    """The same, as the finaliser does: fast, and past a locked row after a deadlock."""
    try:
        deleted = finalising.finalise_delete_fast(actor, world.end())
    except psycopg.errors.DeadlockDetected:
        deleted = finalising.finalise_delete(actor, world.end())
    world.answer(actor, len(deleted))
    forgets(world, actor)


def remembers(world: World, actor: Actor) -> None:
    """The owner records a success, and its result under the job's idempotency key if it has one."""
    world.answer(actor, len(finalising.finalise_success(actor, world.end(result="1"), AUTHOR, remember=True)))
    forgets(world, actor)


def leaves_its_result(world: World, actor: Actor) -> None:
    """The owner ends a job of which nothing is kept but its result under an idempotency key."""
    world.answer(actor, len(finalising.finalise_delete(actor, world.end(result="1"), remember=True)))
    forgets(world, actor)


def succeeds_in_its_transaction(world: World, actor: Actor) -> None:
    """The end is part of the transaction of the job's own effects."""
    _ends_in_its_transaction(world, actor, atomic.end_atomic)


def remembers_in_its_transaction(world: World, actor: Actor) -> None:
    """The same for a job with an idempotency key."""
    _ends_in_its_transaction(world, actor, atomic.end_atomic_keyed)


def _ends_in_its_transaction(world: World, actor: Actor, write: Callable[[Actor, End], object]) -> None:
    [end] = world.end(result="1")
    actor.raw.query("BEGIN")
    written = write(actor, end)
    actor.query("COMMIT" if written else "ROLLBACK")
    world.answer(actor, int(bool(written)))


def fails(world: World, actor: Actor) -> None:
    """The owner records a failure; the job is tried again."""
    end = world.end(cause="failed", failure=FAILURE)
    world.answer(actor, len(finalising.finalise_retry(actor, end, AUTHOR)))


def snoozes(world: World, actor: Actor) -> None:
    """The job wants to come back."""
    world.answer(actor, len(finalising.finalise_snooze(actor, world.end())))


def suspends(world: World, actor: Actor) -> None:
    """A durable function sleeps."""
    world.answer(actor, len(memos.suspend_jobs(actor, world.end(columns=SLEEP), AUTHOR)))


def remembers_a_step(world: World, actor: Actor) -> None:
    """It remembers its first step."""
    [end] = world.end()
    memo = NewMemo("pay", "step", "1", 0.0, int(FlowFlag.REMEMBERS))
    world.answer(actor, int(memos.write_memo(actor, end.id, end.claim_id, memo)))


def remembers_an_event(world: World, actor: Actor) -> None:
    """It finds that the event was sent which it is about to wait for."""
    [end] = world.end()
    memos.send_event(world.db, "approval", "1", "")
    waited = memos.finish_wait(actor, end.id, end.claim_id, name="approval", kind="event", event="approval")
    world.answer(actor, int(waited is not None))


def begins_to_gather(world: World, actor: Actor) -> None:
    """It remembers a batch."""
    [end] = world.end()
    fields: Any = {"name": "gather", "event": "done", "before": None, "result": "{}", "seconds": 60.0}
    world.answer(actor, int(memos.begin_gather(actor, end.id, end.claim_id, **fields)))


def goes_on(world: World, actor: Actor) -> None:
    """The job goes on with its next step."""
    world.answer(actor, len(finalising.next_step(actor, world.end(columns=STEP), AUTHOR)))


def goes_on_in_its_transaction(world: World, actor: Actor) -> None:
    """The same as part of the transaction of the step's own effects."""
    [end] = world.end(columns=STEP)
    actor.raw.query("BEGIN")
    stepped = isinstance(atomic.next_step_atomic(actor, end), SteppedJob)
    actor.query("COMMIT" if stepped else "ROLLBACK")
    world.answer(actor, int(stepped))


def releases(world: World, actor: Actor) -> None:
    """The owner gives the job back, unstarted."""
    world.answer(actor, len(finalising.release_jobs(actor, world.end(), AUTHOR)))


def parks(world: World, actor: Actor) -> None:
    """The owner cannot run it."""
    world.answer(actor, len(finalising.park_jobs(actor, world.end(reason="not known", fingerprint="old"))))


def puts_aside(world: World, actor: Actor) -> None:
    """The owner finds that the job's name is paused."""
    world.answer(actor, len(finalising.hold_jobs(actor, world.end(reason="paused by anna"))))


def gives_up(world: World, actor: Actor) -> None:
    """The owner marks the job, runs its callback, and ends it."""
    end = world.end(outcome="abandoned", cause="failed", failure=FAILURE)
    if world.answer(actor, len(finalising.mark_ending(actor, end, AUTHOR, allowance_seconds=5))):
        ends_callback(world, actor)


def ends(world: World, actor: Actor) -> None:
    """The owner ends the job, which has no callback."""
    end = world.end(outcome="abandoned", cause="failed", failure=FAILURE)
    world.answer(actor, len(finalising.finalise_end(actor, end, AUTHOR)))


def ends_callback(world: World, actor: Actor) -> None:
    """The owner's callback has run."""
    world.answer(actor, len(finalising.finalise_end(actor, world.end(outcome="abandoned"), AUTHOR)))


def reports(world: World, actor: Actor) -> None:
    """The owner writes progress."""
    [end] = world.end()
    world.answer(actor, len(finalising.write_progress(actor, [(end.id, end.claim_id, {"progress": '{"n": 1}'})])))


def keeps_its_cursor(world: World, actor: Actor) -> None:
    """The owner commits a batch together with its cursor."""
    [end] = world.end()
    actor.raw.query("BEGIN")
    kept = memos.write_cursor(
        actor, end.id, end.claim_id, name="each", cursor='{"n": 1}', progress='{"n": 1}', idle=atomic.IDLE_TIMEOUT
    )
    actor.query("COMMIT" if kept else "ROLLBACK")
    world.answer(actor, int(kept))


def reads_its_cursors(world: World, actor: Actor) -> None:
    """The owner asks where to continue: refused as soon as the claim is gone."""
    [end] = world.end()
    _needs_a_right(world, end, memos.read_cursors(actor, end.id, end.claim_id) is not None)


def reads_payload(world: World, actor: Actor) -> None:
    """The owner's executor fetches a big payload: refused as soon as the claim is gone."""
    [end] = world.end()
    _needs_a_right(world, end, finalising.read_payload(actor, end.id, end.claim_id) is not None)


def tells_where_it_is(world: World, actor: Actor) -> None:
    """The owner's worker stores a stack that was asked for while it held the job."""
    [end] = world.end()
    [(request,)] = actor.raw.query(
        "INSERT INTO pgjobs_stack (job_id, claim_id, number, worker) VALUES (%s, %s, 1, %s) RETURNING id",
        [end.id, end.claim_id, AUTHOR.worker],
    )
    answer = stacks.StackAnswer(request, "line 1", "")
    _needs_a_right(world, end, stacks.answer_stack(actor, AUTHOR.worker, answer))


def logs_a_line(world: World, actor: Actor) -> None:
    """The owner's worker stores a line: also behind an end or a step of its own, as of an atomic job."""
    [end] = world.end()
    line = '[{"number": 1, "level": 20, "logger": "shop", "message": "paid", "at": 1.5}]'
    written = finalising.write_lines(actor, [(end.id, end.claim_id, True, line)])
    ours = world.db.query(
        "SELECT 1 FROM pgjobs_job WHERE id = %(id)s AND claim_id = %(claim)s"
        " UNION ALL SELECT 1 FROM pgjobs_step WHERE job_id = %(id)s AND claim_id = %(claim)s",
        {"id": end.id, "claim": end.claim_id},
    )
    stored = world.db.query("SELECT 1 FROM pgjobs_log_line WHERE job_id = %s", [end.id])
    assert bool(written) == bool(ours) == bool(stored), "a line was stored without a right to it"


def _needs_a_right(world: World, end: End, was_read: bool) -> None:
    ours = world.db.query(
        "SELECT 1 FROM pgjobs_job WHERE id = %s AND claim_id = %s AND outcome IS NULL", [end.id, end.claim_id]
    )
    assert was_read == bool(ours), "a row was read without a right to it"


def renews(world: World, actor: Actor) -> None:
    """The owner extends its lease."""
    keeping.renew_claims(actor, {str(world.claimed.claim_id): 30.0}, lease_seconds=30.0)


def forgets(world: World, actor: Actor) -> None:
    """The owner strikes the claim from the ledger."""
    finalising.delete_claims(actor, [str(world.claimed.claim_id)])


def rescues(world: World, actor: Actor) -> None:
    """Some worker takes back what is dead."""
    rescued = keeping.rescue_jobs(
        actor,
        limit=10,
        quiet_seconds=0,
        grace_seconds=1,
        stale_seconds=60,
        without_on_cancel=[PLAIN],
        without_on_abandon=[PLAIN],
        # While its lease runs, only its own worker may take it, after its deadline.
        overdue=world.claimed.fences() if world.lease_is_good else [],
    )
    world.answer(actor, len(rescued))


def unparks(world: World, actor: Actor) -> None:
    """A worker with other code lets parked jobs go on."""
    world.answer(actor, len(keeping.unpark_jobs(actor, {PLAIN: "new", WITH_CALLBACKS: "new"}, limit=10)))


def jobs_of(world: World) -> Any:
    return Job.objects.filter(pk__in=world.job_ids)


def cancels(world: World, actor: Actor) -> None:
    """An operator cancels."""
    world.answer(actor, jobs_of(world).cancel(mode="ask", by="anna").changed)


def cancels_one_by_one(world: World, actor: Actor) -> None:
    """An operator's own transaction cancels each job by itself."""
    with transaction.atomic():
        for job_id in world.job_ids:
            world.answer(actor, Job.objects.filter(pk=job_id).cancel(mode="ask").changed)


def cancels_one_by_one_backwards(world: World, actor: Actor) -> None:
    """Another does so in the other order."""
    with transaction.atomic():
        for job_id in reversed(world.job_ids):
            world.answer(actor, Job.objects.filter(pk=job_id).cancel(mode="ask").changed)


def retries(world: World, actor: Actor) -> None:
    """An operator retries."""
    world.answer(actor, jobs_of(world).retry(by="anna").changed)


def abandons(world: World, actor: Actor) -> None:
    """An operator abandons."""
    world.answer(actor, jobs_of(world).abandon(by="anna").changed)


def postpones(world: World, actor: Actor) -> None:
    """An operator moves the job an hour away."""
    world.answer(actor, jobs_of(world).reschedule(delay=3600, by="anna").changed)


def wants_back(world: World, actor: Actor) -> None:
    """An operator asks the owner to give the job back."""
    world.answer(actor, jobs_of(world).release(by="anna").changed)


def deletes_ended(world: World, actor: Actor) -> None:
    """Somebody deletes ended jobs by hand."""
    world.answer(actor, len(actor.query("DELETE FROM pgjobs_job WHERE finished_at IS NOT NULL RETURNING id")))


OWNER = (succeeds, succeeds_fast, remembers, leaves_nothing, leaves_nothing_fast, leaves_its_result,
         succeeds_in_its_transaction, remembers_in_its_transaction, fails, snoozes, suspends, remembers_a_step,
         remembers_an_event, begins_to_gather, goes_on, goes_on_in_its_transaction,
         releases, parks, puts_aside, gives_up, ends, ends_callback, reports, reads_payload, renews,
         keeps_its_cursor, reads_its_cursors,
         forgets)  # fmt: skip
OPERATOR = (cancels, retries, abandons, postpones, wants_back)
RECORDS = (fails, gives_up, ends, rescues)
GIVES_BACK = (snoozes, suspends, releases, parks, puts_aside)
LEAVES_NO_ROW = (leaves_nothing, leaves_nothing_fast, leaves_its_result)

IDLE_CAST = (claims_and_ends, cancels, retries, abandons, postpones, wants_back, rescues, unparks, deletes_ended)
LATE_CAST = (succeeds, succeeds_fast, fails, snoozes, suspends, remembers_a_step, goes_on, goes_on_in_its_transaction,
             releases, parks, reports, keeps_its_cursor,
             reads_payload, renews)  # fmt: skip
CAST: dict[Scene, tuple[Program, ...]] = {
    ready: IDLE_CAST,
    running: (*LATE_CAST, leaves_nothing, succeeds_in_its_transaction, gives_up, ends, *IDLE_CAST),
    expired: (
        *LATE_CAST,
        remembers,
        leaves_nothing,
        leaves_nothing_fast,
        leaves_its_result,
        succeeds_in_its_transaction,
        remembers_in_its_transaction,
        puts_aside,
        gives_up,
        ends,
        *IDLE_CAST,
    ),
    last: (
        succeeds,
        succeeds_fast,
        leaves_nothing,
        leaves_nothing_fast,
        succeeds_in_its_transaction,
        snoozes,
        goes_on,
        goes_on_in_its_transaction,
        releases,
        parks,
        reports,
        reads_payload,
        renews,
        gives_up,
        ends,
        *IDLE_CAST,
    ),
    overdue: (
        succeeds,
        succeeds_fast,
        succeeds_in_its_transaction,
        fails,
        releases,
        gives_up,
        renews,
        rescues,
        claims_and_ends,
        cancels,
    ),
    asked: (
        succeeds,
        succeeds_fast,
        leaves_nothing,
        fails,
        snoozes,
        goes_on,
        goes_on_in_its_transaction,
        releases,
        parks,
        gives_up,
        ends,
        renews,
        *IDLE_CAST,
    ),
    last_with_callbacks: (succeeds, succeeds_fast, releases, gives_up, renews, *IDLE_CAST),
    ready_with_callbacks: IDLE_CAST,
    calling_back: (ends_callback, fails, releases, parks, reports, renews, forgets, *IDLE_CAST),
    abandoned: (*LATE_CAST, ends, gives_up, forgets, *IDLE_CAST),
    parked: (*LATE_CAST, ends, gives_up, forgets, *IDLE_CAST),
    batch: (succeeds, succeeds_fast, fails, releases, gives_up, renews, forgets, rescues, claims_and_ends, cancels),
}
"""Who plays in which scene. In its last attempt nobody records that a job may be tried again."""

NEVER_TOGETHER = tuple(
    frozenset((gives_up, other))
    for other in (
        succeeds,
        succeeds_fast,
        remembers,
        *LEAVES_NO_ROW,
        succeeds_in_its_transaction,
        remembers_in_its_transaction,
        snoozes,
        suspends,
        goes_on,
        goes_on_in_its_transaction,
    )
)
"""I7: a run ends once. Its worker does not mark it and record another end of its body under the same claim.

No statement guards that: a run leaves its executor by one DONE, RELEASED or death, main queues one end for it, and
only the finaliser writes, so ``ending`` is never set when a success, a snooze, a suspension or a next step of that
claim's body is written.
Whoever adds a second writer (a job that records its end in its own transaction, beside a deadline that marks it) adds
the guard.
"""

QUICK: dict[Scene, tuple[Program, ...]] = {
    expired: (
        succeeds,
        succeeds_fast,
        leaves_nothing_fast,
        goes_on,
        releases,
        gives_up,
        rescues,
        claims_and_ends,
        cancels,
    ),
    last: (succeeds, ends, rescues, claims_and_ends, retries),
    overdue: (succeeds, gives_up, rescues),
    asked: (fails, goes_on, rescues, claims_and_ends),
    calling_back: (ends_callback, rescues, claims_and_ends, cancels),
    ready_with_callbacks: (claims_and_ends, abandons),
    abandoned: (succeeds, retries, deletes_ended),
    parked: (fails, unparks, retries),
    batch: (succeeds, succeeds_fast, forgets, rescues),
}
"""The pairs of these are played in every run of the suite."""

TRIPLES: tuple[tuple[Scene, tuple[Program, ...]], ...] = (
    *(
        (expired, (owner, rescues, claims_and_ends))
        for owner in (succeeds, succeeds_fast, fails, snoozes, goes_on, releases, gives_up, ends)
    ),
    *((expired, (owner, rescues, rescues)) for owner in (succeeds, fails, releases)),
    *((expired, (owner, rescues, cancels)) for owner in (succeeds, fails, snoozes, goes_on, releases, parks, gives_up)),
    (expired, (renews, rescues, succeeds)),
    (expired, (leaves_nothing, rescues, claims_and_ends)),
    (expired, (renews, rescues, claims_and_ends)),
    (expired, (succeeds, rescues, forgets)),
    (expired, (releases, claims_and_ends, claims_and_ends)),
    (expired, (fails, claims_and_ends, cancels)),
    (last, (succeeds, rescues, retries)),
    (last, (ends, rescues, retries)),
    (last, (succeeds, rescues, deletes_ended)),
    (last_with_callbacks, (succeeds, rescues, claims_and_ends)),
    (last_with_callbacks, (gives_up, rescues, claims_and_ends)),
    (last_with_callbacks, (rescues, claims_and_ends, cancels)),
    (calling_back, (ends_callback, rescues, claims_and_ends)),
    (calling_back, (ends_callback, rescues, rescues)),
    (asked, (fails, rescues, claims_and_ends)),
    (asked, (succeeds, rescues, retries)),
    (overdue, (succeeds, renews, rescues)),
    (overdue, (fails, rescues, claims_and_ends)),
    (abandoned, (succeeds, retries, claims_and_ends)),
    (abandoned, (retries, claims_and_ends, deletes_ended)),
    (abandoned, (retries, cancels, deletes_ended)),
    (parked, (fails, unparks, claims_and_ends)),
    (parked, (unparks, retries, claims_and_ends)),
    (parked, (cancels, unparks, claims_and_ends)),
    (ready, (claims_and_ends, claims_and_ends, cancels)),
    (batch, (succeeds, forgets, rescues)),
    (batch, (succeeds_fast, forgets, rescues)),
    (batch, (succeeds_fast, cancels, rescues)),
    (batch, (fails, rescues, claims_and_ends)),
    (batch, (gives_up, rescues, cancels)),
)
"""Three that are after the same job."""


def pairs(cast: Iterable[Program]) -> Iterator[tuple[Program, ...]]:
    """Return every two programs of a cast that can meet; the same one twice, too."""
    for programs in combinations_with_replacement(cast, 2):
        if frozenset(programs) not in NEVER_TOGETHER:
            yield programs
