"""A job's arguments and its result as JSON text, within their limits, and redacted for display.

Layer 0: no database, no settings, no registry. ``jobs`` encodes at registration, ``attempt`` decodes before a run,
``admin`` shows the output of ``redact``. ``encoder`` and ``decoder`` handle values; this module adds their names, so
that the error for a value that cannot be stored has its path: ``args[0].user.name``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature, getattr_static
from typing import Any

from django_pgjobs.exceptions import InvalidJob, UnreadablePayload, UnstorableResult
from django_pgjobs.serialization import decoder, encoder
from django_pgjobs.serialization.encoder import CODEC_VERSION as CODEC_VERSION
from django_pgjobs.serialization.references import UNSTORED

HIDDEN = "••••"
"""Text that ``redact`` shows instead of a sensitive argument."""

_PARTS = frozenset({"args", "kwargs"})

PLAIN = frozenset((bool, bytes, dict, float, int, list, str, tuple, type(None)))
"""Types of most values: none of them is awaitable, or runs code when it is iterated over."""

_LAZY = frozenset({map, filter})
"""Types of values whose code runs when they are iterated over."""

MOST_WHY = 500
"""Characters of the reason why a result is not stored."""

AROUND_ARGUMENTS = 2
"""The payload's own containers, which do not count as the caller's depth."""


def encode_payload(
    args: tuple[object, ...], kwargs: dict[str, object], limit: int, signature: Signature | None = None
) -> str:
    """Return the JSON text ``{"args": […], "kwargs": {…}}``, ready for jsonb.

    ``limit`` is in bytes of UTF-8. With a ``signature`` positional arguments are named in errors.
    Raises InvalidJob with the path of the value that cannot be stored, or with both sizes.
    """
    flat = encoder.write_flat(args, kwargs)
    if flat is not None and len(flat) <= limit:
        return flat
    try:
        text, size = encoder.write({"args": list(args), "kwargs": kwargs}, -AROUND_ARGUMENTS)
    except encoder.Refused as refusal:
        named = _arguments(args, kwargs, signature)
        raise InvalidJob(encoder.blame(named, refusal)) from refusal.__cause__
    if size > limit:
        raise InvalidJob(
            f"The arguments take {size} bytes and at most {limit} may be stored (BOUNDS['payload_bytes']). "
            "Store what is large elsewhere and pass its key."
        )
    return text


is_flat = encoder.is_flat


def encode_flat(calls: Sequence[tuple[tuple[object, ...], dict[str, object]]], limit: int) -> list[str] | None:
    """Return what ``encode_payload`` returns for each flat (args, kwargs); None if it must encode one of them."""
    flat = encoder.write_flat_rows(calls)
    return flat if flat is not None and max(map(len, flat)) <= limit else None


def decode_payload(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a stored payload, which may lack either.

    Raises UnreadablePayload.
    """
    positional = decoder.read_positional(text)
    if positional is not None:
        return positional, {}
    payload = decode_result(text)
    if not isinstance(payload, dict) or not payload.keys() <= _PARTS:
        raise UnreadablePayload('A payload is a JSON object with "args" and "kwargs" and nothing else.')
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UnreadablePayload('In a payload "args" is a JSON array and "kwargs" an object.')
    return args, kwargs


def check_has_run(whose: str, value: object) -> None:
    """Raise ``UnstorableResult`` if a function returned a generator or its like: its code has not run, and never will.

    ``whose``: the function, for the message. Asks the value's type alone, as a value may raise at any question.
    """
    kind = type(value)
    if kind in _LAZY or (kind not in PLAIN and _is_generator(kind)):
        raise UnstorableResult(
            f"{whose} returned a {kind.__name__}, which is never consumed: its code has not run. Run it in a plain "
            "function, with a loop or list(…)."
        )


def _is_generator(kind: type) -> bool:
    def has(method: str) -> bool:
        return getattr_static(kind, method, None) is not None

    return has("asend") or (has("send") and has("__next__"))


