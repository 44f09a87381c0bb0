"""The operator's pages: jobs and workers, read-only but for the steering actions.

It reads by the ORM and changes jobs by their steering methods only; it never imports the worker and writes no
SQL. Every page must stay quick beside millions of finished jobs, so each list reads along an index
(``job_list``), counts no further than 10,000, and searches what no index knows among the newest jobs only.
"""

from __future__ import annotations

from django.contrib import admin

from django_pgjobs.admin.crons import CronEntryAdmin
from django_pgjobs.admin.jobs import JobAdmin
from django_pgjobs.admin.pauses import QueueStateAdmin
from django_pgjobs.admin.trail import ActionAdmin
from django_pgjobs.admin.workers import HeartbeatAdmin
from django_pgjobs.models import Action, CronEntry, Heartbeat, Job, QueueState

admin.site.register(Job, JobAdmin)
admin.site.register(CronEntry, CronEntryAdmin)
admin.site.register(Heartbeat, HeartbeatAdmin)
admin.site.register(QueueState, QueueStateAdmin)
admin.site.register(Action, ActionAdmin)

__all__ = ["ActionAdmin", "CronEntryAdmin", "HeartbeatAdmin", "JobAdmin", "QueueStateAdmin"]
