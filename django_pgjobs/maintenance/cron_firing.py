"""The leader makes the fires of schedules.

It learns of them from rows only (``cron_declaring``), so it may run other code than the workers whose entries it fires.
Each half second the leader reads the entries that are due by the database's clock. One statement makes a
fire, the mark and the job together, and compares with the previous fire. Two leaders, or ten, therefore make one fire,
and a leader that dies has made it completely or not at all. An invalid entry is marked *broken* with the reason, and
does not delay the others.

Fires that are due now go first, in each turn. What is late shares the rest of it: first those that make one fire, then
those that make up for all they have missed, each a slice in its turn. Their fires are computed once and kept until they
are made, whatever else becomes due.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.store import firing
from django_pgjobs.store.database import Database, refusal_of
from django_pgjobs.store.firing import Fired, ListedCron
from django_pgjobs.values import schedule as cron
from django_pgjobs.values.fires import Fires
from django_pgjobs.values.schedule import AFTER_COMPLETION, DueFires, InvalidCron

EVERYTHING_SECONDS = 5.0
"""Interval at which to check a slice of all entries: one may have been changed by hand."""

SHELVED_SECONDS = 86_400.0
"""Delay before the next look at an entry that may not fire, or never will, as far as is known."""

BROKEN_SECONDS = 60.0
"""Interval at which to retry an entry whose job could not be inserted."""

LOCKED_SECONDS = 10.0
"""Time for which to skip an entry whose key belongs to a job that is not committed yet."""

TURN_SECONDS = 0.5
"""Time in which one turn makes fires that are due now; the rest waits for the next turn, so that no rescue waits for
it."""

REST_SECONDS = 0.25
"""Time in which it plans and makes late fires afterwards: with the pause before a turn, less than the shortest
interval."""

SLICE = 250
"""Number of missed fires of an entry that one statement makes."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

UNINSERTABLE = "its job cannot be inserted"
"""The reason of entries that only a successful fire proves mended."""

UNKNOWN, UNFIT_ARGUMENTS = "no worker's code knows its job", "its arguments do not fit its job"
"""The reasons of schedules made at run time that only a worker with fitting code mends (``cron_rows``)."""

UNFIT = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError)
"""Errors that the row of an entry causes, not the server."""


@dataclass(slots=True)
class PendingFires:
    """Fires of an entry to make, and the one after them; ``entry`` is its state after the last fire that was made.

    Kept until they are made, however long that takes; as numbers, for a thousand entries may each have a thousand.
    """

    entry: ListedCron
    seconds: array[int]
    upcoming: datetime | None

    def fits(self, entry: ListedCron) -> bool:
        """Return whether the entry is unchanged; if not, its fires must be computed again."""
        return _grounds(entry) == _grounds(self.entry)

    def some(self) -> list[datetime]:
        """Return the first fires, as many as one statement makes."""
        return [datetime.fromtimestamp(each, UTC) for each in self.seconds[:SLICE]]

    def after(self, count: int) -> datetime | None:
        """Return the fire after so many."""
        return datetime.fromtimestamp(self.seconds[count], UTC) if count < len(self.seconds) else self.upcoming


def _grounds(entry: ListedCron) -> tuple[object, ...]:
    schedule = (entry.expression, entry.zone, entry.misfire, entry.overlap, entry.starts_at, entry.ends_at)
    return (*schedule, entry.broken, entry.last_fire_at, entry.in_force_since, entry.paused_until)


