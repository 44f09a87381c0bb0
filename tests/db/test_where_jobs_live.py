"""A process imports jobs where they live at its start, and says so of jobs that no worker finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

JOB = "from django_pgjobs import job\n\n@job\ndef work(n: int = 0) -> None: ...\n"

FILES = {
    "shop/__init__.py": "",
    "shop/jobs.py": "import shop.imported\nimport shop.lazy_caller\n",
    "shop/imported.py": JOB,
    "shop/lazy_caller.py": "def call():\n    import shop.lazy\n    return shop.lazy.work\n",
    "shop/lazy.py": JOB + "\n@job\ndef other(): ...\n",
    "shop/mail_jobs.py": JOB,
    "shop/broken.py": "raise RuntimeError('a module that nothing names')",
    "shop/workflows/__init__.py": "",
    "shop/workflows/__main__.py": "raise RuntimeError('a program')",
    "shop/workflows/trips.py": JOB,
    "shop/workflows/deep/__init__.py": "",
    "shop/workflows/deep/sea.py": JOB,
    "shop/spaces/far/jobs_out.py": JOB,
    "shop/views.py": JOB,
    "shop/urls.py": "import shop.views\nurlpatterns = []\n",
    "shop/tests.py": JOB,
    "shop/crons.py": (
        "from django_pgjobs import Cron\nfrom shop.imported import work\nCron('@daily', work.bind(), name='x')\n"
    ),
    "elsewhere.py": JOB,
}

PROCESS = """
import json, sys
import django
from django.conf import settings

database, conf, more, code = json.loads(sys.argv[1])
settings.configure(INSTALLED_APPS=["django_pgjobs", "shop"], DATABASES={"default": database}, USE_TZ=True, PGJOBS=conf,
                   **more)
django.setup()
from importlib import import_module
from django.core.checks import run_checks
from django.db import connections
from django_pgjobs.definition.registry import registry

asked = []
connections["default"].execute_wrappers.append(lambda execute, *rest: asked.append(rest) or execute(*rest))
found = []
exec(code)
print(json.dumps(found))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's folder, with jobs in and beside ``shop/jobs.py``."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(project: Path, code: str, conf: object = None, **more: object) -> tuple[list[Any], str]:
    """What ``code`` puts into ``found`` in a new process of the project, and what that logs."""
    database = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    command = [sys.executable, "-c", PROCESS, json.dumps([database, conf or {}, more, code])]
    paths = {"PYTHONPATH": ":".join([str(project), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=paths)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


NAMES = "found += registry.names()"


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ([], []),
        (["shop.*_jobs"], ["shop.mail_jobs.work"]),
        (["shop.mail_jobs", "shop.*_jobs"], ["shop.mail_jobs.work"]),
        (["shop.workflows.*"], ["shop.workflows.trips.work"]),
        (["shop.workflows"], []),
        (["shop.*.sea"], []),
        (["shop.*.*.sea"], ["shop.workflows.deep.sea.work"]),
        (["shop.spaces.far.jobs_*"], ["shop.spaces.far.jobs_out.work"]),
        (["shop.*.far.jobs_*"], ["shop.spaces.far.jobs_out.work"]),
        (["shop.spaces.*.jobs_*"], ["shop.spaces.far.jobs_out.work"]),
        (["elsewhere"], ["elsewhere.work"]),
        (["nowhere", "nowhere.*", "shop.nowhere", "elsewhere.*"], []),
    ],
)
@pytest.mark.django_db
def test_a_process_imports_jobs_of_apps_and_what_the_patterns_name(project, patterns, found):
    names, _ = run(project, NAMES, {"MODULES": patterns})
    assert names == sorted(["shop.imported.work", *found])


@pytest.mark.django_db
def test_what_a_pattern_does_not_name_is_not_imported(project):
    loaded, _ = run(
        project, "found += [name for name in sys.modules if name[:4] == 'shop']", {"MODULES": ["shop.w*.*"]}
    )
    of_jobs = {"shop", "shop.jobs", "shop.imported", "shop.lazy_caller"}
    assert set(loaded) - of_jobs == {"shop.workflows", "shop.workflows.trips", "shop.workflows.deep"}


