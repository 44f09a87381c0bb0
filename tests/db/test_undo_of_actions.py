"""The undo of an operator's action: what goes back, what does not and why, who may, and what races do to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from django_pgjobs import Batch, job, reverting
from django_pgjobs.context import JobContext
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Action, Job, QueueState
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.states import WAKE, FlowFlag
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import acting
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_admin import act, html, make, now_plus, said, user_with
from tests.plugins.fix_db import RawDatabase, claim, register
from tests.plugins.sabotage import sabotage
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

broken = [True]
given_up: list[int] = []


@job(name="undoing.charge", max_attempts=1, unique="order:{n}")
def charge(n: int) -> None:
    if broken[0]:
        raise ValueError(f"unlucky {n}")


@charge.on_abandon
def give_up(context: JobContext, n: int) -> None:
    given_up.append(n)


@job(name="undoing.member", max_attempts=1)
def member() -> None:
    if broken[0]:
        raise ValueError("unlucky")


@pytest.fixture(autouse=True)
def bank_is_down() -> Iterator[None]:
    broken[:], given_up[:] = [True], []
    yield
    broken[:] = [True]


def abandoned(count: int = 3) -> list[int]:
    ids = [charge.register(n).pk for n in range(count)]
    run_jobs(queues=["default"])
    assert {row.state for row in Job.objects.filter(pk__in=ids)} == {"abandoned"}
    return ids


def rows(ids: list[int]) -> list[Any]:
    """The whole rows, as JSON values, but the claim, which a retry drops."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(j) - 'claim_id' FROM pgjobs_job AS j WHERE id = ANY (%s) ORDER BY id", [ids])
        return [json.loads(row[0]) for row in cursor.fetchall()]


def differences(before: list[Any], after: list[Any]) -> list[Any]:
    return [
        {name: (old[name], new[name]) for name in old if old[name] != new[name]}
        for old, new in zip(before, after, strict=True)
    ]


def some(ids: list[int]) -> Any:
    return Job.objects.filter(pk__in=ids)


def undo(action: Any = None, by: object = "bob") -> Steered:
    pk = action.pk if action is not None else Action.objects.latest("pk").pk
    return reverting.revert(pk, by=by, database="default")


def url(action: Any, name: str = "undo") -> str:
    return reverse(f"admin:pgjobs_action_{name}", args=[action.pk])


def logged_in(name: str, *permissions: str) -> Client:
    client = Client()
    client.force_login(user_with("view_job", *permissions, name=name))
    return client


def test_a_retry_goes_back_to_the_end_and_the_error_that_the_jobs_had() -> None:
    ids = abandoned()
    some(ids[:1]).retry()
    some(ids[:1]).cancel(by="anna", reason="not this one")
    before = rows(ids)
    assert [row["outcome"] for row in before] == ["cancelled", "abandoned", "abandoned"]
    some(ids).retry(by="anna", reason="the bank is back")
    assert {row["outcome"] for row in rows(ids)} == {None}
    assert undo() == Steered(3)
    assert not any(differences(before, rows(ids)))
    assert given_up == [0, 1, 2], "no callback runs again"
    last = Action.objects.latest("pk")
    assert (last.verb, last.acted_by, last.changed) == ("revert", "bob", 3)
    assert last.reason == f"undo of action {last.pk - 1}"
    assert sorted(ActionPart.objects.get(action_id=last.pk).job_ids) == ids
    broken[:] = [False]
    run_jobs(queues=["default"])
    assert {row.state for row in some(ids)} == {"abandoned", "cancelled"}, "none of them runs"
    assert some(ids).retry().changed == 3
    run_jobs(queues=["default"])
    assert {row.state for row in some(ids)} == {"succeeded"}


def test_what_has_started_since_stays_and_is_counted() -> None:
    ids = abandoned(4)
    some(ids).retry()
    assert [row.id for row in claim(on("default")).jobs] == ids[:1]
    some(ids[1:2]).cancel()
    some(ids[2:3]).reschedule(delay=3600)
    before = rows(ids[:3])
    retry = Action.objects.filter(verb="retry").latest("pk")
    assert reverting.prospect(retry) == reverting.Prospect(1, {"started": 1, "ended": 1, "changed": 1})
    assert undo(retry) == Steered(1, {"running": 1, "cancelled": 1, "changed": 1})
    assert rows(ids[:3]) == before
    assert Job.objects.get(pk=ids[3]).state == "abandoned"
    assert Action.objects.latest("pk").skipped == {"running": 1, "cancelled": 1, "changed": 1}
    assert undo(retry).changed == 0, "an undo may be repeated"


