"""What the explorer plays about events: jobs that wait for one, and who sends it, withdraws it, runs and cancels them.

Each job runs by the real code: its body on Django's connection, as in an executor, and its end on the actor's, as a
finaliser writes it. An end that meets a locked row is written once more after everybody has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any
from uuid import UUID

import psycopg
from django.db import OperationalError, connection, transaction

from django_pgjobs import Event, JobContext, job
from django_pgjobs import decisions as decide
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.execution.single_job import Performer, WrittenEnd
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import End
from django_pgjobs.values.built_in import OWN_QUEUE
from tests.chaos.explorer import Actor
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, from_the_beginning

OTHER_WORKER = UUID("00000000-0000-4000-8000-000000000002")
HOUR = 3600.0
EVERYTHING = from_the_beginning(*((queue, priority) for queue in (OWN_QUEUE, "default") for priority in (100, 50, 0)))
"""Where jobs of ours stand, too."""

approval: Event[str] = Event("scenes.approval")


@job(name="scenes.member", max_attempts=3)
def member() -> str:
    return "sent by a member"


@job(name="scenes.waits", takes_context=True, max_attempts=3)
def waits(context: JobContext) -> str:
    return context.wait_for(approval, timeout=HOUR)


@job(name="scenes.gathers", takes_context=True, max_attempts=3)
def gathers(context: JobContext) -> str:
    [result] = context.gather([member.bind()])
    return result


# --- scenes ----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The rows of one run, the claims that are held, and what programs were told."""

    db: RawDatabase
    jobs: list[int] = field(default_factory=list)
    held: list[ClaimedJob] = field(default_factory=list)
    left: list[tuple[ClaimedJob, kinds.EndKind, End]] = field(default_factory=list)
    sent: dict[str, str] = field(default_factory=dict)
    withdrawn: int = 0
    """How many were told that they have taken the event back."""

    refused: int = 0
    outcomes: set[str] = field(default_factory=lambda: {"succeeded"})
    gathers: bool = False

    def perform(self, db: Any, held: ClaimedJob) -> None:
        """Run a claimed job and write its end on ``db``."""
        Once(db, AUTHOR, left=self.left).perform(held)

    def hold(self) -> None:
        """Claim what is ready."""
        taken = claim(self.db, 5)
        assert taken.jobs
        self.held += taken.jobs

    def run(self) -> None:
        """Run what is claimed, before anybody plays."""
        while self.held:
            self.perform(self.db, self.held.pop(0))
        assert not self.left


@dataclass(frozen=True, slots=True)
class Once(Performer):
    """Writes an end once, and leaves one that met a locked row to whoever asks later."""

    left: list[tuple[ClaimedJob, kinds.EndKind, End]] = field(default_factory=list)

    def _record(self, job: ClaimedJob, kind: kinds.EndKind, end: End) -> WrittenEnd:
        counted = finalise.is_counted(job.extras)
        if self._write(kind, end, remember=False, counted=counted):
            return WrittenEnd(kind, end, recorded=True)
        now = finalising.read_fences(self.db, [(end.id, end.claim_id)]).get(end.id)
        if now is not None and now.ours and not now.ended:
            if now.cancelled and not now.ending and kind.requeues:
                cancel = finalise.end_of(
                    decide.Cancelled("", end.failure, end.cause), end.id, end.claim_id, job.name, None
                )
                self.left.append((job, *cancel))
            else:
                self.left.append((job, kind, end))
        return WrittenEnd(kind, end, recorded=False)

    def again(self, job: ClaimedJob, kind: kinds.EndKind, end: End) -> None:
        """Write an end that was left."""
        self._record(job, kind, end)


def running(world: World) -> None:
    """A job is about to wait for an event that nobody knows."""
    world.jobs = [waits.register().pk]
    world.hold()


def known(world: World) -> None:
    """A job is about to wait for an event that another waits for."""
    world.jobs = [waits.register().pk]
    world.hold()
    world.run()
    world.jobs.append(waits.register().pk)
    world.hold()


