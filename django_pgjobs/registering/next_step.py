"""Turn a call into the next step of a running job: the columns that change, as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_pgjobs.definition.options import OPTION_OF
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.registering.encode import Row, new_job

if TYPE_CHECKING:
    from django_pgjobs.definition.options import Plan

OF_STEPS = {"queue", "priority", "timeout", "soft_timeout", "max_attempts", "on_crash", "memory", "run_at", "delay"}
"""The options of ``using`` that a next step may have. The job keeps everything else."""

OF_JOBS: dict[str, Any] = {
    "key": None,
    "idempotency_key": None,
    "sequence": None,
    "tags": (),
    "deadline": None,
    "expires": None,
    "description": "",
    "bypass": False,
}
"""Options that a definition may declare and a next step does not take from it."""


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Refuse options that no next step may have. Raises ``InvalidJob``."""
    for option, value in options.items():
        if value and option not in OF_STEPS:
            label = OPTION_OF.get(option, option)
            raise InvalidJob(f"job {name!r}: a next step takes no {label}: the job keeps its own")


def alone(plan: Plan) -> Plan:
    """Return the plan without what a job keeps from its registration."""
    return replace(plan, **OF_JOBS)


def encoded(row: Row, options: Mapping[str, object]) -> str:
    """Return the columns of a next step, as a JSON object; ``options``: those given beside the definition's.

    The job keeps its priority unless ``options`` has one. Raises ``InvalidJob``.
    """
    plan = row.plan
    new = new_job(row._replace(plan=alone(plan)), None)
    columns = {
        "name": new.name,
        "queue": new.queue,
        "priority": new.priority if "priority" in options else None,
        "max_attempts": new.max_attempts,
        "timeout": new.timeout_seconds,
        "limit_key": new.limit_key,
        "options": plan.rare,
        "run_at": new.run_at.isoformat() if new.run_at else None,
        "delay": new.delay_seconds,
    }
    return f'{json.dumps(columns)[:-1]}, "payload": {new.payload}}}'
