"""``crash_tests``: a test for each job of a module."""

from __future__ import annotations

import io
import unittest
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import TestCase

from django_pgjobs import job
from django_pgjobs.testing import crash_tests, isolated_registry

SOURCE = """
from django.contrib.auth.models import Group
from django_pgjobs import job

@job
def opens() -> None:
    Group.objects.get_or_create(name="open")

@job
def renames(group: int, name: str) -> None:
    Group.objects.filter(pk=group).update(name=name)

@job
def doubles() -> None:
    Group.objects.create(name=f"group {Group.objects.count()}")
"""


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    with isolated_registry():
        module = ModuleType("shop_of_crash_tests")
        exec(SOURCE, vars(module))
        vars(module)["elsewhere"] = job(_elsewhere)
        yield module


def _elsewhere() -> None: ...


def ran(tests: Any) -> tuple[dict[str, str], set[str]]:
    """Return what failed, and what ran."""
    loader = unittest.defaultTestLoader
    suite, names = loader.loadTestsFromTestCase(tests), loader.getTestCaseNames(tests)
    result = unittest.TextTestRunner(io.StringIO()).run(suite)
    assert result.errors == []
    return {each._testMethodName: text for each, text in result.failures}, set(names)


@pytest.mark.django_db
def test_each_job_of_the_module_has_a_test(shop: ModuleType) -> None:
    @crash_tests(shop)
    class Tests(TestCase):
        def example_renames(self) -> Any:
            return shop.renames.bind(Group.objects.create(name="old").pk, name="new")

    failed, names = ran(Tests)
    assert names == {"test_kills_of_opens", "test_kills_of_renames", "test_kills_of_doubles"}
    assert failed.keys() == {"test_kills_of_doubles"}
    assert "Killed after query 2 of 2: INSERT" in failed["test_kills_of_doubles"]


@pytest.mark.django_db
def test_jobs_may_be_skipped_and_tests_be_written(shop: ModuleType) -> None:
    @crash_tests(shop, skip=["doubles"], limit=1)
    class Tests(TestCase):
        def example_renames(self) -> Any:
            return shop.renames.bind(1, "new")

        def test_kills_of_opens(self) -> None:
            self.fail("my own")

    failed, names = ran(Tests)
    assert names == {"test_kills_of_opens", "test_kills_of_renames"}
    assert "my own" in failed.pop("test_kills_of_opens")
    assert failed == {}


@pytest.mark.django_db
def test_a_job_without_an_example_fails_and_says_what_to_write(shop: ModuleType) -> None:
    @crash_tests(shop, skip=["doubles", "opens"])
    class Tests(TestCase):
        pass

    failed, _ = ran(Tests)
    assert "declare example_renames(self) that returns renames.bind(…)" in failed["test_kills_of_renames"]


def test_a_name_that_is_no_job_is_refused(shop: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"declares no job 'rename'.*renames"):
        crash_tests(shop, skip=["rename"])
    with pytest.raises(ValueError, match="declares no jobs"):
        crash_tests("tests.db.test_crash_tests")
