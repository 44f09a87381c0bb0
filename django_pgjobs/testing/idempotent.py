"""``assert_idempotent``: a job killed at any statement or commit, and run again, leaves what one run does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypedDict, TypeVar, Unpack

from django.db import OperationalError, connections
from django.db.backends.signals import connection_created

from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.models import Job, Memo
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import kind_of, text_of
from django_pgjobs.states import MemoKind, Outcome
from django_pgjobs.testing import suspended
from django_pgjobs.testing.dying import Doom, DoomedRunner, Kill, played
from django_pgjobs.testing.snapshots import Effects, Outgoing, Outside, Prints, Tables, columns_that_differ, compared
from django_pgjobs.testing.transactions import rolled_back

T = TypeVar("T")

TableKey = tuple[str, str]
"""A database and the name of a table there."""

MOST_STARTS = 100
"""Starts that a job may need to its end: for sleeps, steps and snoozes."""

SHOWN = 3
"""Number of kills whose differences a message shows."""

AGAIN = (
    "What helps: it runs again from its beginning. Let it find what it has done (get_or_create, update_or_create, a "
    "flag in the same transaction), commit all of it with its end (atomic=True), or remember parts (context.step)."
)
REGISTERED = "A registered job is a row too: register it in the transaction that calls for it, or with unique=…."
REPEATED = (
    "No transaction takes back what was sent: send in a job of its own or a context.step, with an idempotency key for "
    "the receiver. If a repetition does no harm, say may_resend=True."
)
UNSENT = "It notes that something is sent before it is: send first, or register a job that sends where you note it."
ATOMIC = (
    "atomic=True: what it writes to {!r} is one transaction with its end, so there it passes by construction, and the "
    "fence refuses a second end. Only its effects elsewhere were tested: mail, effects=, other databases."
)


class CrashOptions(TypedDict, total=False):
    """The options of ``assert_idempotent``."""

    ignore: Collection[str]
    effects: Effects | None
    may_resend: bool
    reset: Callable[[], object] | None
    limit: int


def assert_idempotent(
    job: BoundJob[object] | JobDefinition[[], Any],
    /,
    *,
    ignore: Collection[str] = (),
    effects: Effects | None = None,
    may_resend: bool = False,
    reset: Callable[[], object] | None = None,
    limit: int = 200,
) -> str:
    """Assert that a job does its work once, no matter where its process dies; return what was tried, in words.

    Runs the job undisturbed; then kills it after each statement, after each commit, and when its function has returned,
    and runs it again, as a worker does that rescues it. Each time the rows of all tables, the jobs that it has
    registered and what it has sent must be those of the undisturbed run. Made keys and times count as there or not, and
    so do the columns in ``ignore``, named ``column`` or ``table.column``. Mail is taken from ``mail.outbox``;
    ``effects`` returns how much else was sent so far, or a list of it. ``may_resend``: it may be sent twice, but none
    of it may be missing. ``reset`` is called before each run, and puts back what is in no database. ``limit``: at most
    so many kills, evenly spread.

    Everything is rolled back, in a ``TestCase`` and in a ``TransactionTestCase``: savepoints stand for transactions.
    Raises ``AssertionError``, which names each kill that breaks the job and what it breaks, or why the job cannot be
    tested; ``ValueError`` for options that cannot be.
    """
    if limit < 1:
        raise ValueError("limit: at least 1")
    trials = _Trials(job.bind() if isinstance(job, JobDefinition) else job, ignore, effects)
    trials.may_resend, trials.reset = may_resend, reset
    try:
        return trials.all(limit)
    finally:
        trials.outside.clear()


@dataclass(slots=True)
class _Seen:
    """A run and its effects. ``rows``: of the tables that differ from those expected, or were asked for."""

    doom: Doom
    job: Job
    error: BaseException | None = None
    prints: dict[str, Prints] = field(default_factory=dict)
    rows: dict[TableKey, Counter[str]] = field(default_factory=dict)
    sent: list[Outgoing] = field(default_factory=list)


class _Trials:
    may_resend = False
    reset: Callable[[], object] | None = None
    expected: _Seen

    def __init__(self, call: BoundJob[object], ignore: Collection[str], effects: Effects | None) -> None:
        self.call = call
        arguments = [*map(repr, call.args), *(f"{name}={value!r}" for name, value in call.kwargs.items())]
        self.name = f"{call.definition.name}({', '.join(arguments)})"
        self.ours = [each for each in connections.all() if each.vendor == "postgresql" and _is_reachable(each)]
        self.others = [each for each in connections.all() if each.vendor != "postgresql"]
        self.tables = {each.alias: Tables(each.alias, ignore) for each in self.ours}
        known = {name for tables in self.tables.values() for name in tables.columns}
        for name in set(ignore) - known:
            raise ValueError(f"ignore: no table has a column {name!r}{did_you_mean(name, list(known))}")
        self.outside = Outside(effects)
        self.advice: dict[str, None] = {}

    def all(self, limit: int) -> str:
        """Run the job undisturbed, and with each kill."""
        first = self.expected = self._run()
        self._check_succeeds(first)
        second = self._run()
        self._check_steady(second)
        doom = second.doom  # the first run may fill caches
        kills = [
            Kill(at, before)
            for at, moment in enumerate(doom.moments)
            for before in (True, False)
            if not before or (at in doom.sent_before and moment.what != "return")
        ]
        tried = kills
        notes = [ATOMIC.format(first.job._state.db)] if self.call.definition.atomic else []
        if len(kills) > limit:
            tried = [*(kills[at * len(kills) // limit] for at in range(limit - 1)), kills[-1]]
            notes.append(f"{limit} of {len(kills)} kills were tried, evenly spread: limit={limit}.")
        broken, missed = [], 0
        for kill in tried:
            seen = self._run(kill)
            missed += seen.doom.kill is not None
            if differences := self._differences(seen):
                broken.append((self._where(doom, kill), differences))
        if missed or [moment.text for moment in first.doom.moments] != [moment.text for moment in doom.moments]:
            notes.append(f"Its queries vary from run to run; {missed} kills came too late.")
        if broken:
            raise AssertionError(self._complaint(broken, len(tried), notes))
        queries = sum(moment.what == "query" for moment in doom.moments)
        return " ".join([f"{self.name} survives {len(tried)} kills in {queries} queries.", *notes])

    # One run

    def _run(self, kill: Kill | None = None, wanted: Collection[TableKey] = ()) -> _Seen:
        """Run the job to its end, in transactions that are rolled back; ``wanted``: tables whose rows are kept."""
        doom = Doom(self.outside.mark, kill)
        with self._trial(doom):
            if self.reset is not None:
                self.reset()
            seen = _Seen(doom, self.call.register())
            start = doom.sent = self.outside.mark()
            runner = DoomedRunner(seen.job._state.db or "", doom, after_kill=partial(self._rewind, keys_only=True))
            self._finish(runner, seen)
            seen.sent = self.outside.between(doom.again or start, self.outside.mark())
            if doom.again is not None:  # what a dead process seems to have sent does not count
                seen.sent = self.outside.between(start, doom.sent_at_death) + seen.sent
            seen.prints = {using: tables.prints(seen.job) for using, tables in self.tables.items()}
            for using, table in {*wanted, *self._differing(seen)}:
                seen.rows[using, table] = self.tables[using].rows(table, seen.job)
        return seen

    @contextmanager
    def _trial(self, doom: Doom) -> Iterator[None]:
        home, strays = threading.get_ident(), []

        def note(connection: Any, **_: object) -> None:
            if threading.get_ident() != home:
                strays.append(connection.alias)

        connection_created.connect(note)
        try:
            with ExitStack() as stack:
                for each in self.ours:
                    stack.enter_context(rolled_back(each.alias))
                stack.enter_context(played(doom, self.ours, self.others))
                yield
        finally:
            connection_created.disconnect(note)
            self._rewind()
        if strays:
            raise AssertionError(
                f"{self.name} opens a connection to {strays[0]!r} in another thread, outside of the test's "
                "transaction: that cannot be played."
            )

    def _rewind(self, *, keys_only: bool = False) -> None:
        for tables in self.tables.values():
            tables.rewind(keys_only=keys_only)

    def _finish(self, runner: DoomedRunner, seen: _Seen) -> None:
        jobs = Job.objects.using(runner.using).filter(pk=seen.job.pk)
        for _ in range(MOST_STARTS):
            suspended.end_sleeps(jobs)
            if not runner.start(seen.job.pk):
                raise AssertionError(f"{self.name} cannot be run: it is {jobs.get().state}.")
            seen.job = jobs.get()
            if runner.ran.errors or seen.job.finished_at is not None:
                seen.error = next(iter(runner.ran.errors), None)
                return
            waits = Memo.objects.using(runner.using).filter(job_id=seen.job.pk, finished_at__isnull=True)
            if wait := waits.filter(kind=MemoKind.EVENT).first():
                raise AssertionError(f"{self.name} waits for the event {wait.event!r}: send it before, or in reset=.")
            if waits.filter(kind=MemoKind.GATHER).exists():
                self._run_members(runner.using, seen.job)
        raise AssertionError(f"{self.name} does not come to an end in {MOST_STARTS} starts.")

    def _run_members(self, using: str, job: Job) -> None:
        """Run what the job has registered, as its ``gather`` waits for that."""
        members = DoomedRunner(using, Doom(self.outside.mark), after_kill=partial(self._rewind, keys_only=True))
        members.raise_errors = True
        for _ in range(MOST_STARTS):
            suspended.end_sleeps(Job.objects.using(using).filter(pk__gt=job.pk))
            if not (due := [pk for pk in members.due(None) if pk > job.pk]):
                return
            members.start(due[0])
        raise AssertionError(f"What {self.name} gathers does not come to an end in {MOST_STARTS} starts.")

    def _differing(self, seen: _Seen) -> list[TableKey]:
        known = getattr(self, "expected", seen).prints
        return [(u, table) for u, prints in seen.prints.items() for table in prints if prints[table] != known[u][table]]

    # What differs

    def _check_succeeds(self, seen: _Seen) -> None:
        if seen.error is not None:
            fails = f"{self.name} must succeed undisturbed, but fails: {_line(seen.error)}"
            raise AssertionError(fails) from seen.error
        if seen.job.outcome != Outcome.SUCCEEDED:
            raise AssertionError(f"{self.name} must succeed undisturbed, but is {seen.job.outcome}.")

    def _check_steady(self, second: _Seen) -> None:
        """Raise unless two undisturbed runs do the same."""
        if differing := self._differing(second):
            rows = self._expect(differing)
            names = tuple(f"{t}.{c}" for u, t in differing for c in columns_that_differ(rows[u, t], second.rows[u, t]))
            raise AssertionError(f"Two undisturbed runs of {self.name} differ: ignore={names!r} leaves that out.")
        if self.expected.sent != second.sent:
            raise AssertionError(f"Two undisturbed runs of {self.name} send {self.expected.sent} and {second.sent}.")

    def _expect(self, differing: Collection[TableKey]) -> dict[TableKey, Counter[str]]:
        """Return the rows that these tables have after an undisturbed run."""
        known = self.expected.rows
        if missing := [each for each in differing if each not in known]:
            known.update(self._run(wanted=missing).rows)
        return known

    def _differences(self, seen: _Seen) -> list[str]:
        if seen.error is not None:
            self.advice[AGAIN] = None
            return [f"it fails when it runs again: {_line(seen.error)}"]
        shown = []
        if seen.job.outcome != Outcome.SUCCEEDED:
            shown.append(f"nothing runs it again: it is {seen.job.outcome} ({seen.job.error})")
        differing = self._differing(seen)
        expected = self._expect(differing)
        for key in differing:
            shown.append(compared(key[1], expected[key], seen.rows[key]))
            self.advice[REGISTERED if key[1] == Job._meta.db_table else AGAIN] = None
        before, now = Counter(self.expected.sent), Counter(seen.sent)
        if again := [each for each in now - before if each not in before or not self.may_resend]:
            self.advice[REPEATED] = None
        if missing := list(before - now):
            self.advice[UNSENT] = None
        texts = {each.shown for each in before}
        for each in again:
            how = "twice" if each in before else "with another text" if each.shown in texts else "unexpectedly"
            shown.append(f"{each.shown} sent {how}")
        return shown + [f"{each.shown} not sent" for each in missing if each.shown not in {one.shown for one in again}]

    def _where(self, doom: Doom, kill: Kill) -> str:
        moment = doom.moments[kill.at]
        number, of = (sum(m.what == "query" for m in some) for some in (doom.moments[: kill.at + 1], doom.moments))
        when, alias = "before" if kill.before else "after", f" on {moment.using!r}" if len(self.ours) > 1 else ""
        match moment.what:
            case "return":
                return "after its function returned, before that was recorded"
            case "commit":
                return f"{when} the COMMIT behind query {number} of {of}{alias}"
        return f"{when} query {number} of {of}{alias}: {one_line(moment.text):.120}"

    def _complaint(self, broken: list[tuple[str, list[str]]], tried: int, notes: list[str]) -> str:
        lines = [f"{self.name} is not idempotent: {len(broken)} of {tried} kills break it."]
        for where, differences in broken[:SHOWN]:
            lines += [f"Killed {where}", *(f"  {each}" for each in differences)]
        lines += [f"Also killed {where}" for where, _ in broken[SHOWN : 4 * SHOWN]]
        lines += [f"… and {len(broken) - 4 * SHOWN} more"] if broken[4 * SHOWN :] else []
        return "\n".join([*lines, *self.advice, *notes])


def _is_reachable(connection: Any) -> bool:
    try:
        connection.cursor().close()
    except (AssertionError, OperationalError):  # Django's tests forbid those that they have not named
        return False
    return True


def _line(error: BaseException) -> str:
    return f"{kind_of(error)}: {one_line(text_of(error))}"


def crash_tests(
    module: str | ModuleType,
    /,
    *,
    skip: Collection[str] = (),
    **options: Unpack[CrashOptions],
) -> Callable[[type[T]], type[T]]:
    """Decorate a class of tests: it gets a test of ``assert_idempotent`` for each job that ``module`` declares.

    The test ``test_kills_of_NAME`` takes its call from the method ``example_NAME`` of the class; a job without
    parameters needs none, and without an example the test of another one fails. A test of this name in the class stays.
    ``skip``: names of jobs to leave out. The options are those of ``assert_idempotent``. Raises ``ValueError`` for
    names that are no jobs of the module.
    """
    found = import_module(module) if isinstance(module, str) else module
    jobs = {
        name: each
        for name, each in vars(found).items()
        if isinstance(each, JobDefinition) and each.func.__module__ == found.__name__
    }
    for name in skip:
        if name not in jobs:
            raise ValueError(f"{found.__name__} declares no job {name!r}{did_you_mean(name, list(jobs))}")
    if not jobs:
        raise ValueError(f"{found.__name__} declares no jobs")

    def decorate(tests: type[T]) -> type[T]:
        for name in jobs.keys() - set(skip):
            if not hasattr(tests, f"test_kills_of_{name}"):
                setattr(tests, f"test_kills_of_{name}", _test_of(name, jobs[name], options))
        return tests

    return decorate


def _test_of(name: str, job: JobDefinition[..., object], options: CrashOptions) -> Callable[[object], None]:
    def test(self: object) -> None:
        try:
            call = getattr(self, f"example_{name}", job.bind)()
        except TypeError as error:
            how = f"declare example_{name}(self) that returns {name}.bind(…)"
            raise AssertionError(f"{job.name} has no example that fits it ({error}): {how}.") from error
        assert_idempotent(call, **options)

    test.__name__ = test.__qualname__ = f"test_kills_of_{name}"
    test.__doc__ = f"{job.name} does its work once, no matter where it is killed."
    return test