def two(world: World) -> None:
    """Two jobs are about to wait for the same event."""
    world.jobs = [waits.register().pk, waits.register().pk]
    world.hold()


def waiting(world: World) -> None:
    """A job waits for an event."""
    world.jobs = [waits.register().pk]
    world.hold()
    world.run()


def resumed(world: World) -> None:
    """A job that waits was released by an operator and runs again."""
    waiting(world)
    Job.objects.filter(pk__in=world.jobs).unblock()
    world.db.query("UPDATE pgjobs_memo SET wake_at = now() + interval '1 hour'")
    world.hold()


def late(world: World) -> None:
    """A job that has waited long enough runs again."""
    waiting(world)
    Job.objects.filter(pk__in=world.jobs).unblock()
    world.db.query("UPDATE pgjobs_memo SET wake_at = now()")
    world.hold()
    world.outcomes = {"succeeded", "abandoned"}


def woken(world: World) -> None:
    """A job has waited for an event, which was sent: it is ready."""
    waiting(world)
    assert approval.send(payload="sent before")
    world.sent["scene"] = "sent before"


def approved(world: World) -> None:
    """The same, and it runs again."""
    woken(world)
    world.hold()


def dying(world: World) -> None:
    """A job is about to wait, and its worker was away for too long."""
    running(world)
    world.db.query("UPDATE pgjobs_claim SET lease_expires_at = now() - interval '1 s'")
    world.db.query("UPDATE pgjobs_claim SET check_at = lease_expires_at")


def gathering(world: World) -> None:
    """A job is about to wait for a job that it has registered and that runs."""
    world.gathers = True
    world.jobs = [gathers.register().pk]
    world.hold()
    world.run()
    Job.objects.filter(pk__in=world.jobs).unblock()
    world.db.query("UPDATE pgjobs_job SET run_at = now() WHERE id = ANY (%s)", [world.jobs])
    world.hold()
    world.held.sort(key=lambda held: held.name != gathers.name)
    assert [each.name for each in world.held] == [gathers.name, member.name]


Scene = Callable[[World], None]


# --- programs --------------------------------------------------------------------------------------------------------

Program = Callable[[World, Actor], None]


def goes_on(world: World, actor: Actor) -> None:
    """The owner of the first job that runs goes on with its body, and a finaliser writes what it comes to."""
    world.perform(actor, world.held[0])


def other_goes_on(world: World, actor: Actor) -> None:
    """The owner of the second job that runs does."""
    world.perform(actor, world.held[1])


def both_go_on(world: World, actor: Actor) -> None:
    """One worker suspends both by one statement, which has their events locked."""
    ends = [End(*each.fence, 0.0, columns=COLUMNS, cause="suspend", events=(approval.name,)) for each in world.held]
    with actor.transaction():
        recorded = kinds.write_await(actor, ends, AUTHOR)
    world.left += [
        (each, kinds.AWAIT, end) for each, end in zip(world.held, ends, strict=True) if end.id not in recorded
    ]


COLUMNS = (
    f'{{"memo": "{approval.name}", "kind": "event", "event": "{approval.name}", "delay": 3600, "failures": 0, '
    '"progressed": false}'
)


def claims_and_runs(world: World, actor: Actor) -> None:
    """Another worker claims what is due and runs it."""
    taken = claim(actor, 5, EVERYTHING, worker=OTHER_WORKER)
    for each in taken.jobs:
        world.perform(actor, each)


def _told(world: World, actor: Actor, sent: bool, payload: str) -> None:
    if sent:
        world.sent[actor.name] = payload


def sends(world: World, actor: Actor) -> None:
    """Somebody sends the event."""
    _told(world, actor, approval.send(payload=actor.name), actor.name)


def sends_in_vain(world: World, actor: Actor) -> None:
    """Somebody sends the event in a transaction that is rolled back."""
    with transaction.atomic():
        approval.send(payload="never")
        transaction.set_rollback(True)


