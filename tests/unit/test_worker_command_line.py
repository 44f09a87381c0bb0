"""How a program is started again, as its supervisor builds the command line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from django_pgjobs.worker.shared.command_line import LETTERS, entry_point, interpreter_flags


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An interpreter without any flag; returned are its flags, to be changed."""
    flags = SimpleNamespace(
        **dict.fromkeys((*LETTERS, "isolated", "ignore_environment", "no_user_site", "safe_path"), 0)
    )
    monkeypatch.setattr(sys, "flags", flags)
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(sys, "_xoptions", {})
    monkeypatch.setattr(sys, "__stdout__", io.TextIOWrapper(io.BytesIO()))
    return flags


def test_an_interpreter_without_flags_is_started_without(plain: SimpleNamespace) -> None:
    assert interpreter_flags() == []


def test_flags_are_told_as_often_as_they_were_given(
    plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain.optimize, plain.dont_write_bytecode, plain.ignore_environment = 2, 1, 1
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    monkeypatch.setattr(sys, "_xoptions", {"dev": True, "importtime": "2"})
    with (tmp_path / "out").open("wb", buffering=0) as unbuffered:
        monkeypatch.setattr(sys, "__stdout__", io.TextIOWrapper(unbuffered, write_through=True))
        assert interpreter_flags() == ["-OO", "-B", "-E", "-u", "-Werror", "-Xdev", "-Ximporttime=2"]
    monkeypatch.setattr(sys, "__stdout__", None)
    assert "-u" not in interpreter_flags()


def test_isolated_stands_for_what_it_implies(plain: SimpleNamespace) -> None:
    plain.isolated = plain.ignore_environment = plain.no_user_site = plain.safe_path = 1
    assert interpreter_flags() == ["-I"]


def test_a_program_is_started_again_as_it_was(plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    main = SimpleNamespace(__file__="/shop/manage.py", __spec__=None)
    monkeypatch.setitem(sys.modules, "__main__", cast(Any, main))
    assert entry_point(from_command_line=False) == (sys.executable, "-m", "django")
    assert entry_point(from_command_line=True) == (sys.executable, "/shop/manage.py")
    for name, parent, file, program in (
        ("django.__main__", "django", "/site/django/__main__.py", ("-m", "django")),
        ("project.manage", "project", "/shop/project/manage.py", ("-m", "project.manage")),
        ("manage", "", "/shop/manage.py", ("-m", "manage")),
        ("__main__", "", "/shop/app.pyz/__main__.py", ("/shop/app.pyz",)),
    ):
        main.__spec__, main.__file__ = SimpleNamespace(name=name, parent=parent), file
        assert entry_point(from_command_line=True) == (sys.executable, *program)


def test_a_program_without_a_file_is_started_as_any_project(
    plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -c``, or an interpreter within another program."""
    monkeypatch.setitem(sys.modules, "__main__", cast(Any, SimpleNamespace(__spec__=None)))
    monkeypatch.setattr(sys, "argv", ["-c", "runjobs"])
    assert entry_point(from_command_line=True) == (sys.executable, "-m", "django")


def test_a_relative_script_is_named_absolutely(plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As debuggers and coverage leave it."""
    monkeypatch.setitem(sys.modules, "__main__", cast(Any, SimpleNamespace(__file__="manage.py", __spec__=None)))
    assert entry_point(from_command_line=True) == (sys.executable, os.path.abspath("manage.py"))
