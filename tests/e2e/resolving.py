"""A resolver of functions in modules that the test writes to the stage, and that nothing imports by itself."""

from __future__ import annotations

import sys

from django.utils.module_loading import import_string

from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition
from tests.e2e import stage

PREFIX = "distant_"


def install() -> None:
    sys.path.append(str(stage.here().path))
    registry.add_resolver(resolver)


def resolver(name: str) -> JobPolicy | None:
    if not name.startswith(PREFIX):
        return None
    func = import_string(name)
    found: JobDefinition[..., object] = JobDefinition(func, {"name": name, **getattr(func, "options", {})})
    for what in ("on_success", "on_abandon", "on_cancel"):
        if callback := func.__globals__.get(what):
            getattr(found, what)(callback)
    return found
