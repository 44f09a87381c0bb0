"""Schedules that are made, changed and deleted beside real workers that fire them, while leaders die.

PGJOBS_TEST_SECONDS=600 lets it go on for ten minutes instead of forty seconds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.db import connection

from django_pgjobs.models import CronEntry, Job
from django_pgjobs.values.schedule import schedule_of
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("PGJOBS_TEST_SECONDS", "40"))
NAMES = [f"tenant:{number}" for number in range(8)]
EXPRESSIONS = ["* * * * * *", "* * * * * */2", "every 3 seconds", "every 2 seconds from 2026-01-01 00:00:01"]
LAG = timedelta(seconds=15)
"""How late a fire may be: a leader dies, and its term must end first. A change forgets what is due and not yet made."""


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found


def passed(until: datetime) -> None:
    wait_until(lambda: now() >= until, 60, "a while has passed")


@dataclass
class Epoch:
    """A schedule as it stood: at the earliest from ``begun`` to ``over``, surely from ``begins`` to ``ends``."""

    name: str
    expression: str
    begun: datetime
    begins: datetime
    ends: datetime | None = None
    over: datetime | None = None

    def due(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        for fire in schedule_of(self.expression, "UTC").fires(begin):
            if fire > end:
                return
            yield fire


def complaints(epochs: list[Epoch], fired: Counter[tuple[str, datetime]], end: datetime) -> list[str]:
    """Return what the history has against the fires: made twice, made without being due, due and not made."""
    found = [f"{name} fired {times} times at {fire}" for (name, fire), times in fired.items() if times > 1]
    allowed, required = set(), set()
    for epoch in epochs:
        allowed |= {(epoch.name, fire) for fire in epoch.due(epoch.begun, epoch.over or end)}
        required |= {(epoch.name, fire) for fire in epoch.due(epoch.begins, (epoch.ends - LAG) if epoch.ends else end)}
    found += [f"{name} fired at {fire}, which was not due" for name, fire in sorted(fired.keys() - allowed)]
    return found + [f"{name} was due at {fire} and did not fire" for name, fire in sorted(required - fired.keys())]


@pytest.mark.timeout(SECONDS + 200)
def test_each_due_instant_of_schedules_that_come_and_go_is_fired_once(worker: Workers, stage: Stage) -> None:
    """A24 A26 W46: by the history; two workers, whose leader is killed each time a third of the time is over."""
    dice = random.Random(7)
    working = [worker(), worker()]
    epochs: list[Epoch] = []
    current: dict[str, Epoch] = {}
    started, kills = now(), 0
    while (at := now()) < started + timedelta(seconds=SECONDS):
        name = dice.choice(NAMES)
        before = current.pop(name, None)
        if before is not None and dice.random() < 0.3:
            assert CronEntry.objects.get(pk=name).remove() == 1
        else:
            expression = dice.choice([e for e in EXPRESSIONS if before is None or e != before.expression])
            bound = jobs.effect.schedule(expression, name=name, tz="UTC", misfire="all", misfire_limit=1000)
            assert bound.register(name).written in ("created", "changed")
            current[name] = Epoch(name, expression, at, now())
            epochs.append(current[name])
        if before is not None:
            before.ends, before.over = at, now()
        if kills < 2 and at > started + timedelta(seconds=SECONDS * (kills + 1) / 3):
            working.append(worker())
            working.pop(0).kill()
            kills += 1
        passed(at + timedelta(seconds=3))
    end = now()
    for epoch in current.values():
        if due := list(epoch.due(epoch.begins, end)):
            made = Job.objects.filter(cron_entry=epoch.name, fire_at=due[-1])
            wait_until(made.exists, 60, f"{epoch.name} has made its last fire")
    CronEntry.objects.all().remove()
    made_of = Job.objects.values_list("cron_entry", "fire_at")
    fired = Counter((name, fire) for name, fire in made_of if name is not None and fire is not None and fire <= end)
    assert len(fired) > SECONDS
    assert complaints(epochs, fired, end) == []


def test_the_history_complains() -> None:
    """Of each of the three, else the test above could not fail."""
    begin = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    epoch = Epoch("x", "* * * * * *", begin, begin)
    instants = [begin + timedelta(seconds=n) for n in range(1, 4)]
    fired = Counter(("x", fire) for fire in instants)
    assert complaints([epoch], fired, instants[-1]) == []
    twice, late, lost = fired.copy(), fired.copy(), fired.copy()
    twice["x", instants[0]] += 1
    late["x", instants[0] + timedelta(milliseconds=1)] += 1
    del lost["x", instants[1]]
    assert [len(complaints([epoch], history, instants[-1])) for history in (twice, late, lost)] == [1, 1, 1]
