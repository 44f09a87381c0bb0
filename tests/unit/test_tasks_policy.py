"""``@policy`` marks a function, and ``tasks`` can be imported by anybody. Paper §3.2, §6 T1, §8.14."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.tasks import policy
from django_pgjobs.tasks.families import FAMILY
from django_pgjobs.tasks.policies import mark_of
from tests.db.tasks_ground import TASKS, cast


def work(user: int, *, name: str = "") -> None: ...


def with_context(context: object, user: int) -> None: ...


def test_it_marks_the_function_and_returns_it() -> None:
    def local(user: int) -> None: ...

    assert policy(max_attempts=2, timeout=(1, 2))(local) is local
    assert mark_of(local) == {"max_attempts": 2, "timeout": 2.0, "soft_timeout": 1.0}
    assert mark_of(work) == {}


def test_the_mark_survives_a_wrapper() -> None:
    """As django-crontask's."""

    @policy(max_attempts=2)
    def local() -> None: ...

    @functools.wraps(local)
    def wrapper() -> None: ...

    assert mark_of(wrapper) == {"max_attempts": 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "mail"}, r"a policy takes no 'queue': write @task\(queue_name=…\)"),
        ({"name": "x"}, "a policy takes no 'name': the name of a task is its path"),
        ({"takes_context": True}, "a policy takes no 'takes_context'"),
        ({"attempts": 2}, "unknown option 'attempts'.*did you mean 'max_attempts'"),
        ({"max_retries": 2}, "unknown option 'max_retries': max_attempts counts the first start: max_attempts=3"),
        ({"max_attempts": 0}, "max_attempts must be an integer"),
    ],
)
def test_wrong_options_are_refused_at_once_with_their_place(options: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=rf"{__file__}:\d+: policy: {words}"):
        policy(**options)


@pytest.mark.parametrize(
    ("func", "options"),
    [
        (work, {"unique": "{nobody}"}),
        (work, {"sensitive": ["nobody"]}),
        (work, {"unique": lambda: "x"}),
        (with_context, {"unique": "{nobody}"}),
    ],
)
def test_what_does_not_go_with_the_function_is_refused_at_once(func: Any, options: Any) -> None:
    with pytest.raises(InvalidJob, match=rf"{__file__}:\d+: policy of '{func.__qualname__}': "):
        policy(**options)(func)
    assert not hasattr(func, "_pgjobs_policy")


@pytest.mark.parametrize("key", ["{user}", "{context}", lambda user: "x", lambda context, user: "x"])
def test_a_first_argument_called_context_may_be_one(key: Any) -> None:
    """``@task`` above says which it is."""

    def local(context: object, user: int) -> None: ...

    policy(unique=key)(local)


def test_it_stands_below_task_and_not_beside_job() -> None:
    with pytest.raises(TypeError, match=rf"{__file__}:\d+: policy marks the plain function: write @task above"):
        policy(max_attempts=2)(cast.noop)
    with registry.isolated(), pytest.raises(TypeError, match="policy marks the plain function"):
        policy(max_attempts=2)(job(work))


def test_a_task_is_no_job_and_a_job_is_no_task() -> None:
    """§3.2: the messages say what to write."""
    with registry.isolated(), pytest.raises(InvalidJob, match="write @policy below @task instead of @job"):
        job(cast.noop)
    with (
        override_settings(TASKS=TASKS),
        pytest.raises(Exception, match=r"take its as_task\(\), or write @task above @policy instead of @job"),
    ):
        cast.task(cast.native)


def test_a_mark_keeps_its_cron_entry_for_the_next_definition() -> None:
    """T4: an entry belongs to one definition, and settings may change."""
    entry = Cron("@daily")

    @policy(cron=entry)
    def local() -> None: ...

    assert mark_of(local)["cron"] == (entry,)
    assert entry.call is None


PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Nothing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("django_tasks", "django.tasks") or name.startswith(("django_tasks.", "django.tasks.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

from django.conf import settings
settings.configure(INSTALLED_APPS=["django_pgjobs"])
import django, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("django_tasks", "django.tasks") else find(name)
sys.meta_path.insert(0, Nothing())
"""


def test_without_a_family_only_the_backend_cannot_be_imported() -> None:
    """T1, §8.14: discoveries such as Celery's import every ``tasks``; ``policy`` works wherever a module runs."""
    program = f"""{PROGRAM}
import django_pgjobs
import django_pgjobs.tasks
from django_pgjobs.tasks import policy

@policy(max_attempts=2)
def work(): ...

assert not [name for name in sys.modules if name.startswith(("django.tasks", "django_tasks"))]
for name in django_pgjobs.tasks.__all__:
    try:
        getattr(django_pgjobs.tasks, name)
    except ImportError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "PgJobsBackend", "PgTaskContext", "enqueue_many", "job_of", "result_of",
    ]  # fmt: skip
    assert all("Django 6.0" in line and "django-pgjobs[tasks]" in line for line in lines)


MODULE = """
from {family} import task
from django_pgjobs import Backoff, Cron, Limit
from django_pgjobs.tasks import policy

@task
@policy(max_attempts=5, backoff=Backoff(1), timeout=9, unique="double:{{number}}", limits=Limit(1), give_up_on=KeyError)
def double(number):
    return 2 * number

@task(takes_context=True)
@policy(cron=Cron("0 3 * * *"), aliases=["shop.former"])
def nightly(context): ...
"""

BORROWED = """
import sys
sys.path.insert(0, {folder!r})
from django.conf import settings
settings.configure(TASKS={{"default": {{"BACKEND": {backend!r}}}}})
import django
django.setup()
from shop_tasks import double, nightly
result = double.enqueue(21)
print(result.status, result.args)
assert not [name for name in sys.modules if name.startswith("django_pgjobs.tasks.") and "policies" not in name]
"""


@pytest.mark.parametrize(
    ("backend", "status"), [("immediate.ImmediateBackend", "SUCCESSFUL"), ("dummy.DummyBackend", "READY")]
)
def test_a_module_with_policies_also_runs_on_backends_of_others(tmp_path: Path, backend: str, status: str) -> None:
    """§3.2, §8.8: the mark needs neither a backend of ours nor our app."""
    (tmp_path / "shop_tasks.py").write_text(MODULE.format(family=FAMILY))
    program = BORROWED.format(folder=str(tmp_path), backend=f"{FAMILY}.backends.{backend}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"{status} [21]"), done.stderr


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import django_pgjobs.tasks

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = django_pgjobs.tasks.nothing
