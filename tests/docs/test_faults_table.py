"""The table of survived faults names tests that exist and invariants that are written down."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import DOCS, ROOT, generated

made = generated()
from_data = made.from_data
FAULTS = from_data.faults_data()["faults"]


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["fault"][:60])
def test_a_survived_fault_names_its_test_its_invariants_and_its_recovery(fault):
    path, _, name = fault["test"].partition("::")
    assert name.partition("[")[0] in functions(path)
    known = set(re.findall(r"^\| (I\d+) \|", (DOCS / "contributing" / "invariants.md").read_text(), re.MULTILINE))
    assert fault["keeps"]
    assert set(fault["keeps"]) <= known
    assert fault["recovery"].strip()


def test_each_fault_stands_once_and_what_is_not_tested_says_why():
    data = from_data.faults_data()
    names = [fault["fault"] for fault in [*data["faults"], *data["untested"]]]
    assert len(names) == len(set(names))
    assert all(len(fault["why"]) > 20 for fault in data["untested"])


def test_tests_of_the_chaos_folder_are_all_in_the_table():
    """A fault test that nobody can find from the docs shows nothing."""
    shown = {fault["test"].partition("[")[0] for fault in FAULTS}
    missing = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sorted((ROOT / "tests" / "chaos").glob("test_faults_*.py"))
        for name in sorted(functions(str(path.relative_to(ROOT))))
        if name.startswith("test_") and f"{path.relative_to(ROOT)}::{name}" not in shown
    ]
    assert missing == []
