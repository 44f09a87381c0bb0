"""Orders, and the books that the test reads: what was promised, and what happened."""

from __future__ import annotations

import os

from celery import current_task
from django.db import models


class Order(models.Model):
    """An order. ``seen`` is the state of its charge that a visitor saw at last."""

    token = models.CharField(max_length=32, unique=True)
    charge_id = models.CharField(max_length=36)
    reminder_id = models.CharField(max_length=36)
    remind_at = models.DateTimeField()
    cancelled = models.BooleanField(default=False)
    seen = models.CharField(max_length=20, blank=True)

    objects: models.Manager[Order] = models.Manager()


class Promise(models.Model):
    """An effect that a call of a task is to have once."""

    token = models.CharField(max_length=32)
    effect = models.CharField(max_length=20)

    objects: models.Manager[Promise] = models.Manager()


class Effect(models.Model):
    """Something that a task has done, and who ran it: ``celery`` or ``pgjobs``."""

    token = models.CharField(max_length=32)
    effect = models.CharField(max_length=20)
    at = models.DateTimeField(auto_now_add=True)
    by = models.CharField(max_length=20)
    task_id = models.CharField(max_length=36)
    root_id = models.CharField(max_length=36)

    objects: models.Manager[Effect] = models.Manager()


def promise(token: str, *effects: str) -> None:
    """Note what is to happen once; committed before the call."""
    Promise.objects.bulk_create(Promise(token=token, effect=effect) for effect in effects)


def done(token: str, effect: str) -> None:
    """Note that it has happened."""
    request = current_task.request
    by, task_id, root_id = os.environ["SHOP_WORKER"], request.id, request.root_id or request.id
    Effect.objects.create(token=token, effect=effect, by=by, task_id=task_id, root_id=root_id)
