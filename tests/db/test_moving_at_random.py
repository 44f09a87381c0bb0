"""Workers and operators on both sides, and a mover that dies: each job is in one place in the end, and ran once."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from threading import Event
from typing import Any

import psycopg
import pytest
from django.db import connections

from django_pgjobs import Unique
from django_pgjobs.exceptions import DuplicateJob
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, pruning
from tests.db.moving_ground import dies_at, far, far_server, keyed, move, plain
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience
from tests.plugins.fix_worker import database_url

__all__ = ["far", "far_server"]

pytestmark = pytest.mark.usefixtures("committed", "far")

JOBS, MOVES = 150, 25
KEYED = "keyed"


class Place:
    """One of the two databases, its worker and its operator; ``succeeded`` and ``pruned`` hold numbers of jobs."""

    def __init__(self, alias: str, luck: random.Random) -> None:
        self.alias, self.luck = alias, luck
        self.succeeded: Counter[Any] = Counter()
        self.pruned: Counter[Any] = Counter()
        self.held: dict[int, tuple[finalising.End, Any]] = {}

    def work(self, db: RawDatabase, most: int) -> int:
        """Claim some, and let most of them succeed; the others are released. What another has locked is held longer."""
        claimed = claim(db, most)
        numbers = {each.id: json.loads(each.payload or "")["args"][0] for each in claimed.jobs}
        self.held |= {end.id: (end, numbers[end.id]) for end in claimed.ends()}
        kept: list[finalising.End] = []
        released: list[finalising.End] = []
        for end, _ in self.held.values():
            (kept if self.luck.random() < 0.8 else released).append(end)
        for job_id in finalising.finalise_success(db, kept, AUTHOR):
            self.succeeded[self.held.pop(job_id)[1]] += 1
        for one in finalising.release_jobs(db, released, AUTHOR):
            del self.held[one.id]
        return len(numbers) + len(self.held)

    def operate(self, db: RawDatabase) -> None:
        """Cancel, retry, reschedule and prune some at random, and register what replaces one."""
        jobs = Job.objects.using(self.alias)
        ids = list(jobs.values_list("pk", flat=True))
        some = jobs.filter(pk__in=self.luck.sample(ids, min(len(ids), 10)))
        match self.luck.randrange(5):
            case 0:
                some.cancel(reason="at random")
            case 1:
                some.retry()
            case 2:
                some.reschedule(delay=self.luck.choice([0, 3600]))
            case 3:
                ended = dict(some.exclude(finished_at=None).filter(outcome="succeeded").values_list("pk", "payload"))
                gone = pruning.prune_jobs(db, list(ended), until="infinity") or []
                self.pruned.update(ended[job_id]["args"][0] for job_id in gone)
            case _:
                with suppress(DuplicateJob):
                    again = Unique(f"k{self.luck.randrange(4)}", on_conflict="replace")
                    keyed.using(database=self.alias, unique=again).register(KEYED)

    def live(self, over: Event) -> None:
        """Work and operate until it is over."""
        with psycopg.connect(self.url, autocommit=True) as raw:
            while not over.is_set():
                self.work(RawDatabase(raw), 2)
                self.operate(RawDatabase(raw))

    @property
    def url(self) -> str:
        return database_url(**connections[self.alias].settings_dict)

    def numbers(self) -> list[int]:
        return [each["args"][0] for each in Job.objects.using(self.alias).values_list("payload", flat=True)]


def moves_on(over: Event, luck: random.Random) -> None:
    """Another mover at the same time, which dies too."""
    while not over.is_set():
        with dies_at(luck.randrange(24), after=luck.random() < 0.5):
            move(Job.objects.order_by("-pk")[:20])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_is_in_one_place_and_runs_there_once(far: str, background: Background, seed: int) -> None:
    luck = random.Random(seed)
    places = [Place(alias, random.Random(f"{seed} {alias}")) for alias in ("default", far)]
    for number in range(JOBS):
        plain.using(delay=luck.choice([0, 0, 3600])).register(number)
    over = Event()
    lives = [background(place.live, over) for place in places]
    lives.append(background(moves_on, over, random.Random(f"{seed} mover")))
    try:
        for _ in range(MOVES):
            jobs = luck.choice([Job.objects.order_by("pk")[: luck.randrange(40)], Job.objects.filter(attempt=0)])
            with dies_at(luck.randrange(24), after=luck.random() < 0.5):
                move(jobs)
        move()
    finally:
        over.set()
    for life in lives:
        life.result(timeout=patience(60))
    move()
    assert not Job.objects.filter(hold="moving").exists()
    assert not Job.objects.using(far).filter(hold="moving").exists()
    assert Job.objects.using(far).filter(options__has_key="moved").exists()
    stays = Counter[Any](places[0].numbers() + places[1].numbers()) + places[0].pruned + places[1].pruned
    del stays[KEYED]
    assert stays == Counter(range(JOBS))
    for place in places:
        Job.objects.using(place.alias).filter(outcome="cancelled").retry()
        Job.objects.using(place.alias).filter(claim_id=None).reschedule(delay=0)
        with psycopg.connect(place.url, autocommit=True) as raw:
            while place.work(RawDatabase(raw), 100):
                pass
    ran = places[0].succeeded + places[1].succeeded
    del ran[KEYED]
    assert ran == Counter(range(JOBS))