class Firer:
    """Makes the fires that are due. Several may call it at once: each fire is made once.

    It works while ``may`` allows it and until the call's time is over. Entries that are late or not planned take turns,
    across calls. An entry that must make up for a thousand fires thus delays neither a rescue nor another entry.
    """

    def __init__(self, may: Callable[[], bool] = lambda: True) -> None:
        self.may = may
        self.everything_at = 0.0
        self.beyond = ""
        """The last name of the latest slice of all entries."""
        self.seen: dict[str, tuple[int, float]] = {}
        self.passed: set[str] = set()
        """The names in the slices since the last time that all entries were read; ``seen`` forgets the others then."""
        self.locked_until: dict[str, float] = {}
        self.turns: deque[str] = deque()
        """Entries that are late, or not planned, in the order of their turns."""
        self.begun: dict[str, PendingFires] = {}

    def __call__(self, db: Database) -> None:
        """Check each entry that is due, or that may have been changed by hand."""
        now = clock.monotonic()
        entries, due = self._list(db, now)
        self._work(db, entries, due, now + TURN_SECONDS)
        self._work(db, entries, self.turns, clock.monotonic() + REST_SECONDS)

    def has_work(self) -> bool:
        """Return whether there are fires that are still to be made, or entries that are tried again."""
        return bool(self.turns or self.begun or self.locked_until)

    def is_due(self) -> bool:
        """Return whether a slice of all entries is to be checked."""
        return clock.monotonic() >= self.everything_at

    def _work(self, db: Database, entries: dict[str, ListedCron], names: deque[str], until: float) -> None:
        while names and self.may():
            name = names.popleft()
            pending_entry = self._step(db, entries[name])
            if pending_entry is not None:
                entries[name] = pending_entry
                self.turns.append(name)
            if clock.monotonic() >= until:
                break

    def _list(self, db: Database, now: float) -> tuple[dict[str, ListedCron], deque[str]]:
        """Return the entries that may have something to do, and the names of those that are due; queue the others."""
        everything = now >= self.everything_at
        if everything:
            self.everything_at = now + EVERYTHING_SECONDS
        firing.shelve_crons(db, seconds=SHELVED_SECONDS)
        self.locked_until = {name: until for name, until in self.locked_until.items() if now < until}
        listed = firing.list_crons(
            db,
            everything=everything,
            beyond=self.beyond,
            pending=[*self.turns, *self.begun],
            excluded=list(self.locked_until),
        )
        if everything:
            self._note_slice([entry.name for entry in listed if entry.in_slice])
        entries = {entry.name: entry for entry in listed}
        self.begun = {name: pending for name, pending in self.begun.items() if name in entries}
        waiting = set(self.turns)
        named = [entry for name, entry in entries.items() if name in waiting or self._needs_check(entry, now)]
        named.sort(key=lambda entry: entry.next_fire_at or entry.now)
        due = deque(entry.name for entry in named if _is_due(entry) and not _is_late(entry))
        behind = [entry for entry in named if not _is_due(entry) or _is_late(entry)]
        quick = [entry.name for entry in behind if _is_late(entry) and not entry.misfire.startswith(cron.ALL)]
        others = [entry.name for entry in behind]
        in_turn = [name for name in self.turns if name in entries]
        gone = set(due)
        self.turns = deque(name for name in dict.fromkeys([*quick, *in_turn, *others]) if name not in gone)
        return entries, due

    def _note_slice(self, names: list[str]) -> None:
        self.passed.update(names)
        self.beyond = names[-1] if len(names) >= firing.MOST_LISTED else ""
        if not self.beyond:
            self.seen = {name: facts for name, facts in self.seen.items() if name in self.passed}
            self.passed = set()

    def _needs_check(self, entry: ListedCron, now: float) -> bool:
        if now < self.locked_until.get(entry.name, 0.0):
            return False
        facts = hash((entry.expression, entry.zone, entry.misfire, entry.overlap, entry.starts_at, entry.ends_at))
        before, since = self.seen.get(entry.name, (None, 0.0))
        if before != facts:
            self.seen[entry.name] = facts, now
            return True
        if entry.broken and (entry.next_fire_at is None or entry.next_fire_at > entry.now):
            self.seen[entry.name] = facts, now if (again := now >= since + BROKEN_SECONDS) else since
            return again
        return entry.next_fire_at is None or entry.next_fire_at <= entry.now

    def _step(self, db: Database, entry: ListedCron) -> ListedCron | None:
        """Make the next fire of an entry; return the entry's new state if it has more fires to make."""
        pending = self.begun.get(entry.name)
        try:
            if pending is None or not pending.fits(entry):
                self.begun.pop(entry.name, None)
                pending = _fires_to_make(db, entry)
            if pending is None:
                return None
            self.begun[entry.name] = pending
            return self._fire(db, entry, pending)
        except UNFIT as error:
            self.begun.pop(entry.name, None)
            _break(db, entry, f"{UNINSERTABLE}: {refusal_of(error)}")
        except psycopg.errors.LockNotAvailable:
            self.locked_until[entry.name] = clock.monotonic() + LOCKED_SECONDS
            log.warning(
                "fire waits, a job that has its job's key is not committed yet, or a row or table is locked cron=%s",
                entry.name,
            )
        return None

    def _fire(self, db: Database, entry: ListedCron, pending: PendingFires) -> ListedCron | None:
        fires = pending.some()
        made = firing.fire_cron(db, entry, fires, pending.after(len(fires)), notify=get_conf().notify)
        if not made:
            self.begun.pop(entry.name, None)
            log.debug("fire already claimed cron=%s fire=%s", entry.name, _text(fires[0]))
            return None
        if entry.broken:
            log.info("cron entry is mended cron=%s", entry.name)
        for fired in made:
            _log_fired(entry, fired)
        last_job_id = max((fired.job_id for fired in made if fired.job_id is not None), default=entry.last_job_id)
        pending.entry = entry._replace(last_fire_at=made[-1].fire_at, last_job_id=last_job_id, broken="")
        del pending.seconds[: len(made)]
        if pending.seconds and len(made) == len(fires):
            return pending.entry
        self.begun.pop(entry.name, None)
        return None


