"""``manage.py pgjobs list``, ``show``, ``why``, ``reschedule``: filters, formats, exit statuses, hostile texts."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, load_command_class
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgjobs import job as declare
from django_pgjobs.decisions import Failure
from django_pgjobs.definition.registry import registry
from django_pgjobs.management import list_jobs, output, show
from django_pgjobs.models import Action, Heartbeat, Job
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.filters import STATES
from django_pgjobs.serialization import payload
from django_pgjobs.states import Hold
from django_pgjobs.store import finalising, keeping, leading
from django_pgjobs.testing import backdate
from tests.plugins.explaining import nodes, rows_read
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, job, register
from tests.plugins.shell import BEAT, pgjobs

pytestmark = pytest.mark.usefixtures("committed")

EVIL = "\x1b]0;owned\x07\x1b[31mred\u202etxt.exe\x9b2J\r\nnext line"
"""A terminal's title and colours, text that runs backwards, a C1 control, and a line of its own."""


def charge(card: str, amount: int, note: str = "") -> None:
    """A job with a secret."""


@pytest.fixture(autouse=True)
def jobs_known() -> Iterator[None]:
    with registry.isolated():
        declare(name="shop.charge", queue="payments", sensitive=("card",))(charge)
        yield


def ids(*arguments: object, status: int = 0) -> list[int]:
    """The ids that ``list`` tells of, in its order."""
    exited, out, _ = pgjobs("list", *arguments, "--format", "json")
    assert exited == status
    return [row["id"] for row in json.loads(out)]


def one_of_each(raw: RawDatabase) -> dict[str, int]:
    """A job of every state and label, and the worker of the running one."""
    keeping.beat(raw, {**dict.fromkeys(("queues", "excluded_queues")), **BEAT})
    made = {str(hold): register()[0] for hold in Hold}
    for hold, job_id in made.items():
        Job.objects.filter(pk=job_id).update(hold=hold)
    for state in ("succeeded", "cancelled", "abandoned", "running"):
        [made[state]] = register()
        taken = claim(raw)
        assert taken.ids == [made[state]]
        if state == "succeeded":
            finalising.finalise_success(raw, taken.ends(), AUTHOR)
        elif state != "running":
            finalising.finalise_end(
                raw, taken.ends(cause="failed", seconds=1.0, outcome=state, failure=FAILURE), AUTHOR
            )
    made |= {
        "ready": register()[0],
        "scheduled": register(delay_seconds=60)[0],
        "retrying": register(delay_seconds=60)[0],
    }
    Job.objects.filter(pk=made["retrying"]).update(attempt=1)
    return made


# list


def test_newest_jobs_come_first_and_fifty_at_most(raw: RawDatabase) -> None:
    made = register(60)
    status, out, err = pgjobs("list")
    lines = out.splitlines()
    assert (status, len(lines)) == (0, 51)
    assert lines[0].split() == [
        "ID",
        "STATE",
        "NAME",
        "QUEUE",
        "PRIO",
        "ATTEMPT",
        "RUN",
        "AT",
        "FINISHED",
        "DESCRIPTION",
    ]
    assert [int(line.split()[0]) for line in lines[1:]] == made[:9:-1]
    assert err == "There are more than 50: see --limit and --all.\n"
    assert ids("--limit", 2) == made[:-3:-1]
    assert ids("--all") == made[::-1]


def test_each_state_and_label_is_a_filter(raw: RawDatabase) -> None:
    made = one_of_each(raw)
    assert set(made) == set(STATES)
    assert {state: ids("--state", state) for state in made} == {state: [job_id] for state, job_id in made.items()}
    told = json.loads(pgjobs("list", "--format", "json")[1])
    assert {row["id"]: row["label"] for row in told} == {job_id: state for state, job_id in made.items()}


def test_filters_narrow_each_other(raw: RawDatabase) -> None:
    [plain], [mail], [other] = register(), register(queue="mail", description="Letter to ACME"), register(name="x.y")
    Job.objects.filter(pk=mail).update(key="order-7")
    assert ids("--queue", "mail") == [mail]
    assert ids("--name", "x.y") == [other]
    assert ids("--description", "acme") == [mail]
    assert ids("--key", "order-7") == [mail]
    assert ids("--queue", "mail", "--name", "x.y", status=1) == [], "no code has that name, so nothing may be a slip"
    assert ids(mail, "--queue", "mail") == [mail]
    assert pgjobs("list", plain, "--queue", "mail")[0] == 1


