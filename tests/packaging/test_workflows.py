"""The workflows of hosted CI, which no other test runs: they are as safe and as complete as the project says."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="only a repository has them")


def read(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash_and_may_only_read(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    ours = [action for action, _ in used if action.startswith("./")]
    assert [each for each in ours if not (ROOT / each).is_file()] == []
    foreign = [(action, note) for action, note in used if not action.startswith("./")]
    assert [each for each in foreign if not re.fullmatch(r"[^@]+@[0-9a-f]{40}", each[0])] == []
    assert [each for each in foreign if not re.fullmatch(r" # v[\d.]+", each[1])] == []
    assert read(path.name)["permissions"] == {"contents": "read"}


def test_the_matrix_has_every_version_that_the_package_declares() -> None:
    """Python and Django by their classifiers, PostgreSQL by the lanes of tox; and the lowest versions that may be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    lanes = read("test.yml")["jobs"]["matrix"]["strategy"]["matrix"]["include"]
    names = [lane["environment"] for lane in lanes]
    tested = {part for name in names for part in name.split("-")}
    declared = [each.removeprefix("Programming Language :: Python :: ") for each in project["classifiers"]]
    pythons = {f"py{each.replace('.', '')}" for each in declared if re.fullmatch(r"3\.\d+", each)}
    djangos = {
        f"dj{each.removeprefix('Framework :: Django :: ').replace('.', '')}"
        for each in project["classifiers"]
        if each.startswith("Framework :: Django :: ")
    }
    servers = set(re.findall(r"^    (pg\d+):", tox, re.MULTILINE))
    assert (len(pythons), len(djangos), len(servers)) == (4, 3, 4)
    assert pythons | djangos | servers | {"lowest", "zone"} == tested
    for lane in lanes:
        assert f"py{lane['python'].replace('.', '')}" == lane["environment"].partition("-")[0]
        # 16 and 18 come with the extra embedded.
        assert lane.get("server") in (None, lane["environment"].partition("-pg")[2][:2])
        assert ("server" in lane) is ("pg15" in lane["environment"] or "pg17" in lane["environment"])


def test_the_lowest_versions_are_those_that_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = dict(re.findall(r"^    lowest: (\w+)(?:\[\w+\])?==([\d.]+)", (ROOT / "tox.ini").read_text(), re.MULTILINE))
    bounds = dict(each.split(">=") for each in project["dependencies"])
    assert set(pinned) == set(bounds)
    for name, bound in bounds.items():
        assert [*map(int, pinned[name].split(".")), 0, 0][:3] == [*map(int, bound.split(".")), 0, 0][:3]


def test_only_the_last_step_of_a_release_may_publish_and_after_all_tests() -> None:
    jobs = read("release.yml")["jobs"]
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert "workflow_call" in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "address", "status"),
    [
        ("https://github.com/OWNER/django-pgjobs", "a@b.org", 1),
        ("https://github.com/ann/django-pgjobs", "a@b.example", 1),
        ("https://github.com/ann/django-pgjobs", "a@b.org", 0),
    ],
)
def test_nothing_is_published_while_placeholders_stand(tmp_path: Path, source: str, address: str, status: int) -> None:
    [line] = [step["run"] for step in read("release.yml")["jobs"]["build"]["steps"] if "grep" in step.get("run", "")]
    (tmp_path / "pyproject.toml").write_text(f'Source = "{source}"\n')
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        (tmp_path / name).write_text(f"<{address}>\n")
    assert set(shlex.split(line)) >= {"pyproject.toml", "SECURITY.md", "CODE_OF_CONDUCT.md"}
    done = subprocess.run(["bash", "-ec", line], cwd=tmp_path, capture_output=True)
    assert done.returncode == status
