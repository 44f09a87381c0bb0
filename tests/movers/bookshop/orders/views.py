"""The shop's pages, which call the tasks."""

from __future__ import annotations

from datetime import timedelta
from random import random

from celery import chain, chord, group
from celery.result import AsyncResult
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone

from ..covers.tasks import render, thumbnail
from ..letters.tasks import newsletter, remind, send
from ..reports.tasks import count, total
from . import tasks
from .models import Order, Promise, promise

SIZES = ("small", "medium", "large")
EFFECTS = ("confirm", "reserve", "pack", "ship", "send", "newsletter", "remind", *SIZES, "render", "total 6")


def place(request: HttpRequest) -> HttpResponse:
    """Order a book: one call of each kind."""
    token = request.POST["token"]
    refused = token[0] == "0"
    promise(token, *EFFECTS, "refused" if refused else "charge")
    with transaction.atomic():
        due = timezone.now() + timedelta(seconds=8 + 12 * random())
        charged = tasks.charge.apply_async((token, "stolen" if refused else "good"), priority=0)
        reminder = remind.apply_async((token,), eta=due)
        Order.objects.create(token=token, charge_id=charged.id, reminder_id=reminder.id, remind_at=due)
        tasks.confirm.delay_on_commit(token)
    chain(tasks.reserve.s(token), tasks.pack.s(), tasks.ship.s()).apply_async(countdown=0.5)
    send.apply_async((token,), expires=600, queue="mail")
    newsletter.delay(token)
    group(thumbnail.s(token, size) for size in SIZES).delay()
    render.delay(token)
    chord([count.s(part) for part in (1, 2, 3)], total.s(token)).delay()
    return HttpResponse(status=201)


def show(request: HttpRequest, token: str) -> HttpResponse:
    """Say how the charge went."""
    order = Order.objects.get(token=token)
    charged = AsyncResult(order.charge_id)
    if charged.ready():
        Order.objects.filter(pk=order.pk).update(seen=charged.state)
    return HttpResponse(charged.state)


def cancel(request: HttpRequest, token: str) -> HttpResponse:
    """Cancel an order: no reminder is sent."""
    if Order.objects.filter(token=token, cancelled=False).update(cancelled=True):
        Promise.objects.filter(token=token, effect="remind").delete()
        AsyncResult(Order.objects.get(token=token).reminder_id).revoke()
    return HttpResponse(status=204)


urlpatterns = [
    path("orders/", place),
    path("orders/<str:token>/", show),
    path("orders/<str:token>/cancel/", cancel),
]