def test_one_that_has_failed_again_has_started_since() -> None:
    ids = abandoned(2)
    some(ids).retry()
    retry = Action.objects.latest("pk")
    run_jobs(queues=["default"])
    before = rows(ids)
    assert undo(retry).changed == 0
    assert not any(differences(before, rows(ids)))
    some(ids).retry()
    assert undo(retry) == Steered(0, {"started": 2}), "its own retry has run; another has made them ready"
    assert undo() == Steered(2)


def test_parked_jobs_are_parked_again() -> None:
    ids = [make(name="undoing.unknown", hold="parked", hold_reason="no such job", hold_fingerprint="old").pk]
    before = rows(ids)
    some(ids).retry()
    assert undo() == Steered(1)
    assert not any(differences(before, rows(ids)))


def test_what_must_be_undone_when_it_ends_does_not_end_unseen() -> None:
    ids = abandoned(1)
    some(ids).retry()
    some(ids).update(flow=F("flow").bitor(FlowFlag.UNDOABLE.value))
    assert undo() == Steered(0, {"needed": 1})
    assert Job.objects.get(pk=ids[0]).state == "ready"


GUARDS: dict[str, dict[str, Any]] = {
    "AND j.finished_at IS NULL": {"outcome": "succeeded", "finished_at": Now()},
    "AND j.claim_id IS NULL": {"claim_id": UUID(int=7)},
}
"""What each of the statement's own conditions keeps from a job that the judgement has let pass."""