def test_ages_count_from_the_end_or_from_registering(raw: RawDatabase) -> None:
    old, new = register(2)
    backdate(job(old), created_at=7200)
    assert ids("--older-than", "1h") == [old]
    assert ids("--since", "1h") == [new]
    assert ids("--since", "3h", "--older-than", "1h") == [old]
    taken = claim(raw, 2)
    finalising.finalise_success(raw, taken.ends(), AUTHOR)
    backdate(job(new), finished_at=7200)
    assert ids("--state", "succeeded", "--older-than", "1h") == [new]
    assert ids("--state", "succeeded", "--since", "1h") == [old]


def test_older_jobs_are_found_below_any_number_of_newer_ones(raw: RawDatabase, monkeypatch: Any) -> None:
    """The newest are not asked for, so the search does not begin with them."""
    monkeypatch.setattr(reach, "NEAR", 1000)
    old = register(2)
    Job.objects.filter(pk__in=old).update(created_at=Now() - timedelta(days=8))
    taken = claim(raw, 1)
    finalising.finalise_success(raw, taken.ends(), AUTHOR)
    Job.objects.filter(pk__in=taken.ids).update(finished_at=Now() - timedelta(days=8))
    register(3000)
    finalising.finalise_success(raw, claim(raw, 2500).ends(), AUTHOR)
    assert ids("--older-than", "7d") == old
    assert ids("--state", "succeeded", "--older-than", "7d", "--name", "test.job") == [taken.ids[0]]


def test_a_search_is_bounded_says_so_and_goes_further(raw: RawDatabase, monkeypatch: Any) -> None:
    monkeypatch.setattr(reach, "NEAR", 1000)
    [deep] = register(name="x.y")
    register(1500)
    status, out, err = pgjobs("list", "--name", "x.y")
    assert (status, len(out.splitlines())) == (1, 1)
    assert "Only the first 1,000 jobs were searched; --far and --all look further.\n" in err
    assert ids("--name", "x.y", "--far") == [deep]
    assert ids("--name", "x.y", "--all") == [deep]


def test_named_jobs_come_in_the_order_of_their_names(raw: RawDatabase) -> None:
    one, two = register(2)
    assert ids(two, one, f"#{two}") == [two, one]
    status, out, err = pgjobs("list", one, 999_999_999)
    assert (status, len(out.splitlines())) == (1, 2)
    assert err == "Not among them: #999999999.\n"


def test_the_fields_of_a_list(raw: RawDatabase) -> None:
    """They are documented, and a program may rely on them."""
    register()
    (row,) = json.loads(pgjobs("list", "--format", "json")[1])
    assert list(row) == [*list_jobs.COLUMNS, "label", "hold_reason", "error", "arguments"]
    assert row["run_at"].endswith("+00:00")


def test_an_empty_list(raw: RawDatabase) -> None:
    assert pgjobs("list", "--format", "json") == (0, "[]\n", "")
    assert len(pgjobs("list")[1].splitlines()) == 1


@pytest.mark.parametrize("state", STATES)
def test_a_list_reads_no_more_than_it_tells(raw: RawDatabase, state: str) -> None:
    """50 of 30,000 ended and 5,000 others: each state along its index, and the payload of none."""
    one_of_each(raw)
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, outcome, finished_at) SELECT 'test.job', '{}', 'succeeded',"
        " statement_timestamp() - n * interval '1 second' FROM generate_series(1, 30000) AS n"
    )
    register(5000)
    raw.query("ANALYZE pgjobs_job")
    with CaptureQueriesContext(connection) as queries:
        pgjobs("list", "--state", state)
    read = []
    for query in queries:
        if query["sql"].startswith("SELECT"):
            [(plan,)] = raw.query("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"].replace("%", "%%"))
            read += [rows_read(node) for node in nodes(plan[0]["Plan"])]
    assert max(read) <= 100, read
    assert not any('"payload"' in query["sql"] for query in queries)


# show


