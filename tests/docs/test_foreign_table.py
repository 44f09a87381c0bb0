"""The table of real software names scenarios that exist, and its last published run had no failure."""

from __future__ import annotations

import ast
import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, generated
from tests.foreign.results import Result, published, read_report, sentence
from tests.foreign.sites import SITES

made = generated()
FILES = [made.from_foreign.foreign_data(name) for name in ("foreign", "foreign_celery")]
PACKAGES = {each["name"]: each for data in FILES for each in data["packages"]}


def scenarios(site: str) -> list[str]:
    """Return the scenarios that a site has, in words."""
    files = (ROOT / "tests" / "foreign" / f"{site}_site").glob("scenario_*.py")
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    names = (node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return sorted(sentence(name) for name in names if name.startswith("test_"))


def test_a_published_run_names_its_day_its_commit_and_every_version():
    assert all(date.fromisoformat(data["date"]) <= date.today() for data in FILES)
    assert all(re.fullmatch(r"[0-9a-f]{10,40}", data["commit"]) for data in FILES)
    for each in PACKAGES.values():
        assert all(re.fullmatch(r"\d+(\.\d+)+\S*", each[key]) for key in ("version", "django", "python"))


def test_a_published_run_has_every_scenario_of_every_site_and_none_failed():
    """A scenario that is added is run and published with the change that adds it."""
    assert set(PACKAGES) == {site.project for site in SITES}
    assert {site.name: sorted(PACKAGES[site.project]["passed"]) for site in SITES} == {
        site.name: scenarios(site.name) for site in SITES
    }
    assert not any(each["failed"] for each in PACKAGES.values())


def test_wagtails_own_tests_passed_on_ours_as_often_as_on_djangos():
    figures = PACKAGES["wagtail"]["figures"]
    assert figures["eager"] >= figures["immediate"] > 30


@pytest.mark.parametrize("name", [site.project for site in SITES if site.sources])
def test_what_passes_on_celery_passes_on_the_bridge(name: str):
    figures = PACKAGES[name]["figures"]
    assert figures["celery"] == figures["bridge"] >= figures["rows"] >= figures["celery"] - 1
    assert figures["jobs"] > 0


def test_what_is_published_is_what_pytest_reported(tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="test_a_file_goes"><properties><property name="eager" value="41"/>'
        '</properties></testcase><testcase name="test_it_&quot;fails&quot;"><failure/></testcase>'
        '<testcase name="test_skipped"><skipped/></testcase></testsuite></testsuites>'
    )
    passed, failed, figures = read_report(report)
    text = published("2026-01-02", "abc", [Result("shop", "1.0", "6.1", "3.13", 9, passed, failed, figures)])
    assert tomllib.loads(text) == {
        "date": "2026-01-02",
        "commit": "abc",
        "packages": [
            {
                "name": "shop",
                "version": "1.0",
                "django": "6.1",
                "python": "3.13",
                "seconds": 9,
                "passed": ["a file goes"],
                "failed": ['it "fails"', "skipped"],
                "figures": {"eager": 41},
            }
        ],
    }


def test_a_run_that_ended_before_its_report_has_failed(tmp_path: Path):
    passed, failed, _ = read_report(tmp_path / "nothing.xml")
    assert (passed, len(failed)) == ([], 1)
