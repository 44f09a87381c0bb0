"""Getting Django's tests: from an archive, from what is kept, and what follows where nothing can be fetched."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.contract import fetching
from tests.contract.fetching import NotFetched, fetched_django, fetched_tests
from tests.contract.test_contract import skip_outside_of_ci


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is kept, and pip has no index but a directory, which is returned."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setattr(fetching, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def test_what_the_index_does_not_have_is_said_in_a_sentence(offline: Path) -> None:
    with pytest.raises(NotFetched, match=r"pip could not get django==6\.0\.10: "):
        fetched_tests("6.0.10")
    with pytest.raises(NotFetched, match=r"pip could not get django==6\.0\.\*: "):
        fetched_django("6.0")
    assert list(fetching.KEPT.iterdir()) == []


def test_only_the_tests_of_tasks_are_taken_out_of_the_archive(tmp_path: Path) -> None:
    source = tmp_path / "django-6.0.10"
    for name in ("tests/tasks/__init__.py", "tests/tasks/test_tasks.py", "tests/mail/tests.py", "django/tasks/base.py"):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    fetching.take_out(tmp_path / "archive.tar.gz", tmp_path / "taken")
    taken = {path.relative_to(tmp_path / "taken").as_posix() for path in (tmp_path / "taken").rglob("*.py")}
    assert taken == {"tasks/__init__.py", "tasks/test_tasks.py"}
    assert (tmp_path / "taken/tasks/test_tasks.py").read_text() == "tests/tasks/test_tasks.py"


def test_what_is_kept_is_not_fetched_again(offline: Path) -> None:
    kept = fetching.KEPT / "tests-6.0.10"
    kept.mkdir(parents=True)
    assert fetched_tests("6.0.10") == kept


def test_outside_of_ci_the_run_is_skipped_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"only in its source distribution\. No network\."):
        skip_outside_of_ci(NotFetched("No network."))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(NotFetched):
        skip_outside_of_ci(NotFetched("No network."))
