"""Runs a few programs against a real PostgreSQL in every order in which their statements can meet.

A *program* is a function that does what a worker or an operator does, by the real code. Each runs in its own thread
on its own connections, and stops before every statement that touches our tables, and before every COMMIT, until the
explorer lets it go on. A fenced statement stops once more in its middle: after its snapshot is taken and before it
locks a row, at a *gate* (an advisory lock), for that is where READ COMMITTED shows one transaction two worlds.

A step that must wait for a row lock is seen in ``pg_blocking_pids``; another actor then goes on, and the waiting one
does when it is let. A deadlock is an outcome like any other. A *schedule* is the sequence of choices, a digit each;
the same digits give the same run. This module knows nothing of jobs: ``scenes`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue, SimpleQueue
from typing import Any

import psycopg
from django.db import connection

from django_pgjobs import sql
from django_pgjobs.store.database import Params, Rows
from tests.plugins.fix_db import RawDatabase, patience

GATE = 7_340_000
"""Advisory locks from this number on: a new one each time, for a transaction keeps those it has passed."""

LOOK_SECONDS = 0.001
"""How long a statement may take until it is asked whether it waits for somebody."""

GIVE_UP_SECONDS = 20.0

FREE, PAUSED, FLYING, GATED, DONE = "free", "paused", "flying", "gated", "done"

GATES = {
    **dict.fromkeys(
        (
            "finalise_success",
            "finalise_success_keyed",
            "finalise_delete_keyed",
            "finalise_retry",
            "finalise_snooze",
            "next_step",
            "finalise_end",
            "mark_ending",
            "hold_jobs",
            "release_jobs",
            "write_progress",
            "suspend_jobs",
        ),
        "%(items)s::json",
    ),
    "claim_jobs": "%(queues)s::text[]",
    **dict.fromkeys(
        ("finalise_delete", "finalise_delete_fast", "finalise_success_fast"),
        "%(ids)s::bigint[]",
    ),
    **dict.fromkeys(("end_atomic", "write_cursor"), "%(idle)s::text"),
    "renew_claims": "%(claim_ids)s::uuid[]",
    "rescue_jobs": "due.job_ids",
    **dict.fromkeys(("settle_ends", "open_gates", "recount_gates", "need_jobs"), "%(ids)s::bigint[]"),
    **dict.fromkeys(("add_members", "write_memo", "begin_gather", "read_cursors"), "ARRAY[%(id)s::bigint]"),
    "finish_wait": "ARRAY[%(event)s::text]",
    "withdraw_event": "ARRAY[%(name)s::text]",
    "wake_waiters": "ARRAY['event', 'gather']",
}
"""What a statement cannot do without before it looks at a row it will lock: its gate is there, whatever the plan."""

PLAIN = ("read_memos", "send_event")
"""Statements of bodies and senders that need no gate: one only reads, the other asks no snapshot."""

UNSEEN = ("notify", "notify_many")
"""Statements that read and write no row: nobody stops before them."""

ENDS = ("finalise_", "end_atomic")

MEETS = ("FOR NO KEY UPDATE", "pgjobs_gate", "pgjobs_link", "hashtext(w.sequence)", "hashtext(j.sequence)")
"""What is in the statements of operators and registrations that may meet others."""


def gated(name: str, text: str, gate: int) -> str:
    """Return the statement with its gate, or as it is when it has none. A fast one waits until it is let."""
    if name not in GATES:
        return text
    value = GATES[name]
    for bound in ("'50ms'", "'5s'"):
        text = text.replace(bound, "'0'")
    head, found, tail = text.partition(f"({value}")
    assert found, name
    # ANY ((SELECT …)) without a cast asks for rows, not for an array.
    kind = "::bigint[]" if "bigint" in value else "::text[]" if value.startswith("ARRAY") else ""
    return f"{head}((SELECT {value} FROM (SELECT pg_advisory_xact_lock({gate}) OFFSET 0) AS gate){kind}{tail}"


class Actor:
    """A thread that does one program at a time, and stops before each statement until it may go on."""

    def __init__(
        self, number: int, raw: psycopg.Connection[Any], told: Queue[Actor], passes: Sequence[str] = ()
    ) -> None:
        self.number = number
        self.passes = passes
        self.raw = RawDatabase(raw)
        self.state = FREE
        self.at = ""
        self.has_gate = False
        self.gate = 0
        self.pid = 0
        self.error: Exception | None = None
        self._locks = False
        self._inside = False
        self._told = told
        self._programs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, name=f"actor {number}", daemon=True)
        self._thread.start()

    # Asked by the explorer

    def start(self, program: Callable[[], object]) -> None:
        """Do a program up to its first statement."""
        self.state, self.error = FLYING, None
        self._programs.put(program)

    def go(self) -> None:
        """Go on to the next stop."""
        self.state = FLYING
        self._go.release()

    def leave(self) -> None:
        """End the thread."""
        self._programs.put(None)
        self._thread.join()

    # The thread: as a ``Database`` for workers' programs, by a wrapper around Django's connection for operators'

    def fetch(self, name: str, params: Params) -> Rows:
        """Stop, then run the statement on the worker's connection."""
        if name not in UNSEEN and name not in self.passes:
            gated_here = name in GATES and not (self._inside and name.startswith(ENDS))
            self._stop(name, self.raw.pid, has_gate=gated_here)
        text = sql.statement(name)
        cursor = psycopg.Cursor(self.raw.raw)
        cursor.execute(gated(name, text, self.gate) if self.has_gate else text, params, binary=True)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction on the worker's connection, and stop before its COMMIT.

        An end in it has no gate: what it has locked it keeps until the next statement, which has one.
        """
        self.raw.query("BEGIN")
        self._inside = True
        try:
            yield
        except BaseException:
            self.raw.query("ROLLBACK")
            raise
        finally:
            self._inside = False
        self.query("COMMIT")

    def query(self, text: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Stop, then run a statement that is not in ``sql/``."""
        self._stop(text.split()[0], self.raw.pid)
        return self.raw.query(text, params)

    def _stop(self, at: str, pid: int, *, has_gate: bool = False) -> None:
        self.at, self.pid, self.has_gate, self.state = at, pid, has_gate, PAUSED
        self._told.put(self)
        self._go.acquire()

    def _live(self) -> None:
        while program := self._programs.get():
            try:
                with connection.execute_wrapper(self._before):
                    program()
            except Exception as error:  # told, and judged by whoever asked for the run
                self.error = error
            self.state = DONE
            self._told.put(self)
        connection.close()

    def _before(self, execute: Callable[..., Any], text: str, params: Any, many: bool, context: Any) -> Any:
        name = next((name for name in (*GATES, *PLAIN) if sql.statement(name) == text), "")
        if (name or any(word in text for word in MEETS)) and text not in {sql.statement(own) for own in self.passes}:
            self._locks = True
            kind = "write" if "UPDATE pgjobs_job" in text else "gates" if "pgjobs_gate" in text else "lock"
            self._stop(name or kind, self._django_pid(), has_gate=name in GATES)
            text = gated(name, text, self.gate)
        return execute(text, params, many, context)

    def _django_pid(self) -> int:
        django: Any = connection
        raw = django.connection
        if raw.info.parameter_status("application_name") != self.name:
            raw.execute("SELECT set_config('application_name', %s, false)", [self.name])
            commit = django._commit

            def stop_and_commit() -> Any:
                if self._locks:  # a transaction that has only read frees nobody
                    self._stop("COMMIT", raw.info.backend_pid)
                self._locks = False
                return commit()

            django._commit = stop_and_commit
        pid: int = raw.info.backend_pid
        return pid

    @property
    def name(self) -> str:
        """What the database knows this actor by."""
        return name_of(self.number)


