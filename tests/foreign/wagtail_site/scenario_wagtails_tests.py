"""Wagtail's own tests on ``EagerBackend`` (tasks-front paper 5.2, and 8, point 12)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from django.utils.module_loading import import_string

from tests.foreign.fixtures import PREFIX, Server
from tests.plugins.fix_db import patience
from tests.plugins.fix_worker import ROOT, database_url

IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"
EAGER = "django_pgjobs.testing.EagerBackend"
OWN = f"{PREFIX}_own"
MODULES = (
    "wagtail.tests.test_reference_index",
    "wagtail.tests.test_page_search",
    "wagtail.images.tests.test_signal_handlers",
)


@pytest.fixture(scope="module")
def own_template(server: Server) -> Iterator[str]:
    """Return the name of a database migrated for Wagtail's own test settings, which takes longer than the tests."""
    name = f"{PREFIX}_own_template"
    server.make(name)
    _run(IMMEDIATE, "django", "migrate", "--verbosity=0", "--settings=tests.foreign.wagtail_site.own_settings")
    yield name
    server.drop(name)


def passed_on(backend: str, server: Server, template: str) -> set[str]:
    """Return the ids of the tests that pass with this task backend, which has been given all tasks."""
    server.make(OWN, template)
    try:
        done = _run(backend, "tests.foreign.wagtail_site.own_tests", *MODULES)
        found = json.loads(done.splitlines()[-1])
        (given,) = found["enqueued"]
        assert import_string(given) is import_string(backend)
        return set(found["passed"])
    finally:
        server.drop(OWN)


def _run(backend: str, *module: str) -> str:
    """Run a module of the environment in the database that Django uses now, and return what it prints."""
    environment = {
        **os.environ, "DATABASE_URL": database_url(), "PYTHONPATH": str(ROOT), "PGJOBS_FOREIGN_BACKEND": backend,
    }  # fmt: skip
    command = [sys.executable, "-m", *module]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=patience(600), check=True
    )
    return done.stdout


def test_its_own_tests_of_indexing_and_files_pass_as_they_do_on_the_immediate_backend(
    server: Server, own_template: str, record_property: Callable[[str, object], None]
) -> None:
    on_immediate, on_ours = (passed_on(each, server, own_template) for each in (IMMEDIATE, EAGER))
    record_property("immediate", len(on_immediate))
    record_property("eager", len(on_ours))
    assert len(on_immediate) > 30
    assert on_immediate - on_ours == set()
