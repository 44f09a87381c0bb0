"""What the clock starts. Sentry's monitor, where it is installed, puts a second Task of the same path around one."""

from __future__ import annotations

from apscheduler.triggers.interval import IntervalTrigger
from crontask import cron
from django.tasks import task

from tests.e2e.stage import here


@cron(IntervalTrigger(seconds=1))
@task
def tick() -> None:
    """Leave a trace."""
    here().note("tick")


@cron(
    IntervalTrigger(seconds=1),
    sentry_monitor_config={"schedule": {"type": "interval", "value": 1, "unit": "minute"}},
)
@task(priority=10)
def watched() -> None:
    """Leave a trace under Sentry's eyes."""
    here().note("watched")
