"""The operator's pages: the overview, jobs and workers, read-only except for the steering actions.

The admin reads through the ORM and changes jobs only through their steering methods. It never imports the worker and
contains no SQL. Every page must stay quick beside millions of finished jobs. Each list therefore reads along an index
(``job_list``), stops counting at 10,000, and searches unindexed columns only among the newest jobs.
"""

from __future__ import annotations

from django.contrib import admin

from django_pgjobs.admin.crons import CronEntryAdmin
from django_pgjobs.admin.events import EventAdmin
from django_pgjobs.admin.jobs import JobAdmin
from django_pgjobs.admin.limits import LimitOverrideAdmin
from django_pgjobs.admin.overview.page import OverviewAdmin
from django_pgjobs.admin.pauses import QueueStateAdmin
from django_pgjobs.admin.trail import ActionAdmin
from django_pgjobs.admin.workers import HeartbeatAdmin
from django_pgjobs.models import Action, CronEntry, EventState, Heartbeat, Job, LimitOverride, QueueState
from django_pgjobs.models.workers import Overview

admin.site.register(Overview, OverviewAdmin)
admin.site.register(Job, JobAdmin)
admin.site.register(CronEntry, CronEntryAdmin)
admin.site.register(Heartbeat, HeartbeatAdmin)
admin.site.register(EventState, EventAdmin)
admin.site.register(QueueState, QueueStateAdmin)
admin.site.register(LimitOverride, LimitOverrideAdmin)
admin.site.register(Action, ActionAdmin)

__all__ = [
    "ActionAdmin",
    "CronEntryAdmin",
    "EventAdmin",
    "HeartbeatAdmin",
    "JobAdmin",
    "LimitOverrideAdmin",
    "OverviewAdmin",
    "QueueStateAdmin",
]
