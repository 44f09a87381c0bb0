"""django-tasks-db, in its own environment."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import django
from django.conf import settings

from benchmarks.peers import side


def configure() -> None:
    """Set Django up with nothing but this package."""
    # The verbs are coroutines for the other peers' sake; nothing else runs on the loop.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    url = urlsplit(side.URL)
    parts = {"NAME": url.path[1:], "USER": url.username, "PASSWORD": url.password, "HOST": url.hostname}
    database: dict[str, Any] = {key: unquote(text) for key, text in parts.items() if text}
    options = dict(parse_qsl(url.query))
    database["HOST"] = options.pop("host", database.get("HOST", ""))
    database |= {"ENGINE": "django.db.backends.postgresql", "PORT": url.port or "", "CONN_MAX_AGE": None}
    settings.configure(
        DATABASES={"default": {**database, "OPTIONS": options}},
        INSTALLED_APPS=["django_tasks_db"],
        USE_TZ=True,
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    )
    django.setup()


class TasksDB:
    """Its verbs. It is synchronous, so each blocks the loop that waits for nothing else."""

    async def prepare(self) -> None:
        """Migrate."""
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    async def work(self, setting: dict[str, Any], *, until_idle: bool) -> None:
        """Run ``db_worker``."""
        from django.core.management import call_command

        call_command(
            "db_worker", batch=until_idle, startup_delay=False, interval=setting.get("interval", 1.0), verbosity=0
        )

    async def enqueuing(self, use: Callable[[side.Enqueue], Awaitable[None]]) -> None:
        """Enqueue one by one; it has no bulk call, so many go by one transaction."""
        await use(self._enqueue)

    async def _enqueue(self, name: str, numbers: Sequence[int]) -> None:
        from django.db import transaction

        from benchmarks.peers import tasks_db_tasks

        task = getattr(tasks_db_tasks, name)
        if len(numbers) == 1:
            task.enqueue(numbers[0])
            return
        with transaction.atomic():
            for number in numbers:
                task.enqueue(number)


if __name__ == "__main__":
    configure()
    side.main(TasksDB())
