"""``manage.py pgjobs cancel`` and its like: the selection, the messages, the question, and the exit status."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_pgjobs.management import filters
from django_pgjobs.models import Job
from django_pgjobs.store import finalising
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, job, register
from tests.plugins.shell import printed


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], list[str]]:
    """Let the operator answer; None is a shell without anybody. Returns the questions that were asked."""

    def answer(word: str | None) -> list[str]:
        asked: list[str] = []

        def ask(question: str) -> str:
            asked.append(question)
            if word is None:
                raise EOFError
            return word

        monkeypatch.setattr("builtins.input", ask)
        return asked

    return answer


@pytest.fixture(autouse=True)
def nobody_is_asked(answers: Callable[[str | None], list[str]]) -> None:
    answers(None)


def test_one_job_is_cancelled_by_its_id(raw: RawDatabase) -> None:
    """Nothing is asked, and who and why is on the row."""
    one, two = register(2)
    assert printed("cancel", one, "--by", "anna", "--reason", "wrong data") == (0, "cancel: 1 changed, 0 skipped\n")
    row = job(one)
    assert (row.state, row.cancel_by, row.cancel_reason) == ("cancelled", "anna", "wrong data")
    assert job(two).state == "ready"


def test_who_does_it_is_by_default_the_user_of_the_shell(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "operator")
    [one] = register()
    printed("cancel", one)
    assert job(one).cancel_by == "operator"

    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert filters.shell_user().startswith("uid ")


def test_skipped_jobs_are_counted_with_the_reason(raw: RawDatabase, other: RawDatabase, monkeypatch: Any) -> None:
    """Bad input: a job that cannot take it is left as it is, and said so; the status is 1."""
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.1)
    done, locked, ready = register(3)
    taken = claim(raw)
    assert taken.ids == [done]
    finalising.finalise_success(raw, taken.ends(), AUTHOR)
    other.lock(locked)
    status, said = printed("cancel", done, locked, ready, 999_999_999, "--yes")
    assert (status, said.splitlines()) == (
        1,
        ["cancel: 1 changed, 3 skipped", "  1 skipped: busy", "  1 skipped: succeeded", "  1 skipped: unknown"],
    )
    assert [job(one).state for one in (done, locked, ready)] == ["succeeded", "ready", "cancelled"]


@pytest.mark.parametrize("mode", ["ask", "interrupt", "kill"])
def test_a_running_job_gets_the_request_in_its_mode(raw: RawDatabase, mode: str) -> None:
    """An action on a job under a live lease never overwrites its attempt."""
    register()
    held = claim(raw)
    assert printed("cancel", *held.ids, "--mode", mode) == (0, "cancel: 1 changed, 0 skipped\n")
    row = job(held.ids[0])
    assert (row.state, row.claim_id, row.attempt, row.cancel_mode) == ("running", held.claim_id, 1, mode)


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["--queue", "mail"], ["mail"]),
        (["--name", "test.other"], ["other"]),
        (["--state", "parked"], ["parked"]),
        (["--queue", "mail", "--name", "test.other"], []),
        (["--queue", "default", "--state", "ready"], ["plain", "other"]),
    ],
)
def test_a_filter_means_jobs_that_have_not_ended(raw: RawDatabase, options: list[str], meant: list[str]) -> None:
    register()
    finalising.finalise_success(raw, claim(raw).ends(), AUTHOR)
    jobs = {
        "plain": register()[0],
        "mail": register(queue="mail")[0],
        "other": register(name="test.other")[0],
        "parked": register()[0],
    }
    Job.objects.filter(pk=jobs["parked"]).update(hold="parked")
    status, said = printed("cancel", *options, "--no-input")
    assert (status, said) == (0, f"cancel: {len(meant)} changed, 0 skipped\n")
    assert [name for name, one in jobs.items() if job(one).state == "cancelled"] == meant


def test_many_are_asked_for_first(raw: RawDatabase, answers: Callable[[str | None], list[str]]) -> None:
    ids = register(3)
    asked = answers("n")
    assert printed("cancel", *ids) == (1, "Nothing was changed.\n")
    assert asked == ["Cancel 3 jobs? [y/N] "]
    answers(None)
    with pytest.raises(CommandError, match="There was no answer"):
        printed("cancel", *ids)
    assert {job(one).state for one in ids} == {"ready"}
    answers("y")
    assert printed("cancel", *ids) == (0, "cancel: 3 changed, 0 skipped\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cancel"], "Select jobs"),
        (["cancel", "--database", "nowhere", "1"], "no database alias 'nowhere'"),
        (["cancel", "1", "--mode", "gently"], "invalid choice: 'gently'"),
        (["cancel", "--state", "asleep"], "invalid choice: 'asleep'"),
        (["cancel", "seven"], "'seven' is not a job id"),
        (["retry", "1", "--mode", "ask"], "unrecognized arguments"),
    ],
)
def test_what_makes_no_sense_is_refused(raw: RawDatabase, arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        call_command("pgjobs", *arguments)


def test_jobs_are_retried_abandoned_and_released(raw: RawDatabase) -> None:
    """The same way; each means by a filter what it can do something with."""
    register(2)
    held = claim(raw)
    assert printed("release", "--queue", "default") == (0, "release: 1 changed, 0 skipped\n")
    assert job(held.ids[0]).release_requested_at is not None
    assert printed("abandon", "--queue", "default", "--yes") == (
        1, "abandon: 1 changed, 1 skipped\n  1 skipped: running\n",
    )  # fmt: skip
    assert printed("retry", "--queue", "default") == (0, "retry: 1 changed, 0 skipped\n")
    assert sorted(Job.objects.values_list("state", flat=True)) == ["ready", "running"]