def name_of(number: int) -> str:
    """The application_name of an actor's connections."""
    return f"explorer {number}"


@dataclass
class Course:
    """What happened under one schedule."""

    choices: list[int] = field(default_factory=list)
    enabled: list[list[int]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def digits(self) -> str:
        return "".join(map(str, self.choices))

    def following(self) -> list[int] | None:
        """Return the choices that lead to the next schedule; None when this was the last one."""
        for place in reversed(range(len(self.choices))):
            later = [actor for actor in self.enabled[place] if actor > self.choices[place]]
            if later:
                return [*self.choices[:place], later[0]]
        return None


class Explorer:
    """Steps actors. ``monitor`` looks who waits for whom; ``gatekeeper`` holds the gates.

    ``passes``: statements before which no actor stops.
    """

    def __init__(
        self, connect: Callable[[str], psycopg.Connection[Any]], actors: int, passes: Sequence[str] = ()
    ) -> None:
        # SimpleQueue.get(timeout=…) of CPython 3.11 may wait for ever once what woke it was taken by get_nowait.
        self.told: Queue[Actor] = Queue()
        self.monitor = RawDatabase(connect("explorer"))
        self.gatekeeper = RawDatabase(connect("gatekeeper"))
        self.shut: dict[Actor, int] = {}
        self.passed = GATE
        self.actors = [Actor(number, connect(name_of(number)), self.told, passes) for number in range(actors)]

    def close(self) -> None:
        for actor in self.actors:
            actor.leave()
            actor.raw.raw.close()
        self.monitor.raw.close()
        self.gatekeeper.raw.close()

    def run(self, programs: Sequence[Callable[[Actor], object]], choices: Sequence[int]) -> Course:
        """Run the programs under these choices, and from where they end on, the first possible one each time.

        Of two actors that do the same, the second may begin only after the first: the other orders are the same ones.
        """
        playing = self.actors[: len(programs)]
        for actor, program in zip(playing, programs, strict=True):
            actor.start(partial(program, actor))
        try:
            self._settle(playing)
            done = [getattr(program, "func", program) for program in programs]
            twins = {number: [n for n in range(number) if done[n] is done[number]] for number in range(len(done))}
            return self._follow(playing, choices, twins)
        finally:
            self._let_go(playing)

    def _follow(self, playing: Sequence[Actor], choices: Sequence[int], twins: Mapping[int, Sequence[int]]) -> Course:
        course = Course()
        while enabled := [actor.number for actor in playing if actor.state in (PAUSED, GATED)]:
            place = len(course.choices)
            chosen = choices[place] if place < len(choices) else enabled[0]
            if chosen not in enabled:
                now = [(actor.number, actor.state, actor.at, actor.error) for actor in playing]
                raise LookupError(f"{choices} cannot be followed after {course.told}: {now}")
            new = {number for number in enabled if number not in course.choices}
            course.choices.append(chosen)
            course.enabled.append([n for n in enabled if n not in new or new.isdisjoint(twins[n])])
            course.told.append(self._step(self.actors[chosen]))
            self._settle(playing)
        return course

    def _let_go(self, playing: Sequence[Actor]) -> None:
        """After an error of the explorer's own: nobody stays behind to hold a lock."""
        while any(actor.state != DONE for actor in playing):
            self.gatekeeper.query("SELECT pg_advisory_unlock_all()")
            self.shut.clear()
            for actor in playing:
                if actor.state == PAUSED:
                    actor.go()
            with suppress(Empty):
                self.told.get(timeout=LOOK_SECONDS)

    def _step(self, actor: Actor) -> str:
        told = f"{actor.number}: {actor.at}"
        if actor.state == GATED:
            actor.state = FLYING
            self.gatekeeper.query(f"SELECT pg_advisory_unlock({self.shut.pop(actor)})")
            return f"{told}, the rest"
        if actor.has_gate:
            if actor in self.shut:  # a statement that finds no rows does not reach its gate
                self.gatekeeper.query(f"SELECT pg_advisory_unlock({self.shut.pop(actor)})")
            self.passed += 1
            actor.gate = self.shut[actor] = self.passed
            self.gatekeeper.query(f"SELECT pg_advisory_lock({actor.gate})")
        actor.go()
        return told

    def _settle(self, playing: Sequence[Actor]) -> None:
        """Wait until every actor has stopped, is done, or waits for one that has stopped."""
        tries = round(patience(GIVE_UP_SECONDS) / LOOK_SECONDS)
        while flying := [actor for actor in playing if actor.state == FLYING]:
            try:
                self.told.get(timeout=LOOK_SECONDS)
            except Empty:
                if self._all_wait(playing, flying):
                    break
                tries -= 1
                assert tries > 0, f"neither done nor waiting: {[actor.at for actor in flying]}"
        while not self.told.empty():
            self.told.get_nowait()

    def _all_wait(self, playing: Sequence[Actor], flying: Sequence[Actor]) -> bool:
        """Whether all wait for actors that have stopped.

        A circle of waiters is the deadlock detector's to break; a stranger (autovacuum) goes on by itself.
        """
        pids = {actor: actor.pid for actor in flying}
        rows = self.monitor.query(
            "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::integer[]) AS f (pid)", [list(pids.values())]
        )
        waits_for = {pid: set(blocking) for pid, blocking in rows}
        for actor, pid in pids.items():
            if actor.state == FLYING and self.gatekeeper.pid in waits_for[pid]:
                actor.state = GATED
        moving = {pid for actor, pid in pids.items() if actor.state == FLYING}
        stopped = {actor.pid for actor in playing if actor.state in (PAUSED, GATED)}
        stuck: set[int] = set()
        while found := {pid for pid in moving - stuck if waits_for[pid] & (stopped | stuck)}:
            stuck |= found
        return moving == stuck
