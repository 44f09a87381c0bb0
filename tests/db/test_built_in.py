"""The package's own jobs: each × each action, by the admin, the shell and code, does what the one table says."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client, override_settings

from django_pgjobs import Backoff, Batch, Flow, JobContext, job
from django_pgjobs.admin.actions import ACTIONS as ADMIN_ACTIONS
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management.steer import ACTIONS as SHELL_ACTIONS
from django_pgjobs.models import CronEntry, Job, QueueState
from django_pgjobs.models.gates import Gate
from django_pgjobs.queues import pauses
from django_pgjobs.states import BUILT_IN
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.jobs import close_batches
from django_pgjobs.store import pausing
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from django_pgjobs.values.built_in import OWN_QUEUE, POLICY, SERVANTS, Act, refusal
from django_pgjobs.worker.threads.frontier import Frontier
from tests.plugins.fix_admin import LIST, html, make, said, steer_url
from tests.plugins.fix_admin import act as act_on_chosen

pytestmark = pytest.mark.django_db

PAIRS = [(name, act) for name in POLICY for act in Act]
STEERED = (Act.CANCEL, Act.ABANDON, Act.RETRY, Act.RELEASE, Act.UNBLOCK, Act.RESCHEDULE, Act.CLOSE)

IN_SHELL: dict[Act, tuple[str, ...]] = {
    Act.CANCEL: ("cancel",),
    Act.ABANDON: ("abandon",),
    Act.RETRY: ("retry",),
    Act.RELEASE: ("release",),
    Act.UNBLOCK: ("unblock",),
    Act.RESCHEDULE: ("reschedule", "--priority", "7"),
}
IN_ADMIN = {
    Act.CANCEL: "cancel",
    Act.ABANDON: "abandon",
    Act.RETRY: "retry",
    Act.RELEASE: "release",
    Act.UNBLOCK: "unblock",
    Act.RESCHEDULE: "run_now",
    Act.CLOSE: "close",
}
BY_CODE: dict[Act, Callable[[Job], Steered]] = {
    Act.CANCEL: lambda row: row.cancel(),
    Act.ABANDON: lambda row: row.abandon(),
    Act.RETRY: lambda row: row.retry(),
    Act.RELEASE: lambda row: row.release(),
    Act.UNBLOCK: lambda row: row.unblock(),
    Act.RESCHEDULE: lambda row: row.reschedule(priority=7),
    Act.CLOSE: lambda row: close_batches(Job.objects.filter(pk=row.pk), "default", by="", reason=""),
}


@job(name="ownjobs.member")
def member() -> None: ...


@job(name="ownjobs.gatherer", takes_context=True)
def gatherer(context: JobContext) -> None:
    context.gather([member.bind()])


def made(name: str, act: Act) -> Job:
    """Return a job of this name in a state in which an ordinary one takes the action."""
    if name == "pgjobs.batch":
        batch = Batch("b").open()
        batch.add(member.bind())
        row: Any = batch.job
    elif name == "pgjobs.flow":
        flow = Flow("f")
        flow.add(member.bind())
        row = flow.register()
    else:
        row = make(name=name, queue=OWN_QUEUE, payload={"args": [], "kwargs": {}})
    fields: dict[str, Any] = {}
    match act:
        case Act.RETRY:
            fields = {"hold": None, "outcome": "abandoned", "finished_at": Now()}
        case Act.RELEASE:
            fields = {"hold": None, "claim_id": uuid4(), "claimed_at": Now()}
        case Act.UNBLOCK if name in SERVANTS:
            fields = {"hold": "blocked", "flow": 16}
            Gate.objects.create(job_id=row.pk, pending=1, total=1)
        case Act.CLOSE if name in SERVANTS:
            fields = {"hold": "blocked"}
    Job.objects.filter(pk=row.pk).update(**fields)
    return Job.objects.get(pk=row.pk)


def columns(row: Job) -> dict[str, Any]:
    return dict(Job.objects.filter(pk=row.pk).values().get())


@pytest.mark.parametrize(("name", "act"), [pair for pair in PAIRS if pair[1] in STEERED])
def test_code_does_what_the_table_says(name: str, act: Act) -> None:
    row = made(name, act)
    before = columns(row)
    steered = BY_CODE[act](row)
    if why := refusal(name, act):
        assert steered == Steered(0, {why: 1})
        assert columns(row) == before
    else:
        assert steered == Steered(1)
        assert columns(row) != before or act is Act.CLOSE  # whose gate changes


@pytest.mark.parametrize(("name", "act"), [pair for pair in PAIRS if pair[1] in IN_SHELL])
def test_the_shell_does_what_the_table_says(name: str, act: Act, capsys: pytest.CaptureFixture[str]) -> None:
    row = made(name, act)
    before = columns(row)
    verb, *options = IN_SHELL[act]
    if why := refusal(name, act):
        with pytest.raises(SystemExit) as exited:
            call_command("pgjobs", verb, str(row.pk), *options)
        assert exited.value.code == 1
        assert f"1 skipped: {why}" in capsys.readouterr().out
        assert columns(row) == before
    else:
        call_command("pgjobs", verb, str(row.pk), *options)
        assert f"{verb}: 1 changed, 0 skipped" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "act"), [pair for pair in PAIRS if pair[1] in IN_ADMIN])
def test_the_admin_does_what_the_table_says(root: Client, name: str, act: Act) -> None:
    """A page does not offer what is refused; a form that is sent by hand gets the sentence."""
    row = made(name, act)
    if act is Act.RESCHEDULE:
        Job.objects.filter(pk=row.pk).update(run_at=Now() + timedelta(hours=1))
        row.refresh_from_db()
    before, action = columns(row), IN_ADMIN[act]
    page = html(root.get(f"{LIST}{row.pk}/change/"))
    answer = root.post(steer_url(row, action), {"mode": "ask", "reason": "because"}, follow=True)
    if why := refusal(name, act):
        assert f"/steer/{action}/" not in page
        assert f"1 skipped: 1 {why}" in said(answer)[0]
        assert columns(row) == before
    elif act in (Act.RESCHEDULE, Act.RELEASE):  # of a batch, there is nothing to run now
        assert "skipped" not in said(answer)[0] or name in ("pgjobs.batch", "pgjobs.flow")
    else:
        assert f"/steer/{action}/" in page
        assert "1 changed" in said(answer)[0]


@pytest.mark.parametrize(("name", "act"), [pair for pair in PAIRS if pair[1] in IN_ADMIN])
def test_an_action_on_chosen_jobs_does_what_the_table_says(root: Client, name: str, act: Act) -> None:
    """Beside a job that takes it; by the list's action, after its confirmation."""
    row = made(name, act)
    before = columns(row)
    answers = {"confirmed": "yes", "mode": "ask", "reason": "because"}
    answer = act_on_chosen(root, IN_ADMIN[act], [row], f"?name={name}", **answers)
    if why := refusal(name, act):
        assert f"1 skipped: 1 {why}" in said(answer)[0]
        assert columns(row) == before
    else:
        assert not any("takes no *" in message for message in said(answer))