def encode_result(value: object, limit: int, what: str = "result", setting: str = "BOUNDS['result_bytes']") -> str:
    """Return a job's return value as JSON text of at most ``limit`` bytes of UTF-8.

    ``what``: what it is instead, for the refusal, and the ``setting`` that bounds it. Raises UnstorableResult, also for
    exceptions of the value's own methods.
    """
    plain = encoder.write_plain(value)
    if plain is not None and len(plain) <= limit:
        return plain
    try:
        text, size = encoder.write(value)
    except encoder.Refused as refusal:
        raise UnstorableResult(encoder.blame([(what, value)], refusal)) from refusal.__cause__
    if size > limit:
        raise UnstorableResult(f"The {what} takes {size} bytes and at most {limit} may be stored ({setting}).")
    return text


class Unstored:
    """A return value that stands for one that could not be stored. ``why``: a sentence."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def unstored(why: str) -> str:
    """Return the JSON text to store instead of a result that cannot be stored."""
    text = "".join(char if char.isprintable() else " " for char in why[:MOST_WHY])
    return json.dumps({UNSTORED: text})


def decode_result(text: str) -> Any:
    """Return a result from its JSON text; ``revive`` takes parsed JSON. Raises UnreadablePayload."""
    try:
        return decoder.read(text)
    except decoder.UNREADABLE as error:
        raise UnreadablePayload(f"The stored JSON cannot be read: {error}") from error


def revive(stored: object) -> Any:
    """Return the value of parsed JSON, as ``Job.payload`` and ``Job.result`` hold it.

    Raises UnreadablePayload.
    """
    try:
        return decoder.revive(stored)
    except decoder.UNREADABLE as error:
        raise UnreadablePayload(f"The stored JSON cannot be read: {error}") from error


def redact(
    signature: Signature | None, args: Sequence[object], kwargs: Mapping[str, object], sensitive: frozenset[str]
) -> dict[str, object]:
    """Return argument name → value for people to see, the ``sensitive`` ones hidden.

    ``sensitive`` may name a parameter, ``*args`` and ``**kwargs`` included, or one key of ``**kwargs``. Without a
    signature every argument is hidden, since any may be sensitive. If the arguments no longer fit the signature, only
    surely harmless ones are shown. Raises nothing.
    """
    if signature is None:
        return {name: HIDDEN for name, _ in _arguments(args, kwargs, None)}
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return _redact_misfits(signature, args, kwargs, sensitive)
    shown: dict[str, object] = {}
    for name, value in bound.arguments.items():
        if name not in sensitive and signature.parameters[name].kind is Parameter.VAR_KEYWORD:
            shown |= {key: HIDDEN if key in sensitive else item for key, item in value.items()}
        else:
            shown[name] = HIDDEN if name in sensitive else value
    return shown


def _redact_misfits(
    signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], sensitive: frozenset[str]
) -> dict[str, object]:
    # A payload of older code may call the password "pw". If any argument is sensitive, show only names that the
    # signature still has, or a rename would publish the secrets of every parked job.
    harmless = set(signature.parameters) - sensitive if sensitive else set(kwargs)
    shown: dict[str, object] = {f"args[{i}]": HIDDEN if sensitive else value for i, value in enumerate(args)}
    return shown | {name: value if name in harmless else HIDDEN for name, value in kwargs.items()}


def _arguments(
    args: Sequence[object], kwargs: Mapping[str, object], signature: Signature | None
) -> list[tuple[str, object]]:
    """Return (name, value) of each argument; ``args[0]`` and so on if the signature has no name for it."""
    parameters = list(signature.parameters.values()) if signature else []
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    rest = next((parameter.name for parameter in parameters if parameter.kind is Parameter.VAR_POSITIONAL), "args")
    names += [f"{rest}[{i}]" for i in range(len(args) - len(names))]
    return [*zip(names, args, strict=False), *kwargs.items()]
