"""The tutorial, done as a reader does it: from an empty directory, with the worker left running in its terminal."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

from django_pgjobs.embedded.directory import clean
from tests.docs.fresh_project import Project
from tests.docs.pages import DOCS, blocks

PAGES = [DOCS / "tutorial" / f"{name}.md" for name in ("first-job", "worker", "retry", "admin")]


def test_a_reader_who_follows_the_tutorial_sees_what_it_says(tmp_path: Path) -> None:
    """A2, A4, C31, C33: a first job, a worker, a retry, an abandoned job and its steering, from an empty directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder)
    try:
        for block in (block for page in PAGES for block in blocks(page)):
            assert block.file or block.language != "python", f"{block.where}: begin with the file, # shop/jobs.py"
            project.follow(block)
        with urlopen(f"http://127.0.0.1:{project.port}/admin/pgjobs/job/") as page:
            assert b"Log in" in page.read()
    finally:
        project.close()
        clean(folder / ".pg")
