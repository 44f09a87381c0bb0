"""Every Python block of the documentation runs, page by page, in order; what is left out says why."""

from __future__ import annotations

import ast
import doctest
import sys
import unittest
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from django.core.checks import run_checks
from django.test import TestCase, override_settings

from django_pgjobs.conf import problems
from django_pgjobs.definition.registry import registry
from tests.docs.pages import ROOT, Block, blocks, pages

TUTORIAL = "docs/tutorial/"
CHECKED = [page for page in pages() if not page.relative_to(ROOT).as_posix().startswith(TUTORIAL)]
CODE = ("python", "pycon")
HAS_TASKS = find_spec("django.tasks") is not None
PROSE = (
    "console", "diff", "text", "ini", "toml", "yaml", "dockerfile", "sql", "",
    "{pgjobs}", "{toctree}", "{include}", "{eval-rst}",
)  # fmt: skip


class Page:
    """Runs the blocks of one page: those with a file's name as that module, the others as one module of their own."""

    def __init__(self, page: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.before = dict(sys.modules)
        self.main = self.module(f"docs_{page.stem.replace('-', '_')}")

    def module(self, name: str) -> ModuleType:
        """Return the module of this name, made on first use together with its packages."""
        if name not in sys.modules or sys.modules[name] is self.before.get(name):
            package, _, last = name.rpartition(".")
            sys.modules[name] = ModuleType(name)
            if package:
                parent = self.module(package)
                parent.__path__ = []
                setattr(parent, last, sys.modules[name])
        return sys.modules[name]

    def run(self, block: Block) -> None:
        path = block.marks.get("file") or block.marks.get("append")
        module = self.module(path.removesuffix(".py").replace("/", ".")) if path else self.main
        if setup := block.marks.get("setup"):
            self.execute(setup, block, module)
        if block.language == "pycon":
            self.converse(block, module)
        else:
            self.execute("\n" * (block.line - 1) + block.text, block, module)
        if settings := vars(module).pop("PGJOBS", None):
            assert list(problems(settings)) == [], block.where
            self.stack.enter_context(override_settings(PGJOBS=settings))
        if tasks := vars(module).pop("TASKS", None):
            self.stack.enter_context(override_settings(TASKS=tasks))

    def execute(self, text: str, block: Block, module: ModuleType) -> None:
        if not HAS_TASKS:
            text = text.replace("django.tasks", "django_tasks")  # as the pages say for Django 5.2
        exec(compile(text, block.where, "exec"), vars(module))

    def converse(self, block: Block, module: ModuleType) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, vars(module), block.where, str(block.page), block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        said: list[str] = []
        runner.run(test, out=said.append, clear_globs=False)
        assert not runner.failures, "".join(said)

    def cases(self) -> list[type[TestCase]]:
        """Return the test cases that the page's own modules declare."""
        made = [module for name, module in sys.modules.items() if self.before.get(name) is not module]
        found = [value for module in made for value in vars(module).values() if isinstance(value, type)]
        return [kind for kind in found if issubclass(kind, TestCase) and kind.__module__ in {m.__name__ for m in made}]

    def forget(self) -> None:
        for name in set(sys.modules) - set(self.before):
            # What examples merely import stays: a second module of that name would not be the one that others hold.
            if sys.modules[name].__spec__ is None:
                del sys.modules[name]
        sys.modules.update(self.before)


@pytest.fixture
def isolated() -> Iterator[None]:
    """Let examples declare jobs of any name."""
    with registry.isolated():
        yield


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: path.relative_to(ROOT).as_posix())
@pytest.mark.django_db
@pytest.mark.usefixtures("isolated")
def test_the_examples_of_a_page_run(path: Path) -> None:
    with ExitStack() as stack:
        page = Page(path, stack)
        stack.callback(page.forget)
        for block in blocks(path):
            assert block.language in CODE + PROSE, f"{block.where}: {block.language!r} is no language we know"
            if block.language in CODE and "skip" not in block.marks:
                page.run(block)
        assert [message for message in run_checks(tags=["pgjobs"]) if message.id != "pgjobs.W001"] == []


@pytest.mark.filterwarnings("ignore:Django .* will not have a default mailer")  # from Django 6.1 on, of any send_mail
@pytest.mark.usefixtures("isolated", "django_db_setup")
def test_the_test_cases_of_a_page_pass(django_db_blocker):
    """Test cases have transactions of their own, so nothing may be open around them."""
    with ExitStack() as stack:
        path = ROOT / "docs" / "how-to" / "test-your-jobs.md"
        page = Page(path, stack)
        stack.callback(page.forget)
        stack.enter_context(django_db_blocker.unblock())
        for block in blocks(path):
            if block.language == "python":
                page.run(block)
        result = unittest.TestResult()
        load = unittest.defaultTestLoader.loadTestsFromTestCase
        unittest.TestSuite(load(case) for case in page.cases()).run(result)
        assert result.testsRun >= 6
        assert result.wasSuccessful(), "".join(f"{case}: {text}" for case, text in [*result.errors, *result.failures])


def test_every_block_left_out_says_why() -> None:
    skipped = [block for page in pages() for block in blocks(page) if "skip" in block.marks]
    assert [block.where for block in skipped if not block.marks["skip"]] == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_is_python_even_where_it_is_not_run(path: Path) -> None:
    for block in blocks(path):
        if block.language == "python":
            ast.parse(block.text, block.where)
