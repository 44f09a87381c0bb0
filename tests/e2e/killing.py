"""A job that kills its own process, for good, at the statement that the environment names."""

from __future__ import annotations

import os
import signal
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connection, transaction

from django_pgjobs import Backoff, JobContext, job

KILL = "PGJOBS_TEST_KILL"
"""``after 2`` or ``before 5``: the number of the query."""


@job(backoff=Backoff(0))
def ships(context: JobContext) -> None:
    queries = 0

    def die(execute: Any, sql: str, *given: Any) -> Any:
        nonlocal queries
        queries += "SAVEPOINT" not in sql
        at = os.environ.get(KILL, "").split() if context.attempt == 1 else []
        if at == ["before", str(queries)]:
            os.kill(os.getpid(), signal.SIGKILL)
        found = execute(sql, *given)
        if at == ["after", str(queries)]:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    connection.ensure_connection()  # what a new one begins with is not the job's
    with connection.execute_wrapper(die):
        Group.objects.create(name=f"parcel {Group.objects.count()}")
        with transaction.atomic():
            User.objects.create(username=f"bill {User.objects.count()}")
        Group.objects.create(name=f"receipt {Group.objects.count()}")