@pytest.mark.django_db
def test_a_project_without_patterns_loads_nothing_for_them_and_asks_nothing(project):
    code = "found += ['django_pgjobs.definition.discovery' in sys.modules, connections['default'].connection is None]"
    assert run(project, code)[0] == [False, True]


@pytest.mark.django_db
def test_a_module_that_fails_stops_the_process_as_jobs_py_does(project):
    with pytest.raises(AssertionError, match="a module that nothing names"):
        run(project, NAMES, {"MODULES": ["shop.broken"]})


# What is said of jobs elsewhere

MESSAGES = """
for name in json.loads({names!r}):
    import_module(name)
found += [[each.id, each.msg, each.hint] for each in run_checks(tags=["pgjobs"]) if each.id != "pgjobs.W001"]
"""


def messages(project: Path, *names: str, conf: object = None, **more: object) -> list[Any]:
    return run(project, MESSAGES.format(names=json.dumps(names)), conf, **more)[0]


@pytest.mark.django_db
def test_a_pattern_that_names_no_module_is_a_warning(project):
    [[message_id, text, hint]] = messages(project, conf={"MODULES": ["shop.*_jobs", "shop.*_job"]})
    assert message_id == "pgjobs.W013"
    assert "'shop.*_job'" in text
    assert "dotted path" in hint


@pytest.mark.django_db
def test_jobs_in_a_module_that_workers_do_not_import_are_warnings(project):
    first, second = messages(project, "shop.imported", "shop.mail_jobs", "shop.lazy", conf={"MODULES": ["shop.*_jobs"]})
    assert [first[0], second[0]] == ["pgjobs.W014"] * 2
    assert "shop.lazy.other" in first[1]
    assert "shop.lazy.work" in second[1]
    assert first[2] == 'Move it to shop.jobs, import shop.lazy there, or add "shop.lazy" to PGJOBS["MODULES"].'


@pytest.mark.django_db
def test_what_only_views_import_is_found_whichever_check_runs_first(project):
    [[_, text, _]] = messages(project, ROOT_URLCONF="shop.urls")
    assert "shop.views.work" in text


@pytest.mark.django_db
def test_a_module_outside_of_every_app_belongs_into_one(project):
    [[_, _, hint]] = messages(project, "elsewhere")
    assert hint == 'Move it to jobs.py of an installed app, or add "elsewhere" to PGJOBS["MODULES"].'


@pytest.mark.django_db
def test_a_cron_entry_in_such_a_module_is_a_warning(project):
    [[_, text, hint]] = messages(project, "shop.crons")
    assert "cron entry x" in text
    assert '"shop.crons"' in hint


@pytest.mark.parametrize("name", ["shop.tests", "shop.imported", "django_pgjobs.flows.builtin"])
@pytest.mark.django_db
def test_tests_and_what_jobs_py_imports_are_no_false_alarms(project, name):
    assert messages(project, name) == []


@pytest.mark.django_db
def test_a_reloaded_module_is_no_false_alarm(project):
    code = "import importlib, shop.imported; importlib.reload(shop.imported)\n" + MESSAGES.format(names="[]")
    assert run(project, code)[0] == []


@pytest.mark.django_db
def test_a_backend_of_tasks_finds_jobs_by_their_path(project):
    tasks = {"default": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"}}
    assert messages(project, "shop.lazy", TASKS=tasks) == []


REGISTER = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
from django.db import transaction
from shop.lazy import other, work
import shop.tests
connections["default"].execute_wrappers.clear()
with transaction.atomic():
    for _ in range(2):
        work.register()
    other.register_many([{}, {}])
    shop.imported.work.register()
    shop.tests.work.register()
    transaction.set_rollback(True)
"""


@pytest.mark.django_db(transaction=True)
def test_registering_such_a_job_is_one_warning_for_each_job(project):
    _, logged = run(project, REGISTER)
    lines = [line for line in logged.splitlines() if line.startswith("WARNING")]
    assert len(lines) == 2
    assert "name=shop.lazy.work module=shop.lazy: Move it to shop.jobs" in lines[0]
    assert "name=shop.lazy.other" in lines[1]
