"""Jobs of three incidents: a bank that is down, a customer who floods a queue, a process that fills its memory."""

from __future__ import annotations

import time

from django_pgjobs import Backoff, Limit, job
from tests.e2e import stage

FLOODED = "incident-images"


class BankIsDown(Exception):
    """The bank does not answer."""


@job(queue="incident-payments", max_attempts=2, backoff=Backoff(0))
def charges(order: int) -> None:
    if not stage.here().is_open("bank"):
        raise BankIsDown("no answer")
    stage.here().note("charged", order)


@job(queue=FLOODED, limits=Limit(50, key="customer:{customer}"))
def draws(customer: str) -> None:
    """It takes its time until the test is over."""
    stage.here().note("draws", customer)
    if customer == "globex" and not stage.here().is_open("over"):
        time.sleep(0.2)
    stage.here().note("drew", customer)


@job(queue="incident-reports", max_attempts=2, backoff=Backoff(0))
def fills_memory(report: int) -> None:
    stage.here().note("fills", report)
    taken = []
    for _ in range(40):
        taken.append(b"x" * (10 * 1024 * 1024))
        time.sleep(0.02)
    stage.here().wait("never")


@job(queue="incident-reports")
def is_small(report: int) -> None:
    stage.here().note("small", report)
