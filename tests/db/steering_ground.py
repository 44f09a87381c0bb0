"""A job in each state, and what each action makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_pgjobs.models import Job
from django_pgjobs.store import finalising
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, register

ACTIONS = ("cancel", "abandon", "retry", "release", "reschedule")

# Each makes a job in the state it is named after and returns its id.


def ready(raw: RawDatabase) -> int:
    return register()[0]


def scheduled(raw: RawDatabase) -> int:
    return register(delay_seconds=3600)[0]


def running(raw: RawDatabase) -> int:
    register()
    return claim(raw).ids[0]


def held(raw: RawDatabase, hold: str) -> int:
    [one] = register()
    Job.objects.filter(pk=one).update(hold=hold)
    return one


def parked(raw: RawDatabase) -> int:
    return held(raw, "parked")


def waiting(raw: RawDatabase) -> int:
    return held(raw, "blocked")


def limited(raw: RawDatabase) -> int:
    return held(raw, "limited")


def paused(raw: RawDatabase) -> int:
    return held(raw, "paused")


def succeeded(raw: RawDatabase) -> int:
    register()
    return finalising.finalise_success(raw, claim(raw).ends(), AUTHOR)[0]


def cancelled(raw: RawDatabase) -> int:
    register()
    return finalising.finalise_end(raw, claim(raw).ends(outcome="cancelled"), AUTHOR)[0]


def abandoned(raw: RawDatabase) -> int:
    register()
    return finalising.finalise_end(raw, claim(raw).ends(outcome="abandoned"), AUTHOR)[0]


def ending(raw: RawDatabase) -> int:
    [one] = register()
    Job.objects.filter(pk=one).update(ending="abandoned")
    return one


BECOMES: dict[str, dict[Callable[[RawDatabase], int], str]] = {
    "cancel": {
        **dict.fromkeys((ready, scheduled, parked, waiting, limited, paused), "cancelled"),
        running: "running",
    },
    "abandon": dict.fromkeys((ready, scheduled, parked, waiting, limited, paused), "abandoned"),
    "retry": dict.fromkeys((parked, cancelled, abandoned), "ready"),
    "release": {running: "running"},
    "reschedule": {
        **dict.fromkeys((ready, scheduled, ending), "ready"),
        parked: "parked",
        waiting: "blocked",
        limited: "limited",
        paused: "paused",
    },
}
"""Action → what it may be done to, and the state after it."""

ARGUMENTS: dict[str, dict[str, Any]] = {"reschedule": {"priority": 5}}
