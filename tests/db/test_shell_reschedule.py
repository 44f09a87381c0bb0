"""Rescheduling from the shell, wrong usage, and trouble."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test import override_settings
from django.utils import timezone

from django_pgjobs.management import output
from django_pgjobs.management.commands.pgjobs import Command
from django_pgjobs.models import Action, Job
from django_pgjobs.testing import backdate
from tests.db.test_shell import charge, ids, jobs_known  # noqa: F401 (fixtures)
from tests.plugins.fix_db import RawDatabase, claim, job, register
from tests.plugins.shell import pgjobs, run

pytestmark = pytest.mark.usefixtures("committed")


# reschedule


def test_jobs_are_rescheduled(raw: RawDatabase) -> None:
    [one] = register(delay_seconds=3600)
    status, out, err = pgjobs("reschedule", one, "--delay", "0")
    assert (status, out) == (0, "reschedule: 1 changed, 0 skipped\n")
    assert err == f"To undo it: manage.py pgjobs undo-action {Action.objects.get().pk}\n"
    assert ids("--state", "ready") == [one]
    pgjobs("reschedule", one, "--delay", "2h", "--to-queue", "mail", "--priority", 7)
    row = job(one)
    assert (row.queue, row.priority) == ("mail", 7)
    assert timedelta(minutes=119) < row.run_at - timezone.now() < timedelta(minutes=121)
    pgjobs("reschedule", "--queue", "mail", "--run-at", "2030-01-31T03:00+01:00")
    assert job(one).run_at.isoformat() == "2030-01-31T02:00:00+00:00"


def test_an_instant_without_a_zone_is_in_the_projects(raw: RawDatabase) -> None:
    [one] = register()
    with timezone.override("Asia/Kathmandu"):
        pgjobs("reschedule", one, "--run-at", "2030-01-31T05:45")
    assert job(one).run_at.isoformat() == "2030-01-31T00:00:00+00:00"


def test_running_jobs_are_not_rescheduled(raw: RawDatabase) -> None:
    register(2)
    held = claim(raw)
    assert pgjobs("reschedule", *held.ids, "--delay", "1h") == (
        1, "reschedule: 0 changed, 1 skipped\n  1 skipped: running\n", "",
    )  # fmt: skip
    assert pgjobs("reschedule", "--queue", "default", "--delay", "1h")[:2] == (0, "reschedule: 1 changed, 0 skipped\n")


def test_actions_tell_json_and_ask_nothing_then(raw: RawDatabase) -> None:
    made = register(3)
    status, out, _ = pgjobs("cancel", made[0], 999_999_999, "--format", "json")
    assert (status, json.loads(out)) == (1, {"action": "cancel", "changed": 1, "skipped": {"unknown": 1}})
    with pytest.raises(CommandError, match="add --yes to change 2 jobs"):
        pgjobs("cancel", "--all", "--format", "json")
    status, out, _ = pgjobs("cancel", "--all", "--yes", "--format", "json")
    assert (status, json.loads(out)["changed"]) == (0, 2)


def test_actions_take_the_filters_of_a_list(raw: RawDatabase) -> None:
    made = register(4)
    Job.objects.filter(pk=made[0]).update(description="Letter", key="k")
    backdate(job(made[1]), created_at=7200)
    assert pgjobs("cancel", "--key", "k")[1] == "cancel: 1 changed, 0 skipped\n"
    assert pgjobs("cancel", "--older-than", "1h")[1] == "cancel: 1 changed, 0 skipped\n"
    assert pgjobs("cancel", "--all", "--limit", "1")[1] == "cancel: 1 changed, 0 skipped\n"
    assert [job(one).state for one in made] == ["cancelled", "cancelled", "cancelled", "ready"]
    Job.objects.filter(pk=made[3]).update(run_at=Now() + timedelta(hours=1))
    assert pgjobs("abandon", "--state", "ready")[1] == "abandon: 0 changed, 0 skipped\n"
    assert pgjobs("abandon", "--state", "scheduled")[1] == "abandon: 1 changed, 0 skipped\n"


# Wrong usage, and trouble


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "--state", "asleep"], "invalid choice: 'asleep'"),
        (["list", "--limit", "0"], "must be a whole number of at least 1, not '0'"),
        (["list", "--since", "soon"], "'soon' is not an age"),
        (["list", "--name", "a\0b"], "name: .* has a NUL, or is not valid UTF-8"),
        (["list", "--error", "a\udc80b"], "error: .* has a NUL, or is not valid UTF-8"),
        (["cancel", "1", "--reason", "a\udc80b"], "reason: .* has a NUL, or is not valid UTF-8"),
        (["pause", "mail", "--reason", "a\udc80b"], "reason: .* has a NUL, or is not valid UTF-8"),
        (["crons", "list", "a\udc80b"], "has a NUL, or is not valid UTF-8"),
        (["list", "--database", "nowhere"], "no database alias 'nowhere'"),
        (["show"], "required"),
        (["show", "1", "2"], "unrecognized"),
        (["show", str(2**63)], "is not a job id"),
        (["why", "-5"], "is not a job id"),
        (["why", "٣"], "is not a job id"),
        (["reschedule", "1"], "Give a destination: --run-at, --delay, --to-queue or --priority"),
        (["reschedule", "1", "--delay", "1h", "--run-at", "tomorrow"], "is not an instant"),
        (["reschedule", "1", "--delay", "1h", "--run-at", "2030-02-31T00:00"], "is not an instant"),
        (["reschedule", "1", "--delay", "1h", "--run-at", "2030-01-31T00:00"], "run_at or delay, not both"),
        (["reschedule", "1", "--priority", "101"], "priority must be an integer from -100 to 100"),
        (["reschedule", "1", "--to-queue", "no such"], "queue must be 1 to 100 of the characters"),
        (["reschedule", "1", "--delay", "5000d"], "'5000d' is not an age: .* up to ten years"),
        (["reschedule", "1", "--run-at", "9999-12-31T23:00"], "run_at must be from 0001-01-03 to 9999-12-29 UTC"),
    ],
)
def test_wrong_usage_is_refused(raw: RawDatabase, arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint) as refusal:
        call_command("pgjobs", *arguments)
    assert refusal.value.returncode == output.WRONG or "Error:" in str(refusal.value)


@pytest.mark.parametrize("before", [[], ["list"]], ids=["before the subcommand", "behind it"])
def test_django_s_own_options_are_taken_on_both_sides_of_a_subcommand(raw: RawDatabase, before: list[str]) -> None:
    """As each command of Django takes them."""
    register()
    given = ["-v", "0", "--settings", "tests.settings", "--no-color", "--traceback", "--pythonpath", "."]
    found = run(*before, *given, *([] if before else ["list"]))
    assert found.returncode == 0, found.stderr
    assert "test.job" in found.stdout


def test_every_subcommand_takes_them_and_leaves_what_stood_before_it() -> None:
    """Those of a group of its own too."""
    parser = Command().create_parser("manage.py", "pgjobs")
    for words in (["show", "1"], ["crons", "pause", "a"], ["run"], ["check"], ["prune"]):
        told = parser.parse_args(["-v", "3", *words, "--traceback", "--settings", "x"])
        assert (told.verbosity, told.traceback, told.settings) == (3, True, "x")
        assert parser.parse_args([*words, "--verbosity", "0"]).verbosity == 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("charge", "The code here has no job 'charge' (did you mean 'shop.charge'?)"),
        ("shop.chagre", "(did you mean 'shop.charge'?)"),
        ("qqqq", "The code here has no job 'qqqq'; --name takes the whole name."),
    ],
)
def test_a_name_that_no_code_has_and_no_job_is_told_of(raw: RawDatabase, name: str, hint: str) -> None:
    """C17: an empty table and status 0 read like *there are none*."""
    status, out, err = pgjobs("list", "--name", name, "--format", "json")
    assert (status, json.loads(out)) == (output.SKIPPED, [])
    assert hint in err
    assert pgjobs("list", "--name", "shop.charge")[0] == 0
    register(name=name)
    assert pgjobs("list", "--name", name)[0] == 0, "a job of older code is a job"


@override_settings(TASKS={"mails": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"}})
def test_an_alias_that_no_settings_have_is_told_of(raw: RawDatabase) -> None:
    """C17: as for a name."""
    status, _, err = pgjobs("list", "--alias", "mail")
    assert (status, "TASKS has no alias 'mail' (did you mean 'mails'?)" in err) == (output.SKIPPED, True)
    assert pgjobs("list", "--alias", "mails")[0] == 0


def test_a_reader_that_leaves_is_no_error(raw: RawDatabase) -> None:
    """``pgjobs list --all | head -1``: no traceback, and the status of a program that SIGPIPE ended."""
    register(3000, description="x" * 200)
    line = f"({sys.executable} -m django pgjobs list --all; echo $? >&2) | head -1"
    piped = run(line, shell=True)
    assert piped.stdout.split()[:2] == ["ID", "STATE"]
    assert piped.stderr == "141\n"


def test_a_terminal_without_unicode_is_no_error(raw: RawDatabase) -> None:
    [one] = register(description="Grüße, 東京")
    found = run("show", str(one), env={"PYTHONIOENCODING": "ascii"})
    assert (found.returncode, found.stderr) == (0, "")
    assert "Gr\\xfc\\xdfe, \\u6771\\u4eac" in found.stdout


def test_exit_statuses_as_a_shell_sees_them(raw: RawDatabase) -> None:
    """0; 1 if something is missing; 2 for wrong usage, also if our own code refuses."""
    [one] = register()
    statuses = [run(*words).returncode for words in (
        ["why", str(one)], ["why", "999999999"], ["why", "x"], ["reschedule", str(one)], ["list", "--database", "no"],
    )]  # fmt: skip
    assert statuses == [0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://postgres@127.0.0.1:1/none", "The database does not answer: "),
        (None, "The tables of django-pgjobs are not there, or older than this code: run manage.py migrate"),
    ],
)
def test_a_database_that_is_not_there_or_not_migrated(raw: RawDatabase, url: str | None, words: str) -> None:
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    found = run("list", env={"DATABASE_URL": url or f"{base}/postgres"})
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.splitlines()[-1].startswith(f"CommandError: {words}")
    assert "Traceback" not in found.stderr


def test_what_the_database_refuses_is_told_in_a_line(raw: RawDatabase) -> None:
    """A role without rights, for instance; also where a subcommand works below Django."""
    raw.query("DROP ROLE IF EXISTS pgjobs_nobody")
    raw.query("CREATE ROLE pgjobs_nobody LOGIN PASSWORD 'nobody'")
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    url = f"postgres://pgjobs_nobody:nobody@{base.rpartition('@')[2]}/{connection.settings_dict['NAME']}"
    try:
        for words in (["list"], ["stats", "--now"], ["prune"], ["why", "1"]):
            found = run(*words, env={"DATABASE_URL": url})
            assert found.returncode == 1
            assert "CommandError: The database refuses it: permission denied for table pgjobs_" in found.stderr
            assert "Traceback" not in found.stderr
    finally:
        raw.query("DROP ROLE pgjobs_nobody")