def shown(job_id: int) -> dict[str, Any]:
    status, out, _ = pgjobs("show", job_id, "--format", "json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_job_is_shown_with_worker_lease_and_attempts(raw: RawDatabase) -> None:
    [one] = register(description="Letter to ACME")
    keeping.beat(raw, {**dict.fromkeys(("queues", "excluded_queues")), **BEAT})
    failed = claim(raw)
    finalising.finalise_retry(
        raw, failed.ends(delay=0.0, cause="failed", seconds=1.5, outcome="abandoned", failure=FAILURE), AUTHOR
    )
    held = claim(raw)
    found = shown(one)
    assert (found["label"], found["attempt"], found["claim_id"]) == ("running", 2, str(held.claim_id))
    assert (found["worker_name"], found["worker"]) == ("web-1", str(WORKER))
    assert found["lease_expires_at"] > found["claimed_at"]
    assert found["why"]["code"] == "running"
    (attempt,) = found["attempts"]
    assert (attempt["number"], attempt["cause"], attempt["duration_seconds"]) == (1, "failed", 1.5)
    assert attempt["chain"][1] == {"exception": "builtins.OSError", "message": "line is down"}
    assert attempt["traceback"] == FAILURE.traceback
    status, out, _ = pgjobs("show", one)
    assert status == 0
    assert out.startswith(f"#{one} test.job\nstate:         running\nwhy:           Worker web-1 claimed it ")
    for line in ("description:   Letter to ACME", "worker:        web-1", "  shop.errors.Declined: card refused"):
        assert f"\n{line}\n" in out
    assert "\nattempt 1 failed at 20" in out
    assert "\n  | Traceback (most recent call last): …\n" in out


def test_only_a_running_job_is_shown_with_when_it_is_overdue(raw: RawDatabase) -> None:
    """What an ended job has there is when its last attempt would have been given up."""
    [one] = register()
    held = claim(raw)
    Job.objects.filter(pk=one).update(overdue_at=timezone.now() + timedelta(hours=1))
    assert "\noverdue at: " in pgjobs("show", one)[1]
    finalising.finalise_success(raw, held.ends(), AUTHOR)
    assert "overdue at: " not in pgjobs("show", one)[1]


def test_the_fields_of_a_job(raw: RawDatabase) -> None:
    found = shown(register()[0])
    said = ["front", "alias", "label", "arguments", "arguments_hidden", "headers"]
    said += ["result", "result_hidden", "progress", "options", "memory"]
    execution = ["lease_expires_at", "worker", "worker_name", "worker_state", "worker_last_beat_at"]
    durable = ["target", "compensations", "more_compensations", "waits_for", "memos", "more_memos"]
    assert list(found) == [*show.FIELDS, *said, *execution, "why", "actions", *durable, "steps", "attempts"]


def test_what_operators_did_to_a_job_is_shown(raw: RawDatabase) -> None:
    """As on its page in the admin: latest first, and in JSON with every fact."""
    anna = User(pk=42, username="anna")  # never stored: rows of others stay when a test is over
    ids = register(3)
    one = Job.objects.get(pk=ids[0])
    one.reschedule(delay=60, by=anna, reason="bank is\nclosed")
    pgjobs("cancel", "--queue", "default", "--since", "1h", "--by", "bob", "--yes")
    one.retry(by="carol")
    found = shown(one.pk)["actions"]
    assert [(each["verb"], each["mode"], each["via"]) for each in found] == [
        ("retry", "", "code"), ("cancel", "ask", "shell"), ("reschedule", "delay=60", "code"),
    ]  # fmt: skip
    assert [each["by"] for each in found] == ["carol", "bob", f"auth.User:{anna.pk} anna"]
    assert [(each["changed"], each["filter"]) for each in found] == [
        (1, ""), (3, "queue default, since 1 h ago"), (1, ""),
    ]  # fmt: skip
    assert found[2]["reason"] == "bank is\nclosed"
    numbers = list(Action.objects.order_by("-id").values_list("id", flat=True)[:3])
    assert [each["id"] for each in found] == numbers
    lines = pgjobs("show", one.pk)[1].splitlines()
    at = r" at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d "
    for number, line in zip(numbers, (
        f"retry{at}by carol, in code",
        f"cancel \\(ask\\){at}by bob, in the shell, one of 3 \\(queue default, since 1 h ago\\)",
        f"reschedule \\(delay=60\\){at}by anna, in code: bank is closed",
    ), strict=True):  # fmt: skip
        assert [told for told in lines if re.fullmatch(f"action {number}: {line}", told)], (line, lines)
    other = ids[1]
    Job.objects.filter(pk=other).abandon(by=EVIL, reason=EVIL)
    assert not set("\x1b\x07\u202e\x9b") & set(pgjobs("show", other)[1])


def test_only_the_latest_actions_of_a_job_are_shown(raw: RawDatabase) -> None:
    [one] = register()
    for number in range(show.ACTIONS + 2):
        Job.objects.filter(pk=one).reschedule(priority=number)
    assert [each["mode"] for each in shown(one)["actions"]][:1] == [f"priority={show.ACTIONS + 1}"]
    assert len(shown(one)["actions"]) == show.ACTIONS


def test_sensitive_arguments_are_never_shown(raw: RawDatabase) -> None:
    [one] = register(name="shop.charge", payload='{"args": ["4111-1111", 7], "kwargs": {"note": "x"}}')
    found = shown(one)
    assert found["arguments"] == {"card": payload.HIDDEN, "amount": 7, "note": "x"}
    out = pgjobs("show", one)[1]
    assert "4111-1111" not in out
    assert "  amount:        7\n" in out


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("nobody.knows", '{"args": ["4111-1111"], "kwargs": {}}'),
        ("shop.charge", '["4111-1111"]'),
        ("shop.charge", '"4111-1111"'),
    ],
)
def test_arguments_of_which_nobody_can_tell_are_hidden(raw: RawDatabase, name: str, stored: str) -> None:
    [one] = register(name=name, payload=stored)
    found = shown(one)
    assert found["arguments"] is None
    assert found["arguments_hidden"].startswith("Hidden: ")
    assert "4111-1111" not in pgjobs("show", one)[1]