@pytest.mark.parametrize("name", POLICY)
@pytest.mark.parametrize("action", ADMIN_ACTIONS)
def test_an_action_on_a_whole_list_changes_no_job_that_does_not_take_it(root: Client, name: str, action: str) -> None:
    """Also of a list that was asked for; nothing is changed by an action on a list that does not show them."""
    act = ADMIN_ACTIONS[action].act
    row = made(name, act or Act.CANCEL)
    before = columns(row)
    everything = {"action": action, "_selected_action": "0", "select_across": "1", "confirmed": "yes", "mode": "ask"}
    if name in SERVANTS and row.state not in ("running", "abandoned"):
        root.post(LIST, everything)
        assert columns(row) == before
    if act is None or refusal(name, act):
        root.post(f"{LIST}?name={name}", everything)
        assert columns(row) == before


@pytest.mark.parametrize("name", POLICY)
def test_close_batch_says_what_takes_no_close(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = made(name, Act.CLOSE)
    if why := refusal(name, Act.CLOSE):
        with pytest.raises(SystemExit):
            call_command("pgjobs", "close-batch", str(row.pk))
        assert f"job {row.pk} is no batch: {why}" in capsys.readouterr().err
    else:
        call_command("pgjobs", "close-batch", str(row.pk))
        assert "is closed" in capsys.readouterr().out


def test_every_door_to_a_job_is_walked() -> None:
    """Whoever adds an action to the admin or the shell says here and in the table what it does to our own jobs."""
    assert {**{IN_ADMIN[act]: act for act in IN_ADMIN}, "stack": Act.STACK} == {
        name: action.act for name, action in ADMIN_ACTIONS.items() if action.act is not None
    }
    assert {name for name, action in ADMIN_ACTIONS.items() if action.act is None} == {"undo_again", "retry_members"}
    assert {verb for verb, *_ in IN_SHELL.values()} == set(SHELL_ACTIONS)
    assert set(BY_CODE) == set(STEERED) == set(IN_ADMIN)
    assert set(Act) == {*STEERED, Act.PAUSE, Act.REGISTER_AGAIN, Act.SCHEDULE, Act.MOVE, Act.STACK}


@pytest.mark.parametrize("name", POLICY)
def test_the_shell_schedules_none_of_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((CommandError, SystemExit)) as stopped:
        call_command("pgjobs", "crons", "add", "mine", "--job", name, "--expression", "* * * * *")
    words = str(stopped.value) + capsys.readouterr().err
    assert refusal(name, Act.SCHEDULE) in words
    assert not CronEntry.objects.filter(name="mine").exists()


@pytest.mark.parametrize("name", POLICY)
def test_ended_ones_are_pruned_as_all_jobs_are(name: str) -> None:
    row = made(name, Act.CANCEL)
    member.register()
    long_ago = Now() - timedelta(days=400)
    Job.objects.filter(pk=row.pk).update(outcome="succeeded", hold=None, finished_at=long_ago)
    call_command("pgjobs", "prune", "--yes")
    assert not Job.objects.filter(pk=row.pk).exists()
    assert Job.objects.filter(name=member.name).exists()


# Of a name


@pytest.mark.parametrize("name", POLICY)
def test_nobody_pauses_them(name: str, root: Client) -> None:
    with pytest.raises(InvalidJob) as refused:
        pauses.pause("job", name)
    assert str(refused.value) == f"{refusal(name, Act.PAUSE)}."
    with pytest.raises(CommandError, match=f"^{name} "):
        call_command("pgjobs", "pause", "--job", name)
    page = root.post("/admin/pgjobs/queuestate/add/", {"kind": "job", "name": name, "lasts": ""})
    assert refusal(name, Act.PAUSE) in unescape(html(page))
    assert not QueueState.objects.exists()


def test_nobody_pauses_their_queue_or_registers_in_it() -> None:
    with pytest.raises(InvalidJob, match="Queue 'pgjobs' is this package's own"):
        pauses.pause("queue", OWN_QUEUE)
    assert not QueueState.objects.exists()


@pytest.mark.parametrize("name", POLICY)
def test_nobody_registers_them_again_or_schedules_them(name: str) -> None:
    row = made(name, Act.REGISTER_AGAIN)
    with pytest.raises(InvalidJob, match=f"^job {row.pk}: {re.escape(refusal(name, Act.REGISTER_AGAIN))}$"):
        row.register_again()
    definition: Any = registry.get(name)
    with pytest.raises(InvalidJob, match=re.escape(refusal(name, Act.SCHEDULE))):
        definition.schedule("* * * * *", name="mine")


def test_nobody_takes_their_names() -> None:
    with pytest.raises(InvalidJob, match=r"names that begin with 'pgjobs\.' are for this package alone"):
        job(name=f"{BUILT_IN}mine")(made)


def test_the_table_knows_each_of_them() -> None:
    """Whoever adds one says what may be done to it."""
    assert {definition.name for definition in registry._by_name.values() if definition._is_built_in} == set(POLICY)


def test_one_that_could_not_be_claimed_is_retried_by_whoever_has_mended_it() -> None:
    row = made("pgjobs.wake", Act.CANCEL)
    Job.objects.filter(pk=row.pk).update(hold="parked")
    assert row.retry() == Steered(1)


# Their queue, and what they take of the project's settings


def test_no_setting_of_the_project_decides_about_them() -> None:
    """Ceilings below what they declare stop no command, and no default is theirs."""
    tight = {
        "BOUNDS": {"max_attempts": 1, "timeout_seconds": 0.5, "backoff_base_seconds": 0.1},
        "DEFAULT_MAX_ATTEMPTS": 1,
        "DEFAULT_TIMEOUT_SECONDS": 0.5,
        "QUEUES": ["mail"],
        "QUEUE_LIMITS": {"*": {"rate": 1, "per": 3600}},
        "DEFAULT_BACKOFF": Backoff(0.1),
    }
    with override_settings(PGJOBS=tight):
        for name in POLICY:
            definition: Any = registry.get(name)
            plan = definition._plan
            assert plan.queue == (OWN_QUEUE if name in SERVANTS else "mail")
            assert plan.max_attempts >= 5
            assert plan.timeout is None or plan.timeout >= 30
            assert definition._limit_key(plan, (), {}) is None
            assert definition.backoff != Backoff(0.1)


def test_a_gather_of_one_takes_two_starts_of_a_rate_and_no_slot_for_ours() -> None:
    """The function's and the member's: the batch's row and what wakes the function are this package's affair."""
    with override_settings(PGJOBS={"QUEUE_LIMITS": {"*": {"rate": 100, "per": 3600}}}):
        row = gatherer.register()
        run_jobs()
        row.refresh_from_db()
        assert row.outcome == "succeeded"
        assert set(Job.objects.exclude(limit_key=None).values_list("name", flat=True)) == {
            "ownjobs.gatherer",
            "ownjobs.member",
        }


def test_no_capacity_counts_them() -> None:
    with override_settings(PGJOBS={"CAPACITY": {"*": 1}, "REGISTRATION_RATE": {"*": {"tokens": 1, "register": 1}}}):
        for _ in range(3):
            registry.get("pgjobs.wake").register("pgjobs.nobody")  # type: ignore[attr-defined]
    assert Job.objects.filter(queue=OWN_QUEUE).count() == 3


def test_nobody_else_registers_in_their_queue() -> None:
    for wrong in (lambda: member.using(queue=OWN_QUEUE).register(), lambda: Batch("b", queue=OWN_QUEUE).open()):
        with pytest.raises(InvalidJob, match="'pgjobs' is for this package's own jobs"):
            wrong()
    with pytest.raises(InvalidJob, match="'pgjobs' is for this package's own jobs"):
        member.register().reschedule(queue=OWN_QUEUE)


@pytest.mark.parametrize("frontier", [Frontier(frozenset({"mail"})), Frontier(None, frozenset({OWN_QUEUE}))])
def test_every_worker_serves_their_queue(frontier: Frontier) -> None:
    frontier.pause(frozenset({OWN_QUEUE}))
    assert frontier.serves(OWN_QUEUE)


def test_a_pause_that_somebody_has_written_by_hand_holds_none_of_them() -> None:
    QueueState.objects.create(kind="queue", name=OWN_QUEUE)
    QueueState.objects.create(kind="job", name="pgjobs.wake")
    assert not pausing.read_pauses(on("default"))


# In lists


@pytest.mark.parametrize("name", sorted(SERVANTS))
def test_lists_show_them_only_when_asked(root: Client, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {act: made(name, act) for act in (Act.CANCEL, Act.CLOSE, Act.RETRY)}
    Job.objects.filter(pk=rows[Act.RETRY].pk).update(outcome="cancelled")
    mine = member.register()
    for query in ("", "?state=ready", "?state=blocked", "?state=cancelled", "?q=ownjobs"):
        assert {row.name for row in root.get(LIST + query).context["cl"].result_list} <= {mine.name}
    ids = {row.pk for row in rows.values()}
    for query in (f"?queue={OWN_QUEUE}", f"?name={name}", f"?q={name}"):
        assert {row.pk for row in root.get(LIST + query).context["cl"].result_list} == ids
    call_command("pgjobs", "cancel", "--all", "--yes")
    assert "cancel: 1 changed, 0 skipped" in capsys.readouterr().out
    assert not Job.objects.filter(pk__in=ids).exclude(cancel_requested_at=None).exists()


def test_a_stopped_action_is_spent_whatever_is_retried(root: Client) -> None:
    """By its page, by all of a list, from the shell and in code; who may only retry does not get who asked's rights."""
    row = made("pgjobs.steer", Act.RETRY)
    Job.objects.filter(pk=row.pk).update(outcome="cancelled", cancel_requested_at=Now())
    everything = {"action": "retry", "_selected_action": "0", "select_across": "1", "confirmed": "yes"}
    root.post(f"{LIST}?state=cancelled", everything)
    root.post(f"{LIST}?queue={OWN_QUEUE}", everything)
    root.post(LIST, {**everything, "select_across": "0", "_selected_action": str(row.pk)})
    call_command("pgjobs", "retry", "--all", "--yes")
    with pytest.raises(SystemExit):
        call_command("pgjobs", "retry", "--queue", OWN_QUEUE, "--yes")
    assert Job.objects.filter(outcome="cancelled").retry().changed == 0
    row.refresh_from_db()
    assert row.outcome == "cancelled"
