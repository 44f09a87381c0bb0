"""The keep thread: renews leases, beats, and each second reads lost claims and requests to cancel or release.

One UPDATE renews all leases and touches no job row; one plain read finds the flags. While the worker holds no job and
the check finds no pause, it reads none, as the notification of one wakes it. Three answers: renewed, lost,
unreachable; only *lost* is final. On trouble the next try comes sooner, after a quarter of the period. The answer to a
heartbeat has the last request of an operator, and says whether there are requests for stacks of its jobs, which
a notification says sooner. Posts ``Renewed``, ``FlagsRead``, ``PausesRead``, ``ControlRead`` and ``StacksAsked``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from uuid import UUID

import psycopg

from django_pgjobs import clock
from django_pgjobs.logs import listed, log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import finalising, keeping, pausing, schemas, stacks
from django_pgjobs.store.database import is_data_trouble
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.store.stacks import StackAnswer
from django_pgjobs.worker.shared.connection import LONG_WAIT_SECONDS, TROUBLE, WorkerConnection
from django_pgjobs.worker.threads.inbox_messages import ControlRead, FlagsRead, PausesRead, Renewed, StacksAsked
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

FLAGS_SECONDS = 0.75
PAUSES_SECONDS = 0.5
"""Interval at which to read flags and pauses: the worker obeys a pause or cancel within a second, even without
notification."""

CHECKED_SECONDS = 5.0
"""Time that the answer of a check that there is no pause holds: two of them, and some."""

YOUNG_SECONDS = 0.1
"""Read no flags of jobs claimed this recently: most are short and end before the answer."""

LEAST_RETRY_SECONDS = 0.25


class LeaseKeeper(Loop):
    """Keeps the worker's claims.

    ``held`` returns (id, claim_id) of every held job, ``check_ins`` claim_id → seconds until a job of it is given up,
    ``facts`` the columns of the heartbeat row. This thread calls them. ``overdue`` returns the jobs to give up,
    ``listens`` whether notifications arrive.
    """

    role = "keep"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        *,
        held: Callable[[float], list[tuple[int, str]]],
        check_ins: Callable[[], dict[str, float]],
        facts: Callable[[], dict[str, object]],
        lease_seconds: float,
        renew_seconds: float,
        beat_seconds: float,
        overdue: Callable[[], list[tuple[int, str]]] = list,
        listens: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(connect, inbox)
        self.held = held
        self.check_ins = check_ins
        self.facts = facts
        self.lease_seconds = lease_seconds
        self.renew_seconds = renew_seconds
        self.beat_seconds = beat_seconds
        self.overdue = overdue
        self.listens = listens
        self.unpaused_until = 0.0
        self.next_renewal = 0.0
        self.renewed_at = clock.monotonic()
        self.next_beat = 0.0
        self.next_flags = 0.0
        self.next_pauses = 0.0
        self.pauses: Pauses | None = None
        self.control_read = 0
        self.stacks_asked = False
        self.answers: deque[StackAnswer] = deque()

    def beat_now(self) -> None:
        """Write a heartbeat now, as it has news; called by the main thread."""
        with self.wake:
            self.next_beat = 0.0
            self.wake.notify_all()

    def read_stacks_now(self) -> None:
        """Read the requests for stacks now, as there is one, perhaps to another worker; called by the listen thread."""
        with self.wake:
            self.stacks_asked = True
            self.wake.notify_all()

    def answer_stack(self, answer: StackAnswer) -> None:
        """Store where a job is; called by the main thread."""
        with self.wake:
            self.answers.append(answer)
            self.wake.notify_all()

    def read_pauses_now(self) -> None:
        """Read the pauses now, as one was written or ended; called by the listen thread."""
        with self.wake:
            self.next_pauses = 0.0
            self.wake.notify_all()

    def saw_pauses(self, are_any: bool) -> None:
        """Learn whether there are pauses now; called by the maintenance thread."""
        if not are_any:
            self.unpaused_until = clock.monotonic() + CHECKED_SECONDS
        elif self.unpaused_until:
            self.unpaused_until = 0.0
            self.read_pauses_now()

    def serve(self, db: WorkerConnection) -> None:
        """Renew first, so that after an outage nothing else is done before our leases are extended."""
        self.next_renewal = self.next_flags = 0.0
        while not self.stopping.is_set():
            now = clock.monotonic()
            if now >= self.next_renewal:
                self._renew(db, now)
            if now >= self.next_flags:
                self.next_flags = now + FLAGS_SECONDS
                self._read_flags(db)
            if now >= self.next_pauses and not self._puts_off(now):
                self._read_pauses(db, now)
            if now >= self.next_beat:
                self.next_beat = now + self.beat_seconds  # first: a row held elsewhere must not be asked for again
                self._beat(db)
            if self.stacks_asked:
                self._read_stacks(db)
            while self.answers:
                self._answer(db, self.answers.popleft())
            pause, slept_at = self._pause_seconds(), clock.monotonic()
            with self.wake:
                self.wake.wait_for(self._is_woken, timeout=pause)
            overslept = clock.monotonic() - slept_at - pause
            if overslept > LONG_WAIT_SECONDS:
                db.waited(clock.monotonic(), overslept)  # stopped, or suspended with its machine

    def _is_woken(self) -> bool:
        asked = self.stacks_asked or bool(self.answers)
        return self.stopping.is_set() or not self.next_pauses or not self.next_beat or asked

    def _beat(self, db: WorkerConnection) -> None:
        control = keeping.beat(db, self.facts())
        if control is not None and control.number > self.control_read:
            self.control_read = control.number
            self.inbox.post(ControlRead(control))
        self.stacks_asked = self.stacks_asked or (control is not None and control.stacks)

    def _read_stacks(self, db: WorkerConnection) -> None:
        self.stacks_asked = False
        if asked := stacks.list_stacks(db, self.facts()["id"]):
            self.inbox.post(StacksAsked(asked))

    def _answer(self, db: WorkerConnection, answer: StackAnswer) -> None:
        """Write an answer. One that is lost with the connection is asked for again by the next heartbeat."""
        try:
            stacks.answer_stack(db, self.facts()["id"], answer)
        except (psycopg.Error, UnicodeError) as error:
            if not is_data_trouble(error):
                raise
            # The database's encoding lacks a character of the code.
            plain = answer.stack.encode("ascii", "backslashreplace").decode()
            stacks.answer_stack(db, self.facts()["id"], answer._replace(stack=plain))

    def holds(self) -> list[str]:
        """Return the claims this worker holds; for the rescue, in its thread."""
        return list(self.check_ins())

    def silences(self, longer_than: float) -> list[tuple[float, float]]:
        """Return when renewals could not get through, as ended when and after how many seconds.

        Without a connection that is now, with one at least since it was made. Called in the thread that rescues.
        """
        db = self.db
        if db is None or db.gone:
            return [(clock.monotonic(), 0.0)]
        return [(db.connected_at, 0.0), *(wait for wait in db.waits() if wait[1] > longer_than)]

    def _pause_seconds(self) -> float:
        due = min(self.next_renewal, self.next_beat, self.next_flags, self.next_pauses)
        return max(0.0, due - clock.monotonic())

    def _renew(self, db: WorkerConnection, asked_at: float) -> None:
        self.next_renewal = asked_at + max(self.renew_seconds / 4, min(LEAST_RETRY_SECONDS, self.renew_seconds))
        claims = self.check_ins()
        renewed: set[str] = set()
        if claims:
            renewed = keeping.renew_claims(db, claims, lease_seconds=self.lease_seconds)
            if len(renewed) < len(claims):
                # Rescued, ended this moment, or a row is locked: the flags tell which jobs were lost.
                log.debug("claims not renewed as a whole claims=%d", len(claims) - len(renewed))
        if len(renewed) == len(claims):
            # Otherwise a transaction may hold a row for a moment while its lease runs: try again sooner.
            self.next_renewal = asked_at + self.renew_seconds
            self.renewed_at = asked_at
        self.inbox.post(Renewed(asked_at, renewed))

    def _read_flags(self, db: WorkerConnection) -> None:
        fences = self.held(clock.monotonic() - YOUNG_SECONDS)
        if not fences:
            return
        asked_at = clock.monotonic()
        flags = keeping.read_flags(db, fences)
        self.inbox.post(FlagsRead(asked_at, {fence[0] for fence in fences}, flags))

    def _puts_off(self, now: float) -> bool:
        """Put off reading pauses if that is not needed, and return whether it is put off.

        They have been read before, there are none, and the worker holds no job that one concerns.
        """
        if self.pauses is None or self.pauses or now >= self.unpaused_until or not self.listens() or self.check_ins():
            return False
        with self.wake:
            woken = not self.next_pauses
            self.next_pauses = 0.0 if woken else self.next_flags
        return not woken

    def _read_pauses(self, db: WorkerConnection, now: float) -> None:
        self.next_pauses = now + PAUSES_SECONDS
        try:
            pauses = pausing.read_pauses(db)
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            # A transaction locks the table: the leases must not wait for it each time. Known pauses stay in force.
            self.next_pauses = clock.monotonic() + self.renew_seconds
            log.error("pauses cannot be read, those known before stay in force: %s", one_line(error))
            return
        if pauses != self.pauses:
            former = self.pauses or Pauses()
            if (pauses.queues, pauses.names) != (former.queues, former.names):
                log.info("pauses have changed queue=%s name=%s", listed(pauses.queues), listed(pauses.names))
            if pauses.limits != former.limits:
                limited = sorted({each.name for each in pauses.limits})
                log.info("limits set by operators have changed limits=%d: %s", len(pauses.limits), listed(limited))
            self.pauses = pauses
            self.inbox.post(PausesRead(pauses))

    def _trouble(self, error: BaseException, failures: int, *, gone: bool) -> None:
        self.next_renewal = self.next_pauses = 0.0
        super()._trouble(error, failures, gone=gone)

    def _pause(self, failures: int) -> None:
        self.stopping.wait(max(self.renew_seconds / 4, min(LEAST_RETRY_SECONDS, self.renew_seconds)))

    def farewell(self, facts: dict[str, object], worker: UUID, *, remove: bool = False) -> None:
        """Write a last heartbeat on a separate connection, without waiting for a server that is away.

        With ``remove`` delete the heartbeat instead, unless claims are left: the same worker may come again.

        Also delete ledger rows of ended jobs: a renewal of ours, or a rescue, may have held some at the first try.
        """
        try:
            db = self.connect()
        except TROUBLE:
            return
        try:
            if not remove:
                keeping.beat(db, facts)
            if left := finalising.list_claims(db, worker):
                finalising.delete_claims(db, left)
            if remove and not schemas.remove_worker(db, worker):
                keeping.beat(db, facts)
        except (*TROUBLE, psycopg.Error):  # a schema may have been dropped
            log.debug("last heartbeat not written")
        finally:
            db.close()
