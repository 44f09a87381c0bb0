"""django-user-tasks: a base class, receivers of five signals, revoke, groups, chains and chords."""

from __future__ import annotations

from tests.foreign.celery_runs import Outcome, Record, own_tests


def test_its_own_tests_pass_as_they_do_on_celery(record_property: Record) -> None:
    passed = own_tests("usertasks", record_property, "tests")
    assert len(passed["celery"]) > 80
    assert passed["celery"] - passed["bridge"] == set()
    # It asks for a result that the settings ignore; an eager call of Celery returns it, and no worker keeps it.
    lost = {name.rpartition(".")[2] for name in passed["celery"] - passed["rows"]}
    assert lost == {"test_non_user_task_success"}


def test_its_tasks_do_in_our_workers_what_they_do_in_celerys_and_back(outcome: Outcome) -> None:
    on_celery, here = outcome("celery"), outcome("bridge")
    assert len(on_celery["rows"]) == 13
    # It counts the two steps of a chord's body in the header, too, done by whoever ends last; Redis has the body called
    # before that end is told, and celery.chord_unlock afterwards, here as with Celery on other result backends.
    assert (on_celery.pop("steps of headers"), here.pop("steps of headers")) == (["6"], ["4"])
    assert here == on_celery
    back = outcome("back")
    assert back.pop("steps of headers") == ["6"]
    assert back == on_celery