def test_no_such_job(raw: RawDatabase) -> None:
    status, out, err = pgjobs("show", 999_999_999)
    assert (status, out) == (1, "")
    assert err.startswith("There is no job 999999999: ")
    status, out, err = pgjobs("why", 999_999_999, "--format", "json")
    assert (status, json.loads(out)["code"]) == (1, "unknown")


def test_forged_rows_spoil_nothing(raw: RawDatabase) -> None:
    """Bad input: values that no code of ours writes appear as they are, beside the rest."""
    [one] = register(name="shop.charge")
    deep = '{"args":' + "[" * 3000 + "]" * 3000 + "}"
    raw.query(
        "UPDATE pgjobs_job SET payload = %s, headers = %s, progress = %s WHERE id = %s", [deep, deep, "9" * 5000, one]
    )
    assert pgjobs("show", one)[0] == 0
    assert shown(one)["id"] == one


# why


def test_why_says_it_in_a_line(raw: RawDatabase) -> None:
    [one] = register(delay_seconds=180)
    status, out, _ = pgjobs("why", f"#{one}")
    assert status == 0
    assert out.startswith("It is not due: it runs at ")
    assert out.count("\n") == 1
    found = json.loads(pgjobs("why", one, "--format", "json")[1])
    assert (found["id"], found["code"], found["advice"]) == (
        one, "scheduled", f"To run it now: manage.py pgjobs reschedule {one} --delay 0",
    )  # fmt: skip


# Hostile texts


@pytest.mark.parametrize("command", ["list", "show", "why"])
@pytest.mark.parametrize("form", ["table", "json"])
def test_no_text_of_a_job_reaches_the_terminal_as_a_control(raw: RawDatabase, command: str, form: str) -> None:
    """Code that registers jobs can neither colour nor forge a line that an operator reads."""
    [one] = register(name=EVIL, description=EVIL, payload=json.dumps({"args": [EVIL], "kwargs": {}}))
    Heartbeat.objects.create(name=EVIL, host="h", pid=1, processes=1, threads=1, async_slots=1, version="1", id=WORKER)
    taken = claim(raw)
    failure = Failure(EVIL, EVIL, ((EVIL, EVIL),), EVIL)
    finalising.finalise_end(raw, taken.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=failure), AUTHOR)
    Job.objects.filter(pk=one).update(
        error=EVIL, hold_reason=EVIL, key=EVIL, limit_key=EVIL, headers={EVIL: EVIL}, result=EVIL, cancel_by=EVIL,
        outcome="cancelled", cancel_reason=EVIL,
    )  # fmt: skip
    arguments = [command] if command == "list" else [command, one]
    status, out, err = pgjobs(*arguments, "--format", form)
    assert status == 0
    assert all(char.isprintable() or char == "\n" for char in out + err)
    assert not [line for line in out.splitlines() if line.startswith("next line")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Grüße, 東京", "Grüße, 東京"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202e\u2066", "\\u202e\\u2066"),
        ("\x7f\x9b", "\\x7f\\x9b"),
    ],
)
def test_what_is_not_printable_is_written_as_its_number(text: str, told: str) -> None:
    assert output.plain(text) == told


