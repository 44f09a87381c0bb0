"""What a name in a row can have imported: whoever writes rows chooses it (SECURITY.md)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import UnknownJob
from django_pgjobs.tasks.definitions import resolver
from tests.db.tasks_ground import TASKS


@pytest.fixture(autouse=True)
def _asked() -> Iterator[None]:
    with registry.isolated(), override_settings(TASKS=TASKS):
        registry.add_resolver(resolver)
        yield


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("this.s", "this"),
        ("idlelib.help.show_idlehelp", "idlelib"),
        ("django.__main__.management", "django.__main__"),
        ("test.autotest.x", "test.autotest"),
    ],
)
def test_a_name_imports_no_module_of_python_and_no_program(name: str, module: str) -> None:
    """Some of them do at import what a program does: print, open a browser, read the command line."""
    with pytest.raises(UnknownJob, match=r"is known to this process\.$"):
        registry.resolve(name)
    assert module not in sys.modules


def test_a_name_imports_any_other_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and then it is no task: whoever writes rows can have that done (SECURITY.md)."""
    (tmp_path / "distant_module.py").write_text("marker = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownJob, match=r"InvalidTask: distant_module\.marker is no task"):
        registry.resolve("distant_module.marker")
    assert sys.modules.pop("distant_module").marker == 1


def test_the_compensation_of_a_job_that_only_its_path_leads_to_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is no path: it is the job's and *.undo*."""
    (tmp_path / "distant_saga.py").write_text(
        "from django_pgjobs import job\n"
        "@job()\ndef charge(order): ...\n"
        "@charge.undo()\ndef refund(context, order): ...\n"
        "@job()\ndef ship(order): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.resolve("distant_saga.charge.undo").name == "distant_saga.charge.undo"
    assert registry.resolved("distant_saga.ship.undo") is None
    assert registry.resolved("distant_saga.undo") is None
    sys.modules.pop("distant_saga")
