"""``app.amqp``: the place where each call of a task becomes a message."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery.app.amqp import AMQP
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection, pools

from django_pgjobs.celery_bridge import sending
from django_pgjobs.celery_bridge.bridges import bridge_of
from django_pgjobs.celery_bridge.calls import running

COUNTDOWN = "pgjobs_countdown"


class JobsAMQP(AMQP):
    """Celery's own, but for the last step: a message is stored, or published as before."""

    def as_task_v2(
        self,
        task_id: str,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: Any = None,
        *rest: Any,
        **given: Any,
    ) -> Any:
        """Make the message, and note the countdown: Celery's ``eta`` is by the clock of the caller."""
        message = super().as_task_v2(task_id, name, args, kwargs, countdown, *rest, **given)
        if countdown:
            message.properties[COUNTDOWN] = float(countdown)
        return message

    _producer_pool: Any = None

    @property
    def producer_pool(self) -> Any:
        """The producers of the broker; where no task goes there, no broker and no driver of it is needed."""
        if self._producer_pool is None and bridge_of(self.app).takes_all:
            self._producer_pool = pools.producers[Connection("memory://localhost")]
        return super().producer_pool

    @cached_property
    def _publish(self) -> Callable[..., Any]:
        return super()._create_task_sender()

    def _create_task_sender(self) -> Callable[..., Any]:
        app = self.app

        def send(producer: Any, name: str, message: Any, **options: Any) -> Any:
            countdown = message.properties.pop(COUNTDOWN, None)
            run = running.get()
            itself = run is not None and message.headers["id"] == run.id  # its row continues, whatever the patterns say
            if itself or self.takes(name, message.body[1], options):
                return sending.send(app, name, message, sending.queue_of(self, options), countdown, options)
            app.backend.call_elsewhere(producer, message.headers["id"])
            return self._publish(producer, name, message, **options)

        return send

    def takes(self, name: str, kwargs: Any, options: Any) -> bool:
        """Return whether a call with these options of its route is stored as a job."""
        bridge = bridge_of(self.app)
        return bridge.takes(name, kwargs) or (
            bool(bridge.queues) and bridge.takes(name, kwargs, self._queue_or_none(options))
        )

    def _queue_or_none(self, options: Any) -> str | None:
        try:
            return sending.queue_of(self, options)
        except ImproperlyConfigured:
            return None  # an exchange of the broker's
