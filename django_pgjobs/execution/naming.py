"""Under which name a running job remembers what it does just now: two different things never get one name.

Names may be made in turn, as in ``charge#2``, only where the turn is the same in each run: in the task or thread that
runs the body. In others, which run side by side, each name is used once in a run, and the second use is refused.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django_pgjobs.exceptions import InvalidJob, JobSuspended
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.values.call_options import StepOptions, check_name

OUR_FILES.add(__file__)

_step: ContextVar[tuple[Names, str] | None] = ContextVar("django_pgjobs_step", default=None)
"""The step that is being called, and whose it is."""


_MARKS = re.compile(r"[\\[#]")
_READS_AS_NUMBER = re.compile(r"-?[0-9]+")


def memo_name(base: str, *, key: str | int | None = None, count: int = 1) -> str:
    """Return under which name a step is remembered. Of two calls that differ in any part the names differ.

    ``n``, ``n#2`` for the second call in turn, ``n[7]`` and ``n[eu]`` with a key. A text that reads as a number stands
    in quotes, ``n["7"]``, and a mark that is part of the name itself behind a backslash, ``n\\[7]``.
    """
    plain = _MARKS.sub(r"\\\g<0>", base)
    if key is None:
        return plain if count == 1 else f"{plain}#{count}"
    if isinstance(key, str) and (key.startswith('"') or _READS_AS_NUMBER.fullmatch(key)):
        return f'{plain}["{key}"]'
    return f"{plain}[{key}]"


def lane() -> object:
    """Return the task of an event loop that runs just now, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return task or threading.get_ident()


class Names:
    """The names that one run of a job has used.

    ``body``: the task or thread that runs the body; None: the first that asks. ``remembers`` tells whether a step of a
    name has an end. ``walks``: True while the job goes through rows, and begins behind others when it continues.
    """

    walks = False

    def __init__(self, body: object, remembers: Callable[[str], bool]) -> None:
        self._body = body
        self._remembers = remembers
        self._counts: dict[str, int] = {}
        self._funcs: dict[str, object] = {}
        self._in_flight: set[str] = set()
        self._used: set[str] = set()
        self._refused: set[str] = set()

    @contextmanager
    def of_step(self, options: StepOptions, func: Callable[..., object]) -> Iterator[str]:
        """Yield the name of a step; no other may run under it in the meantime. Raises ``InvalidJob``."""
        if options.attempts is not None:
            self.check_outside("step.using(attempts=…)")
        base = options.name or name_of(func)
        if options.name is None and self._funcs.setdefault(base, func) != func:
            raise InvalidJob(f"step: two functions are called {base!r}: tell their steps apart by using(name=…)")
        if options.key is None:
            self._check_not_walking(f"step {base!r}", "using(key=…), such as the key of the row")
        mark = memo_name(base, key=options.key)
        if mark in self._in_flight:
            raise InvalidJob(f"step: {mark!r} is running: tell steps that run side by side apart by using(key=…)")
        name = check_name("the name of a step", mark if options.key is not None else self._in_turn(base))
        if name in self._used:
            raise InvalidJob(
                f"step: {name!r} was called before in this run of the job"
                + (": give each call a key of its own" if options.key is not None else _SIDE_BY_SIDE)
            )
        self._in_flight.add(mark)
        token = _step.set((self, name))
        try:
            yield name
        except JobSuspended:
            self._used.add(name)
            raise
        finally:
            _step.reset(token)
            self._in_flight.discard(mark)
            if self._remembers(name):
                self._used.add(name)

    def of_pause(self, what: str, base: str) -> str:
        """Return the name of a sleep or a gather. Raises ``InvalidJob``."""
        self.check_outside(what)
        name = check_name("name", self._in_turn(check_name("name", base)))
        if base == what.removeprefix("a") or name != memo_name(base):
            self._check_not_walking(what, "a name=… with the key of the row")
        if name in self._used:
            self._refused.add(name)
        self._used.add(name)
        self.check_not_shared(what, name)
        return name

    def _check_not_walking(self, what: str, cure: str) -> None:
        """Raise ``InvalidJob`` inside ``context.each``: names that are made in turn would be those of other rows."""
        if self.walks:
            raise InvalidJob(
                f"{what} inside context.each(): the job continues behind other rows, so turns do not count: give each "
                f"call {cure}"
            )

    def check_not_shared(self, what: str, name: str) -> None:
        """Raise ``InvalidJob`` if a second task or thread has asked for the name of this sleep or gather."""
        if name in self._refused:
            raise InvalidJob(
                f"{what}: {name!r} was called before in this run of the job, by another task or thread: tell what runs "
                "side by side apart by name=…"
            )

    def check_outside(self, what: str) -> None:
        """Raise ``InvalidJob`` inside a step, which would restart after a suspension."""
        found = _step.get()
        if found is not None and found[0] is self:
            raise InvalidJob(
                f"context.{what}() inside step {found[1]!r}: when the job continues, the step would restart, and do "
                "again what it has done. Call it between steps"
            )

    def _in_turn(self, base: str) -> str:
        if self._body is None:
            self._body = lane()
        if lane() != self._body:
            return memo_name(base)
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return memo_name(base, count=count)


_SIDE_BY_SIDE = ", by another task or thread: tell steps that run side by side apart by using(key=…)"


def name_of(func: Callable[..., object]) -> str:
    """Return the name of a function or job definition. Raises ``InvalidJob`` if it has none of its own."""
    own: str | None = getattr(func, "name", None) if hasattr(func, "_fingerprint") else None
    name = own or getattr(func, "__qualname__", "")
    if not name or "<lambda>" in name:
        raise InvalidJob(f"step: {func!r} has no name of its own: give it one by using(name=…)")
    return str(name)