@pytest.mark.parametrize("line", GUARDS)
@pytest.mark.parametrize("twin", [False, True], ids=["sound", "sabotaged"])
def test_the_statement_checks_once_more_what_may_go_back(
    line: str, twin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twins put a job back that has ended or started since."""
    ids = abandoned(1)
    some(ids).retry()
    some(ids).update(**GUARDS[line])
    before, action = rows(ids), Action.objects.latest("pk").pk
    if twin:
        sabotage(monkeypatch, "revert_jobs", line)
    moved = acting.revert_jobs(on("default"), action, 0, ids)
    assert moved.changed == (ids if twin else [])
    assert any(differences(before, rows(ids))) == twin


def test_a_move_goes_back_to_the_former_instant_queue_and_priority() -> None:
    at = now_plus(7200)
    ids = [register(run_at=at)[0], register(priority=7)[0], register(queue="mail")[0]]
    before = rows(ids)
    some(ids).reschedule(delay=600, queue="slow", priority=-3, by="anna")
    assert undo() == Steered(3)
    after = rows(ids)
    assert all(row["ready_at"] for row in after), "what is moved begins to wait anew"
    assert [{**row, "ready_at": None} for row in after] == [{**row, "ready_at": None} for row in before]
    last = Action.objects.latest("pk")
    assert (last.verb, last.reason) == ("reschedule", f"undo of action {last.pk - 1}")
    assert undo() == Steered(3), "an undo of a move can be undone"
    assert {row["queue"] for row in rows(ids)} == {"slow"}


def test_a_limited_job_that_goes_back_waits_for_its_turn() -> None:
    [admitted] = register(limit_key="")
    some([admitted]).update(hold=None, run_at=now_plus(60))
    some([admitted]).reschedule(delay=3600)
    some([admitted]).update(hold=None)
    assert undo() == Steered(1)
    assert Job.objects.get(pk=admitted).hold == "limited"


def test_a_key_that_is_taken_by_now_keeps_its_job_where_it_is() -> None:
    ids = [charge.register(n).pk for n in (1, 2)]
    some(ids).reschedule(queue="slow")
    charge.register(1)
    assert undo() == Steered(1, {"key taken": 1})
    assert [row["queue"] for row in rows(ids)] == ["slow", "default"]


def test_a_member_stays_as_its_batch_waits_for_it_again(root: Client) -> None:
    with Batch("b") as batch:
        batch.add(member.bind())
    run_jobs(queues=["default"])
    ids = list(Job.objects.filter(parent_id=batch.job.pk).values_list("pk", flat=True))
    some(ids).retry()
    assert batch.job.state == "blocked"
    assert undo() == Steered(0, {"needed": 1})
    assert batch.job.state == "blocked"
    page = html(root.get(url(Action.objects.latest("pk"), "change")))
    assert "1 others wait for its end: cancel or abandon it" in page
    assert "Undo this action" not in page
    broken[:] = [False]
    run_jobs(queues=["default"])
    assert batch.job.state == "succeeded"


def test_a_job_of_this_package_does_not_go_back() -> None:
    own = make(name=WAKE, hold="parked", queue="pgjobs", payload={"args": [1], "kwargs": {}})
    some([own.pk]).retry()
    [(reason, count)] = undo().skipped.items()
    assert count == 1
    assert reason.startswith(f"{WAKE} wakes a job")


def test_a_claim_and_an_undo_at_the_same_time_never_both_win(other: RawDatabase) -> None:
    """The undo waits for the row, and judges it under the lock."""
    ids = abandoned(2)
    some(ids).retry()
    retry = Action.objects.latest("pk")
    claimed = claim(other, pairs=None)
    other.commit()
    [taken] = [row.id for row in claimed.jobs]
    assert undo(retry) == Steered(1, {"running": 1})
    assert Job.objects.get(pk=taken).state == "running"


# Pauses


def test_a_pause_is_resumed_and_a_resume_paused_again() -> None:
    until = now_plus(3600).replace(microsecond=0)
    Queue("mail").pause(by="anna", reason="relay is down", until=until)
    assert undo() == Steered(1)
    assert list(QueueState.objects.current()) == []
    resumed = Action.objects.latest("pk")
    assert (resumed.verb, resumed.reason) == ("resume", f"undo of action {resumed.pk - 1}")
    assert undo() == Steered(1)
    [state] = QueueState.objects.current()
    assert (state.name, state.until, state.paused_by) == ("mail", until, "bob")
    assert state.reason == f"relay is down (undo of action {resumed.pk})"


def test_a_pause_of_a_job_is_resumed() -> None:
    pauses.pause("job", "undoing.charge")
    assert undo() == Steered(1)
    assert list(QueueState.objects.current()) == []
    assert undo() == Steered(1)
    assert [state.name for state in QueueState.objects.current()] == ["undoing.charge"]


def test_what_somebody_has_paused_or_resumed_since_stays() -> None:
    Queue("mail").pause(reason="first")
    first = Action.objects.latest("pk")
    Queue("mail").pause(reason="second", until=3600)
    assert reverting.prospect(first) == reverting.Prospect(0, {"changed": 1})
    assert undo(first) == Steered(0, {"changed": 1})
    Queue("mail").resume()
    resumed = Action.objects.latest("pk")
    Queue("mail").pause(reason="third")
    assert undo(resumed) == Steered(0, {"changed": 1})
    assert [state.reason for state in QueueState.objects.current()] == ["third"]


def test_a_pause_that_would_be_over_is_not_paused_again() -> None:
    Queue("mail").pause(until=3600)
    Queue("mail").resume()
    Action.objects.filter(verb="pause").update(mode=f"until={now_plus(-5).isoformat(timespec='seconds')}")
    assert undo() == Steered(0, {"changed": 1})
    Action.objects.filter(verb="pause").delete()
    with pytest.raises(InvalidJob, match="the pause that it has ended is not on record any more: pause it again"):
        undo()


# What cannot be undone


def test_what_cannot_be_undone_says_so_and_what_to_do(root: Client) -> None:
    [one] = register()
    some([one]).cancel()
    cancel = Action.objects.latest("pk")
    with pytest.raises(
        InvalidJob, match=f"Action {cancel.pk} cannot be undone: .* retry the jobs that it has cancelled"
    ):
        undo(cancel)
    with pytest.raises(CommandError, match="retry the jobs that it has cancelled"):
        pgjobs("undo-action", cancel.pk)
    with pytest.raises(InvalidJob, match="There is no action 4711: its time may be over"):
        reverting.revert(4711, by="bob", database="default")
    some([one]).retry()
    ActionPart.objects.all().update(former=None)
    with pytest.raises(InvalidJob, match="its record does not say where its jobs stood"):
        undo()
    assert transaction.get_connection().is_usable()


def test_more_jobs_than_a_page_changes_at_once_are_left_to_the_shell(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = abandoned(3)
    some(ids).retry()
    retry = Action.objects.latest("pk")
    monkeypatch.setattr(reverting, "AT_ONCE", 2)
    words = f"3 jobs are more than a page changes at once: write manage.py pgjobs undo-action {retry.pk}."
    assert words in html(root.get(url(retry, "change")))
    assert words in html(root.post(url(retry), follow=True))
    assert {row.state for row in some(ids)} == {"ready"}
    status, out, _ = pgjobs("undo-action", retry.pk, "--by", "anna", "--format", "json")
    assert (status, out) == (0, f'{{"action": {retry.pk}, "changed": 3, "skipped": {{}}}}\n')
    assert {row.state for row in some(ids)} == {"abandoned"}
    assert Action.objects.latest("pk").via == "shell"


def test_an_action_of_several_parts_goes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.BATCH", 2)
    ids = abandoned(5)
    before = rows(ids)
    some(ids).retry()
    assert ActionPart.objects.count() == 3
    assert undo() == Steered(5)
    assert not any(differences(before, rows(ids)))
    assert Action.objects.latest("pk").changed == 5


# The page and the shell


def test_the_page_of_an_action_says_what_goes_back_and_undoes_it(root: Client) -> None:
    ids = abandoned(2)
    act(root, "retry", some(ids), confirmed="yes", reason="the bank is back")
    retry = Action.objects.latest("pk")
    page = html(root.get(url(retry, "change")))
    assert "An undo ends 2 jobs again, as they had ended; no callback runs." in page
    answer = root.post(url(retry), follow=True)
    assert said(answer) == ["Undo: 2 changed."]
    last = Action.objects.latest("pk")
    assert answer.redirect_chain[-1][0] == url(last, "change")
    assert (last.verb, last.via, last.asked) == ("revert", "admin", f"action {retry.pk}")
    assert last.acted_by.endswith("root")
    assert "it is an undo itself: retry the jobs that it has put back" not in html(root.get(url(retry, "change")))
    assert "Skipped: 2 ended since" in html(root.get(url(retry, "change")))
    assert "Undo this action" not in html(root.get(url(retry, "change")))


@pytest.mark.parametrize(
    ("verb", "needed"),
    [("retry", ("abandon_job", "cancel_job")), ("reschedule", ("reschedule_job",)), ("pause", ("pause_queue",))],
)
def test_who_may_do_the_opposite_may_undo(verb: str, needed: tuple[str, ...]) -> None:
    ids = abandoned(1)
    some(ids).retry()
    if verb == "reschedule":
        some(ids).reschedule(delay=60)
    if verb == "pause":
        Queue("mail").pause()
    action = Action.objects.latest("pk")
    assert action.verb == verb
    everything = {"retry_job", "abandon_job", "cancel_job", "reschedule_job", "pause_queue", "view_payload"}
    for number, missing in enumerate(needed):
        client = logged_in(f"without{number}", "view_action", *(everything - {missing}))
        assert "Undo this action" not in html(client.get(url(action, "change")))
        assert client.post(url(action)).status_code == 403
    blind = logged_in("blind", *needed)
    assert blind.post(url(action)).status_code == 403
    assert Action.objects.latest("pk").pk == action.pk
    client = logged_in("may", "view_action", *needed)
    assert "Undo this action" in html(client.get(url(action, "change")))
    assert client.get(url(action)).status_code == 405
    assert said(client.post(url(action), follow=True))[0] == "Undo: 1 changed."


def test_the_shell_names_the_action_to_undo_and_undoes_it() -> None:
    ids = abandoned(2)
    status, _, err = pgjobs("retry", *ids, "--yes")
    retry = Action.objects.latest("pk")
    assert (status, err) == (0, f"To undo it: manage.py pgjobs undo-action {retry.pk}\n")
    some(ids[:1]).cancel()
    status, out, _ = pgjobs("undo-action", retry.pk)
    assert (status, out) == (1, "undo-action: 1 changed, 1 skipped\n  1 skipped: cancelled\n")
    assert QueueState.objects.count() == 0
