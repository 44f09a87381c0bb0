"""``pgjobs doctor`` in a process of its own: beside a worker that is well, and with what a process brings with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.chaos.load import needs, unless
from tests.e2e.stage import Stage
from tests.plugins.fix_worker import Workers
from tests.plugins.shell import run

LIBRARIES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/local/lib/faketime/libfaketime.so.1")


def examined(stage: Stage, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Examine the project of ``tests.e2e``: exit status, and each finding by its id."""
    settings = {"DJANGO_SETTINGS_MODULE": "tests.settings_worker", "PGJOBS_TEST_STAGE": str(stage.path)}
    done = run("doctor", "--format", "json", env={**settings, **env})
    assert done.stdout, done.stderr
    return done.returncode, {each["id"]: each for each in json.loads(done.stdout)["findings"]}


def test_a_project_with_a_worker_is_well(worker: Workers, stage: Stage) -> None:
    """Its jobs, which tests have made up, are not: some change their process."""
    worker().wait_for_log("leads")
    status, found = examined(stage)
    assert (status, set(found) - {"shared_state"}) == (0, set())


def test_psycopg_in_python(committed: None, stage: Stage) -> None:
    found = examined(stage, PSYCOPG_IMPL="python")[1]["pgjobs.W015"]
    assert found["cure"].startswith('Install "django-pgjobs[binary]"')
    assert "pgjobs.W015" not in examined(stage)[1]


def test_an_import_that_starts_a_thread(committed: None, stage: Stage) -> None:
    found = examined(stage, PGJOBS_TEST_IMPORTING="thread")[1]["fork"]
    assert "started threads (of-the-project)" in found["what"]
    assert found["cure"] == "start them in a receiver of executor_started instead"
    off = json.dumps({"EXECUTOR_TEMPLATE": False})
    assert "fork" not in examined(stage, PGJOBS_TEST_IMPORTING="thread", PGJOBS_TEST_CONF=off)[1]


def test_a_library_that_does_not_survive_a_fork(committed: None, stage: Stage, tmp_path: Path) -> None:
    """A package of that name is enough: none of the real ones is installed."""
    (tmp_path / "grpc.py").touch()
    (tmp_path / "sitecustomize.py").write_text("import grpc\n")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    found = examined(stage, **path)[1]["fork_unsafe"]
    assert found["what"] == "The project imports grpc, which may not survive a fork."
    assert found["cure"].startswith('PGJOBS = {"EXECUTOR_TEMPLATE": False}')
    assert "fork_unsafe" not in examined(stage, **path, PGJOBS_TEST_CONF=json.dumps({"EXECUTOR_TEMPLATE": False}))[1]


def test_connections_that_are_closed_after_each_job(committed: None, stage: Stage) -> None:
    found = examined(stage, PGJOBS_TEST_DATABASES='{"default": {"CONN_MAX_AGE": 0}}')[1]["conn_max_age"]
    assert found["cure"] == 'DATABASES["default"]["CONN_MAX_AGE"] = 60'
    assert "conn_max_age" not in examined(stage, PGJOBS_TEST_DATABASES='{"default": {"CONN_MAX_AGE": 60}}')[1]


def test_a_clock_that_is_an_hour_ahead(committed: None, stage: Stage) -> None:
    needs("faketime")
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern)]
    unless(not found, "libfaketime.so.1 is not where Debian has it")
    clock = {"LD_PRELOAD": str(found[0]), "FAKETIME": "+3600", "DONT_FAKE_MONOTONIC": "1"}
    found_there = examined(stage, **clock)[1]["clock"]
    assert found_there["what"] == "The clock of this machine is 60 min ahead of the server's."
    assert found_there["cure"] == "timedatectl set-ntp true"
