"""Steering cron entries: by methods, from the shell, in the admin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client, override_settings
from django.utils import timezone

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob, InvalidJob, JobDoesNotExist
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing, registering
from django_pgjobs.store.database import on
from django_pgjobs.store.new_jobs import NewJob
from tests.plugins.fix_admin import html
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.django_db

LIST = "/admin/pgjobs/cronentry/"
NAME = "nightly/report #1"
PAGE = f"{LIST}nightly_2Freport%20_231/change/"


def report(kind: str, token: str = "") -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """One entry, in its row."""
    with registry.isolated():
        definition = job(name="shop.report", queue="slow", sensitive=["token"])(report)
        Cron("0 3 * * *", definition.bind("daily", token="hunter2"), name=NAME, tz="Europe/Paris")
        declare()
        yield


def declare(**changes: Any) -> None:
    [entry] = registry.crons()
    declared = entry.declared()._replace(**changes)
    firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)


def entry() -> CronEntry:
    return CronEntry.objects.get(pk=NAME)


def put(**columns: Any) -> None:
    CronEntry.objects.filter(pk=NAME).update(**columns)


# By methods


def test_a_pause_says_who_why_and_until_when() -> None:
    put(next_fire_at=timezone.now())
    assert entry().status == "on"
    assert entry().pause(by="ann", reason="the printer burns") == 1
    row = entry()
    assert (row.status, row.paused_by, row.paused_reason, row.paused_until) == (
        "paused",
        "ann",
        "the printer burns",
        None,
    )
    assert list(CronEntry.objects.paused()) == [row]
    assert row.resume(by="ann") == 1
    row = entry()
    assert (row.status, row.paused_at, row.paused_by, row.next_fire_at) == ("on", None, "", None)
    assert row.in_force_since is not None
    assert row.resume() == 0


@pytest.mark.parametrize("until", [timedelta(hours=1), 3600, datetime(2100, 1, 1, tzinfo=UTC)])
def test_a_pause_may_end_by_itself(until: Any) -> None:
    entry().pause(until=until)
    assert entry().status == "paused"
    put(paused_until=timezone.now() - timedelta(seconds=1))
    assert (entry().status, CronEntry.objects.paused().count()) == ("on", 0)


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_without_time_zones_an_entry_knows_whether_its_pause_and_its_end_are_over(root: Client) -> None:
    entry().pause(until=60)
    assert entry().status == "paused"
    put(paused_until=timezone.now() - timedelta(seconds=1))
    assert entry().status == "on"
    put(ends_at=timezone.now() + timedelta(seconds=60))
    assert entry().status == "on"
    put(ends_at=timezone.now() - timedelta(seconds=1))
    assert entry().status == "ended"
    assert ">ended<" in html(root.get(LIST))


def test_a_pause_that_would_be_over_is_refused_and_ends_none() -> None:
    entry().pause(by="ann", reason="the printer burns")
    with pytest.raises(InvalidJob, match="is in the past by the database's clock"):
        entry().pause(until=timezone.now() - timedelta(days=1))
    assert (entry().status, entry().paused_by, entry().paused_until) == ("paused", "ann", None)
    assert CronEntry.objects.none().pause(until=timezone.now() + timedelta(days=1)) == 0


def test_resuming_leaves_a_pause_alone_that_is_over() -> None:
    """What was missed since its end is made up for, so the end of the pause must stay where it was."""
    put(paused_at=timezone.now() - timedelta(hours=2), paused_until=timezone.now() - timedelta(hours=1))
    assert entry().resume(by="ann") == 0
    assert entry().in_force_since is None
    assert pgjobs("resume", NAME) == (1, f"0 cron entries resumed\n{NAME} was not paused\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"until": -1}, "until must be an aware datetime, or a time from now"),
        ({"until": datetime(2100, 1, 1)}, "must be an aware datetime"),
        ({"reason": "x" * 501}, "500 characters"),
        ({"reason": "\0"}, "reason of a pause must not contain NUL"),
        ({"reason": "\udc80"}, "reason of a pause must not contain NUL characters or lone surrogates"),
        ({"by": "\udc80"}, "author of a pause must not contain NUL characters or lone surrogates"),
    ],
)
def test_a_pause_that_makes_no_sense_is_refused(words: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        entry().pause(**words)
    assert entry().paused_at is None


def test_stopping_pauses_and_cancels_what_is_not_finished() -> None:
    """A55: no next fire, and the job that waits or runs is cancelled."""
    first, second = entry().run_now(), entry().run_now()
    other = Job.objects.get(pk=registering.register_plain(connection, NewJob("x", "{}")).id)
    Job.objects.filter(pk=second.pk).update(claim_id="00000000-0000-4000-8000-00000000000c")
    steered = entry().stop(by="ann", reason="for good")
    assert steered.changed == 2
    assert entry().status == "paused"
    first.refresh_from_db()
    second.refresh_from_db()
    other.refresh_from_db()
    assert (first.outcome, second.cancel_by, other.outcome) == ("cancelled", "ann", None)
    with pytest.raises(ValueError, match="takes"):
        entry().stop(mode="gently")


def test_running_now_leaves_the_fires_as_they_are() -> None:
    put(last_fire_at=datetime(2026, 1, 1, tzinfo=UTC), next_fire_at=datetime(2100, 1, 1, tzinfo=UTC))
    entry().pause()
    made = entry().run_now(by="ann")
    assert (made.name, made.queue, made.cron_entry) == ("shop.report", "slow", NAME)
    assert made.payload == {"args": ["daily"], "kwargs": {"token": "hunter2"}}
    assert made.fire_at is not None
    row = entry()
    assert (row.last_job_id, row.last_fire_at, row.next_fire_at) == (
        made.pk, datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC),
    )  # fmt: skip


@pytest.mark.parametrize(("overlap", "upcoming"), [("skip", 2100), ("after_completion", None)])
def test_running_now_never_makes_jobs_overlap_that_must_not(overlap: str, upcoming: int | None) -> None:
    """A25: and the next fire is computed from the end of this one."""
    declare(overlap=overlap)
    put(next_fire_at=datetime(2100, 1, 1, tzinfo=UTC))
    entry().run_now()
    row = entry()
    assert (row.next_fire_at and row.next_fire_at.year) == upcoming
    with pytest.raises(InvalidJob, match="its overlap policy forbids two"):
        entry().run_now()
    assert Job.objects.count() == 1


def test_running_now_says_when_it_cannot() -> None:
    declare(options=json.dumps({**entry().declared_options, "key": "k", "key_scope": "until_finished"}))
    gone = entry()
    gone.run_now()
    with pytest.raises(DuplicateJob, match="has the key"):
        entry().run_now()
    CronEntry.objects.all().delete()
    with pytest.raises(JobDoesNotExist, match="no cron entry"):
        gone.run_now()


@pytest.mark.parametrize("options", [{"queue": None}, {"priority": "high"}, []])
def test_running_now_what_the_database_refuses_leaves_the_callers_transaction(options: Any) -> None:
    """And tells nothing of the arguments."""
    put(declared_options=options)
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="its job cannot be inserted") as caught:
            entry().run_now()
        assert entry().last_job_id is None
    assert "hunter2" not in str(caught.value)


def test_an_entry_is_not_saved() -> None:
    """An old last fire, written back, would be made a second time."""
    with pytest.raises(TypeError, match="override"):
        entry().save()


def test_the_next_fires_are_those_of_its_zone() -> None:
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert entry().next_fires(2, after=after) == [
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 3, 30, 1, tzinfo=UTC),
    ]
    assert len(entry().next_fires()) == 5
    put(expression="61 * * * *")
    assert entry().next_fires() == []
    with pytest.raises(ValueError, match="from 0 to 1000"):
        entry().next_fires(1001)


def test_overrides_count_and_survive_a_deploy() -> None:
    put(broken="bad", next_fire_at=timezone.now())
    entry().override(expression="*/5  * * * *", zone="Asia/Tokyo", payload={"args": ["weekly"], "kwargs": {}}, by="ann")
    row = entry()
    assert (row.effective_expression, row.effective_zone) == ("*/5 * * * *", "Asia/Tokyo")
    assert (row.broken, row.next_fire_at) == ("", None)
    assert row.in_force_since is not None
    declare(expression="0 5 * * *")
    assert (entry().effective_expression, entry().declared_expression) == ("*/5 * * * *", "0 5 * * *")
    made = entry().run_now()
    assert made.payload == {"args": ["weekly"], "kwargs": {}}
    entry().override(expression=None, zone=None, payload=None)
    assert (entry().effective_expression, entry().effective_zone) == ("0 5 * * *", "Europe/Paris")
    assert entry().effective_payload == entry().declared_payload


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"expression": "61 * * * *"}, "not valid"),
        ({"expression": "0 0 31 4 *"}, "never fires"),
        ({"zone": "Mars/Olympus"}, "no time zone"),
        ({"payload": {"args": [], "kwargs": {"colour": "red"}}}, "do not fit"),
        ({"payload": {"args": ["a", "b", "c"], "kwargs": {}}}, "do not fit"),
        ({"payload": ["daily"]}, "payload"),
        ({"payload": {"args": ["x" * 2_000_000], "kwargs": {}}}, "more than"),
        ({"payload": {"args": ["\0"]}}, "a NUL character"),
        ({"payload": {"args": ["\ud800"]}}, "a lone surrogate"),
        ({"payload": {"args": [10**5000]}}, "not JSON"),
    ],
)
def test_an_override_that_would_not_do_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        entry().override(**values)
    assert list(caught.value.message_dict) == list(values)
    assert (entry().expression, entry().zone, entry().payload) == (None, None, None)
    with pytest.raises(TypeError, match="not queue"):
        entry().override(queue="fast")


def test_arguments_of_a_job_that_nobody_knows_are_not_overridden() -> None:
    declare(job_name="their.job")
    with pytest.raises(ValidationError, match=r"knows no job their\.job"):
        entry().override(payload={"args": [], "kwargs": {}})
    entry().override(expression="@hourly")
    assert entry().effective_expression == "@hourly"


@pytest.mark.django_db(transaction=True)
def test_all_of_it_from_asynchronous_code() -> None:
    async def steer() -> list[Any]:
        row = await CronEntry.objects.aget(pk=NAME)
        await row.aoverride(expression="@hourly")
        made = await row.arun_now(by="ann")
        done = [await row.apause(by="ann"), await row.aresume(), (await row.astop()).changed, made.cron_entry]
        everyone: Any = CronEntry.objects.all()
        return [*done, await everyone.apause(), await everyone.aresume(), (await everyone.astop()).changed]

    assert async_to_sync(steer)() == [1, 1, 1, NAME, 1, 1, 0]


# From the shell


def pgjobs(*arguments: object) -> tuple[int, str]:
    """Run ``crons``: (exit status, what it printed)."""
    out = StringIO()
    try:
        call_command("pgjobs", "crons", *map(str, arguments), stdout=out, stderr=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_the_shell_lists_entries_and_serves_as_a_probe() -> None:
    status, text = pgjobs("list")
    assert (status, "0 3 * * *" in text, "Europe/Paris" in text, NAME in text) == (0, True, True, True)
    assert "on" in text.splitlines()[1].split()
    entry().pause(by="ann", reason="why not", until=3600)
    status, text = pgjobs("list")
    assert (status, "paused by ann until" in text, ": why not" in text) == (0, True, True)
    put(missing_since=timezone.now())
    assert pgjobs("list")[0] == 1
    put(broken="the expression is wrong\x1b[31m")
    status, text = pgjobs("list", NAME)
    assert (status, "broken" in text, "\x1b" in text) == (1, True, False)
    status, text = pgjobs("list", "--format", "json")
    [told] = json.loads(text)["crons"]
    assert (status, told["name"], told["status"], told["next_fire_at"]) == (1, NAME, "broken", None)
    assert told["expression"] == "0 3 * * *"


def test_the_shell_says_whether_other_databases_have_the_entry_too() -> None:
    put(declared_options={**entry().declared_options, "each_database": True})
    assert "this is the one of default" in pgjobs("list")[1]
    entry().pause(by="ann")
    assert "paused by ann; this is the one of default" in pgjobs("list")[1]
    [told] = json.loads(pgjobs("list", "--format", "json")[1])["crons"]
    assert told["each_database"] is True


def test_the_shell_previews_fires() -> None:
    status, text = pgjobs("next", "--count", 3)
    assert (status, len(text.splitlines()), "Every day at 03:00" in text) == (0, 5, True)
    told = json.loads(pgjobs("next", NAME, "--format", "json")[1])["next"]
    assert [datetime.fromisoformat(fire) for fire in told[NAME]] == entry().next_fires(5)
    fires = [line.removeprefix(NAME).strip() for line in text.splitlines()[1:4]]
    assert [datetime.fromisoformat(fire) for fire in fires] == entry().next_fires(3)
    assert all(" 03:00:00+0" in fire for fire in fires), "on the clocks of the entry's zone, not on the project's"
    put(zone="Nowhere/Else")
    assert pgjobs("list")[0] == 0, "a zone that is gone"
    put(zone=None)
    put(expression="61 * * * *")
    assert pgjobs("next")[0] == 1
    with pytest.raises(CommandError, match="at most 1000"):
        pgjobs("next", "--count", 1001)


def test_the_shell_says_an_interval_in_words() -> None:
    declare(expression="every 2 weeks from 2026-01-05 07:00")
    words = "Every 2 weeks at 07:00 by the clocks of Europe/Paris, counted from Monday, 5 January 2026"
    status, text = pgjobs("next", "--count", 3)
    assert (status, text.splitlines()[-1], len(text.splitlines())) == (0, f"{NAME}: {words}.", 5)
    [told] = json.loads(pgjobs("list", "--format", "json")[1])["crons"]
    assert (told["expression"], told["words"]) == ("every 2 weeks from 2026-01-05 07:00", words)


def test_the_shell_runs_an_entry_now() -> None:
    declare(overlap="skip")
    status, text = pgjobs("run-now", NAME, "--by", "ann")
    made = Job.objects.get()
    assert (status, text) == (0, f"{NAME}: job {made.pk}\n")
    status, text = pgjobs("run-now", NAME, "--format", "json")
    assert (status, json.loads(text.splitlines()[-1])) == (1, {"jobs": {NAME: None}})
    assert "its overlap policy forbids two" in text


def test_the_shell_pauses_resumes_and_stops() -> None:
    assert pgjobs("pause", NAME, "--for", "1h", "--reason", "night", "--by", "ann") == (0, "1 cron entry paused\n")
    row = entry()
    assert (row.paused_by, row.paused_reason) == ("ann", "night")
    assert row.paused_until is not None
    assert pgjobs("resume", NAME) == (0, "1 cron entry resumed\n")
    assert pgjobs("resume", NAME) == (1, f"0 cron entries resumed\n{NAME} was not paused\n")
    entry().run_now()
    assert pgjobs("stop", NAME) == (0, "1 cron entry stopped, 1 job cancelled\n")
    assert json.loads(pgjobs("pause", NAME, "--format", "json")[1]) == {"paused": 1}
    assert entry().status == "paused"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, db_connection: Callable[..., RawDatabase]) -> Job:
    """A job of the entry whose row somebody else has locked."""
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.05)
    made = entry().run_now()
    other = db_connection(autocommit=False)
    other.query("SELECT id FROM pgjobs_job FOR UPDATE")
    return made


@pytest.mark.django_db(transaction=True)
def test_stopping_says_which_jobs_were_not_cancelled(held: Job, root: Client) -> None:
    assert pgjobs("stop", NAME) == (1, "1 cron entry stopped, 0 jobs cancelled\n  1 skipped: busy\n")
    status, text = pgjobs("stop", NAME, "--format", "json")
    assert (status, json.loads(text)) == (1, {"stopped": 1, "cancelled": 0, "skipped": {"busy": 1}})
    answer = root.post(steer("stop"))
    [warned, _] = get_messages(answer.wsgi_request)
    assert (warned.level_tag, str(warned)) == (
        "warning",
        "Cancel: 0 changed, 1 skipped: 1 locked by another transaction.",
    )


@pytest.mark.parametrize("verb", ["list", "next", "run-now", "pause", "resume", "stop"])
def test_a_name_that_there_is_not_is_told_before_anything_is_done(verb: str) -> None:
    with pytest.raises(CommandError, match="There is no cron entry nobody") as caught:
        pgjobs(verb, NAME, "nobody")
    assert caught.value.returncode == 1
    assert (entry().paused_at, Job.objects.count()) == (None, 0)
    with pytest.raises(CommandError, match=rf"\(did you mean '{re.escape(NAME)}'\?\)\.$"):
        pgjobs(verb, NAME[1:])


@pytest.mark.parametrize("end", [("--for", "0s"), ("--until", "2020-01-01T00:00:00Z")])
def test_a_pause_that_is_over_already_is_wrong_usage(end: tuple[str, str]) -> None:
    with pytest.raises(CommandError) as caught:
        pgjobs("pause", NAME, *end)
    assert (caught.value.returncode, entry().paused_at) == (2, None)


# In the admin


def client_with(*permissions: str, name: str = "anna") -> Client:
    user = User.objects.create_user(name, password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgjobs", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def steer(verb: str) -> str:
    return PAGE.replace("change/", f"steer/{verb}/")


def test_the_list_shows_how_entries_stand(root: Client) -> None:
    made = entry().run_now()
    put(last_fire_at=timezone.now())
    text = html(root.get(LIST))
    assert (NAME in text, "0 3 * * *" in text, "Europe/Paris" in text, ">on<" in text) == (True,) * 4
    assert f"/admin/pgjobs/job/{made.pk}/change/" in text
    Job._base_manager.all().delete()
    entry().pause(by="<b>ann</b>", until=3600)
    text = html(root.get(LIST))
    assert ("&lt;b&gt;ann&lt;/b&gt;" in text, "until" in text, f"{made.pk} (deleted)" in text) == (True, True, True)


def test_the_page_of_a_job_names_its_entry(root: Client) -> None:
    made = entry().run_now()
    text = html(root.get(f"/admin/pgjobs/job/{made.pk}/change/"))
    assert ("Cron entry and fire" in text, f"{NAME} <time datetime=" in text) == (True, True)


def test_the_page_previews_the_next_fires_and_says_why_it_does_not_fire(root: Client) -> None:
    text = html(root.get(PAGE))
    assert text.count("<li><time datetime=") == 10
    put(missing_since=timezone.now())
    assert "No worker has declared it since" in html(root.get(PAGE))
    put(broken="<i>bad</i>", expression="61 * * * *")
    text = html(root.get(PAGE))
    assert ("&lt;i&gt;bad&lt;/i&gt;" in text, "declared: 0 3 * * * Europe/Paris" in text) == (True, True)


def test_an_operator_sets_an_interval_and_reads_it_in_words(root: Client) -> None:
    data = {"expression": "every  45 minutes", "zone": "", "payload": ""}
    assert root.post(PAGE, data).status_code == 302
    assert entry().effective_expression == "every 45 minutes"
    words = "Every 45 minutes of elapsed time, counted from Monday, 1 January 2001, 00:00 in Europe/Paris"
    assert (words in html(root.get(PAGE)), words in html(root.get(LIST))) == (True, True)
    answer = root.post(PAGE, {**data, "expression": "every 0 minutes"})
    assert "an interval must be whole seconds, from 1 second to 3660 days, not 0 minutes" in html(answer)


def test_an_operator_overrides_in_the_admin(root: Client) -> None:
    answer = root.post(PAGE, {"expression": "*/5 * * * *", "zone": "Asia/Tokyo", "payload": '{"args": ["weekly"]}'})
    assert answer.status_code == 302
    row = entry()
    assert (row.expression, row.zone, row.payload) == ("*/5 * * * *", "Asia/Tokyo", {"args": ["weekly"]})
    assert LogEntry.objects.count() == 1
    root.post(PAGE, {"expression": "", "zone": "", "payload": ""})
    row = entry()
    assert (row.expression, row.zone, row.payload) == (None, None, None)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"expression": "0 0 31 4 *"}, "never fires"),
        ({"zone": "Mars/Olympus"}, "there is no time zone"),
        ({"payload": '{"args": ["a", "b", "c"]}'}, "do not fit"),
        ({"payload": "{"}, "valid JSON"),
        ({"payload": r'{"args": ["\u0000"]}'}, "a NUL character"),
        ({"payload": r'{"args": ["\ud800"]}'}, "a lone surrogate"),
        ({"payload": f'{{"args": [{"9" * 5000}]}}'}, "valid JSON"),
    ],
)
def test_a_bad_override_is_refused_in_the_admin(root: Client, values: dict[str, str], says: str) -> None:
    answer = root.post(PAGE, {"expression": "", "zone": "", "payload": "", **values})
    assert (answer.status_code, says in html(answer)) == (200, True)
    assert (entry().expression, entry().zone, entry().payload) == (None, None, None)


@pytest.mark.parametrize("column", ["payload", "declared_payload", "declared_options"])
def test_a_forged_number_spoils_its_own_place_only(root: Client, column: str) -> None:
    """Python refuses to parse so many digits; jsonb takes them."""
    with connection.cursor() as cursor:
        forged = "jsonb_build_object('args', jsonb_build_array(repeat('9', 5000)::numeric))"
        cursor.execute(f"UPDATE pgjobs_cron_entry SET {column} = {forged}")
    assert NAME in html(root.get(LIST))
    for verb in ("list", "next", "pause", "resume", "stop"):
        assert pgjobs(verb, NAME)[0] == 0
    text = html(root.get(PAGE))
    assert ("not a payload" in text) == (column != "declared_options")
    assert ("9" * 1000 in text) == (column == "payload"), "to be mended in its field"
    assert root.post(PAGE, {"expression": "@hourly", "zone": "", "payload": ""}).status_code == 302
    row = CronEntry.objects.only("expression").get(payload__isnull=True)
    assert row.expression == "@hourly"


def test_nothing_is_added_or_deleted_not_even_by_superusers(root: Client) -> None:
    assert root.get(f"{LIST}add/").status_code == 403
    assert root.post(PAGE.replace("change/", "delete/"), {"post": "yes"}).status_code == 403


def test_who_may_only_look_changes_nothing() -> None:
    client = client_with("view_cronentry")
    text = html(client.get(PAGE))
    assert ("hunter2" in text, 'name="expression"' in text, "/steer/" in text) == (False, False, False)
    assert client.post(PAGE, {"expression": "@hourly", "zone": "", "payload": ""}).status_code == 403
    for verb in ("pause", "resume", "run_now", "stop"):
        assert client.post(steer(verb)).status_code == 403
    assert (entry().expression, entry().status, Job.objects.count()) == (None, "on", 0)
    assert client_with(name="bert").get(PAGE).status_code == 403


def test_sensitive_arguments_are_shown_to_those_who_may_see_them() -> None:
    put(payload={"args": ["daily"], "kwargs": {"token": "hunter3"}})
    without = html(client_with("view_cronentry", "change_cronentry").get(PAGE))
    assert ("hunter3" in without, 'name="payload"' in without, 'name="expression"' in without) == (False, False, True)
    shown = html(client_with("view_cronentry", "change_cronentry", "view_payload", name="bert").get(PAGE))
    assert ("hunter3" in shown, 'name="payload"' in shown) == (True, True)


@pytest.mark.parametrize(
    "lookup",
    ["declared_payload__kwargs__token__startswith", "payload__contains", "own_text__contains", "declared_text__regex"],
)
def test_the_list_has_no_lookups_or_the_arguments_could_be_probed(lookup: str) -> None:
    client = client_with("view_cronentry")
    assert client.get(LIST, {lookup: "h"}).status_code == 400


def test_buttons_of_the_page(root: Client) -> None:
    client = client_with("view_cronentry", "run_cronentry")
    text = html(client.get(PAGE))
    assert ("/steer/pause/" in text, "/steer/run_now/" in text, "/steer/stop/" in text) == (True, True, False)
    assert client.get(steer("pause")).status_code == 405
    answer = client.post(steer("pause"), {"reason": "night"})
    assert (answer.status_code, entry().paused_reason) == (302, "night")
    assert "anna" in entry().paused_by
    assert "/steer/resume/" in html(client.get(PAGE))
    client.post(steer("resume"))
    client.post(steer("run_now"))
    assert (entry().status, Job.objects.count()) == ("on", 1)
    assert client.post(steer("stop")).status_code == 403, "that cancels jobs"
    assert client.post(steer("explode")).status_code == 403
    root.post(steer("stop"), {"reason": "for good"})
    assert Job.objects.get().outcome == "cancelled"
    declare(overlap="skip")
    client.post(steer("run_now"))
    answer = client.post(steer("run_now"), follow=True)
    assert "its overlap policy forbids two" in " ".join(map(str, get_messages(answer.wsgi_request))) or (
        "its overlap policy forbids two" in html(answer)
    )
    missing = f"{LIST}nobody/steer/pause/"
    assert client.post(missing).headers["location"] == LIST


@pytest.mark.parametrize(
    ("action", "status", "jobs"), [("pause", "paused", 0), ("resume", "on", 0), ("run_now", "on", 1)]
)
def test_actions_of_the_list(root: Client, action: str, status: str, jobs: int) -> None:
    if action == "resume":
        entry().pause()
    root.post(LIST, {"action": action, "_selected_action": [NAME]})
    assert (entry().status, Job.objects.count()) == (status, jobs)


def test_one_that_cannot_run_keeps_no_other_from_it(root: Client) -> None:
    put(declared_options={"queue": None})
    [declared] = registry.crons()
    good = declared.declared()._replace(name="other")
    firing.declare_cron(on("default"), good, overwrite=True, fresh_seconds=0)
    answer = root.post(LIST, {"action": "run_now", "_selected_action": [NAME, "other"]})
    refused, done = map(str, get_messages(answer.wsgi_request))
    assert ("its job cannot be inserted" in refused, "Run now: 1 entry. Its job: " in done) == (True, True)


def test_running_now_names_the_job_and_sends_only_those_there_who_may_look(root: Client) -> None:
    answer = root.post(steer("run_now"))
    first = Job.objects.get()
    link = f'<a href="/admin/pgjobs/job/{first.pk}/change/">{first.pk}</a>'
    assert [str(told) for told in get_messages(answer.wsgi_request)] == [f"Run now: 1 entry. Its job: {link}."]
    answer = client_with("view_cronentry", "run_cronentry").post(steer("run_now"))
    second = Job.objects.latest("pk")
    assert [str(told) for told in get_messages(answer.wsgi_request)] == [f"Run now: 1 entry. Its job: {second.pk}."]


def test_running_many_now_names_some_of_the_jobs(root: Client) -> None:
    [declared] = registry.crons()
    names = [f"entry {n:02}" for n in range(11)]
    for name in names:
        one = declared.declared()._replace(name=name)
        firing.declare_cron(on("default"), one, overwrite=True, fresh_seconds=0)
    answer = root.post(LIST, {"action": "run_now", "_selected_action": names})
    [done] = map(str, get_messages(answer.wsgi_request))
    assert (done.startswith("Run now: 11 entries. Their jobs: <a "), done.count("<a "), done[-1]) == (True, 10, "…")


def test_a_refused_override_is_not_shown_as_what_counts(root: Client) -> None:
    text = html(root.post(PAGE, {"expression": "*/5 * * * *", "zone": "Mars/Olympus", "payload": ""}))
    assert ("<code>0 3 * * *</code> Europe/Paris" in text, text.count("<li><time datetime=")) == (True, 10)
    assert 'value="*/5 * * * *"' in text, "to be corrected where it was written"


def test_actions_of_the_list_are_for_those_who_may() -> None:
    text = html(client_with("view_cronentry").get(LIST))
    assert 'value="pause"' not in text
