"""The mutation run's own rules: which faults there are, and that each changes one line and leaves the file readable."""

from __future__ import annotations

import ast
import random

import pytest

from tests.mutations.concerning import BY_FOLDER, BY_MODULE, BY_WORD, EVERYDAY, concerning
from tests.mutations.faults import ENGINE, FOLDERS, ROOT, Fault, choose, faults_of, files_of
from tests.mutations.trying import near

PYTHON = '''\
"""Doc."""
if TYPE_CHECKING: pass
log.debug("%d", 1 + 1)
def walk(a: int = 3, b=None):
    """Doc: a < b."""
    if a < b and not a:
        raise ValueError(f"{a + b}")
    return min(a, b)  # < 5
'''

SQL = """\
-- header: a < b.
SELECT j.id, 'lost'
FROM pgjobs_job AS j
WHERE j.id = 7
  AND j.outcome IS NULL -- fence
FOR NO KEY UPDATE SKIP LOCKED
"""


def after(faults: list[Fault], line: int) -> set[str]:
    return {fault.after.strip() for fault in faults if fault.line == line}


def test_python_is_changed_where_it_runs_and_nowhere_else() -> None:
    faults = faults_of("django_pgjobs/x.py", PYTHON)
    assert {fault.line for fault in faults} == {4, 6, 7, 8}
    assert "def walk(a: int = 0, b=None):" in after(faults, 4)
    assert {"if a <= b and not a:", "if (a < b) or (not a):", "if (not a):", "if a < b and bool(a):"} <= after(
        faults, 6
    )
    assert after(faults, 7) == {"pass"}
    assert after(faults, 8) == {"return max(a, b)  # < 5", "return None  # < 5"}


def test_sql_is_changed_where_it_is_no_comment() -> None:
    faults = faults_of("django_pgjobs/sql/x.sql", SQL)
    assert {fault.line for fault in faults} == {2, 4, 5, 6}
    assert after(faults, 2) == {"SELECT j.id, 'lost_'"}
    assert after(faults, 4) == {"WHERE true", "WHERE j.id = 8", "WHERE j.id <> 7"}
    assert after(faults, 5) == {"-- fence", "AND j.outcome IS NOT NULL -- fence", "OR j.outcome IS NULL -- fence"}
    assert after(faults, 6) == {"FOR NO KEY UPDATE", "FOR UPDATE SKIP LOCKED"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_fault_leaves_a_file_that_can_be_read(folder: str) -> None:
    """One that does not would be noticed by anything, and say nothing about the tests."""
    files, chance = files_of(folder), random.Random(1)
    for path in chance.sample(files, min(8, len(files))):
        text = path.read_text(encoding="utf-8")
        faults = faults_of(path.relative_to(ROOT).as_posix(), text)
        for fault in chance.sample(faults, min(25, len(faults))):
            changed = fault.apply(text)
            assert [*map(str.strip, changed.splitlines())] != [*map(str.strip, text.splitlines())]
            assert len(changed.splitlines()) == len(text.splitlines())
            if path.suffix == ".py":
                ast.parse(changed)


def test_the_same_seed_chooses_the_same_faults_of_as_many_lines() -> None:
    chosen = choose(7, 40)
    assert chosen == choose(7, 40)
    assert len({(fault.file, fault.line) for fault in chosen}) == 40


def test_half_of_the_faults_are_outside_of_the_engine() -> None:
    engine = [fault for fault in choose(7, 40) if fault.file.startswith(ENGINE)]
    assert len(engine) == 20


def test_every_folder_of_the_package_can_have_faults() -> None:
    left_out = {"embedded", "locale", "migrations", "static", "templates", "__pycache__"}
    package = {path.name for path in (ROOT / "django_pgjobs").iterdir() if path.is_dir()} - left_out
    assert {f"django_pgjobs/{name}" for name in package} <= set(FOLDERS)


def test_a_line_that_has_moved_is_found_and_one_that_is_gone_is_said_to_be() -> None:
    fault = Fault("x.py", 1, "a = 1", "a = 2")
    assert fault.apply("b = 1\na = 1\n") == "b = 1\na = 2\n"
    with pytest.raises(ValueError, match=r"x\.py has no such line any more: a = 1"):
        fault.apply("b = 1\n")


def test_the_tests_of_a_module_and_of_a_statement_are_the_nearest() -> None:
    assert (
        near(Fault("django_pgjobs/worker/threads/finaliser.py", 1, "", ""))[0] == "tests/unit/test_worker_finaliser.py"
    )
    assert "tests/db/test_rescue_rows.py" in near(Fault("django_pgjobs/sql/rescue_jobs.sql", 1, "", ""))


def test_the_modules_that_end_to_end_tests_concern_exist() -> None:
    assert set(BY_MODULE) - {path.stem for path in (ROOT / "django_pgjobs").rglob("*.py")} == set()


def test_the_end_to_end_tests_that_concern_a_module_or_a_statement_exist() -> None:
    for name in " ".join([*BY_MODULE.values(), *BY_FOLDER.values(), *BY_WORD.values(), EVERYDAY]).split():
        assert (ROOT / f"tests/e2e/test_{name}.py").is_file(), name
    assert (
        concerning(Fault("django_pgjobs/worker/executor/cleanup.py", 1, "", ""), ROOT)[0] == "tests/e2e/test_hygiene.py"
    )
    assert concerning(Fault("django_pgjobs/sql/admit_jobs.sql", 1, "", ""), ROOT) == ["tests/e2e/test_limits.py"]
