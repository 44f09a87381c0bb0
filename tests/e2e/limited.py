"""Jobs that limits hold back; each notes on the stage when it started and ended."""

from __future__ import annotations

import time

from django.contrib.auth.models import User

from django_pgjobs import Backoff, Limit, Next, Snooze, current_context, job
from tests.e2e import stage


def _noted(key: str, number: int, seconds: float) -> None:
    here = stage.here()
    here.note("start", key, number)
    if seconds:
        time.sleep(seconds)
    here.note("end", key, number)


@job(limits=Limit(1, key="customer:{key}"))
def per_key(key: str, number: int, seconds: float = 0) -> None:
    _noted(key, number, seconds)


@job(limits=[Limit(2), Limit(1, key=lambda key, number, seconds=0: key)])
def per_name(key: str, number: int, seconds: float = 0) -> None:
    _noted(key, number, seconds)


@job
def plain(key: str, number: int, seconds: float = 0) -> None:
    _noted(key, number, seconds)


@job(limits=Limit(rate=5, per=1.0))
def rated(key: str, number: int, seconds: float = 0) -> None:
    _noted(key, number, seconds)


@job(limits=Limit(1, key="{key}"), max_attempts=3, backoff=Backoff(0.3))
def comes_back(key: str, number: int, seconds: float = 0, how: str = "") -> None:
    here = stage.here()
    here.note("start", key, number)
    first = current_context().attempt == 1 and not here.count("came", number)
    here.note("came", number)
    here.note("end", key, number)
    if how == "fails" and first:
        raise ValueError("once")
    if how == "snoozes" and first:
        raise Snooze(0.3)


@job(limits=Limit(1), max_attempts=3, backoff=Backoff(0))
def holds(key: str, number: int = 0) -> None:
    here = stage.here()
    here.note("start", key, number)
    here.wait(key)
    here.note("end", key, number)


def by_users(key: str) -> str:
    return f"{key} {User.objects.filter(username='nobody').exists()}"


@job(limits=Limit(5, key=by_users))
def asks(key: str) -> str:
    return key


@job(max_attempts=1)
async def goes_on_to_ask(key: str) -> Next:
    return Next(asks.bind(key))
