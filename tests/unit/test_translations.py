"""The package speaks German, French, Spanish and Japanese: every text of it, with what the code fills in."""

from __future__ import annotations

import ast
import gettext
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.template.base import Origin
from django.utils import translation
from django.utils.translation.template import templatize

import django_pgjobs
from django_pgjobs.presentation.schedules import in_words

PACKAGE = Path(django_pgjobs.__file__).parent
LANGUAGES = ["de", "es", "fr", "ja"]
CURE = "run make messages, translate what is empty or fuzzy, and run it again"

FUNCTIONS = {"gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "pgettext", "npgettext"}
PLACES = re.compile(r"%\(\w+\)[sdg]|\{\w*\}|%[sd]")
IN_TEMPLATES = re.compile(
    r"""\b(n?gettext|_)\(u?((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?:,\s*u?(?:'(?:\\.|[^'\\])*'))?)"""
)


def of_code(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the texts, singular and plural, that a module marks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation":
            names |= {each.asname or each.name: each.name for each in node.names if each.name in FUNCTIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            plural = names[node.func.id].startswith("n")
            texts = [each.value for each in node.args[: 1 + plural] if isinstance(each, ast.Constant)]
            if len(texts) == 1 + plural:
                yield tuple(map(str, texts))


def of_template(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the texts, singular and plural, that a template marks."""
    code = templatize(path.read_text(encoding="utf-8"), origin=str(Origin(str(path))))
    for _, texts in IN_TEMPLATES.findall(code):
        found = ast.literal_eval(f"({texts},)")
        yield tuple(str(each).replace("%%", "%") for each in found)


@cache
def texts() -> set[tuple[str, ...]]:
    """The texts that the package marks for translation."""
    found = {text for path in PACKAGE.rglob("*.py") for text in of_code(path)}
    return found | {text for path in PACKAGE.rglob("*.html") for text in of_template(path)}


@cache
def compiled(language: str) -> dict[str | tuple[str, int], str]:
    """What Django reads, of a language: text, or text and plural form, → translation."""
    with (PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        catalogue: dict[Any, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return catalogue


def translated(language: str, text: tuple[str, ...]) -> list[str]:
    """The translations of a text, one for each form; those that are missing are left out."""
    found = compiled(language)
    if len(text) == 1:
        return [found[text[0]]] if found.get(text[0]) else []
    return [found[text[0], form] for form in range(1 if language == "ja" else 2) if found.get((text[0], form))]


def test_texts_are_found_in_code_and_templates() -> None:
    assert len(texts()) > 700
    assert ("Background jobs",) in texts()
    assert ("%(count)s changed", "%(count)s changed") in texts()
    assert ("Yes, send it",) in texts()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated(language: str) -> None:
    missing = [text for text in texts() if len(translated(language, text)) != (1 if language == "ja" else len(text))]
    assert sorted(missing) == [], CURE


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_places_and_the_edges_of_their_texts(language: str) -> None:
    """Of two forms, the singular may say *one* instead of a number."""
    wrong = []
    for text in texts():
        wanted = [Counter(PLACES.findall(each)) for each in text]
        for each in translated(language, text):
            edges = [(given[:1] == " ", given[-1:] == " ") for given in (text[0], each)]
            if Counter(PLACES.findall(each)) not in wanted or edges[0] != edges[1]:
                wrong.append((text, each))
    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_django_reads_is_what_translators_wrote_and_no_more(language: str) -> None:
    source = (PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    assert "#, fuzzy" not in source, CURE
    assert "#~" not in source, CURE
    lines = re.findall(r'^(msgid|msgstr(?:\[\d\])?) ((?:".*"\n)+)', source, re.MULTILINE)
    written: dict[str | tuple[str, int], str] = {}
    text = ""
    for kind, quoted in lines:
        value = "".join(ast.literal_eval(line) for line in quoted.splitlines())
        if kind == "msgid":
            text = value
        else:
            written[(text, int(kind[7])) if "[" in kind else text] = value
    assert {key: value for key, value in compiled(language).items() if key} == {
        key: value for key, value in written.items() if key
    }, CURE
    assert {key if isinstance(key, str) else key[0] for key in written if key} == {text[0] for text in texts()}, CURE


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("de", "Alle 2 Wochen um 07:00 nach den Uhren von Europe/Paris, gezählt ab Montag, 5 Januar 2026"),
        ("fr", "Toutes les 2 semaines à 07:00 aux horloges de Europe/Paris, à compter du lundi, 5 janvier 2026"),
    ],
)
def test_plurals_are_chosen_by_the_language(language: str, said: str) -> None:
    with translation.override(language):
        assert in_words("every 2 weeks from 2026-01-05 07:00", "Europe/Paris") == said
        assert in_words("every 1 weeks from 2026-01-05 07:00", "Europe/Paris").startswith(
            ("Jede Woche", "Chaque semaine")
        )
