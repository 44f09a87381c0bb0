"""The plans of ``using``, remembered by what many calls share (paper O9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Unique
from django_pgjobs.definition import plans, queue_names
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from tests.unit.job_functions import declare

SOON = datetime.now(UTC) + timedelta(days=1)


class Queue(StrEnum):
    MAIL = "mail"


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "mail"},
        {"queue": "mail", "priority": 5, "database": "default", "max_attempts": 2, "on_crash": "abandon"},
        {"timeout": timedelta(seconds=3)},
        {"timeout": (1, 2), "queue": Queue.MAIL},
        {"delay": 30, "queue": "mail"},
        {"delay": 30, "tags": ["a"], "description": "b"},
        {"run_at": datetime(2027, 1, 1, tzinfo=UTC), "priority": -3},
        {"unique": Unique("k", on_conflict="replace"), "priority": 1},
        {"unique": Unique("k", window=60)},
        {"queue": "mail", "database": None, "run_at": None},
        {"bypass": True, "queue": "mail", "timeout": 3},
    ],
    ids=str,
)
def test_a_plan_is_what_using_makes(options: dict[str, Any]) -> None:
    definition = declare(tags=["own"])
    whole = definition._plan.changed(definition.using(**options).options)
    assert definition._plan_with(**options) == definition.using(**options)._known_plan == whole
    assert definition._plan_with(**options) == whole, "the second time as the first"


def test_a_plan_of_shared_options_is_made_once() -> None:
    definition = declare()
    options: Any = {"queue": "mail", "priority": 5, "database": "default"}
    assert definition._plan_with(**options) is definition._plan_with(**options)
    assert definition.using(**options).bind(1)._row().plan is definition._plan_with(**options)
    assert definition._plan_with() is definition._plan
    assert definition.using(**options).using(priority=6)._planned().priority == 6


def test_values_that_only_compare_equal_are_checked_by_themselves() -> None:
    definition = declare()
    assert definition._plan_with(priority=1).priority == 1
    for wrong in (True, 1.0):
        with pytest.raises(InvalidJob, match=r"priority must be an integer"):
            definition._plan_with(priority=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "no queue"}, "queue must be"),
        ({"queue": "mail", "priority": 101}, "priority must be"),
        ({"queue": "mail", "run_at": SOON, "delay": 3}, "give run_at or delay, not both"),
        ({"queue": "mail", "colour": "red"}, "unknown option 'colour'"),
        ({"bypass": True, "priority": 3}, "priority and bypass exclude each other"),
        ({"when": "failed"}, "when says which end"),
    ],
)
def test_what_using_refuses_is_refused_each_time(options: dict[str, Any], words: str) -> None:
    definition = declare()
    for _ in range(2):
        with pytest.raises(InvalidJob, match=words):
            definition._plan_with(**options)
        with pytest.raises(InvalidJob, match=words):
            definition.using(**options)


def test_options_that_need_each_other_are_checked_together() -> None:
    """A declared window and a postponing call exclude each other, unless the call has a scope of its own."""
    definition = declare(unique=Unique("k", window=60))
    with pytest.raises(InvalidJob, match="postpone"):
        definition._plan_with(unique=Unique(on_conflict="postpone"))
    assert definition._plan_with(unique=Unique(until="started", on_conflict="postpone")).scope == "until_started"


def test_settings_that_change_make_other_plans() -> None:
    definition = declare()
    bound = definition.using(queue="mail", max_attempts=7)
    call = bound.bind(1)
    before = definition._plan_with(queue="mail", max_attempts=7)
    with override_settings(PGJOBS={"DEFAULT_TIMEOUT_SECONDS": 11}):
        assert definition._plan_with(queue="mail", max_attempts=7).timeout == 11
        assert (bound._planned().timeout, call._row().plan.timeout) == (11, 11)
    with override_settings(PGJOBS={"BOUNDS": {"max_attempts": 5}, "DEFAULT_MAX_ATTEMPTS": 3}):
        for refused in (lambda: definition._plan_with(queue="mail", max_attempts=7), bound._planned, call._row):
            with pytest.raises(InvalidJob, match="max_attempts must be between 1 and 5"):
                refused()
    after = definition._plan_with(queue="mail", max_attempts=7)
    assert (after, after.conf is before.conf) == (before, False)


def test_instants_are_checked_when_the_job_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that was ahead when ``using`` was called may have passed."""
    definition = declare()
    bound = definition.using(queue="mail", deadline=SOON)
    monkeypatch.setattr("django_pgjobs.definition.allowed.wall_clock", lambda: SOON + timedelta(hours=1))
    for refused in (bound._planned, bound.bind(1)._row):
        with pytest.raises(InvalidJob, match="deadline must be in the future"):
            refused()


def test_a_definition_remembers_a_bounded_number_of_plans() -> None:
    definition = declare()
    for number in range(2 * plans.MOST + 10):
        assert definition._plan_with(queue=f"customer-{number}").queue == f"customer-{number}"
    assert len(definition._plans._known[1]) <= plans.MOST


def test_values_that_differ_with_each_call_are_not_remembered() -> None:
    definition = declare()
    for number in range(50):
        definition._plan_with(queue="mail", delay=number, unique=f"k{number}", tags=[f"t{number}"])
    assert len(definition._plans._known[1]) == 1


def test_a_queue_that_looks_misspelt_is_noticed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_names, "_checked", set())
    definition = declare(queue="newsletters")
    with registry.isolated(), caplog.at_level("WARNING", "django_pgjobs"):
        registry.add(definition)
        for _ in range(2):
            definition._plan_with(queue="newsletter")
    assert [record.getMessage().split(":")[0][:45] for record in caplog.records] == [
        "no job is declared with this queue queue=news"
    ]
