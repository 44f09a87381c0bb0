"""Templates of keys: a format string such as ``"customer:{customer_id}"``, filled in with a job's arguments.

Layer 0. ``keys`` uses them for a job's own keys and ``limits`` for those of a limit, by the same rules. Of several
fields none runs into the next: ``"{shop}:{path}"`` of ``a:b`` and ``c`` is ``a%3Ab:c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from string import Formatter
from urllib.parse import quote

KeyOption = str | Callable[..., str | None]
"""A key, or a callable that makes one from the job's arguments; it returns None for no key."""

CONVERSIONS = (None, "r", "s", "a")
DEPTH = 2
"""Depth to which Python nests format strings: fields, and fields in their specifications."""


class Template:
    """A format string of a job's arguments; ``names`` are the arguments that it names, none for a fixed text.

    It and ``bound`` raise ValueError with a sentence that lacks its subject: the caller adds it.
    """

    def __init__(self, text: str) -> None:
        self.text = str.__str__(text)
        try:
            self.names = tuple(dict.fromkeys(_named(self.text, DEPTH)))
        except ValueError as error:
            raise ValueError(f"is no format string: {error}: {self.text!r}") from None

    def bound(self, signature: Signature, *, apart: bool = True) -> Callable[..., str]:
        """Return a function of arguments that fit ``signature``; ``**others`` accepts any name.

        ``apart``: no two texts that differ in a field are the same; False for a text that only people read.
        """
        parameters = signature.parameters
        others = [name for name, p in parameters.items() if p.kind is Parameter.VAR_KEYWORD]
        for name in self.names:
            if not name or name.isdecimal() or name in others or not (others or name in parameters):
                raise ValueError(f"names no argument: {name!r} in {self.text!r}")
        parts = list(_parts(self.text))
        return _filler(parts, _marks_between(parts, self.text) if apart else {}, signature)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each field as a format string of its own, with the text before it; and the text behind the last."""
    before = ""
    for literal, field, spec, conversion in Formatter().parse(text):
        before += literal
        if field is not None:
            yield before, f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            before = ""
    yield before, ""


def _marks_between(parts: Sequence[tuple[str, str]], text: str) -> dict[int, str]:
    """Return what to write instead of the marks that stand between fields, where a value holds one."""
    marks = []
    for between, _ in parts[1:-1]:
        mark = next((one for one in between if not one.isalnum() and one != "%"), "")
        if not mark:
            raise ValueError(f"needs a mark between two fields, such as a colon, or they may run together: {text!r}")
        marks.append(mark)
    return {ord(mark): quote(mark, safe="", errors="surrogatepass") for mark in [*marks, "%"]} if marks else {}


def _filler(parts: Sequence[tuple[str, str]], marks: dict[int, str], signature: Signature) -> Callable[..., str]:
    # Not Signature.bind, which takes five times as long: the arguments are known to fit.
    parameters = signature.parameters.values()
    ordered = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}

    def fill(*args: object, **kwargs: object) -> str:
        values = {**defaults, **kwargs, **dict(zip(ordered, args, strict=False))}
        if rest is not None:
            values[rest] = args[len(ordered) :]
        found = [before + field.format_map(values).translate(marks) for before, field in parts]
        return "".join(found)

    return fill


def _named(text: str, depth: int) -> Iterator[str]:
    """Yield the names at the beginnings of fields, and of fields in their specifications."""
    for _, field, spec, conversion in Formatter().parse(text):
        if field is None:
            continue
        if not depth:
            raise ValueError("too many fields within each other")
        if conversion not in CONVERSIONS:
            raise ValueError(f"unknown conversion {conversion!r}")
        yield field.partition(".")[0].partition("[")[0]
        yield from _named(spec or "", depth - 1)
