"""The wheel has all of the package and nothing else, and describes it to a package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import django_pgjobs

PACKAGE = Path(django_pgjobs.__file__).parent
PROJECT = PACKAGE.parent

pytestmark = pytest.mark.skipif(
    not (PROJECT / "pyproject.toml").exists(), reason="only a source tree can build a wheel"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this tree, offline."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(PROJECT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(archive: Path) -> list[str]:
    """The names in the wheel."""
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


@pytest.fixture(scope="module")
def metadata(archive: Path, wheel: list[str]) -> Message:
    """What the wheel says of itself."""
    [name] = (name for name in wheel if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(archive) as opened:
        return message_from_string(opened.read(name).decode())


@pytest.fixture(scope="module")
def declared() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


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


class Addresses(HTMLParser):
    """Collects where links lead and where pictures are."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag == "img" and (picture := given.get("src")):
            self.pictures.append(picture)


def test_the_index_shows_a_readme_whose_links_and_pictures_lead_somewhere(metadata, declared):
    """Rendered as PyPI does; each address in our repository is that of a file that exists."""
    from readme_renderer import markdown

    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "<!--" not in text
    shown = markdown.render(text)
    assert shown is not None
    found = Addresses()
    found.feed(shown)
    assert len(found.links) > 10
    assert len(found.pictures) > 5
    assert [each for each in (*found.links, *found.pictures) if not each.startswith(("https://", "#"))] == []
    source = declared["urls"]["Source"]
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")
    ours = [each.removeprefix(f"{source}/blob/main/") for each in found.links if each.startswith(source)]
    shots = [each.removeprefix(f"{raw}/main/") for each in found.pictures if each.startswith(raw)]
    assert len(ours) > 10
    assert len(shots) == 3
    assert [each for each in (*ours, *shots) if not (PROJECT / each.partition("#")[0]).is_file()] == []


@pytest.mark.parametrize(("version", "ref"), [("0.1.0", "v0.1.0"), ("0.1.0.dev0", "main")])
def test_a_release_links_to_its_own_tag(version, ref):
    sys.path.insert(0, str(PROJECT))
    try:
        from hatch_build import absolute
    finally:
        sys.path.remove(str(PROJECT))
    text = "<!-- x -->\nSee [a](docs/a.md#b), [c](https://c.example) and\n![a\nb](d/e.png), [![x](https://y)](LICENSE)."
    assert absolute(text, "https://github.com/o/r", version) == (
        f"See [a](https://github.com/o/r/blob/{ref}/docs/a.md#b), [c](https://c.example) and\n"
        f"![a\nb](https://raw.githubusercontent.com/o/r/{ref}/d/e.png), "
        f"[![x](https://y)](https://github.com/o/r/blob/{ref}/LICENSE)."
    )


def test_the_index_links_to_the_project_and_names_the_extras_for_users(metadata, declared):
    addresses = dict(each.split(", ", 1) for each in metadata.get_all("Project-URL"))
    assert addresses == declared["urls"]
    assert set(addresses) == {"Documentation", "Source", "Issues", "Changelog"}
    assert all(each.startswith("https://") for each in addresses.values())
    assert set(metadata.get_all("Provides-Extra")) == {
        "binary", "c", "celery", "django-prometheus", "embedded", "environ", "otel", "prometheus", "sentry", "tasks",
    }  # fmt: skip


def test_every_extra_that_is_named_exists_and_pages_that_install_name_binary(declared):
    pages = [PROJECT / "README.md", *PROJECT.glob("docs/**/*.md")]
    named = {
        path: set(re.findall(r"django-pgjobs\[([\w,-]+)\]", path.read_text(encoding="utf-8")))
        for path in (*pages, *PACKAGE.rglob("*.py"))
    }
    extras = {extra for each in named.values() for names in each for extra in names.split(",")}
    assert extras == set(declared["optional-dependencies"]) - {"environ"}
    for page in ("README.md", "docs/tutorial/first-job.md", "docs/how-to/deploy.md", "docs/how-to/hosting.md"):
        assert any("binary" in names.split(",") for names in named[PROJECT / page]), page


def test_owner_and_address_of_the_project_stand_in_one_place(declared):
    """In pyproject.toml. SECURITY.md and the code of conduct are read without it, so they repeat the address."""
    source, [author] = declared["urls"]["Source"], declared["authors"]
    repeating = {"SECURITY.md": [author["email"]], "CODE_OF_CONDUCT.md": [author["email"]]}
    owner = source.removeprefix("https://github.com/").partition("/")[0]
    words = re.compile(rf"github(?:usercontent)?\.com/{re.escape(owner)}/|[\w.]+@django-pgjobs[\w.]*[a-z]")
    texts = [
        *PROJECT.glob("*.md"),
        *PROJECT.glob(".github/**/*"),
        *PROJECT.glob("docs/**/*.md"),
        *PACKAGE.rglob("*.py"),
    ]
    found = {
        path.relative_to(PROJECT).as_posix(): words.findall(path.read_text(encoding="utf-8"))
        for path in texts
        if path.is_file()
    }
    assert {name: each for name, each in found.items() if each} == repeating
    assert all(each.startswith(source) for name, each in declared["urls"].items() if name != "Documentation")


def test_make_and_tox_install_the_same_extras():
    [made] = re.findall(r"^EXTRAS := (.*)$", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    tested = re.findall(r"^extras = (.*)$", (PROJECT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    assert [each.replace(" ", "") for each in tested] == [made]
