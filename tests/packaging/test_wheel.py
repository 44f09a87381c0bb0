"""The wheel has all of the package and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import django_pgjobs

PACKAGE = Path(django_pgjobs.__file__).parent
PROJECT = PACKAGE.parent

pytestmark = pytest.mark.skipif(
    not (PROJECT / "pyproject.toml").exists(), reason="only a source tree can build a wheel"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names in a wheel built from this tree, offline."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(PROJECT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def source_files() -> set[str]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PROJECT).as_posix() for path in files}


def test_the_wheel_has_every_file_of_the_package(wheel):
    packed = {name for name in wheel if name.startswith("django_pgjobs/")}
    assert packed == source_files()


def test_the_wheel_has_the_sql_and_the_typing_marker(wheel):
    statements = {f"django_pgjobs/sql/{path.name}" for path in (PACKAGE / "sql").glob("*.sql")}
    assert statements
    assert statements <= set(wheel)
    assert "django_pgjobs/py.typed" in wheel


def test_the_wheel_has_neither_tests_nor_the_example(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"django_pgjobs"}
