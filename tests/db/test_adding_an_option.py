"""The page *Add an option*: its changes fit the code, and a job runs with the option that they add."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from django.db import connection

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "contributing" / "add-an-option.md").read_text(encoding="utf-8")
MOST = 9
"""Number of files that a small option may change, its test among them."""
TEST = "tests/db/test_rare_options.py"
ABOUT_OTHERS = ("celery_bridge/", "doctor/", "importing/")

JOBS = """
from django_pgjobs import JobContext, Next, job

@job(takes_context=True, owner="billing", schedulable=True)
def charge(context: JobContext) -> str:
    return context.owner

@job
def first() -> Next:
    return Next(charge.using(owner="audit").bind())
"""

PROCESS = """
import json, sys
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_pgjobs", "shop"],
    DATABASES={"default": json.loads(sys.argv[1])}, DEFAULT_AUTO_FIELD="django.db.models.AutoField", USE_TZ=True,
)
django.setup()
from django.core.management import call_command
from django_pgjobs import register_many
from django_pgjobs.models import Job
from django_pgjobs.schedules import read_back
from shop.jobs import charge, first
made = [charge.register(), charge.using(owner="mail").register(), first.register(), charge.using(unique="k").register()]
register_many([charge.bind(), charge.using(owner="many").bind()])
made[0].register_again()
entry = charge.using(owner="night").schedule("@yearly", name="yearly").register()
entry.run_now()
call_command("runjobs", inline=True, until_idle=True, verbosity=0)
jobs = list(Job.objects.order_by("id").values_list("outcome", "result"))
print(json.dumps([jobs, read_back(entry).options["owner"]]))
"""


def blocks() -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the path of each changed file and its hunks: lists of lines that begin with a blank, ``+`` or ``-``."""
    for path, text in re.findall(r"^```diff\n--- (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        lines = groupby(text.splitlines(), lambda line: line == "@@")
        yield path, [list(hunk) for is_mark, hunk in lines if not is_mark]


def changed(text: str, hunk: list[str]) -> str:
    """Return ``text`` after ``hunk``, whose old lines must be in it once."""
    old = "".join(f"{line[1:]}\n" for line in hunk if line[:1] != "+")
    new = "".join(f"{line[1:]}\n" for line in hunk if line[:1] != "-")
    assert text.count(f"\n{old}") == 1, f"not there once:\n{old}"
    return text.replace(f"\n{old}", f"\n{new}")


def test_a_small_option_changes_few_files() -> None:
    assert len({path for path, _ in blocks()} | {TEST}) <= MOST
    assert TEST in PAGE


def test_the_page_names_every_module_that_on_crash_has() -> None:
    """That option is the model: a module that mentions it and not on the page has been forgotten there.

    But for those that put another queue's words into ours.
    """
    having = {
        str(path.relative_to(ROOT / "django_pgjobs"))
        for path in (ROOT / "django_pgjobs").rglob("*.*")
        if path.suffix in {".py", ".sql"} and "on_crash" in path.read_text(encoding="utf-8")
    }
    assert {name for name in having if name not in PAGE and not name.startswith(ABOUT_OTHERS)} == set()
    assert having


@pytest.mark.django_db(transaction=True)
def test_a_job_runs_with_an_option_that_was_added_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "django_pgjobs", tmp_path / "django_pgjobs")
    for path, hunks in blocks():
        text = (ROOT / path).read_text(encoding="utf-8")
        for hunk in hunks:
            text = changed(text, hunk)
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)
    database = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, json.dumps(database)],
        cwd=tmp_path, env={"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran, kept = json.loads(done.stdout.splitlines()[-1])
    owners = ["billing", "mail", "audit", "billing", "billing", "many", "billing", "night"]
    assert ran == [["succeeded", owner] for owner in owners]
    assert kept == "night"
