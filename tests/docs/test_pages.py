"""Every page is followed as printed, each in a fresh project, with a real worker in another process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.fresh_project import SETTINGS, Project
from tests.docs.pages import DOCS, ROOT, Block, blocks, pages

TUTORIAL = DOCS / "tutorial"
RUN = ("python", "pycon", "console")
SHOWN = (
    "", "diff", "dockerfile", "ini", "json", "sql", "text", "toml", "yaml",
    "{eval-rst}", "{include}", "{pgjobs}", "{toctree}",
)  # fmt: skip

PLACES = (ROOT, DOCS / "how-to", DOCS / "reference", DOCS / "explanation")
FOLLOWED = [page for page in pages() if page.parent in PLACES and any(block.language in RUN for block in blocks(page))]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_what_a_reader_sees(page: Path, project: Project) -> None:
    for block in blocks(page):
        assert block.file or block.language != "python", f"{block.where}: begin with the file, # shop/jobs.py"
        project.follow(block)
    project.check()


README = """\
>>> from django.contrib.auth.models import User
>>> from django_pgjobs.models import Job
>>> from shop.views import activate
>>> activate(User.objects.create(username="ann", email="ann@example.org"))
>>> Job.objects.earliest("pk").value(timeout=30)
'ann@example.org'
"""


def test_the_first_example_of_all_runs(project: Project) -> None:
    project.write(SETTINGS, 'EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"\n')
    for block in blocks(ROOT / "README.md"):
        if block.language == "python":
            project.follow(block)
    project.follow(Block(ROOT / "README.md", 1, "pycon", README))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_is_python_even_where_nothing_imports_it(page: Path) -> None:
    for block in blocks(page):
        assert block.language in RUN + SHOWN, f"{block.where}: {block.language!r} is no language we know"
        if block.language == "python":
            ast.parse(block.text, block.where)


def test_no_page_tells_a_test_what_it_does_not_tell_its_reader() -> None:
    assert [page.name for page in pages() if page.parent in (*PLACES, TUTORIAL) and "<!--" in page.read_text()] == []
