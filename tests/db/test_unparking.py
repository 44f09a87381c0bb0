"""Unparking: jobs that other code parked resume; workers do not scan those that this code parked over and over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.unparking import LONGEST_REST_SECONDS, Unparker
from django_pgjobs.models import Job
from django_pgjobs.store.database import Params, Rows
from tests import jobs
from tests.plugins.fix_db import RawDatabase, register

NAME = jobs.succeeds.name


class Slow:
    """A database whose every statement takes so long, by the worker's clock."""

    def __init__(self, db: RawDatabase, passes: Callable[[float], None], seconds: float) -> None:
        self.db, self.passes, self.seconds = db, passes, seconds
        self.asked: list[str] = []

    def fetch(self, name: str, params: Params) -> Rows:
        self.asked.append(name)
        self.passes(self.seconds)
        return self.db.fetch(name, params)


def park(raw: RawDatabase, fingerprint: str) -> int:
    [one] = register(name=NAME)
    Job.objects.filter(pk=one).update(hold="parked", hold_fingerprint=fingerprint)
    return one


def test_after_a_long_look_that_found_nothing_it_rests_and_then_looks_again(
    raw: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    park(raw, registry.fingerprints()[NAME])
    unparker, db = Unparker(), Slow(raw, time, 0.3)
    assert unparker(db) == 0
    older = park(raw, "older code")
    time(LONGEST_REST_SECONDS - 1)
    assert (unparker(db), len(db.asked)) == (0, 1)
    time(1.1)
    assert unparker(db) == 1
    assert Job.objects.get(pk=older).hold is None
    assert [record.getMessage() for record in caplog.records] == ["parked jobs resumed jobs=1"]


@pytest.mark.parametrize("seconds", [0.001, 0.3])
def test_while_there_is_something_or_looking_is_cheap_it_looks_each_time(
    raw: RawDatabase, time: Callable[[float], None], seconds: float
) -> None:
    unparker: Any = Unparker()
    for _ in range(3):
        park(raw, "older code")
        assert unparker(Slow(raw, time, seconds)) == 1
        time(30)
    assert unparker(Slow(raw, time, 0.001)) == 0
    time(30)
    park(raw, "older code")
    assert unparker(Slow(raw, time, 0.001)) == 1
