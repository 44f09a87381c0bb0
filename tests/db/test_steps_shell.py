"""Durable functions in the shell: ``pgjobs send-event``, and what ``show`` and ``list`` say of them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.utils import timezone

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Action, EventState, Job, Memo
from django_pgjobs.presentation import memos
from django_pgjobs.testing import run_jobs
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.django_db

approval: Event[Any] = Event("shsteps.approval")

HOSTILE = "\x1b[31m\u202e\nforged: line"


def charge(amount: int) -> dict[str, int]:
    return {"charged": amount}


@job(name="shsteps.refund", takes_context=True)
def refund(context: JobContext, amount: int) -> None: ...


@job(name="shsteps.order", takes_context=True, max_attempts=1)
def order(context: JobContext, number: int = 7) -> Any:
    context.step.using(undo=refund)(charge, number)
    verdict = context.wait_for(approval, number, timeout=timedelta(days=14))
    if verdict == "no":
        raise ValueError("refused")
    return verdict


@job(name="shsteps.secret", takes_context=True, sensitive=("card",))
def secret(context: JobContext, card: str = "4111-1111") -> None:
    context.step.using(name="charged")(lambda: card)
    context.sleep(timedelta(days=3))


def started(definition: Any, *args: Any) -> Job:
    row: Job = definition.register(*args)
    run_jobs()
    return row


def shown(row: Job) -> dict[str, Any]:
    status, out, _ = pgjobs("show", row.pk, "--format", "json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def listed(*filters: str) -> list[int]:
    return [row["id"] for row in json.loads(pgjobs("list", "--format", "json", *filters)[1])]


# send-event


def test_an_event_is_sent_by_its_name() -> None:
    row = started(order)
    sent = pgjobs("send-event", "shsteps.approval:7", "--payload", '{"by": "anna"}', "--by", "bert")
    assert sent == (0, "sent shsteps.approval:7\n", "")
    assert run_jobs().succeeded == [row.pk]
    row.refresh_from_db()
    assert row.result == {"by": "anna"}
    assert EventState.objects.get().sent_by == "bert"
    action = Action.objects.get()
    assert (action.verb, action.via, action.acted_by, action.subject) == ("send", "shell", "bert", "shsteps.approval:7")
    assert "send (shsteps.approval:7) at" in pgjobs("show", row.pk)[1]
    assert shown(row)["actions"][0]["subject"] == "shsteps.approval:7"


def test_the_first_one_counts() -> None:
    started(order)
    assert pgjobs("send-event", "shsteps.approval:7", "--payload", "1")[0] == 0
    again = pgjobs("send-event", "shsteps.approval:7", "--payload", "2")
    assert again == (1, "", "shsteps.approval:7 was sent before: the first one counts\n")
    assert EventState.objects.get().payload == 1
    assert Action.objects.count() == 1
    answer = pgjobs("send-event", "shsteps.approval:7", "--format", "json")
    assert (answer[0], json.loads(answer[1])) == (1, {"event": "shsteps.approval:7", "sent": False})


def test_an_event_that_nobody_waits_for_yet() -> None:
    answer = pgjobs("send-event", "shsteps.approval:7", "--format", "json")
    assert (answer[0], json.loads(answer[1])) == (0, {"event": "shsteps.approval:7", "sent": True})
    assert Action.objects.get().changed == 1
    row = order.register()
    assert run_jobs().succeeded == [row.pk]


def test_the_event_that_a_job_waits_for() -> None:
    row, other = started(order), started(order, 8)
    assert pgjobs("send-event", "--job", f"#{row.pk}") == (0, "sent shsteps.approval:7\n", "")
    assert run_jobs().succeeded == [row.pk]
    for job_id, words in ((row.pk, f"job {row.pk} waits for no event\n"), (999_999, "There is no job 999999")):
        status, out, err = pgjobs("send-event", "--job", job_id)
        assert (status, out, err.startswith(words)) == (1, "", True)
    assert other.why().code == "waiting_for_event"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "Name the event, or with --job the job that waits for it."),
        (["a", "--job", "1"], "Name the event, or with --job the job that waits for it."),
        (["a", "--payload", '{"x": }'], "--payload is no JSON: Expecting value, in line 1, column 7"),
        (["a", "--payload", "Infinity"], "--payload is no JSON: Infinity is no JSON"),
        (["a", "--payload", "[" * 100_000], "--payload is no JSON: it is nested too deeply"),
        (["a", "--payload", "1e999"], "the payload cannot be sent"),
        (["pgjobs.gathered:x"], "are for this package alone"),
        (["a\nb"], "must be a printable text"),
        (["x" * 201], "must be a printable text"),
        (["a", "--database", "nowhere"], "There is no database alias 'nowhere'."),
    ],
)
def test_what_cannot_be_sent_is_wrong_usage(given: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        pgjobs("send-event", *given)
    assert words in str(caught.value)
    assert caught.value.returncode == 2
    assert str(caught.value).isprintable()
    assert not EventState.objects.exists()


# show and list


def test_show_tells_what_a_job_remembers_and_waits_for() -> None:
    row = started(order)
    text = pgjobs("show", row.pk)[1]
    assert "\nevent shsteps.approval:7: waits until 20" in text
    assert "\nstep charge: done at 20" in text
    assert '"charged": 7' in text
    found = shown(row)
    assert (found["waits_for"]["kind"], found["waits_for"]["event"]) == ("event", "shsteps.approval:7")
    waits, charged = found["memos"]
    assert (waits["name"], waits["event"], waits["finished_at"]) == ("shsteps.approval:7", "shsteps.approval:7", None)
    assert (charged["name"], charged["result"], charged["undo"]) == ("charge", {"charged": 7}, "shsteps.refund")
    assert (found["more_memos"], found["target"], found["compensations"]) == (0, None, [])


def test_show_tells_no_result_where_arguments_are_sensitive() -> None:
    row = started(secret)
    assert "4111-1111" not in pgjobs("show", row.pk)[1] + json.dumps(shown(row))
    charged = shown(row)["memos"][1]
    assert (charged["result"], charged["result_hidden"]) == (None, True)


def test_show_tells_what_undoes_a_job_and_what_it_undoes() -> None:
    row = started(order)
    approval.send(7, payload="no")
    run_jobs()
    undo, part = Job.objects.filter(target=row).order_by("pk")
    text = pgjobs("show", row.pk)[1]
    assert f"pgjobs.undo #{undo.pk} succeeded" in text
    assert f"shsteps.refund #{part.pk} succeeded, step charge" in text
    assert [each["id"] for each in shown(row)["compensations"]] == [undo.pk, part.pk]
    assert f"shsteps.order #{row.pk} abandoned, step charge" in pgjobs("show", part.pk)[1]
    target = {"id": row.pk, "name": "shsteps.order", "state": "abandoned", "step": "charge"}
    assert shown(part)["target"] == target


def test_show_tells_the_latest_memos_and_how_many_there_are_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memos, "MOST", 1)
    row = started(order)
    assert "and 1 before them" in pgjobs("show", row.pk)[1]
    assert shown(row)["more_memos"] == 1


def test_hostile_memos_write_nothing_to_the_terminal() -> None:
    row = order.register()
    Job.objects.filter(pk=row.pk).update(flow=36, target_id=row.pk, options={"target": [1, HOSTILE]})
    for kind in ("step", "event", "gather", HOSTILE):
        Memo.objects.create(
            job=row, name=f"{kind}{HOSTILE}", kind=kind, event=HOSTILE, error=HOSTILE, result={"batch": HOSTILE},
            undo={"name": HOSTILE}, wake_at=timezone.now(),
        )  # fmt: skip
    for told in (pgjobs("show", row.pk)[1], pgjobs("show", row.pk, "--format", "json")[1]):
        assert "\x1b" not in told
        assert "\u202e" not in told
    with pytest.raises(CommandError, match="must be a printable text"):
        pgjobs("send-event", "--job", row.pk)


def test_sleeping_and_waiting_jobs_are_filters() -> None:
    asleep, waits = started(secret), started(order)
    assert listed("--sleeping") == [asleep.pk]
    assert listed("--waiting-for-event") == [waits.pk]
    assert listed("--sleeping", "--all") == [asleep.pk]
    assert listed("--sleeping", "--name", "shsteps.order") == []
    with pytest.raises(CommandError, match="not allowed with"):
        pgjobs("list", "--sleeping", "--waiting-for-event")


def test_those_that_sleep_are_unblocked() -> None:
    asleep, waits = started(secret), started(order)
    assert pgjobs("unblock", "--sleeping", "--yes") == (0, "unblock: 1 changed, 0 skipped\n", "")
    assert Action.objects.get().asked == "sleeping"
    assert run_jobs().succeeded == [asleep.pk]
    assert waits.why().code == "waiting_for_event"
