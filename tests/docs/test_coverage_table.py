"""The coverage table says for each promised behaviour which test shows it; none may be left without one unnoticed."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, generated

made = generated()
from_data = made.from_data

LAST = {"C": 71, "D": 33, "A": 72, "W": 54, "P": 41, "X": 10}
"""How many rows each of the five systems has, and the conflicts between them."""


def test_every_promised_row_is_shown_by_a_test():
    rows, cited = from_data.rows(), from_data.cited_rows()
    missing = [row for row in rows["rows"] if row not in cited and row not in rows["pending"]]
    assert missing == []


def test_rows_that_tests_cite_exist():
    unknown = {row: where for row, where in from_data.cited_rows().items() if not 1 <= int(row[1:]) <= LAST[row[0]]}
    assert unknown == {}


def test_docstrings_cite_rows_and_nothing_that_could_be_taken_for_one():
    """Other schemes count from 1 too: an id of theirs would be evidence for the row of the same number."""
    foreign = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for found in re.finditer(r'"{3}(?:[A-Z]\d{1,2},? )*[BEFGHJK]\d{1,2}\b', path.read_text(encoding="utf-8"))
    ]
    assert foreign == []


def test_rows_that_do_not_apply_have_a_reason_and_are_not_promised_too():
    rows = from_data.rows()
    assert all(len(reason) > 20 for reason in rows["not_applicable"].values())
    assert not set(rows["rows"]) & set(rows["not_applicable"])
    assert set(rows["pending"]) <= set(rows["rows"])


def test_every_row_of_the_five_systems_is_promised_or_said_not_to_apply():
    """All 271 of them, and nothing else: a row that nobody lists would be missed by nobody."""
    rows = from_data.rows()
    every = {f"{system}{number}" for system, last in LAST.items() if system != "X" for number in range(1, last + 1)}
    assert len(every) == 271
    assert {row for row in [*rows["rows"], *rows["not_applicable"]] if row[0] != "X"} == every


def test_the_table_has_a_line_for_each_row():
    table = from_data.coverage()
    assert [row for row in from_data.rows()["rows"] if f"\n| {row} |" not in table] == []


def test_ranges_of_rows_are_read_as_all_their_rows():
    found = list(from_data._ids("A34–A36: the delays. C7 and P1-P3, W2 to W4, D5 to 7, but not B2 or XA1; C9 to A1."))
    assert found == ["A34", "A35", "A36", "C7", "P1", "P2", "P3", "W2", "W3", "W4", "D5", "D6", "D7", "C9", "A1"]


def test_tests_that_the_table_names_exist():
    names = set(re.findall(r"`([\w/]+\.py)(?:::\w+)?`", from_data.coverage()))
    assert names
    assert all((ROOT / "tests" / name).exists() for name in names)
