"""Which files restart a worker that runs with ``--reload``."""

from __future__ import annotations

from pathlib import Path

from django_pgjobs.running.reloader import sources


def test_files_of_the_project_are_watched_and_those_of_environments_are_not(tmp_path: Path) -> None:
    """An installation into ``.venv`` beneath the project changes thousands of files."""
    watched = ("manage.py", "shop/jobs.py", "shop/deep/er/models.py", "venv_tools/made.py")
    ignored = (
        ".venv/lib/site-packages/lib/new.py", "env/lib/tool.py", "lib/site-packages/other.py", ".git/hook.py",
        "assets/node_modules/gyp/build.py", "shop/__pycache__/jobs.py", "shop/notes.txt",
    )  # fmt: skip
    for name in (*watched, *ignored):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert {path.relative_to(tmp_path).as_posix() for path in sources(tmp_path)} == set(watched)


def test_a_project_that_lies_in_its_environment_is_watched(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "manage.py").touch()
    assert list(sources(tmp_path)) == [tmp_path / "manage.py"]
