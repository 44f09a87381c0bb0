"""Calls tasks that django-user-tasks follows, alone and in the canvas, and prints the rows that it has written."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import django

ENDS = ("Succeeded", "Failed", "Canceled")
COLUMNS = ("name", "task_class", "parent__task_class", "state", "completed_steps", "total_steps", "attempts")


def main() -> dict[str, Any]:
    """Call tasks, cancel one that waits, purge an old row; wait for all and return the rows."""
    import rules
    from celery import chain, chord, group
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import reverse
    from django.utils.timezone import now
    from user_tasks.models import UserTaskStatus
    from user_tasks.rules import add_rules
    from user_tasks.tasks import purge_old_user_tasks

    from tests.foreign.usertasks_site.tasks import fails, tries, works
    from tests.plugins.fix_db import wait_until

    add_rules()
    assert rules.perm_exists("user_tasks.cancel_usertaskstatus")
    user = User.objects.create_superuser("root")
    client = Client()
    client.force_login(user)
    old = UserTaskStatus.objects.create(user=user, name="old", task_id="old", task_class="none", total_steps=1)
    UserTaskStatus.objects.filter(pk=old.pk).update(created=now() - timedelta(days=40), state="Succeeded")
    later = works.apply_async((user.pk, "later"), countdown=3600)
    cancelled = UserTaskStatus.objects.get(task_id=later.id)
    assert client.post(reverse("usertaskstatus-cancel", args=[cancelled.uuid])).status_code == 200
    for task in (works, fails, tries):
        task.delay(user.pk, task.__name__)
    group(works.s(user.pk, "a"), works.s(user.pk, "b", user_task_name="a group")).delay()
    chain(works.si(user.pk, "c"), works.si(user.pk, "d", user_task_name="a chain")).delay()
    chord([works.s(user.pk, "e"), works.s(user.pk, "f", user_task_name="a chord")])(works.si(user.pk, "g"))
    purge_old_user_tasks.delay()

    def ended() -> bool:
        rows = UserTaskStatus.objects.all()
        return not rows.exclude(state__in=ENDS).exists() and not rows.filter(name="old").exists()

    try:
        wait_until(ended, 60, "all tasks have ended")
    except BaseException:
        sys.stderr.write(f"{list(UserTaskStatus.objects.values_list(*COLUMNS))}\n")
        raise
    rows = [[str(each).partition(" at 0x")[0] for each in row] for row in UserTaskStatus.objects.values_list(*COLUMNS)]
    headers = [row for row in rows if row[1:3] == ["celery.group", "celery.chord"]]
    return {"rows": sorted(row for row in rows if row not in headers), "steps of headers": [row[4] for row in headers]}


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(main()) + "\n")
