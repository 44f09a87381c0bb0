"""The callbacks of jobs: which one follows which outcome, whether this code defines it, how long it may take."""

from __future__ import annotations

from django_pgjobs.conf import LADDER_SECONDS, get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.states import BODY as BODY
from django_pgjobs.states import CALLBACK_OF

CALLBACK_STARTS = 3


def has_callback(name: str, outcome: str) -> bool:
    """Return whether the code of this worker defines a callback for this outcome of this job."""
    definition, callback = registry.find(name), CALLBACK_OF[outcome]
    if definition is None:
        return callback in (registry.learned(name) or ())
    return getattr(definition, f"_{callback}_func") is not None


def is_strict(name: str) -> bool:
    """Return whether this job is abandoned if its result cannot be stored; by default its result is dropped."""
    definition = registry.find(name)
    if definition is None:
        return "strict_results" in (registry.learned(name) or ())
    return definition.strict_results


def callback_allowance() -> float:
    """Return how many seconds a callback may take, kill ladder included, before other workers may rescue the job."""
    return get_conf().callback_seconds + LADDER_SECONDS
