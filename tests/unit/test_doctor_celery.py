"""What ``pgjobs doctor --from celery`` reads in source: each difference once, with every place, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_pgjobs.doctor import celery_code
from django_pgjobs.doctor.celery_code import DIFFERENCES
from django_pgjobs.doctor.finding import Finding, Severity
from django_pgjobs.values.cures import CURES

WELL = "from celery import shared_task\n\n\n@shared_task(acks_late=True, autoretry_for=(OSError,), time_limit=60)\n"


def read(tmp_path: Path, **files: str) -> dict[str, Finding]:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return {each.id.removeprefix("celery_"): each for each in celery_code.read([tmp_path])}


TASKS = """\
from celery import Celery, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from celery.schedules import crontab, solar
from celery.signals import task_prerun

app = Celery("shop")
app.conf.task_serializer = "pickle"
app.conf.update(timezone="Europe/Berlin", worker_prefetch_multiplier=1)
app.conf.beat_schedule = {"dusk": {"task": "shop.lights", "schedule": solar("sunset", 52, 13)}}


@shared_task
def lights(): ...


@app.task(bind=True, max_retries=None, rate_limit="10/m", base=Base, priority=3)
def charge(self, order_id):
    try:
        pay(order_id)
    except SoftTimeLimitExceeded:
        raise self.retry(args=(order_id, "later"), countdown=5)


def view(request):
    charge.apply_async((1,), routing_key="eu.mail", eta=datetime.now() + delta, task_id="x", countdown=3)
    charge.delay(1)
    AsyncResult("x").get()
    app.control.revoke("x")
"""

PLACES = {
    "pickle": [8],
    "zone": [9],
    "needless": [9],
    "solar": [10],
    "signals": [5],
    "no_retry": [13],
    "lost_at_crash": [13, 17],
    "no_time_limit": [13, 17],
    "endless_retries": [17],
    "rate_limit": [17],
    "base": [17],
    "priority": [17],
    "soft_limit": [21],
    "retry_args": [22],
    "routing": [26],
    "naive_eta": [26],
    "task_id": [26],
    "result": [28],
    "control": [29],
    "job_bind": [17],
    "job_max_retries": [17],
    "using_eta": [26],
    "using_countdown": [26],
    "definition_apply_async": [26],
    "definition_delay": [27],
}


def test_a_module_of_tasks(tmp_path: Path) -> None:
    found = read(tmp_path, tasks=TASKS)
    lines = {id: [int(place.rpartition(":")[2]) for place in each.where] for id, each in found.items()}
    assert lines == PLACES


@pytest.mark.parametrize(("call", "retries"), [("well.retry", True), ("self.retry", True), ("well.other", False)])
def test_a_task_that_retries_by_any_name_does_retry(tmp_path: Path, call: str, *, retries: bool) -> None:
    text = WELL.replace("autoretry_for=(OSError,), ", "") + f"def well(n):\n    raise {call}()\n"
    assert ("no_retry" in read(tmp_path, well=text)) is not retries


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from celery import chain, signals", True),
        ("import celery.signals as s", True),
        ("from celery.signals import worker_init", True),
        ("from celery import chain", False),
    ],
)
def test_signals_are_imported_in_three_ways(tmp_path: Path, line: str, *, found: bool) -> None:
    assert ("signals" in read(tmp_path, module=f"{line}\n")) is found


def test_every_difference_is_found_somewhere(tmp_path: Path) -> None:
    settings = "CELERY_TASK_ALWAYS_EAGER = True\nCELERY_TASK_TIME_LIMIT = None\n"
    settings += "CELERY_BROKER_TRANSPORT_OPTIONS = {'visibility_timeout': 3600}\n"
    found = read(tmp_path, tasks=TASKS, settings=settings)
    assert DIFFERENCES.keys() - found.keys() == set()
    assert found["eager"].where == (f"{tmp_path}/settings.py:1",)
    assert f"{tmp_path}/settings.py:3" in found["needless"].where


@pytest.mark.parametrize("place", ["@job", "using", "definition"])
def test_what_has_another_name_has_the_cure_that_a_refusal_gives(place: str, tmp_path: Path) -> None:
    words = {"@job": "bind", "using": "countdown", "definition": "apply_async"}
    found = read(tmp_path, tasks=TASKS)[f"{place.lstrip('@')}_{words[place]}"]
    assert (found.severity, found.cure) == (Severity.NOTE, CURES[place][words[place]])


def test_arguments_that_no_line_can_pass_are_errors(tmp_path: Path) -> None:
    found = read(tmp_path, settings='CELERY_ACCEPT_CONTENT = ["json", "pickle"]\n')
    assert {id: each.severity for id, each in found.items()} == {"pickle": Severity.ERROR}


@pytest.mark.parametrize(
    "text",
    [
        "from multiprocessing.pool import Pool\n\nPool().apply(print)\n",
        "# not of celery\nTIMEZONE = 'UTC'\nTASKS = {'priority': 1}\n",
        WELL + "def well(n): ...\n",
    ],
    ids=["a pool", "settings of another", "a task that stays what it is"],
)
def test_what_stays_as_it_is_is_not_told(text: str, tmp_path: Path) -> None:
    found = read(tmp_path, module=text)
    assert {id for id, each in found.items() if each.severity is not Severity.NOTE} == set()


def test_foreign_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "tasks.py").write_text(TASKS)
    found = read(tmp_path, broken="import celery\ndef (:\n", foreign="def (:\n")
    assert list(found) == ["unread"]
    assert found["unread"].severity is Severity.NOTE
    assert found["unread"].where == (f"{tmp_path}/broken.py:1",)


@pytest.mark.parametrize("text", ["-" * 20_000 + "1", ".a" * 20_000, "(" * 500 + ")" * 500])
def test_a_file_that_no_parser_takes_ends_nothing(text: str, tmp_path: Path) -> None:
    found = read(tmp_path, generated=f"import celery\nx = a{text}\n", tasks=TASKS)
    assert found["unread"].where == (f"{tmp_path}/generated.py:1",)
    assert "pickle" in found


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("CELERY_TASK_ACKS_LATE = True", "lost_at_crash"),
        ('app.conf.update({"CELERY_ACKS_LATE": True})', "lost_at_crash"),
        ("CELERY_TASK_TIME_LIMIT = 60", "no_time_limit"),
        ("CELERY_TASK_SOFT_TIME_LIMIT = 60", "no_time_limit"),
    ],
)
def test_a_setting_speaks_for_the_tasks_of_all_files(setting: str, code: str, tmp_path: Path) -> None:
    tasks = "from celery import shared_task\n@shared_task\ndef first(): ...\n"
    assert code in read(tmp_path, a_tasks=tasks, settings="")
    assert code not in read(tmp_path, settings=f"{setting}  # of Celery\n")
    if code == "lost_at_crash":
        own = tasks.replace("@shared_task", "@shared_task(acks_late=False)")
        assert read(tmp_path, b_tasks=own)[code].where == (f"{tmp_path}/b_tasks.py:2",)


def test_one_file_may_be_named(tmp_path: Path) -> None:
    read(tmp_path, tasks=TASKS)
    assert {each.id for each in celery_code.read([tmp_path / "tasks.py"])} >= {"celery_pickle"}
