"""``python -m bookshop.orders.visitors``: a web process under load, which ends its request at SIGTERM."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import django

django.setup()

from django.test import Client
from django.utils import timezone

from .models import Effect, Order, Promise

PAUSE = 0.2
MOST_OPEN = 120
"""Promises that are still to be kept: beyond, visitors wait, so that a slow machine has no longer queues."""


def visit(web: Client) -> None:
    """Order a book, ask how the charges of others went, and cancel an order."""
    if Promise.objects.count() - Effect.objects.exclude(effect="tick").count() > MOST_OPEN:
        return
    token = uuid4().hex
    assert web.post("/orders/", {"token": token}).status_code == 201
    for order in Order.objects.filter(seen="").order_by("?")[:5]:
        web.get(f"/orders/{order.token}/")
    with (
        open(os.environ["SHOP_DEPLOYS"]) as deploys,
        suppress(BlockingIOError),
    ):  # revoke() reaches workers that are there
        fcntl.flock(deploys, fcntl.LOCK_SH | fcntl.LOCK_NB)
        cancel(web)


def cancel(web: Client) -> None:
    """Cancel an order whose reminder is not near."""
    near = timezone.now() + timedelta(seconds=5)
    for order in Order.objects.filter(cancelled=False, remind_at__gt=near, token__startswith="f")[:1]:
        web.post(f"/orders/{order.token}/cancel/")


def main() -> None:
    """Visit until told to stop."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    web = Client(raise_request_exception=True)
    visit(web)
    print("serving")  # noqa: T201
    while not stopped:
        visit(web)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
