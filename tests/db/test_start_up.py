"""A web process that only registers loads few modules: nothing of workers, of the admin, or of what operators do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from django_pgjobs.models import Job

MOST = 55
"""Modules of ours and of third parties that registering may load beside the tables."""

TABLES = ("django_pgjobs.apps", "django_pgjobs.models", "django_pgjobs.fields", "django_pgjobs.fields")
"""Django loads these of an installed app, whatever the process does with it."""

STORE = {"database", "new_jobs", "notifying", "registering", "waking"}
"""The modules of the store that send what a registration sends."""

JOBS = """
from django_pgjobs import job

@job
def hello(n): ...
"""

PROCESS = """
import json, sys
import django
from django.conf import settings

installed, database = json.loads(sys.argv[1])
settings.configure(INSTALLED_APPS=installed, DATABASES={"default": database}, USE_TZ=True)
django.setup()
from django.db import connection
from django.db.models import Q
connection.ensure_connection()
declared = list(sys.modules)
if "django_pgjobs" in installed:
    sys.modules["shop.jobs"].hello.register(1)
print(json.dumps([declared, list(sys.modules)]))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project's folder, in which the app ``shop`` declares a job."""
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(JOBS)
    return tmp_path


def modules(project: Path, *installed: str) -> tuple[set[str], set[str]]:
    """What a process has loaded when its jobs are declared, and when it has registered one of them."""
    database = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    command = [sys.executable, "-c", PROCESS, json.dumps([installed, database])]
    paths = {"PYTHONPATH": ":".join([str(project), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=paths)
    assert done.returncode == 0, done.stderr
    declared, registered = json.loads(done.stdout)
    return set(declared), set(registered)


@pytest.mark.django_db(transaction=True)
def test_a_process_that_only_registers_loads_few_modules(shop: Path) -> None:
    _, bare = modules(shop, "shop")
    declared, registered = modules(shop, "django_pgjobs", "shop")
    assert Job.objects.get().name == "shop.jobs.hello"
    theirs = {"django", "psycopg", "psycopg_binary", "psycopg_c", "shop", *sys.stdlib_module_names}
    more = {name for name in registered - bare if name.partition(".")[0] not in theirs}
    ours = sorted(name for name in more if not name.startswith(TABLES))
    assert len(ours) <= MOST, f"{len(ours)} modules, at most {MOST} may be: {', '.join(ours)}"

    others = sorted(name for name in more if not name.startswith("django_pgjobs"))
    assert others == [], "no package of a third party is needed to register"
    rooms = {name.split(".")[1] for name in ours if "." in name}
    unwanted = {"worker", "maintenance", "execution", "running", "steering", "inspection", "presentation", "admin"}
    assert not rooms & (unwanted | {"management", "testing", "embedded", "checks"})
    assert {name.split(".")[2] for name in ours if name.startswith("django_pgjobs.store.")} == STORE

    late = sorted(name for name in registered - declared if name.startswith("django_pgjobs"))
    assert late == [], "the first registration waits for no module"
