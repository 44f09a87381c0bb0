"""Registrations, workers that fail and die, and an operator, at random and at once: no order breaks, and all goes on.

Triggers judge each turn and each claim while it happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from threading import Event

import pytest
from django.db import OperationalError, transaction

from django_pgjobs import Sequence as InSequence
from django_pgjobs import Unique, job
from django_pgjobs.ends import kinds
from django_pgjobs.exceptions import DuplicateJob
from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, pruning
from django_pgjobs.store.database import LOCKED
from django_pgjobs.store.finalising import End
from django_pgjobs.testing.crashing import rescue
from tests.db.sequences_ground import broken, judged, stuck
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, RawDatabase, claim, patience

pytestmark = pytest.mark.usefixtures("committed")

SEQUENCES, TURNS = 3, 60


@job(name="random.ordered", sequence="s{number}", max_attempts=3)
def ordered(number: int) -> None: ...


@job(name="random.skipping", sequence=InSequence("s{number}", on_abandon="skip"), max_attempts=3)
def skipping(number: int) -> None: ...


class Refused(Exception):
    """Rolls a registration back."""


def _register(dice: random.Random) -> None:
    number, definition = dice.randrange(SEQUENCES), dice.choice([ordered, skipping])
    match dice.randrange(5):
        case 0:
            definition.register(number)
        case 1:
            definition.register_many([(dice.randrange(SEQUENCES),) for _ in range(dice.randint(1, 6))])
        case 2:
            with suppress(Refused), transaction.atomic():
                definition.register(number)
                definition.register(number)
                if dice.random() < 0.5:
                    raise Refused
        case 3:
            key = Unique(f"k{dice.randrange(2)}", on_conflict=dice.choice(["replace", "existing", "postpone"]))
            definition.using(unique=key).register(number)
        case _:
            definition.using(priority=dice.randint(-9, 9), delay=dice.choice([0, 0, 0.05])).register(number)


def _producer(seed: str, over: Event) -> None:
    dice = random.Random(seed)
    for _ in range(TURNS):
        with suppress(DuplicateJob, OperationalError):  # two that hold a key and a sequence each may deadlock
            _register(dice)
        if over.is_set():
            return


class Worker:
    """Claims a few, ends them as dice say, some of them later, and dies now and then: another rescues what it had."""

    def __init__(self, db: RawDatabase, seed: str) -> None:
        self.db, self.dice = db, random.Random(seed)
        self.held: list[tuple[End, str | None]] = []
        self.settles = False

    def turn(self) -> int:
        taken = claim(self.db, self.dice.randint(1, 4))
        self.held += [
            (end, each.ending or ("cancelled" if each.cancelled else None))
            for end, each in zip(taken.ends(seconds=0.0), taken.jobs, strict=True)
        ]
        kept = []
        for end, ending in self.held:
            if not self._end(end, ending):
                kept.append((end, ending))
        self.held = kept
        return len(taken.jobs) + len(kept)

    def _end(self, end: End, ending: str | None) -> bool:
        luck = self.dice.random()
        if luck < 0.1:
            return False
        if ending is None and luck < 0.4:
            return self._go_on(end, luck)
        if luck < 0.5:  # killed
            rescue(self.db, "default", end.claim_id)
            return True
        end.outcome = ending or ("" if self.settles else self.dice.choice(["", "", "abandoned", "cancelled"]))
        end.failure = FAILURE if end.outcome else None
        with suppress(*LOCKED), self.db.transaction():
            kinds.write_counted(self.db, [end], AUTHOR, lock_seconds=0.1)
        return self._is_over(end)

    def _go_on(self, end: End, luck: float) -> bool:
        end.failure, end.cause = FAILURE, "failed"
        if luck < 0.2:
            finalising.finalise_retry(self.db, [end], AUTHOR)
        elif luck < 0.3:
            finalising.finalise_snooze(self.db, [end])
        else:
            finalising.release_jobs(self.db, [End(end.id, end.claim_id)], AUTHOR)
        end.failure, end.cause = None, None
        return self._is_over(end)

    def _is_over(self, end: End) -> bool:
        reading = finalising.read_fences(self.db, [(end.id, end.claim_id)]).get(end.id)
        return reading is None or not reading.ours or reading.ended


def _work(db: RawDatabase, seed: str, over: Event) -> Worker:
    worker = Worker(db, seed)
    while not over.is_set():
        worker.turn()
        open_due_gates(db)
    return worker


def _operate(db: RawDatabase, seed: str, over: Event) -> None:
    dice = random.Random(seed)
    while not over.is_set():
        some = Job.objects.filter(
            pk__in=list(Job.objects.order_by("?").values_list("pk", flat=True)[: dice.randint(1, 6)])
        )
        match dice.randrange(8):
            case 0:
                some.cancel(by="anna")
            case 1 | 2:
                some.retry(by="anna")
            case 3:
                some.abandon(by="anna")
            case 4:
                Job.objects.filter(hold="blocked").unblock(by="anna")
            case 5:
                some.reschedule(delay=0, priority=dice.randint(-9, 9), by="anna")
            case 6:
                pruning.prune_jobs(
                    db, list(some.exclude(finished_at=None).values_list("pk", flat=True)), until="infinity"
                )
            case _:
                with transaction.atomic():  # a lock that others meet, so that gates are due
                    list(some.select_for_update(skip_locked=True).values_list("pk", flat=True))


def _settle(worker: Worker) -> None:
    """Let everything come to its end, as an operator would who takes up what is abandoned."""
    worker.dice.random = lambda: 0.9  # type: ignore[method-assign]
    worker.settles = True
    for _ in range(1000):
        for claim_id in Job.objects.filter(finished_at=None, claim_id__isnull=False).values_list("claim_id", flat=True):
            rescue(worker.db, "default", str(claim_id))
        Job.objects.filter(finished_at=None, hold=None, ending=None).reschedule(delay=0, priority=0)
        Job.objects.filter(finished_at=None).exclude(priority=0).reschedule(priority=0)
        if not worker.turn() and not open_due_gates(worker.db):
            assert stuck() == []
            if not Job.objects.filter(finished_at=None).exists():
                return
            if not Job.objects.filter(outcome="abandoned", flow__lt=128).retry(by="anna").changed:
                # One whose key a job behind it has cannot be retried.
                Job.objects.filter(hold="blocked").unblock(by="anna")
    raise AssertionError(list(Job.objects.filter(finished_at=None).values_list("pk", "sequence", "state", "ending")))


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.timeout(patience(120))
def test_no_order_breaks_and_no_sequence_stands_still(
    background: Background, db_connection: Callable[..., RawDatabase], seed: int
) -> None:
    over = Event()
    with judged():
        producers = [background(_producer, f"{seed} producer {n}", over) for n in range(2)]
        workers = [background(_work, db_connection(), f"{seed} worker {n}", over) for n in range(2)]
        operator = background(_operate, db_connection(), f"{seed} operator", over)
        try:
            for producer in producers:
                producer.result(timeout=patience(60))
        finally:
            over.set()
        operator.result(timeout=patience(30))
        left = [worker.result(timeout=patience(30)) for worker in workers]
        left[0].held += left[1].held
        assert broken() == []
        _settle(left[0])
        assert not Job.objects.filter(finished_at=None).exists()