def _is_due(entry: ListedCron) -> bool:
    return entry.next_fire_at is not None and entry.next_fire_at <= entry.now


def _is_late(entry: ListedCron) -> bool:
    return entry.next_fire_at is not None and entry.next_fire_at <= entry.now - timedelta(seconds=firing.LATE_SECONDS)


def _fires_to_make(db: Database, entry: ListedCron) -> PendingFires | None:
    try:
        schedule = cron.bounded_schedule_of(entry.expression, entry.zone, entry.starts_at, entry.ends_at)
        misfire, _ = cron.stored_policies(entry.misfire, entry.overlap)
    except InvalidCron as error:
        _break(db, entry, str(error))
        return None
    if entry.broken.startswith((UNKNOWN, UNFIT_ARGUMENTS)):
        return None
    if entry.broken and not entry.broken.startswith(UNINSERTABLE):
        # The entry is due at once; the fire then shows whether its job can be inserted.
        if firing.break_cron(db, entry, ""):
            log.info("cron entry is mended cron=%s", entry.name)
        return None
    return _evaluate(db, entry, schedule, misfire)


def _break(db: Database, entry: ListedCron, reason: str) -> None:
    reported = reason == entry.broken
    if (not reported or entry.next_fire_at is not None) and firing.break_cron(db, entry, reason) and not reported:
        log.error("cron entry is broken, it does not fire until it is mended cron=%s: %s", entry.name, reason)


def _evaluate(db: Database, entry: ListedCron, schedule: Fires, misfire: cron.Misfire) -> PendingFires | None:
    if entry.overlap == AFTER_COMPLETION:
        if entry.busy:
            # The next fire is computed once the job has ended.
            if entry.next_fire_at is not None:
                firing.plan_cron(db, entry, None)
            return None
        found = cron.due(schedule, after=_after_completion(entry), now=entry.now, misfire=misfire)
        return _plan(db, entry, found, then=None)
    found = cron.due(schedule, after=_floor(entry), now=entry.now, misfire=misfire)
    if found.fires and entry.busy:
        log.info("fire skipped, the last job is not finished cron=%s fire=%s", entry.name, _text(found.fires[-1]))
        firing.plan_cron(db, entry, found.upcoming, found.fires[-1], again_seconds=SHELVED_SECONDS)
        return None
    return _plan(db, entry, found, then=found.upcoming)


def _floor(entry: ListedCron) -> datetime:
    """Return the instant up to which all fires have been made or skipped, or were never due."""
    return max(entry.last_fire_at or entry.created_at, *_not_before(entry))


def _not_before(entry: ListedCron) -> list[datetime]:
    """Return instants before which no fire counts as missed: a change of the schedule, the end of a pause."""
    ends = (entry.in_force_since, entry.paused_until)
    return [LONG_AGO, *(end for end in ends if end is not None and end <= entry.now)]


def _after_completion(entry: ListedCron) -> datetime:
    """Return the instant after which the next fire comes: the last job's end, or now if the job is gone."""
    if entry.next_fire_at is not None:
        return max(entry.next_fire_at - timedelta(microseconds=1), *_not_before(entry))
    if entry.last_job_id is None:
        return _floor(entry)
    return max(_floor(entry), entry.last_end or entry.now)


def _plan(db: Database, entry: ListedCron, found: DueFires, *, then: datetime | None) -> PendingFires | None:
    """Return the fires to make, in order, None if there are none; ``then`` is the instant of the fire after them."""
    if found.skipped is not None:
        log.warning("missed fire skipped, as its policy says cron=%s fire=%s", entry.name, _text(found.skipped))
    if found.fires:
        return PendingFires(entry, array("q", (int(fire.timestamp()) for fire in found.fires)), then)
    if found.skipped is not None or found.upcoming is None or found.upcoming != entry.next_fire_at:
        firing.plan_cron(db, entry, found.upcoming, found.skipped, again_seconds=SHELVED_SECONDS)
    return None


def _log_fired(entry: ListedCron, fired: Fired) -> None:
    if fired.job_id is None:
        log.info(
            "fired without a job, an unfinished one has its key cron=%s name=%s fire=%s",
            entry.name, entry.job_name, _text(fired.fire_at),
        )  # fmt: skip
    else:
        log.info(
            "cron entry fired cron=%s name=%s job=%d fire=%s",
            entry.name, entry.job_name, fired.job_id, _text(fired.fire_at),
        )  # fmt: skip


def _text(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds")
