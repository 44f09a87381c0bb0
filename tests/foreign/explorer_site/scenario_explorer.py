"""django-sql-explorer: shared tasks behind a view, one that retries by itself, and its own tests."""

from __future__ import annotations

from tests.foreign.celery_runs import Outcome, Record, own_tests


def test_its_own_tests_pass_as_they_do_on_celery(record_property: Record) -> None:
    passed = own_tests("explorer", record_property, "explorer/tests")
    assert len(passed["celery"]) > 100
    assert passed["celery"] - passed["bridge"] == passed["celery"] - passed["rows"] == set()


def test_its_tasks_do_in_our_workers_what_they_do_in_celerys_and_back(outcome: Outcome) -> None:
    on_celery = outcome("celery")
    assert len(on_celery["mails"]) == 4
    assert on_celery["puts"] == [
        ["query-1", 200],
        ["query-1", 403],
        ["query-3", 200],
        ["query-3", 403],
        ["report", 200],
    ]
    assert outcome("bridge") == on_celery
    assert outcome("back") == on_celery