def sends_at_repeatable_read(world: World, actor: Actor) -> None:
    """Somebody sends the event in a transaction that sees the tables as they were, and tries once more if it must."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM pgjobs_job")
            sent = approval.send(payload=actor.name)
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.SerializationFailure):
            raise
        sent = approval.send(payload=actor.name)
    _told(world, actor, sent, actor.name)


def withdraws(world: World, actor: Actor) -> None:
    """Somebody takes the event back."""
    if approval.withdraw():  # others may count while it waits
        world.withdrawn += 1


def corrects(world: World, actor: Actor) -> None:
    """Somebody takes the event back and sends another one, in one transaction."""
    with transaction.atomic():
        withdrawn = approval.withdraw()
        sent = approval.send(payload=actor.name)
    world.withdrawn += withdrawn
    _told(world, actor, sent, actor.name)


def cancels(world: World, actor: Actor) -> None:
    """An operator cancels the jobs."""
    world.outcomes.add("cancelled")
    Job.objects.filter(pk__in=world.jobs).cancel(by="anna")


def releases(world: World, actor: Actor) -> None:
    """An operator lets the jobs go on."""
    world.outcomes.add("abandoned")
    Job.objects.filter(pk__in=world.jobs).unblock(by="anna")


def rescues(world: World, actor: Actor) -> None:
    """A worker takes back what is dead."""
    keeping.rescue_jobs(
        actor, limit=10, quiet_seconds=0, grace_seconds=1, stale_seconds=60,
        without_on_cancel=[waits.name], without_on_abandon=[waits.name],
    )  # fmt: skip


OWNERS = (goes_on, other_goes_on, both_go_on)
SENDERS = (sends, sends_in_vain, sends_at_repeatable_read)

CAST: dict[Scene, tuple[Program, ...]] = {
    running: (goes_on, *SENDERS, cancels, releases, claims_and_runs),
    known: (goes_on, *SENDERS, cancels, claims_and_runs),
    two: (goes_on, other_goes_on, both_go_on, sends, sends_at_repeatable_read, cancels),
    waiting: (*SENDERS, cancels, releases, claims_and_runs),
    resumed: (goes_on, *SENDERS, cancels),
    late: (goes_on, *SENDERS, cancels),
    woken: (withdraws, corrects, sends, sends_at_repeatable_read, cancels, releases, claims_and_runs),
    approved: (goes_on, withdraws, corrects, sends, sends_at_repeatable_read, cancels, claims_and_runs),
    dying: (goes_on, sends, sends_at_repeatable_read, rescues, claims_and_runs, cancels),
    gathering: (goes_on, other_goes_on, claims_and_runs),
}
"""Who plays in which scene."""


def pairs(cast: tuple[Program, ...]) -> Iterator[tuple[Program, ...]]:
    """Return every two programs of a cast that can meet: a body runs once under a claim."""
    for programs in combinations_with_replacement(cast, 2):
        alone = len(set(programs)) == 1 and programs[0] in (*OWNERS, cancels)  # a cancel may be repeated
        if not alone and not (both_go_on in programs and set(programs) & {goes_on, other_goes_on}):
            yield programs


QUICK: tuple[tuple[Scene, tuple[Program, ...]], ...] = (
    (known, (goes_on, sends)),
    (waiting, (sends, sends)),
    (waiting, (sends, cancels)),
    (approved, (goes_on, withdraws)),
    (approved, (goes_on, corrects)),
    (gathering, (goes_on, other_goes_on)),
)
"""Played in every run of the suite."""

TRIPLES: tuple[tuple[Scene, tuple[Program, ...]], ...] = (
    (waiting, (sends, cancels, claims_and_runs)),
    (waiting, (sends, sends_at_repeatable_read, cancels)),
    (woken, (withdraws, sends, cancels)),
    (gathering, (other_goes_on, cancels)),
)
"""Three that meet at one event, and two in many orders. Those who run a body would make a hundred thousand and more."""
