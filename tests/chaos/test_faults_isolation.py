"""The web's side as a role whose transactions are stricter by default, while workers claim and end what it steers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from django_pgjobs import register_many
from django_pgjobs.exceptions import JobNotFinished
from django_pgjobs.models import Job
from tests.chaos import history as h
from tests.chaos.ground import Ground
from tests.chaos.helping import Record
from tests.chaos.jobs import act
from tests.plugins.fix_worker import ended

pytestmark = pytest.mark.chaos

JOBS, MOST_SECONDS = 400, 10
ROLES: list[tuple[str, str, dict[str, float]]] = [
    ("sleep", "", {"seconds": 0.05}), ("fail", "", {}), ("succeed", "", {}), ("raise", "", {}),
]  # fmt: skip


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The role of everybody here has this default."""
    ground.server.ask(f"ALTER ROLE CURRENT_USER SET default_transaction_isolation = '{request.param}'")
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == (request.param,)
    yield ground
    ground.server.ask("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")
    connection.close()


class Operator:
    """Does one thing again and again to jobs that workers run; returns how often, and raises what it raises."""

    def __init__(self, ground: Ground, ids: list[int], act_once: Callable[[Ground, list[int]], object]) -> None:
        self.ground = ground
        self.ids = ids
        self.act_once = act_once
        self.random = random.Random(act_once.__name__)

    def __call__(self) -> int:
        try:
            until, count = time.monotonic() + MOST_SECONDS, 0
            while time.monotonic() < until and Job.objects.filter(pk__in=self.ids, finished_at=None).exists():
                self.act_once(self.ground, self.random.sample(self.ids, 20))
                count += 1
            return count
        finally:
            connections.close_all()


def cancel(ground: Ground, ids: list[int]) -> None:
    Job.objects.filter(pk__in=ids[:2]).cancel(by="anna")


def abandon(ground: Ground, ids: list[int]) -> None:
    Job.objects.filter(pk__in=ids[:2]).abandon(by="anna")


def retry(ground: Ground, ids: list[int]) -> None:
    for job in Job.objects.filter(pk__in=ids[:1], outcome="abandoned"):
        ground.retry(job)


def release(ground: Ground, ids: list[int]) -> None:
    Job.objects.filter(pk__in=ids).release()


def reschedule(ground: Ground, ids: list[int]) -> None:
    Job.objects.filter(pk__in=ids).reschedule(delay=0, priority=random.choice([0, 5]))


def wait(ground: Ground, ids: list[int]) -> None:
    for job in Job.objects.filter(pk__in=ids[:3]):
        try:
            job.wait(0.3)
        except JobNotFinished:
            continue


def register_some(ground: Ground) -> int:
    """Register in autocommit, one and several; return how many."""
    keys = [ground.register.key() for _ in range(6)]
    for key in keys:
        ground.journal.note("registering", key=key)
    act.register(keys[0])
    register_many(act.bind(key) for key in keys[1:])
    for key in keys:
        ground.journal.note("registered", key=key, fate=h.COMMITTED)
    return len(keys)


ACTIONS = [cancel, abandon, retry, release, reschedule, wait]


def test_operators_with_a_stricter_default_are_refused_nothing(strict: Ground, record_property: Record) -> None:
    """I16: one role for all; six operators beside two workers; no call fails for others' commits."""
    for _ in range(2):
        strict.workers(processes=1, threads=4)
    roles: list[tuple[str, dict[str, float]]] = [
        ("sleep", {"seconds": 0.05}),
        ("fail", {}),
        ("succeed", {}),
        ("raise", {}),
    ]
    taken = strict.register.many([(act, role, "", facts) for role, facts in roles * (JOBS // len(roles))])
    ids = [job.pk for job in taken]
    with ThreadPoolExecutor(len(ACTIONS)) as pool:
        operators = [pool.submit(Operator(strict, ids, action)) for action in ACTIONS]
        more = 0
        while not all(each.done() for each in operators):
            more += register_some(strict)
            time.sleep(0.02)
        turns = {action.__name__: each.result() for action, each in zip(ACTIONS, operators, strict=True)}
    record_property("turns", turns)
    began = time.monotonic()
    ended(*Job.objects.filter(finished_at=None), timeout=30)
    record_property("recovery_seconds", round(time.monotonic() - began, 2))
    assert min(turns.values()) >= 1
    report = strict.check()
    assert report.counts["rows"] == JOBS + more, report
