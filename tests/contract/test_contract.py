"""Django's own tests of ``django.tasks`` pass on our backends, but for a closed list (issue 20, paper §5.1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import django
import pytest

from tests.contract import closed_list
from tests.contract.fetching import ROOT, NotFetched, fetched_django, fetched_tests

pytestmark = [pytest.mark.contract, pytest.mark.timeout(540)]

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
HERE = f"{django.VERSION[0]}.{django.VERSION[1]}"
LAID_OVER = {"6.1": ["6.0"]}
"""Django installed → the others that are laid over it for a run of their own, without the backport."""

BORROWED = {"5.2": closed_list.BORROWED}
"""Django without ``django.tasks`` → the release whose tests the backport has to pass."""

FAMILIES = {"5.2": ["django_tasks"], "6.0": ["django.tasks"], "6.1": ["django.tasks", "django_tasks"]}
"""Series → the families of tasks that our package finds: each alone, and both together."""


@pytest.fixture(scope="module", params=[HERE, *LAID_OVER.get(HERE, [])])
def series(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outcomes(series: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    try:
        return _run(series, tmp_path_factory.mktemp(series))
    except NotFetched as error:
        skip_outside_of_ci(error)


def skip_outside_of_ci(error: NotFetched) -> NoReturn:
    """Skip the test that needs what could not be fetched; where ``CI`` is set, raise the error."""
    if os.environ.get("CI"):
        raise error
    pytest.skip(f"Django's tests of django.tasks are only in its source distribution. {error}")


def _run(series: str, scratch: Path) -> dict[str, str | None]:
    environment = dict(os.environ)
    if series != HERE:
        environment |= {"PYTHONPATH": str(fetched_django(series)), "PGJOBS_CONTRACT_ALONE": "1"}
    version = BORROWED.get(series) or _version(environment)
    report = scratch / "report.json"
    command = [sys.executable, "-m", "tests.contract.running", str(fetched_tests(version)), str(report)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert found["django"].startswith(f"{series}."), found["django"]
    assert found["families"] == FAMILIES[series]
    outcomes: dict[str, str | None] = found["outcomes"]
    return outcomes


def _version(environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", "import django; print(django.__version__)"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_all_tests_of_django_pass_but_those_of_the_closed_list(series: str, outcomes: dict[str, str | None]) -> None:
    """A test of the list that passes fails this one too: then the list has to be shortened."""
    found = closed_list.differences(outcomes, closed_list.excluded(series, PYTHON))
    assert not found, "\n\n".join(found)


def test_all_four_modules_have_been_run(outcomes: dict[str, str | None]) -> None:
    assert len(outcomes) >= 76
    modules = {name.partition(".")[0] for name in outcomes}
    assert modules == {"test_custom_backend", "test_dummy_backend", "test_immediate_backend", "test_tasks"}
