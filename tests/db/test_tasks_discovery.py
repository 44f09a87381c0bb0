"""A process knows the tasks of installed apps when its apps are ready. Paper §3.1, §8.9."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.tasks.families import FAMILY

TASKS = f"""
from {FAMILY} import task
from django_pgjobs import Cron
from django_pgjobs.tasks import policy

@task
@policy(cron=Cron("0 3 * * *"))
def nightly(): ...

@task(backend="elsewhere")
def others(): ...

def plain(): ...

twin = task(plain)
"""

PROCESS = """
import json, sys
import django
from django.conf import settings

given = json.loads(sys.argv[1])
backends = {"default": {"BACKEND": given["backend"], "OPTIONS": given["options"]}}
backends["elsewhere"] = {"BACKEND": given["family"] + ".backends.dummy.DummyBackend"}
settings.configure(INSTALLED_APPS=given["apps"], DATABASES={"default": given["database"]}, USE_TZ=True, TASKS=backends)
before = len(sys.modules)
django.setup()
from django_pgjobs.definition.registry import registry
print(json.dumps({
    "names": [definition.name for definition in registry.definitions()],
    "crons": [entry.name for entry in registry.crons()],
    "modules": [name for name in sys.modules if name.startswith(("django_pgjobs.tasks", "shop.tasks"))],
}))
"""

OURS = "django_pgjobs.tasks.PgJobsBackend"
IMMEDIATE = f"{FAMILY}.backends.immediate.ImmediateBackend"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's folder with the app ``shop``."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(TASKS)
    return tmp_path


def started(project: Path, backend: str = OURS, apps: Any = ("django_pgjobs", "shop"), **options: Any) -> Any:
    """Start a process of the project and return what it knows, and what it has said."""
    database = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    given = {"backend": backend, "options": options, "apps": apps, "database": database, "family": FAMILY}
    paths = {"PYTHONPATH": ":".join([str(project), *sys.path])}
    command = [sys.executable, "-c", PROCESS, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=paths)
    return (json.loads(done.stdout) if done.stdout else None), done.stderr


def test_tasks_and_their_schedules_are_known_though_nobody_imports_the_module(project: Path) -> None:
    """Those of our aliases alone; what no worker could find is a warning."""
    found, said = started(project)
    assert found["names"] == ["shop.tasks.nightly"]
    assert found["crons"] == ["shop.tasks.nightly"]
    assert "a task has another name than its function module=shop.tasks: shop.tasks.plain is no task" in said


def test_a_project_without_an_alias_of_ours_loads_nothing_for_it(project: Path) -> None:
    found, said = started(project, IMMEDIATE)
    assert (found["names"], found["modules"], said) == ([], [], "")


def test_wrong_options_are_left_to_the_checks(project: Path) -> None:
    found, said = started(project, MAX_ATTEMPTS=0)
    assert (found["names"], said) == ([], "")


@pytest.mark.parametrize("error", ["import celery_of_nobody", "1 / 0"])
def test_an_error_in_the_projects_own_module_is_raised(project: Path, error: str) -> None:
    (project / "shop" / "tasks.py").write_text(error)
    found, said = started(project)
    assert found is None
    assert ("No module named 'celery_of_nobody'" in said) or ("ZeroDivisionError" in said)


def test_an_import_error_in_a_package_of_others_is_a_warning(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its ``tasks`` may be for another queue, which is not installed."""
    (project / "shop" / "tasks.py").write_text("import celery_of_nobody")
    place = tmp_path / "sitecustomize.py"
    place.write_text(f"import sysconfig\nsysconfig.get_path = lambda *_: {str(project)!r}\n")
    found, said = started(project)
    assert found["names"] == []
    assert "tasks of an app cannot be imported module=shop.tasks: No module named 'celery_of_nobody'" in said
