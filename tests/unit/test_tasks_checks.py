"""System checks of the aliases of ``TASKS``. Paper §1.1, ``check()``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings
from django.test.utils import modify_settings

from django_pgjobs.checks.jobs import check_definitions
from django_pgjobs.definition.registry import registry
from django_pgjobs.tasks import job_of
from django_pgjobs.tasks.discovery import discover
from django_pgjobs.tasks.families import FAMILY
from tests.db.tasks_ground import BACKEND, cast

PATH = "tests.db.tasks_cast."


@pytest.fixture(autouse=True)
def _isolated(our_tasks: None) -> Iterator[None]:
    with registry.isolated():
        yield


def found(options: Any = None, conf: Any = None, **params: Any) -> list[CheckMessage]:
    """What Django's checks say about an alias; every message must have a hint."""
    tasks = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {} if options is None else options, **params}}
    with override_settings(TASKS=tasks, PGJOBS=conf or {}):
        messages = [*import_module(FAMILY).default_task_backend.check()]
    assert all(message.hint for message in messages)
    return messages


def ids(*args: Any, **kwargs: Any) -> list[str]:
    return [str(message.id).removeprefix("pgjobs.") for message in found(*args, **kwargs)]


def test_a_healthy_alias_has_no_message() -> None:
    job_of(cast.noop)
    options = {
        "MAX_ATTEMPTS": 3,
        "DATABASE": "default",
        "TASKS": {f"{PATH}noop": {"max_attempts": 2}, f"{PATH}*": {"timeout": 3}},
        "ALIASES": {"old.noop": f"{PATH}noop"},
    }
    assert ids(options) == []


def test_django_asks_our_backend() -> None:
    """Also on Django 5.2, where the backport need not be an installed app."""
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"DATABASE": "nowhere"}}}):
        discover()
        assert "pgjobs.E021" in [message.id for message in run_checks(databases=[])]


def test_the_app_must_be_installed() -> None:
    """Else there is no table."""
    with modify_settings(INSTALLED_APPS={"remove": ["django_pgjobs", "tests"]}):
        assert ids() == ["E020"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"DATABASE": "nowhere"}, ["E021"]),
        ({"DATABASE": "other"}, ["E021"]),
        ({"MAX": 1}, ["E022"]),
        ({"MAX_ATTEMPTS": 0, "BACKOFF": 7}, ["E022", "E022"]),
        ({"TASKS": {"a.b": {"queue": "x"}}}, ["E022"]),
        ([], ["E022"]),
        ({"TASKS": {f"{PATH}gone": {}}}, ["W009"]),
        ({"TASKS": {f"{PATH}plain_function": {}}}, ["W009"]),
        ({"TASKS": {"nowhere.*": {}}}, ["W009"]),
        ({"ALIASES": {"old.noop": f"{PATH}gone"}}, ["W009"]),
        ({"ENQUEUE_ON_COMMIT": True}, ["E022", "W012"]),
    ],
)
def test_wrong_options(options: Any, expected: list[str]) -> None:
    assert ids(options) == expected


def test_while_options_are_wrong_no_path_is_called_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """No definition can be made then, also for an alias that is right, so each path would seem wrong."""
    right = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"TASKS": {f"{PATH}noop": {}}}}
    tasks = {"default": right, "second": {"BACKEND": BACKEND, "OPTIONS": {"MAX": 1}}}
    with override_settings(TASKS=tasks):
        assert [*import_module(FAMILY).default_task_backend.check()] == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"GIVE_UP_ON": [OSError], "MAX_ATTEMPTS": 1}, []),
        ({"GIVE_UP_ON": [OSError], "TASKS": {f"{PATH}noop": {"max_attempts": 1}}}, []),
        ({"RETRY_ON": [OSError], "TASKS": {f"{PATH}*": {"max_attempts": 1}}}, []),
        ({"TASKS": {f"{PATH}noop": {"max_attempts": 1, "give_up_on": [OSError]}}}, ["pgjobs.W002"]),
        (
            {"GIVE_UP_ON": [OSError], "TASKS": {f"{PATH}noop": {"max_attempts": 1, "give_up_on": [OSError]}}},
            ["pgjobs.W002"],
        ),
    ],
)
def test_rules_for_all_tasks_do_not_contradict_one_that_starts_once(options: Any, expected: list[str]) -> None:
    """Paper §3.2: the guide gives up on what is gone for all tasks of others, and starts one of them once."""
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}):
        job_of(cast.noop)
        assert [message.id for message in check_definitions()] == expected


def test_a_leftover_of_old_backports_does_nothing() -> None:
    """§1.2."""
    [message] = found(ENQUEUE_ON_COMMIT=False)
    assert message.id == "pgjobs.W012"
    assert "rollback leaves none" in str(message.hint)


def test_two_lists_of_queues_that_contradict_each_other() -> None:
    """T17: also the list that Django takes where there is none."""
    assert ids(conf={"QUEUES": ["mail"]}, QUEUES=["mail"]) == []
    assert ids(conf={"QUEUES": ["mail"]}, QUEUES=[]) == []
    [message] = found(conf={"QUEUES": ["mail"]}, QUEUES=["mail", "pictures"])
    assert (message.id, "the queues pictures," in message.msg) == ("pgjobs.W010", True)


def test_results_that_vanish() -> None:
    """T13."""
    at_once = {"RETENTION": {"queues": {"mail": {"succeeded": 0}}}}
    assert ids(conf=at_once, QUEUES=["default"]) == []
    assert ids(conf=at_once, QUEUES=["default", "mail"]) == ["W011"]
    assert ids(conf={"RETENTION": {"succeeded": 0}}) == ["W011"]


def test_settings_that_are_not_valid_are_said_once() -> None:
    """By ``check_settings``."""
    assert ids(conf={"QUEUES": 7}) == []
