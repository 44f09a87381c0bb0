"""celery-haystack-ng: tasks that are classes with names of their own, called after the commit."""

from __future__ import annotations

from tests.foreign.celery_runs import Outcome, Record, own_tests


def test_its_own_tests_pass_as_they_do_on_celery(record_property: Record) -> None:
    passed = own_tests("haystack", record_property, "celery_haystack/tests/tests.py")
    assert len(passed["celery"]) == 3
    assert passed["celery"] - passed["bridge"] == passed["celery"] - passed["rows"] == set()


def test_its_tasks_do_in_our_workers_what_they_do_in_celerys_and_back(outcome: Outcome) -> None:
    on_celery = outcome("celery")
    assert len(on_celery["found"]) == 3
    assert outcome("bridge") == on_celery
    assert outcome("back") == on_celery
