"""Stacks of running jobs, by the statements and for operators: who is asked, what is stored and shown (I32)."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import Client

from django_pgjobs import sql
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.models import Action, Job, JobStack
from django_pgjobs.presentation.job_rows import stacks_of
from django_pgjobs.presentation.wording import problem_of_stack
from django_pgjobs.store import finalising, keeping, stacks
from django_pgjobs.store.stacks import StackAnswer
from django_pgjobs.values.built_in import POLICY
from tests.db.test_controls import facts
from tests.plugins.fix_admin import LIST, client_with, html, user_with
from tests.plugins.fix_db import AUTHOR, WORKER, Claimed, RawDatabase, claim, job, register
from tests.plugins.shell import pgjobs, printed

pytestmark = pytest.mark.usefixtures("committed")

STACK = 'Where it is (most recent call last):\n  File "shop.py", line 3, in pay\n    wait()'


def held(raw: RawDatabase) -> Claimed:
    register()
    return claim(raw)


def ask(claimed: Claimed, by: str = "anna", reason: str = "slow") -> JobStack:
    row = job(claimed.ids[0])
    assert row.take_stack(by=by, reason=reason).changed == 1
    return JobStack.objects.order_by("-pk").first()  # type: ignore[return-value]


def answer(raw: RawDatabase, request: JobStack, stack: str = STACK, problem: str = "") -> bool:
    return stacks.answer_stack(raw, WORKER, StackAnswer(request.pk, stack, problem))


def test_the_worker_that_holds_the_job_is_asked_and_its_answer_is_kept(raw: RawDatabase) -> None:
    claimed = held(raw)
    request = ask(claimed)
    assert (request.job_id, request.claim_id, request.number, request.worker) == (
        claimed.ids[0], claimed.claim_id, 1, WORKER,
    )  # fmt: skip
    assert (request.asked_by, request.reason, request.answered_at) == ("anna", "slow", None)
    assert stacks.list_stacks(raw, WORKER) == [(request.pk, request.job_id, str(claimed.claim_id))]
    assert stacks.list_stacks(raw, uuid4()) == []
    assert answer(raw, request)
    assert stacks.list_stacks(raw, WORKER) == []
    assert not answer(raw, request, "another"), "the first answer counts"
    request.refresh_from_db()
    assert request.stack == STACK
    [action] = Action.objects.all()
    assert (action.verb, action.acted_by, action.reason, action.changed) == ("stack", "anna", "slow", 1)


def test_a_heartbeat_says_that_there_is_a_request_as_long_as_it_is_open(raw: RawDatabase) -> None:
    def says() -> bool:
        control = keeping.beat(raw, facts(WORKER))
        assert control is not None
        return control.stacks

    assert not says()
    request = ask(held(raw))
    assert says()
    raw.query("UPDATE pgjobs_stack SET asked_at = asked_at - interval '3 minutes'")
    assert (says(), stacks.list_stacks(raw, WORKER)) == (False, []), "nobody waits for it any more"
    raw.query("UPDATE pgjobs_stack SET asked_at = asked_at + interval '3 minutes'")
    answer(raw, request)
    assert not says()


def test_an_attempt_has_one_open_request_and_a_repetition_renews_it(raw: RawDatabase) -> None:
    claimed = held(raw)
    first = ask(claimed)
    again = ask(claimed, by="ben", reason="still slow")
    assert (again.pk, again.asked_by, again.reason) == (first.pk, "ben", "still slow")
    assert again.asked_at > first.asked_at
    assert answer(raw, first)
    assert ask(claimed).pk != first.pk, "an answered one is over"


def test_a_job_keeps_its_latest_ten(raw: RawDatabase) -> None:
    claimed = held(raw)
    asked = []
    for _ in range(13):
        asked.append(ask(claimed))
        answer(raw, asked[-1])
    kept = list(JobStack.objects.order_by("pk").values_list("pk", flat=True))
    assert kept == [each.pk for each in asked[-10:]]


def test_a_job_that_does_not_run_is_skipped(raw: RawDatabase) -> None:
    [ready] = register()
    assert job(ready).take_stack().skipped == {"ready": 1}
    claimed = claim(raw)
    finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    assert job(ready).take_stack().skipped == {"succeeded": 1}
    assert not JobStack.objects.exists()
    assert not Action.objects.exists()


@pytest.mark.parametrize("name", sorted(POLICY))
def test_the_packages_own_jobs_are_asked_too(raw: RawDatabase, name: str) -> None:
    """It changes nothing of them."""
    claimed = held(raw)
    raw.query("UPDATE pgjobs_job SET name = %s", [name])
    assert ask(claimed).job_id == claimed.ids[0]


def test_only_the_worker_that_was_asked_answers(raw: RawDatabase) -> None:
    request = ask(held(raw))
    assert not stacks.answer_stack(raw, uuid4(), StackAnswer(request.pk, "forged", ""))
    twin = sql.statement("answer_stack").replace("AND s.worker = %(worker)s::uuid", "")
    given = {"id": request.pk, "worker": uuid4(), "stack": "forged", "problem": ""}
    assert raw.query(twin, given) == [(request.pk,)], "its red twin"


def test_an_answer_waits_for_no_operator(raw: RawDatabase) -> None:
    """The thread that answers renews the leases."""
    claimed = held(raw)
    request = ask(claimed)
    with transaction.atomic():
        ask(claimed, by="ben")  # holds the row until it commits
        raw.query("SET lock_timeout = '1s'")
        assert not answer(raw, request)
    assert answer(raw, request)


def test_what_becomes_of_a_request_whose_attempt_is_over(raw: RawDatabase) -> None:
    claimed = held(raw)
    request = ask(claimed)
    [row] = stacks_of(job(request.job_id))
    assert problem_of_stack(row, job(request.job_id)) == "Not answered yet."
    finalising.finalise_retry(raw, claimed.ends(seconds=1.0, delay=0.0, cause="failed"), AUTHOR)
    assert not answer(raw, request)
    again = claim(raw)
    assert again.ids == claimed.ids
    assert problem_of_stack(row, job(request.job_id)) == "The attempt ended before its worker answered."
    later = ask(again)
    assert (later.number, answer(raw, later)) == (2, True)


def test_stacks_go_after_their_job_and_no_sooner(raw: RawDatabase) -> None:
    gone, stays = ask(held(raw)), ask(held(raw))
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [gone.job_id])
    Expirer()(raw)
    assert list(JobStack.objects.values_list("pk", flat=True)) == [stays.pk]


def test_the_shell_says_at_once_that_a_job_does_not_run(raw: RawDatabase) -> None:
    [ready] = register()
    assert pgjobs("stack", ready) == (1, "", "The job is not running: ready.\n")
    assert pgjobs("stack", 999999) == (1, "", "There is no job 999999.\n")


def test_the_shell_says_that_no_worker_takes_it_up(raw: RawDatabase) -> None:
    keeping.beat(raw, facts(WORKER))
    claimed = held(raw)
    status, text = printed("stack", str(claimed.ids[0]), "--wait", "0", "--by", "anna")
    assert status == 1
    assert text.startswith("Not answered yet. Asked: worker w-"), text
    assert JobStack.objects.get().asked_by == "anna"


def test_the_page_of_a_running_job_takes_and_shows_stacks_for_those_who_may(raw: RawDatabase) -> None:
    claimed = held(raw)
    page = f"{LIST}{claimed.ids[0]}/change/"
    viewer = client_with()
    assert "pgjobs-stack" not in html(viewer.get(page))
    assert viewer.post(f"{LIST}{claimed.ids[0]}/steer/stack/").status_code == 403
    allowed = Client()
    allowed.force_login(user_with("view_job", "view_stack", name="ben"))
    assert 'id="pgjobs-stack"' in html(allowed.get(page))
    assert "Take stack: 1 changed." in html(allowed.post(f"{LIST}{claimed.ids[0]}/steer/stack/", follow=True))
    assert "Not answered yet." in html(allowed.get(page))
    answer(raw, JobStack.objects.get(), f"{STACK} <b>")
    text = html(allowed.get(page))
    assert "in pay" in text
    assert "&lt;b&gt;" in text
    assert "in pay" not in html(viewer.get(page)), "a right of its own"


def test_without_rights_and_requests_a_page_asks_for_no_stacks(raw: RawDatabase) -> None:
    claimed = held(raw)
    with connection.execute_wrapper(_refuse_stacks):
        assert client_with().get(f"{LIST}{claimed.ids[0]}/change/").status_code == 200
    assert Job.objects.get().stacks.count() == 0


def _refuse_stacks(execute: object, statement: str, *given: object) -> object:
    assert "pgjobs_stack" not in statement
    return execute(statement, *given)  # type: ignore[operator]
