"""Batches and flows in the admin: what their pages show and lead to, and what an operator does with them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.utils.functional import Promise, lazystr

from django_pgjobs import Batch, Flow, job
from django_pgjobs.admin import actions, flow_section
from django_pgjobs.admin.jobs import JobAdmin
from django_pgjobs.models import Action, Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import flow as presentation
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.filters import STATES
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.states import Rule
from django_pgjobs.steering import reopening
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_admin import LIST, act, client_with, html, ids_on, said, steer_url
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

unlucky: set[int] = set()


@job(name="abatch.member", max_attempts=1)
def member(n: int = 0) -> int:
    if n in unlucky:
        raise ValueError(f"unlucky {n}")
    return n


@job(name="abatch.later", queue="later")
def later() -> None: ...


@pytest.fixture(autouse=True)
def nothing_fails() -> None:
    unlucky.clear()


def failed(bad: int = 2, good: int = 1, **options: Any) -> Batch:
    """A batch that has ended, with members that failed."""
    unlucky.update(range(100, 100 + bad))
    with Batch("newsletter <7>", **options) as batch:
        batch.add_many(member.bind(n) for n in [*range(good), *range(100, 100 + bad)])
    run_jobs(queues=["default"])
    unlucky.clear()
    assert batch.job.outcome == "abandoned"
    return batch


def opened() -> Batch:
    """A batch that is open, with one member that waits in another queue."""
    batch = Batch("slow producer").open()
    batch.add(later.bind())
    return batch


def page(client: Client, row: Job | int) -> str:
    answer = client.get(f"{LIST}{row if isinstance(row, int) else row.pk}/change/")
    assert answer.status_code == 200
    return html(answer)


def offered(client: Client, row: Job) -> set[str]:
    return set(re.findall(r"/steer/(\w+)/", page(client, row)))


def members(batch: Batch, **conditions: Any) -> list[int]:
    rows = Job.objects.filter(parent_id=batch.job.pk, **conditions).order_by("-pk")
    return list(rows.values_list("pk", flat=True))


# What is offered


def test_a_batchs_page_offers_what_helps(root: Client) -> None:
    assert offered(root, failed().job) == {"retry_members"}, "a batch is not retried itself"
    assert offered(root, opened().job) == {"unblock", "close", "cancel"}
    with Batch("closed") as batch:
        batch.add(later.bind())
    assert offered(root, batch.job) == {"unblock", "cancel"}
    waiting = member.using(after=batch.job).register()
    assert offered(root, waiting) == {"unblock", "cancel", "abandon"}
    with Batch("well") as batch:
        batch.add(member.bind())
    run_jobs(queues=["default"])
    assert offered(root, batch.job) == set()


def test_members_are_retried_while_the_others_run(root: Client) -> None:
    unlucky.add(5)
    with Batch("b") as batch:
        batch.add_many([member.bind(5), later.bind()])
    run_jobs(queues=["default"])
    assert offered(root, batch.job) == {"retry_members", "unblock", "cancel"}


@pytest.mark.parametrize(
    ("permission", "on_failed", "on_open"),
    [
        ("retry_job", {"retry_members"}, set()),
        ("reschedule_job", set(), {"unblock", "close"}),
        ("cancel_job", set(), {"cancel"}),
        ("view_payload", set(), set()),
    ],
)
def test_each_button_needs_its_permission(permission: str, on_failed: set[str], on_open: set[str]) -> None:
    client = client_with(permission)
    assert offered(client, failed().job) == on_failed
    assert offered(client, opened().job) == on_open


@pytest.mark.parametrize("name", ["retry_members", "close", "unblock"])
def test_without_the_permission_it_is_refused(name: str) -> None:
    client = client_with("cancel_job", "abandon_job")
    rows = [failed().job, opened().job]
    before = list(Job.objects.order_by("pk").values())
    for row in rows:
        assert client.post(steer_url(row, name), {"reason": ""}).status_code == 403
    chosen = {"_selected_action": [row.pk for row in rows], "index": "0", "confirmed": "yes"}
    client.post(LIST, {"action": name, **chosen})
    assert list(Job.objects.order_by("pk").values()) == before
    assert Gate.objects.filter(hands=1).count() == 1


# Retry failed members


def test_the_failed_members_of_a_batch_are_retried_and_the_batch_waits_again() -> None:
    batch = failed()
    client = client_with("retry_job")
    answer = client.post(steer_url(batch.job, "retry_members"), follow=True)
    assert said(answer) == ["Retry failed members: 2 changed."]
    assert batch.job.state == "blocked"
    assert batch.figures.pending == 2
    action = Action.objects.get()
    assert (action.verb, action.via, action.changed) == ("retry", "admin", 2)
    assert action.asked == f"failed members of {batch.job.pk}"
    assert sorted(ActionPart.objects.get().job_ids) == sorted(members(batch, outcome=None))
    assert str(LogEntry.objects.get(object_id=str(batch.job.pk))).endswith("Retry failed members: 2 changed.")
    run_jobs(queues=["default"])
    assert batch.job.outcome == "succeeded"
    assert said(client.post(steer_url(batch.job, "retry_members"), follow=True)) == ["Retry failed members: 0 changed."]


def test_a_reason_is_asked_before_the_members_of_one_batch_are_retried(root: Client) -> None:
    batch = failed()
    page = html(root.get(f"{LIST}{batch.job.pk}/change/"))
    form = page.partition('id="pgjobs-retry_members"')[2].partition("</form>")[0]
    assert 'name="reason"' in form
    assert "Retry failed members</button>" in form
    root.post(steer_url(batch.job, "retry_members"), {"reason": "the bank is back"})
    assert Action.objects.get().reason == "the bank is back"
    other = failed()
    asked = html(act(root, "retry_members", [other.job]))
    assert 'name="reason"' in asked
    assert other.job.state == "abandoned"
    act(root, "retry_members", [other.job], confirmed="yes", reason="both are")
    assert Action.objects.latest("pk").reason == "both are"
    assert other.job.state == "blocked"


def test_the_failed_nodes_of_a_flow_are_retried(root: Client) -> None:
    unlucky.add(5)
    made = Flow("f")
    first = made.add(member.bind(5))
    made.add(member.bind(), after=first)
    row = made.register()
    run_jobs(queues=["default"])
    unlucky.clear()
    root.post(steer_url(row, "retry_members"))
    run_jobs(queues=["default"])
    row.refresh_from_db()
    assert row.outcome == "succeeded"


def test_one_request_retries_a_bounded_number_and_says_what_is_left(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MEMBERS", 3)
    batch = failed(bad=5)
    answer = root.post(steer_url(batch.job, "retry_members"), follow=True)
    words = "3 changed, 2 skipped: 2 left for the next time: repeat the action."
    assert said(answer) == [f"Retry failed members: {words}"]
    assert len(members(batch, state="ready")) == 3
    assert "2 changed." in said(root.post(steer_url(batch.job, "retry_members"), follow=True))[0]
    assert len(members(batch, state="ready")) == 5


def test_a_retry_that_concerns_too_many_jobs_says_so(
    root: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    batch = failed()
    monkeypatch.setattr(reopening, "BESIDE", -1)
    settings.PGJOBS = {**settings.PGJOBS, "BOUNDS": {"nodes": 1}}
    [text] = said(root.post(steer_url(batch.job, "retry_members"), follow=True))
    assert text.startswith("This retry concerns more than 0 jobs")
    [text] = said(
        act(root, "retry", [Job.objects.get(pk=each) for each in members(batch, outcome="abandoned")], confirmed="yes")
    )
    assert text.startswith("This retry concerns more than 0 jobs")
    with pytest.raises(CommandError, match="This retry concerns more than 0 jobs"):
        call_command("pgjobs", "retry", "--batch", str(batch.job.pk), "--state", "abandoned", "--yes")
    assert batch.job.outcome == "abandoned"


def test_failed_members_of_several_batches_are_retried_from_the_list(root: Client) -> None:
    batches = [failed(), failed(), failed()]
    plain = member.register()
    answer = act(root, "retry_members", [batches[0].job, batches[1].job, plain], confirmed="yes")
    assert "Retry failed members: 4 changed, 1 skipped: 1 no batch." in html(answer)
    assert [batch.job.state for batch in batches] == ["blocked", "blocked", "abandoned"]
    logged = set(LogEntry.objects.values_list("object_id", flat=True))
    assert logged == {str(batch.job.pk) for batch in batches[:2]}, "in the history of the batches, not of the members"


def test_failed_members_of_all_batches_of_a_list_are_retried_after_the_question(root: Client) -> None:
    batches = [failed(), failed()]
    query = "?name=pgjobs.batch"
    asked = html(act(root, "retry_members", [batches[0].job], query, select_across="1"))
    assert '<strong id="pgjobs-count">2</strong>' in asked
    act(root, "retry_members", [batches[0].job], query, select_across="1", confirmed="yes")
    assert {batch.job.state for batch in batches} == {"blocked"}
    assert Action.objects.get().changed == 4


def test_all_jobs_of_a_list_are_no_batches_and_none_of_them_is_touched(root: Client) -> None:
    batch = failed()
    plain = [member.register() for _ in range(3)]
    asked = html(act(root, "retry_members", plain, "?name=abatch.member", select_across="1"))
    assert '<strong id="pgjobs-count">0</strong>' in asked
    answer = act(root, "retry_members", plain, "?name=abatch.member", select_across="1", confirmed="yes")
    assert "0 changed." in html(answer)
    assert batch.job.outcome == "abandoned"


# Close


def test_an_open_batch_is_closed_with_a_reason() -> None:
    batch = opened()
    client = client_with("reschedule_job")
    answer = client.post(steer_url(batch.job, "close"), {"reason": "its producer died"}, follow=True)
    assert said(answer) == ["Close: 1 changed. Reason: its producer died."]
    action = Action.objects.get()
    assert (action.verb, action.via, action.reason) == ("close", "admin", "its producer died")
    assert "anna" in action.acted_by
    assert "Close" in page(client, batch.job)
    assert Gate.objects.get(pk=batch.job.pk).hands == 0
    run_jobs()
    assert batch.job.outcome == "succeeded"


def test_selected_batches_are_closed_and_what_is_none_is_skipped(root: Client) -> None:
    first, second = opened(), opened()
    with Batch("closed") as closed:
        closed.add(later.bind())
    rows = [first.job, second.job, closed.job, later.register(), failed().job]
    answer = act(root, "close", rows)
    assert "Close: 2 changed, 3 skipped: 1 abandoned, 1 blocked, 1 no batch." in html(answer)
    assert not Gate.objects.filter(hands=1).exists()


# Cancel


def test_a_cancel_says_that_members_are_cancelled_too(root: Client) -> None:
    batch = opened()
    words = "All members of a batch or flow that have not ended are cancelled, too"
    shown = page(root, batch.job)
    assert words in shown
    assert "Cancel it and its members" in shown
    plain = later.register()
    assert words not in page(root, plain)
    assert "Cancel this job" in page(root, plain)
    assert words in html(act(root, "cancel", [batch.job, plain]))
    assert words not in html(act(root, "cancel", [plain]))
    root.post(steer_url(batch.job, "cancel"), {"mode": "ask", "reason": "sale is over"})
    run_jobs()
    assert members(batch, outcome="cancelled", cancel_reason="sale is over") == members(batch)
    assert batch.job.outcome == "cancelled"


# Unblock


def test_a_blocked_job_is_unblocked_with_a_reason() -> None:
    child = member.using(after=later.register()).register()
    client = client_with("reschedule_job")
    shown = page(client, child)
    assert "Unblock runs it all the same." in shown
    assert "manage.py" not in shown
    answer = client.post(steer_url(child, "unblock"), {"reason": "no time"}, follow=True)
    assert said(answer) == ["Unblock: 1 changed. Reason: no time."]
    action = Action.objects.get()
    assert (action.verb, action.mode, action.via, action.reason) == ("unblock", "", "admin", "no time")
    assert "Unblock" in page(client, child)
    assert LogEntry.objects.filter(object_id=str(child.pk)).count() == 1
    run_jobs(queues=["default"])
    child.refresh_from_db()
    assert child.outcome == "succeeded"


def test_selected_jobs_are_unblock_after_the_question(root: Client) -> None:
    children = [member.using(after=later.register()).register() for _ in range(2)]
    plain = later.register()
    asked = html(act(root, "unblock", [*children, plain]))
    assert '<strong id="pgjobs-count">2</strong>' in asked
    assert "if it takes the result of one that has not succeeded, it is abandoned" in asked
    answer = act(root, "unblock", [*children, plain], confirmed="yes", reason="no time")
    assert "Unblock: 2 changed, 1 skipped: 1 ready. Reason: no time." in html(answer)


def test_advice_on_the_page_of_a_batch_names_its_buttons(root: Client) -> None:
    advice = {
        failed().job.pk: "Retry failed members lets it wait for them again.",
        opened().job.pk: "If no more are added, close it.",
    }
    with Batch("closed") as batch:
        batch.add(later.bind())
    advice[batch.job.pk] = "Unblock ends it by its figures so far."
    for batch_id, words in advice.items():
        shown = page(root, batch_id)
        assert words in shown
        assert "manage.py" not in shown
    batch.job.cancel()
    run_jobs()
    assert "manage.py" not in page(root, batch.job)


def test_advice_on_the_page_of_what_was_not_needed_names_its_button(root: Client) -> None:
    batch = failed(succeeded=member.bind())
    skipped = Job.objects.get(parent_id=None, name="abatch.member")
    assert skipped.outcome == "cancelled"
    shown = page(root, skipped)
    assert "To run it all the same, retry it." in shown
    assert batch.job.pk


# Lists of members


def test_the_members_of_a_batch_are_listed_newest_first_and_by_state(root: Client) -> None:
    batch = failed(bad=2, good=3)
    failed()
    assert ids_on(root.get(LIST, {"batch": batch.job.pk})) == members(batch)
    for state in STATES:
        expected = members(batch, outcome=state) if state in ("succeeded", "abandoned", "cancelled") else []
        assert ids_on(root.get(LIST, {"batch": str(batch.job.pk), "state": state})) == expected, state
    good = members(batch, outcome="succeeded")
    assert ids_on(root.get(LIST, {"batch": str(batch.job.pk), "q": str(good[0])})) == good[:1]
    assert ids_on(root.get(LIST, {"batch": str(batch.job.pk), "name": "abatch.later"})) == []
    assert ids_on(root.get(LIST, {"batch": f"#{batch.job.pk}", "queue": "default"})) == members(batch)


def test_members_that_wait_run_or_are_due_are_listed(root: Client) -> None:
    with Batch("b") as batch:
        batch.add_many([later.bind(), later.using(delay=3600).bind(), member.bind()])
    expected = {"ready": 2, "scheduled": 1, "running": 0, "blocked": 0}
    found = {state: len(ids_on(root.get(LIST, {"batch": str(batch.job.pk), "state": state}))) for state in expected}
    assert found == expected


def test_a_list_of_members_is_bounded_where_no_index_helps_says_so_and_goes_further(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "NEAR", 2)
    batch = failed(bad=2, good=3)
    near = root.get(LIST, {"batch": str(batch.job.pk), "state": "succeeded"})
    assert ids_on(near) == []
    assert "Only the first 2 jobs of this list were searched." in html(near)
    url = html(near).split('id="pgjobs-further"')[0].rpartition('href="')[2].split('"')[0].replace("&amp;", "&")
    far = root.get(LIST + url)
    assert ids_on(far) == members(batch, outcome="succeeded")
    assert "were searched" not in html(far)
    assert "were searched" not in html(root.get(LIST, {"batch": batch.job.pk})), "all members are listed"
    assert ids_on(root.get(LIST, {"batch": batch.job.pk})) == members(batch)


@pytest.mark.parametrize("text", ["x", "1\0", "-1", "1.5", "open?"])
def test_an_id_that_is_none_goes_back_to_the_whole_list(root: Client, text: str) -> None:
    answer = root.get(LIST, {"batch": text})
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}?e=1")


@pytest.mark.parametrize("text", ["0", "9" * 30, str(2**63)])
def test_an_id_of_nothing_lists_nothing(root: Client, text: str) -> None:
    assert ids_on(root.get(LIST, {"batch": text})) == []
    assert ids_on(root.get(LIST, {"batch": text, "state": "abandoned"})) == []


def test_open_batches_are_listed(root: Client) -> None:
    batch = opened()
    with Batch("closed") as closed:
        closed.add(later.bind())
    other = opened()
    shown = root.get(LIST, {"batch": "open"})
    assert sorted(ids_on(shown)) == [batch.job.pk, other.job.pk]
    assert "Open batches" in html(shown)
    assert ids_on(root.get(LIST, {"batch": "open", "state": "ready"})) == []
    assert f"{LIST}?batch=open" in page(root, batch.job)


def test_open_batches_are_found_behind_many_jobs_that_wait(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "NEAR_HELD", 2)
    needed = later.register()
    for _ in range(4):
        member.using(after=needed).register()
    batch = opened()
    assert ids_on(root.get(LIST, {"batch": "open"})) == [batch.job.pk]


def test_what_a_list_of_members_says_in_words() -> None:
    assert JobSearch.of({"batch": "17", "state": "abandoned"}, "").words == "state abandoned, members of 17"
    assert JobSearch.of({"batch": "open"}, "").words == "state blocked, name pgjobs.batch, open batches"


def test_all_members_in_a_state_are_steered_from_the_list(root: Client) -> None:
    batch, other = failed(), failed()
    query = f"?batch={batch.job.pk}&state=abandoned"
    chosen = [Job.objects.get(pk=each) for each in members(batch, outcome="abandoned")[:1]]
    act(root, "retry", chosen, query, select_across="1", confirmed="yes")
    assert members(batch, outcome="abandoned") == []
    assert len(members(other, outcome="abandoned")) == 2


# Where the page leads


def test_the_figures_of_a_batch_lead_to_these_members(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = failed(bad=2, good=1)
    shown = page(root, batch.job)
    for state, number in (("succeeded", 1), ("abandoned", 2)):
        url = f"{LIST}?batch={batch.job.pk}&amp;state={state}"
        assert f'<a href="{url}">{number} {state}</a>' in shown
        assert len(ids_on(root.get(url.replace("&amp;", "&")))) == number
    assert "0 cancelled, 0 not ended" in shown
    assert f'<a href="{LIST}?batch={batch.job.pk}">all members</a>' in shown
    monkeypatch.setattr(reach, "NEAR", 2)
    url = f"{LIST}?batch={batch.job.pk}&amp;state=abandoned&amp;reach=far"
    assert f'<a href="{url}">2 abandoned</a>' in page(root, batch.job), "of a large batch, all members are searched"


def test_the_page_of_a_member_leads_to_all_members(root: Client) -> None:
    batch = failed()
    shown = page(root, members(batch)[0])
    assert f'<a href="{LIST}?batch={batch.job.pk}">all members</a>' in shown


def test_what_the_page_does_not_show_is_counted(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presentation, "MOST", 2)
    batch = failed(bad=5)
    child = member.using(after=members(batch), when="settled").register()
    for _ in range(2):
        member.using(after=members(batch)[0], when="settled").register()
    rest = f"{LIST}?batch={batch.job.pk}&amp;state=abandoned"
    assert f'<a href="{rest}">and 3 more</a>' in page(root, batch.job)
    assert f"  and 3 more: pgjobs list --batch {batch.job.pk} --state abandoned\n" in pgjobs("tree", batch.job.pk)[1]
    assert "<div>and 4 more</div>" in page(root, child)
    assert "needs 4 more\n" in pgjobs("tree", child.pk)[1]
    assert "<div>and 1 more</div>" in page(root, members(batch)[0])
    assert "  and 1 more\n" in pgjobs("tree", members(batch)[0])[1]


def test_exactly_as_many_as_are_shown_are_not_more(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presentation, "MOST", 2)
    assert "more</" not in page(root, failed(bad=2).job)


def test_links_stay_on_the_admin_site_of_the_page() -> None:
    """A project may have several; ``reverse`` would lead to the first."""
    batch = failed(settled=later.bind())
    asked = RequestFactory().get("/")
    asked.user = User.objects.create_superuser("root")
    site = AdminSite(name="second")
    shown: Any = JobAdmin(Job, site)
    row = shown.get_object(asked, str(batch.job.pk))
    pages: list[str | None] = []
    with pytest.MonkeyPatch.context() as patch:
        reverse = __import__("django.urls", fromlist=["reverse"]).reverse

        def noted(name: str, *args: Any, **options: Any) -> str:
            pages.append(options.get("current_app"))
            found: str = reverse(name, *args, **options)
            return found

        patch.setattr("django_pgjobs.admin.display.reverse", noted)
        shown._sections(asked, row, presentation.surroundings(row))
    assert set(pages) == {"second"}


def test_rules_are_said_in_the_readers_language(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {rule for rule, label in flow_section.RULES.items() if isinstance(label, Promise)} == set(map(str, Rule))
    batch = failed(settled=later.bind(), failed=later.bind())
    monkeypatch.setitem(flow_section.RULES, "settled", lazystr("fertig"))
    shown = page(root, batch.job)
    assert "(fertig)" in shown
    assert "(must fail)" in shown


# The shell


def test_members_are_listed_and_retried_in_the_shell() -> None:
    batch, other = failed(), failed()
    status, out, _ = pgjobs("list", "--batch", batch.job.pk, "--format", "json")
    assert (status, out.count('"name": "abatch.member"')) == (0, 3)
    status, out, _ = pgjobs("list", "--batch", batch.job.pk, "--state", "abandoned", "--all")
    assert (status, len(out.splitlines())) == (0, 3)
    status, out, _ = pgjobs("retry", "--batch", batch.job.pk, "--state", "abandoned", "--yes")
    assert (status, out) == (0, "retry: 2 changed, 0 skipped\n")
    assert [each.job.state for each in (batch, other)] == ["blocked", "abandoned"]
    assert Action.objects.get().asked == f"state abandoned, members of {batch.job.pk}"
    with pytest.raises(CommandError, match="--batch: 'x' is not a job id"):
        pgjobs("list", "--batch", "x")


def test_the_members_that_have_not_ended_are_cancelled_in_the_shell() -> None:
    batch, other = opened(), opened()
    assert pgjobs("cancel", "--batch", batch.job.pk, "--yes")[:2] == (0, "cancel: 1 changed, 0 skipped\n")
    run_jobs(queues=["later"])
    assert (batch.figures.cancelled, other.figures.succeeded) == (1, 1)


def test_an_action_takes_all_members_however_far_a_list_would_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "NEAR", 1)
    batch = failed(bad=4)
    assert "Only the first 1 jobs were searched" in pgjobs("list", "--batch", batch.job.pk, "--state", "abandoned")[2]
    assert pgjobs("retry", "--batch", batch.job.pk, "--state", "abandoned", "--yes")[1].startswith("retry: 4 changed")
