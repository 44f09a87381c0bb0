"""``manage.py runjobs`` starts our worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Warning
from django.core.management import get_commands


def check_commands(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Check that ``manage.py runjobs`` is ours; django-extensions has a command of the same name."""
    ours = apps.get_app_config("pgjobs").name
    command: Any = get_commands().get("runjobs", ours)
    owner = command if isinstance(command, str) else type(command).__module__
    if owner != ours and not owner.startswith(f"{ours}."):
        yield Warning(
            f"The command runjobs of {owner} shadows the worker's.",
            hint=f'List "{ours}" before "{owner}" in INSTALLED_APPS, or start workers by "manage.py pgjobs run".',
            id="pgjobs.W001",
        )
