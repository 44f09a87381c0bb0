"""Notices: the leader notices abandoned jobs and other problems, and registers the job that delivers the notice.

One row says how far notices have reached. One statement moves it on and registers the delivery, both or neither, and
compares with what was read before. Each abandoned job is thus in one notice: two leaders make one, and a leader that
dies has made it completely or not at all. The first notice after silence comes at once, what follows is gathered. As
long as a delivery is under way there is no other, so a dead mail server occupies one place of one worker.

An end gets its instant when its statement starts, and becomes visible when its transaction commits. Notices reach only
up to an instant before which no end can still appear: the transactions that were writing jobs then have ended since
(``Horizon``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.flows.builtin import DELIVERY_ATTEMPTS, DELIVERY_PRIORITY, DELIVERY_SECONDS
from django_pgjobs.inspection import liveness
from django_pgjobs.inspection.words import span
from django_pgjobs.logs import log
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.states import NOTIFY
from django_pgjobs.store import noticing, schemas
from django_pgjobs.store.database import Database, Picking, on
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.store.noticing import Failures, NoticeReached, Writers
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.notify_failures import NotifyFailures

CHECK_SECONDS = 60.0
"""Interval at which it looks for problems, and the delay of the first look after a leader's election: workers have just
started, then."""

PATIENCE_SECONDS = 60.0
"""Time that notices wait for a transaction that writes jobs; what it abandons later may be in none."""

DELIVERING_SECONDS = 5.0
"""Interval at which to look whether a delivery has ended."""

UNLED_SECONDS = 300.0
"""Time without a leader that needs no notice: a deployment may take minutes."""

UNLED_IN_SCHEMA_SECONDS = 3 * schemas.UNLED_SECONDS
"""The same in one of many schemas: a worker comes to a sleeping one when none has led there for a third of this."""

BOUNDS = (50_000, 1_000)
"""Number of jobs that a notice counts; fewer if the server cannot count so many in time."""

MOST_KNOWN = 100
MOST_CHARS = 200

ProblemKey = tuple[str, str]
"""The code and the subject of a problem."""

PREPARED = "-1/"
"""Prefix of prepared transactions: until a moment ago one may have had another name."""


def problems_of(db: Picking) -> list[HealthProblem]:
    """Return what is wrong now."""
    with db.orm() as using:
        inside = on(using)
        return [each for each in health.problems(inside, using, Limits()) if not each.is_note]


class Horizon:
    """The instant before which every end is visible, as far as it is known."""

    def __init__(self) -> None:
        self.mark: Writers | None = None
        self.marked_at = 0.0
        self.settled: str | None = None
        self.ignored: frozenset[str] = frozenset()

    def advance(self, db: Database, now: float) -> str | None:
        """Ask who is writing jobs, and return the horizon; None if it is not known yet.

        It moves on when the writers of the time before have ended, or have written for ``PATIENCE_SECONDS``.
        """
        found = noticing.list_writers(db)
        self.ignored &= found.transactions
        writers = found.transactions - self.ignored
        if self.mark is not None:
            late = {each for each in writers if each in self.mark.transactions or each.startswith(PREPARED)}
            if late and now < self.marked_at + PATIENCE_SECONDS:
                return self.settled
            if late:
                log.warning("notice of failures waits no longer for open transactions transactions=%d", len(late))
                self.ignored |= late
                writers -= late
            self.settled = self.mark.since
        self.mark, self.marked_at = Writers(found.since, writers), now
        return self.settled

    def reset(self) -> None:
        """Forget how far it was known: after a silence, a notice would reach no further than to its beginning."""
        self.mark = self.settled = None


class Notifier:
    """Makes notices; ``find`` returns the problems there are now. A duty of the leader."""

    def __init__(self, leader: Leader, find: Callable[[Picking], list[HealthProblem]] = problems_of) -> None:
        self.leader = leader
        self.find = find
        self.term: int | None = None
        self.check_at = 0.0
        self.quiet_until = 0.0
        self.rest_until = 0.0
        self.found: dict[ProblemKey, str] | None = None
        """The problems there were at the last check of this term."""

        self.unled = ""
        self.horizon = Horizon()
        self.waits = False
        """True if there were failures to tell, but not yet all that ended before them were visible."""

    def __call__(self, db: Any) -> int | None:
        """Take a turn, and return the job that delivers a notice, if it made one. Without the setting no statement.

        Repeatable, also by several at once: one of them makes the notice.
        """
        conf, self.waits = get_conf().notify_failures, False
        if conf is None:
            self.rest_until = clock.monotonic() + CHECK_SECONDS
            return None
        now = clock.monotonic()
        self._begin_term(now)
        if now >= self.check_at:
            self.check_at = now + CHECK_SECONDS
            self.found = _by_key(self.find(db))
        if now < self.quiet_until:
            return None
        reached = noticing.read_notice(db)
        rest = 0.0 if reached.notified_seconds is None else conf.every_seconds - reached.notified_seconds
        if rest > 0 or reached.delivering:
            self.horizon.reset()
            self.quiet_until = now + (DELIVERING_SECONDS if rest <= 0 else min(rest, conf.every_seconds))
            return None
        return self._notify(db, conf, reached, now)

    def _begin_term(self, now: float) -> None:
        if self.leader.term == self.term:
            return
        self.term, self.found, self.quiet_until = self.leader.term, None, 0.0
        seconds, sleeps = self.leader.unled_seconds, liveness.sleeps()
        is_long = seconds is not None and seconds >= (UNLED_IN_SCHEMA_SECONDS if sleeps else UNLED_SECONDS)
        # A visit to a schema is over before a second look: it looks at once, unless workers may have just started.
        self.check_at = now if sleeps and not is_long else now + CHECK_SECONDS
        if seconds is not None and is_long:
            self.unled = f"No worker led for {span(seconds)}: schedules did not fire, and nothing was pruned."

    def _notify(self, db: Database, conf: NotifyFailures, reached: NoticeReached, now: float) -> int | None:
        until, failures = reached.finished_at, Failures(0, False, [])
        if not reached.news:
            self.horizon.reset()
        else:
            settled = self.horizon.advance(db, now)
            if settled is not None:
                failures = _read(db, conf, reached.since, settled)
            self.waits = not failures.read
            if settled is None or self.waits:
                return None
            until = settled
        known = {(code, subject) for code, subject in reached.problems}
        found = known if self.found is None else set(self.found)
        appeared = [(code, (self.found or {})[code, subject]) for code, subject in sorted(found - known)]
        if self.unled:
            appeared.append(("unled", self.unled))
        delivery = _delivery(failures, appeared) if failures.groups or appeared else None
        if delivery is None and not failures.read and found == known:
            return None
        written, job_id = noticing.write_notice(
            db, reached, until=until, problems=sorted(found), delivery=delivery, notify=get_conf().notify
        )
        if written and delivery is not None:
            self.unled = ""
            log.info(
                "notice of failures registered job=%d jobs=%d groups=%d problems=%d",
                job_id, failures.jobs, failures.all_groups, len(appeared),
            )  # fmt: skip
        return job_id


def _read(db: Database, conf: NotifyFailures, after: str, until: str) -> Failures:
    given: dict[str, Any] = {"queues": conf.queues, "names": conf.names, "groups": conf.at_most}
    try:
        return noticing.read_failures(db, after=after, until=until, most=BOUNDS[0], **given)
    except psycopg.errors.QueryCanceled:
        return noticing.read_failures(db, after=after, until=until, most=BOUNDS[1], **given)


def _by_key(problems: list[HealthProblem]) -> dict[ProblemKey, str]:
    found = {(problem.code, problem.subject[:MOST_CHARS]): problem.text for problem in problems}
    return dict(sorted(found.items())[:MOST_KNOWN])


def _delivery(failures: Failures, appeared: list[tuple[str, str]]) -> NewJob:
    digest = {
        "since": failures.first_at.isoformat() if failures.first_at else None,
        "until": failures.last_at.isoformat() if failures.last_at else None,
        "jobs": failures.jobs,
        "at_least": failures.more,
        "groups": [
            {**group._asdict(), "first_at": group.first_at.isoformat(), "last_at": group.last_at.isoformat()}
            for group in failures.groups
        ],
        "other_groups": failures.all_groups - len(failures.groups),
        "problems": [(code, text[: 5 * MOST_CHARS]) for code, text in appeared],
    }
    return NewJob(
        NOTIFY,
        json.dumps({"args": [digest], "kwargs": {}}),
        OWN_QUEUE,
        DELIVERY_PRIORITY,
        max_attempts=DELIVERY_ATTEMPTS,
        timeout_seconds=DELIVERY_SECONDS,
    )