# workers, and list --worker


def test_workers_are_told_with_their_status(raw: RawDatabase) -> None:
    keeping.beat(raw, {**BEAT, "queues": '["mail"]', "excluded_queues": None})
    keeping.beat(raw, {**BEAT, "queues": None, "excluded_queues": '["bulk"]', "id": uuid4(), "name": EVIL})
    keeping.beat(
        raw, {**BEAT, "queues": None, "excluded_queues": None, "id": uuid4(), "name": "gone", "state": "stopped"}
    )
    Heartbeat.objects.filter(name="web-1").update(last_beat_at=Now() - timedelta(seconds=25), running=3)
    assert leading.take_term(raw, AUTHOR, seconds=60)
    told = json.loads(pgjobs("workers", "--format", "json")[1])
    assert [(each["status"], each["queues"], each["leads"]) for each in told] == [
        ("running", None, False), ("silent", ["mail"], True),
    ]  # fmt: skip
    assert 25 <= told[1]["beat_age_seconds"] < 40
    status, out, err = pgjobs("workers")
    head, evil, silent = out.splitlines()
    assert (status, err, head.split()[:3]) == (0, "", ["NAME", "STATUS", "BEAT"])
    assert "\\x1b]0;owned" in evil
    assert "all,-bulk" in evil
    *first, beat_age, second, ago, queue, jobs = silent.split()[:8]
    assert (*first, second, ago, queue, jobs) == ("web-1", "silent,", "leads", "s", "ago", "mail", "3")
    assert 25 <= int(beat_age) < 60
    assert len(pgjobs("workers", "--all")[1].splitlines()) == 4
    assert [each["name"] for each in json.loads(pgjobs("workers", "--queue", "mail", "--format", "json")[1])] == [
        EVIL, "web-1",
    ]  # fmt: skip


def test_the_jobs_of_a_worker_are_listed(raw: RawDatabase) -> None:
    keeping.beat(raw, {**dict.fromkeys(("queues", "excluded_queues")), **BEAT})
    register(4)
    first, second = claim(raw, 2), claim(raw, worker=uuid4())
    finalising.finalise_success(raw, first.ends()[:1], AUTHOR)
    assert ids("--worker", "web-1") == ids("--worker", str(WORKER)) == [first.ids[1]]
    assert ids("--worker", "web-1", "--state", "ready") == []
    assert second.ids[0] not in ids("--worker", "web-1")
    with pytest.raises(CommandError, match="There is no worker 'web-2': see pgjobs workers --all"):
        pgjobs("list", "--worker", "web-2")


def test_a_wrong_choice_is_refused_with_the_words_that_people_type(raw: RawDatabase) -> None:
    with pytest.raises(CommandError, match="'ready', 'scheduled'"):
        pgjobs("list", "--state", "bogus")
    with pytest.raises(CommandError, match="'ask', 'interrupt', 'kill'"):
        pgjobs("cancel", "--mode", "bogus")


def test_every_help_is_written_on_any_terminal() -> None:
    """One in latin-1 has no ellipsis."""
    parsers = [(name, load_command_class("django_pgjobs", name).create_parser("manage.py", name)) for name in COMMANDS]
    seen = 0
    while parsers:
        name, parser = parsers.pop()
        parser.format_help().encode("ascii")
        seen += 1
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += [(f"{name} {each}", sub) for each, sub in action.choices.items()]
    assert seen > 20


COMMANDS = ("pgjobs", "runjobs")


def test_without_an_alias_the_router_decides() -> None:
    with patch("tests.routers.EverythingOnDefault.db_for_write", return_value="elsewhere"):
        with pytest.raises(CommandError, match="no database alias 'elsewhere'"):
            pgjobs("list")
        assert pgjobs("list", "--database", "default")[0] == 0
