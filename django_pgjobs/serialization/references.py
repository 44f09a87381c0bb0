"""The result of another job as an argument: a reference in the payload, and its value in its place before the job runs.

Layer 0. In a payload it is ``{"$result": 17}``; a caller's own object that looks like it is written as ``$dict``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.states import Outcome

TAG = "$result"
UNSTORED = "$unstored"
"""The tag of a mark instead of a result that could not be stored; it says why, and reads as None."""

BIGGEST_ID = 2**63 - 1


class ResultOf:
    """Stands for the result of job ``job_id``, which is None except while its flow is registered."""

    __slots__ = ("job_id",)

    def __init__(self, job_id: int | None = None) -> None:
        self.job_id = job_id

    def __repr__(self) -> str:
        return f"<result of job {self.job_id}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ResultOf) and None is not self.job_id == other.job_id)

    def __hash__(self) -> int:
        return id(self)


class StoredResultOf(ResultOf):
    """A reference that was read from JSON: only ``filled`` puts a result in its place, and it must not be stored again.

    Otherwise a user who types arguments as JSON could read any job's result.
    """

    __slots__ = ()


def within(value: object) -> Iterator[ResultOf]:
    """Yield the references in an argument: itself, or those in its lists, tuples, dicts and dataclasses."""
    if isinstance(value, ResultOf):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from within(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from within(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from within(getattr(value, field.name))


def has_any(payload: str) -> bool:
    """Return whether a payload may hold a reference: a cheap look at its text."""
    return TAG in payload


def named(payload: str) -> set[int]:
    """Return the jobs whose results a payload refers to. Raises ``UnreadablePayload``."""
    found: set[int] = set()
    _replaced_in(payload, lambda job_id: found.add(job_id))
    return found


def is_id(value: object) -> bool:
    """Return whether a job may have this id."""
    return type(value) is int and 0 < value <= BIGGEST_ID


def check_ended(ends: Iterable[tuple[int, str | None, str | None]]) -> None:
    """Raise ``UnreadablePayload`` unless all of these jobs, each an id, an outcome and a result, have a result.

    An operator may unblock a job before what it needs has ended, or retry one that was cancelled because of it.
    """
    for job_id, outcome, result in sorted(ends):
        if outcome != Outcome.SUCCEEDED:
            ended = f"was {outcome}" if outcome else "has not ended"
            raise UnreadablePayload(f"It takes the result of job {job_id}, which {ended}.")
        if is_unstored(result):
            raise UnreadablePayload(f"It takes the result of job {job_id}, which could not be stored.")


def is_unstored(result: str | None) -> bool:
    """Return whether the JSON text of a result is the mark of one that could not be stored."""
    return result is not None and result.startswith(f'{{"{UNSTORED}":')


def filled(payload: str, results: Mapping[int, str | None]) -> str:
    """Return the payload with results, as JSON text, in the places of references; null for a job that returned nothing.

    Raises ``UnreadablePayload`` if a job is not among ``results``.
    """
    if gone := sorted(named(payload) - results.keys()):
        raise UnreadablePayload(
            f"The result of job {gone[0]}, which it takes, is gone with that job, or no flow has given it to this one."
        )
    stored = {job_id: None if text is None else _parsed(text) for job_id, text in results.items()}
    return json.dumps(_replaced_in(payload, stored.get), ensure_ascii=False)


def _replaced_in(payload: str, of: object) -> object:
    try:
        return _replaced(_parsed(payload), of)
    except RecursionError as error:
        raise UnreadablePayload(f"The stored JSON cannot be read: {error}") from error


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(f"The stored JSON cannot be read: {error}") from error


def _replaced(value: object, of: Any) -> object:
    if isinstance(value, list):
        return [_replaced(item, of) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and TAG in value:
            if not is_id(value[TAG]):
                raise UnreadablePayload(f"The stored JSON cannot be read: {TAG} holds no job's id")
            return of(value[TAG])
        return {key: _replaced(item, of) for key, item in value.items()}
    return value
