"""Jobs whose decorator hides that they are ``async def``, or that return what has yet to run. In ``tests.e2e.jobs``."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from django_pgjobs import Backoff, JobContext, current_context, job


def plain(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


@job(max_attempts=1)
@plain
async def awaited(n: int) -> int:
    return n + 1


@plain
async def part(n: int) -> int:
    return n * 2


@job(max_attempts=1)
def has_a_hidden_step(n: int) -> int:
    return int(current_context().step(part, n))


def yields(n: int) -> Iterator[int]:
    yield n


async def ayields(n: int) -> AsyncIterator[int]:
    yield n


class Wrapped:
    """A generator as compilers and tracers make them: of a type of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __next__(self) -> int:
        return self.n

    def send(self, value: object) -> int:
        return self.n


LAZY: dict[str, Callable[[int], object]] = {
    "generator": yields,
    "async_generator": ayields,
    "map": lambda n: map(yields, [n]),
    "filter": lambda n: filter(yields, [n]),
    "Wrapped": Wrapped,
}


@job(max_attempts=3, backoff=Backoff(0))
def lazy(kind: str) -> object:
    return LAZY[kind](1)


@job(max_attempts=3, backoff=Backoff(0), store_result=False)
async def lazy_without_result(kind: str) -> object:
    return LAZY[kind](1)


@job(max_attempts=3, backoff=Backoff(0), atomic=True, store_result=False)
def lazy_and_atomic(kind: str) -> object:
    return LAZY[kind](1)


def lazy_part(kind: str) -> object:
    return LAZY[kind](1)


@job(max_attempts=3, backoff=Backoff(0))
def has_a_lazy_step(kind: str) -> None:
    current_context().step(lazy_part, kind)


@job(max_attempts=1)
def gives_up(kind: str) -> None:
    raise ValueError(kind)


@gives_up.on_abandon
def lazy_callback(context: JobContext, kind: str) -> Any:
    return LAZY[kind](1)


@job(max_attempts=3, backoff=Backoff(0), store_result=False)
def lazy_compensation(kind: str) -> object:
    return LAZY[kind](1)


def named(kind: str) -> str:
    return kind


@job(max_attempts=1, takes_context=True)
def is_undone_lazily(context: JobContext, kind: str) -> None:
    context.step.using(undo=lazy_compensation)(named, kind)
    raise ValueError(kind)
