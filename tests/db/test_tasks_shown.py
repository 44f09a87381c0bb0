"""Jobs of tasks in the admin and in the shell: their front and alias, hidden arguments, filters and actions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.presentation import reach
from django_pgjobs.tasks import result_of
from django_pgjobs.tasks.families import FAMILY
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import BACKEND
from tests.plugins.fix_admin import LIST, act, client_with, html, ids_on, make, said, steer_url
from tests.plugins.shell import pgjobs, printed

pytestmark = pytest.mark.django_db

TASKS: dict[str, Any] = {
    "default": {"BACKEND": BACKEND, "QUEUES": []},
    "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"MAX_ATTEMPTS": 1}},
}

LETTERS = "letters_of_tests"
"""A module that is in no app, so that nothing imports it by itself."""

SOURCE = f"""
from {FAMILY} import task
from django_pgjobs import Backoff
from django_pgjobs.tasks import policy

@task(queue_name="mail")
@policy(sensitive=["token"], max_attempts=2, backoff=Backoff(0))
def send(user_id, token):
    raise ValueError("no such address")

@task(backend="second")
def sort(): ...
"""


def send_report(month: str) -> None:
    """A ``@job``."""


@pytest.fixture(autouse=True)
def _tasks() -> Iterator[None]:
    with registry.isolated(), override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / f"{LETTERS}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(LETTERS)
    sys.modules.pop(LETTERS, None)


def forget_the_module() -> None:
    """Be a process that has never imported it."""
    sys.modules.pop(LETTERS, None)
    registry.forget_found()


def page_of(result: Any, client: Client) -> str:
    return html(client.get(f"{LIST}{result.id}/change/"))


def shown(result: Any) -> str:
    return printed("show", result.id)[1]


def filtered(client: Client, search: str = "", **query: str) -> list[int]:
    return sorted(ids_on(client.get(LIST, {"q": search, **query})))


# The page, and pgjobs show


def test_arguments_are_hidden_by_the_signature_of_a_task_whose_module_nobody_has_imported(letters: Any) -> None:
    """Paper §8.6, O11."""
    result = letters.send.enqueue(4711471147, "s3cret")
    forget_the_module()
    client = client_with()
    text = page_of(result, client)
    assert LETTERS in sys.modules
    assert "4711471147" in text
    assert "••••" in text
    assert "s3cret" not in text
    forget_the_module()
    assert "s3cret" not in shown(result)
    assert re.search(r"\n  user_id: +4711471147\n", shown(result))


@pytest.mark.django_db(transaction=True)
def test_a_web_process_of_its_own_shows_a_task_that_it_has_never_imported(letters: Any, tmp_path: Path) -> None:
    """Paper §8.6: the settings name neither the module nor an app that has it."""
    result = letters.send.enqueue(4711471147, "s3cret")
    User.objects.create_superuser("root")
    (tmp_path / "settings_of_web.py").write_text(f"from tests.settings import *\nTASKS = {TASKS!r}\n")
    code = (
        "import sys, django; django.setup()\n"
        "from django.contrib.auth.models import Permission, User\n"
        "from django.test import Client\n"
        f"assert {LETTERS!r} not in sys.modules\n"
        "anna = User.objects.create_user('anna', is_staff=True)\n"
        "anna.user_permissions.set(Permission.objects.filter(codename='view_job'))\n"
        "client = Client(); client.force_login(anna)\n"
        f"print(client.get('{LIST}{result.id}/change/', headers={{'host': 'localhost'}}).content.decode())\n"
    )
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "settings_of_web", "PYTHONWARNINGS": "ignore",
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()]),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, timeout=120, check=False, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "4711471147" in ran.stdout
    assert "s3cret" not in ran.stdout
    assert "@task, alias default" in ran.stdout


def test_a_task_whose_module_cannot_be_imported_shows_the_reason_and_no_argument(
    letters: Any, tmp_path: Path, root: Client
) -> None:
    result = letters.send.enqueue(4711471147, "s3cret")
    forget_the_module()
    (tmp_path / f"{LETTERS}.py").write_text("import a_package_that_is_not_there")
    text = page_of(result, client_with())
    assert "4711471147" not in text
    assert "s3cret" not in text
    assert "This process knows no job with this name." in text
    assert "No module named &#x27;a_package_that_is_not_there&#x27;" in text


def test_page_and_shell_name_the_front_and_the_alias(letters: Any, root: Client) -> None:
    own, other = letters.send.enqueue(1, "x"), letters.send.using(backend="second").enqueue(2, "x")
    forget_the_module()
    assert "<td>@task, alias default</td>" in page_of(own, root)
    assert "<td>@task, alias second</td>" in page_of(other, root)
    assert "\nfront:         @task, alias second\n" in shown(other)
    (found,) = [line for line in printed("show", own.id, "--format", "json")[1].splitlines() if '"front"' in line]
    assert '"front": "@task"' in found
    assert '"alias": "default"' in found


def test_a_job_has_no_front_on_its_page_unless_it_was_enqueued_as_a_task(root: Client) -> None:
    report = job(name="shop.report")(send_report)
    registered = report.register("2026-11")
    assert ">Front<" not in html(root.get(f"{LIST}{registered.pk}/change/"))
    assert "front:" not in printed("show", registered.pk)[1]


def test_a_name_that_nobody_knows_is_a_task_if_its_header_says_so(root: Client) -> None:
    row = make(name="old.code", headers={"task": {"backend": "gone"}})
    assert "<td>@task, alias gone</td>" in html(root.get(f"{LIST}{row.pk}/change/"))


@pytest.mark.parametrize("header", [None, 7, [], {"backend": 7}, {"backend": "x" * 100_000}, {"backend": {}}])
def test_a_forged_header_spoils_nothing(header: Any, root: Client) -> None:
    row = make(name="old.code", headers={"task": header})
    page = root.get(f"{LIST}{row.pk}/change/")
    assert page.status_code == 200
    assert printed("show", row.pk)[0] == 0
    assert filtered(root, front="task") == [row.pk]


# Lists


def test_lists_filter_by_front_and_alias_in_the_admin_and_from_the_shell(letters: Any, root: Client) -> None:
    """Paper O11: names lead to definitions, and a header says where a row differs."""
    report = job(name="shop.report")(send_report)
    plain = report.register("2026-11").pk
    own = int(letters.send.enqueue(1, "x").id)
    moved = int(letters.send.using(backend="second").enqueue(2, "x").id)
    theirs = int(letters.sort.enqueue().id)
    assert filtered(root, front="task") == filtered(root, "front:task") == [own, moved, theirs]
    assert filtered(root, front="job") == [plain]
    assert filtered(root, alias="second") == filtered(root, "alias:second") == [moved, theirs]
    assert filtered(root, alias="default") == filtered(root, "front:task alias:default") == [own]
    assert filtered(root, alias="nobody") == []
    for options, ids in (
        (["--front", "task"], [own, moved, theirs]), (["--front", "job"], [plain]),
        (["--alias", "second", "--state", "ready"], [moved, theirs]), (["--alias", "default"], [own]),
    ):  # fmt: skip
        out = printed("list", *options, "--format", "json")[1]
        assert [each for each in (plain, own, moved, theirs) if f'"id": {each},' in out] == ids, options


def test_a_list_by_front_says_how_far_it_looked(letters: Any, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.resolve(letters.sort.module_path)
    for _ in range(3):
        make(name=letters.sort.module_path, hold="parked")
    monkeypatch.setattr(reach, "NEAR_HELD", 2)
    page = root.get(LIST, {"front": "task", "state": "parked"})
    assert len(ids_on(page)) == 2
    assert "Only the first 2 jobs of this list were searched." in html(page)
    assert "Only the first 2 jobs were searched" in pgjobs("list", "--front", "task", "--state", "parked")[2]


def test_the_list_offers_fronts_where_there_are_tasks_and_aliases_where_there_are_several(
    letters: Any, root: Client
) -> None:
    assert "By front" not in html(root.get(LIST))
    letters.send.enqueue(1, "x")
    text = html(root.get(LIST))
    assert "By front" in text
    assert "By alias of TASKS" not in text
    letters.sort.enqueue()
    assert "By alias of TASKS" in html(root.get(LIST))


def test_a_front_that_there_is_not_is_refused(root: Client) -> None:
    assert root.get(LIST, {"front": "celery"}).status_code == 302
    assert said(root.get(LIST, {"q": "front:celery"})) == ["front: takes task or job, not “celery”."]


# Actions


def test_a_task_is_retried_cancelled_and_abandoned_on_its_page(letters: Any, root: Client) -> None:
    """Paper §8.6; and the result of the task tells who did it."""
    result = letters.send.enqueue(1, "x")
    run_jobs()
    assert result_of(Job.objects.get()).status == "FAILED"
    forget_the_module()
    row = Job.objects.get()

    assert said(root.post(steer_url(row, "retry"), follow=True)) == ["Retry: 1 changed."]
    assert result_of(Job.objects.get()).status == "READY"

    said_of_cancel = said(root.post(steer_url(row, "cancel"), {"mode": "ask", "reason": "not needed"}, follow=True))
    assert said_of_cancel == ["Cancel (ask): 1 changed. Reason: not needed."]
    cancelled = result_of(Job.objects.get())
    assert cancelled.status == "FAILED"
    assert "root" in cancelled.errors[-1].traceback
    assert "not needed" in cancelled.errors[-1].traceback
    assert "by root: not needed" in page_of(result, root)

    root.post(steer_url(row, "retry"), follow=True)
    assert said(root.post(steer_url(row, "abandon"), {"reason": "broken"}, follow=True)) == [
        "Abandon: 1 changed. Reason: broken."
    ]
    abandoned = result_of(Job.objects.get())
    assert abandoned.status == "FAILED"
    assert abandoned.errors[-1].exception_class_path == "django_pgjobs.exceptions.Abandon"


def test_an_action_on_a_whole_list_of_tasks_leaves_jobs_alone(letters: Any, root: Client) -> None:
    plain = job(name="shop.report")(send_report).register("2026-11")
    letters.send.enqueue(1, "x")
    letters.sort.enqueue()
    rows = Job.objects.exclude(pk=plain.pk)
    data = {"select_across": "1", "confirmed": "yes", "mode": "ask", "reason": "spring cleaning"}
    act(root, "cancel", rows, "?front=task", **data)
    assert {(row.name == plain.name, row.state) for row in Job.objects.all()} == {(True, "ready"), (False, "cancelled")}
    assert "front task" in html(root.get("/admin/pgjobs/action/"))


def test_the_shell_steers_tasks_of_an_alias(letters: Any) -> None:
    own, other = letters.send.enqueue(1, "x"), letters.sort.enqueue()
    assert pgjobs("cancel", "--alias", "second", "--by", "bob", "--yes")[0] == 0
    own.refresh()
    other.refresh()
    assert (own.status, other.status) == ("READY", "FAILED")
