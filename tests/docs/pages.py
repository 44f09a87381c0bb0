"""The pages of the documentation as data: their fenced blocks, with the files that Python blocks name."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>```+)(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)"
    r"^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/.-]+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """Return the path in the first line of a Python block, ``# shop/jobs.py``; empty if that is none."""
        found = _FILE.match(self.text) if self.language == "python" else None
        return found[1] if found else ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page, the README first."""
    found = (path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts)
    return [ROOT / "README.md", *found]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("fence")) + 2,
            match["language"],
            dedent(match["text"]),
        )
        for match in _BLOCK.finditer(text)
    ]


def generated() -> ModuleType:
    """Return the module that makes the generated parts of the documentation."""
    name = "pgjobs_docs_generated"
    if name not in sys.modules:
        sys.path.insert(0, str(DOCS / "_ext"))  # as conf.py does
        spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / "generated.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def prose() -> str:
    """Return all pages as one text."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages())
