"""Atomic jobs under ``run_jobs`` inside a plain ``TestCase``: their transactions are savepoints of the test's."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import TestCase

from django_pgjobs.models import Job, StoredResult
from django_pgjobs.testing import run_jobs
from tests.db.atomic_ground import goes_on, keyed, makes, marks, told
from tests.db.run_jobs_ground import in_a_test_case

pytestmark = in_a_test_case


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()


@pytest.mark.parametrize(
    ("then", "state", "users"),
    [("", "succeeded", 1), ("fail", "ready", 0), ("abandon", "abandoned", 0), ("undo", "ready", 0)],
)
def test_it_ends_in_a_savepoint(then: str, state: str, users: int) -> None:
    made = makes.register("ada", then)
    with TestCase.captureOnCommitCallbacks() as hooks:
        ran = run_jobs()
    assert Job.objects.get(pk=made.pk).state == state
    assert User.objects.count() == users
    assert len(hooks) == users, "its own hook, and none of ours"
    assert ran.ran == [made.pk]
    kinds = {"": [], "fail": ["ValueError"], "abandon": [], "undo": ["RolledBack"]}
    assert [type(error).__name__ for error in ran.errors] == kinds[then]


def test_a_step_machine_of_atomic_steps_runs_to_its_end() -> None:
    """P29: each step's effects and the move to the next are one savepoint."""
    made = goes_on.register("ada")
    run_jobs()
    after = Job.objects.get(pk=made.pk)
    assert (after.name, after.state) == (makes.name, "succeeded")
    assert User.objects.count() == 2


def test_results_under_keys_and_callbacks() -> None:
    first, second, called = keyed.register("ada"), keyed.register("ada"), marks.register("bob")
    ran = run_jobs()
    assert ran.ran == [first.pk, second.pk, called.pk]
    assert StoredResult.objects.get().result == "ada"
    assert set(Job.objects.values_list("outcome", flat=True)) == {"succeeded"}
    assert told == [("bob", True)]
