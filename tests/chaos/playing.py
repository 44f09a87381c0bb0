"""Plays programs in a scene under every schedule, and has what they did judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

import psycopg
import pytest
from django.db import OperationalError, connection

from django_pgjobs.store.database import PINS
from tests.chaos.explorer import Actor, Course, Explorer
from tests.plugins.fix_db import RawDatabase, empty

ACTORS = 3

World = TypeVar("World")


@dataclass(frozen=True)
class Judge(Generic[World]):
    """What makes a scene, and what says whether something went wrong: ``judging`` or ``gate_judging``."""

    set_up: Callable[[RawDatabase, Callable[[World], None]], World]
    wrong: Callable[[World, dict[str, Any], set[str]], list[str]]
    make: Sequence[str]
    drop: Sequence[str]
    may_deadlock: bool = True
    """Whether a deadlock is an outcome like any other, or as wrong as an error."""


class Stage(Generic[World]):
    """Plays programs in a scene under schedules."""

    def __init__(self, explorer: Explorer, judge: Judge[World]) -> None:
        self.explorer = explorer
        self.judge = judge
        self.deadlocks = 0

    def play(
        self, scene: Callable[[World], None], programs: Sequence[Callable[[World, Actor], object]]
    ) -> tuple[int, list[str]]:
        """Play every schedule; return how many there were, and what was wrong under the first that went wrong."""
        found: list[str] = []
        choices: list[int] | None = []
        count = 0
        while choices is not None and not found:
            course, found = self.play_one(scene, programs, choices)
            choices = course.following()
            count += 1
        return count, found

    def play_one(
        self,
        scene: Callable[[World], None],
        programs: Sequence[Callable[[World, Actor], object]],
        choices: Sequence[int],
    ) -> tuple[Course, list[str]]:
        """Play one schedule; return its course and what was wrong."""
        world = self.judge.set_up(self.explorer.monitor, scene)
        course = self.explorer.run([partial(program, world) for program in programs], choices)
        makers = {actor.name: program for actor, program in zip(self.explorer.actors, programs, strict=False)}
        errors = {actor.name: actor.error for actor in self.explorer.actors[: len(programs)] if actor.error}
        deadlocked = {maker for maker, error in errors.items() if self.judge.may_deadlock and is_deadlock(error)}
        self.deadlocks += len(deadlocked)
        found = [f"{makers[maker].__name__}: {error!r}" for maker, error in errors.items() if maker not in deadlocked]
        found += self.judge.wrong(world, makers, set(errors))
        if found:
            name = schedule_name(scene, programs, course.digits)
            found = [f"test_one_schedule[{name}]", *found, *course.told]
        return course, found

    def play_named(self, room: ModuleType, name: str) -> None:
        """Play one schedule again, as a failure has named it, with scenes and programs of ``room``; it must hold."""
        scene, programs, digits = name.split("/")
        cast = [getattr(room, program) for program in programs.split("+")]
        course, found = self.play_one(getattr(room, scene), cast, [int(digit) for digit in digits])
        assert not found, "\n  ".join(found)
        assert course.digits.startswith(digits)

    @contextmanager
    def passing(self, *names: str) -> Iterator[None]:
        """Stop before these statements no more: an actor goes through them with the step before."""
        before = [actor.passes for actor in self.explorer.actors]
        for actor in self.explorer.actors:
            actor.passes = (*actor.passes, *names)
        try:
            yield
        finally:
            for actor, passes in zip(self.explorer.actors, before, strict=True):
                actor.passes = passes

    def must_hold(
        self,
        scene: Callable[[World], None],
        everything: Iterable[Sequence[Callable[[World, Actor], object]]],
    ) -> int:
        """Play them all; fail with a schedule that can be played again. Return how many schedules there were."""
        total = 0
        for programs in everything:
            count, found = self.play(scene, programs)
            assert not found, "\n  ".join(found)
            total += count
        return total


def is_deadlock(error: Exception) -> bool:
    cause = error.__cause__ if isinstance(error, OperationalError) else error
    return isinstance(cause, psycopg.errors.DeadlockDetected)


def schedule_name(scene: Any, programs: Collection[Any], digits: str) -> str:
    return f"{scene.__name__}/{'+'.join(program.__name__ for program in programs)}/{digits}"


def asked_for(config: pytest.Config) -> list[str]:
    """Return the schedules that the command line names, as ``test_one_schedule[…]``."""
    named = [str(arg).rpartition("::test_one_schedule[") for arg in config.args]
    return [name.removesuffix("]") for _, found, name in named if found]


@contextmanager
def staged(blocker: Any, judge: Judge[World], passes: Sequence[str] = ()) -> Iterator[Stage[World]]:
    """Open the explorer on the test database, with the triggers that keep changes; ``passes`` as of ``Explorer``."""
    with blocker.unblock():
        assert connection.settings_dict["NAME"].startswith("test"), "not a test database"
        known = connection.get_connection_params()
        params = {key: known[key] for key in ("dbname", "host", "port", "user", "password") if known.get(key)}
        pins = {**PINS, "synchronous_commit": "off", "deadlock_timeout": "100ms"}
        options = " ".join(f"-c {key}={value}" for key, value in pins.items())

        def connect(name: str) -> psycopg.Connection[Any]:
            return psycopg.connect(
                **params, options=options, autocommit=True, application_name=name, prepare_threshold=0
            )

        explorer = Explorer(connect, ACTORS, passes)
        try:
            for statement in (*judge.drop, *judge.make):
                explorer.monitor.raw.execute(statement, prepare=False)
            yield Stage(explorer, judge)
            for statement in judge.drop:
                explorer.monitor.raw.execute(statement, prepare=False)
        finally:
            explorer.close()
            empty()


def called(value: Any) -> str:
    """Name a scene or programs in a test's id."""
    return value.__name__ if callable(value) else "+".join(program.__name__ for program in value)
