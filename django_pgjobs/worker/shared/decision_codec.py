"""Decisions as they travel in DONE frames: the name of the class, then the fields in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from django_pgjobs.decisions import Decision, Failure, Unwritten


def pack_decision(decision: Decision) -> list[object]:
    """Return ``decision`` as JSON values, its name first."""
    name, fields = _PACKED[type(decision)]
    return [name, *[pack(getattr(decision, each)) if pack else getattr(decision, each) for each, pack in fields]]


def unpack_decision(values: list[object]) -> Decision:
    """Return the decision that ``pack_decision`` packed. Raises ``ValueError`` if it is none."""
    name = values[0] if values else None
    make, fields = _UNPACKED.get(name if isinstance(name, str) else "", (None, ()))
    if make is None or len(values) != 1 + len(fields):
        raise ValueError(f"not a decision: {values[:1]!r}")
    decision: Decision = make(
        *[unpack(value) if unpack else value for unpack, value in zip(fields, values[1:], strict=True)]
    )
    return decision


def _unpack_unwritten(values: list[object]) -> Unwritten:
    if isinstance(decision := unpack_decision(values), Unwritten):
        return decision
    raise ValueError(f"not a decision that is still to be written: {values[:1]!r}")


def _pack_failure(failure: Failure | None) -> list[object] | None:
    return None if failure is None else [failure.kind, failure.message, failure.chain, failure.traceback]


def _unpack_failure(values: list[Any] | None) -> Failure | None:
    if values is None:
        return None
    kind, message, chain, traceback = values
    return Failure(kind, message, tuple((str(k), str(m)) for k, m in chain), traceback)


_Codec = Callable[[Any], Any] | None
_CODECS: dict[object, tuple[_Codec, _Codec]] = {
    "Failure": (_pack_failure, lambda values: _unpack_failure(values) or Failure("", "")),
    "Failure | None": (_pack_failure, _unpack_failure),
    "Unwritten": (pack_decision, _unpack_unwritten),
    "tuple[Suspended, ...]": (
        lambda waits: list(map(pack_decision, waits)),
        lambda waits: tuple(map(_unpack_unwritten, waits)),
    ),
    "tuple[str, int] | None": (None, lambda pair: None if pair is None else tuple(pair)),
}
"""The annotation of a field → how to pack and unpack it; others are JSON as they are."""


def _codecs(decision: Any) -> list[tuple[str, _Codec, _Codec]]:
    return [(name, *_CODECS.get(decision.__annotations__[name], (None, None))) for name in decision.__match_args__]


_PACKED: dict[type[object], tuple[str, list[tuple[str, _Codec]]]] = {
    each: (each.__name__.lower(), [(name, pack) for name, pack, _ in _codecs(each)]) for each in get_args(Decision)
}
_UNPACKED: dict[str, tuple[Any, list[_Codec]]] = {
    each.__name__.lower(): (each, [unpack for _, _, unpack in _codecs(each)]) for each in get_args(Decision)
}
