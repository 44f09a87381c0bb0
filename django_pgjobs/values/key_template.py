"""Templates of keys: a format string such as ``"customer:{customer_id}"``, filled in with a job's arguments.

Layer 0. ``keys`` uses them for a job's own keys and ``limits`` for those of a limit, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from string import Formatter
from typing import Any

CONVERSIONS = (None, "r", "s", "a")
DEPTH = 2
"""How deep Python nests format strings: fields, and fields in their specifications."""


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

    def bound(self, signature: Signature) -> Callable[..., str]:
        """Return a function of arguments that fit ``signature``; ``**others`` accepts any name."""
        parameters = signature.parameters
        others = [name for name, p in parameters.items() if p.kind is Parameter.VAR_KEYWORD]
        for name in self.names:
            if not name or name.isdecimal() or name in others or not (others or name in parameters):
                raise ValueError(f"names no argument: {name!r} in {self.text!r}")
        return _filler(self.text, signature)


def _filler(text: str, signature: Signature) -> Callable[..., str]:
    # Not Signature.bind, which takes five times as long: the arguments are known to fit.
    parameters = signature.parameters.values()
    ordered = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}

    def fill(*args: Any, **kwargs: Any) -> str:
        values = {**defaults, **kwargs, **dict(zip(ordered, args, strict=False))}
        if rest is not None:
            values[rest] = args[len(ordered) :]
        return text.format_map(values)

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
