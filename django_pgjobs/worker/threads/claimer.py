"""The claim thread: claims ready jobs when main wants some, and sleeps until the next is due.

It posts ``Claimed`` with the jobs of a claim, and ``Idle`` after a full pass that found nothing ready. A claim whose
answer was lost is in doubt (``claims_in_doubt``). If a claim fails on the data of a row, the thread halves it until one
row is left, claims that row by its id, and parks it if this fails too: two workers may do so at once.

If the code has ``async def`` jobs, there are two *lines*: jobs for the loop (True) and all others (False), each with
its own frontier. A queue that has places has lines of its own. One statement claims from all lines, as many as main has
room for (``claim_room``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from uuid import UUID, uuid4

import psycopg

from django_pgjobs import clock
from django_pgjobs.execution.single_job import park_unclaimable
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, ClaimReply, Line, LineKey, on_loop
from django_pgjobs.store.database import Database, is_data_trouble, sqlstate_of
from django_pgjobs.store.finalising import ReleasedJob
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.claim_options import ClaimOptions, log_claimed
from django_pgjobs.worker.threads.claim_room import ClaimRoom
from django_pgjobs.worker.threads.claims_in_doubt import ClaimsInDoubt
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import Claimed, Idle
from django_pgjobs.worker.threads.locked_rows import LockedRows
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts
from django_pgjobs.worker.threads.reach import Visit
from django_pgjobs.worker.threads.ready_hints import NextDue, ReadyHints

BATCH = 500
POLL_AGAIN_SECONDS = 0.008
BUSY_SECONDS = 0.105
POLL_SOON_SECONDS = 0.001
"""After a notification a producer is silent for 5 ms, or for 100 ms if it said that it is busy: see ``waking``. While
it is, the claimer polls and so finds jobs registered in silence: ``POLL_SOON_SECONDS`` after it found some, then twice
as late each time, up to ``POLL_AGAIN_SECONDS``. Several workers share such polls that way."""

SILENT_SECONDS = 0.25
"""Time that the answer to a claim may take before other homes get the room that it asked for."""

DEAF_POLL_SECONDS = 1.0
FIRST_POLL_SECONDS = 0.1
"""The first sleep after something was announced, claimed or due. A claim skips rows that others have locked, and no
notification says when they are free: so each later sleep is as long as nothing has happened, up to ``poll_seconds``.
"""


class Claimer(Loop):
    """Claims on request."""

    role = "claim"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        frontier: Frontier,
        options: ClaimOptions,
        async_names: frozenset[str] = frozenset(),
        queues: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(connect, inbox)
        self.async_names = async_names
        self.room = ClaimRoom(async_names, queues)
        self.frontier = frontier
        frontier.walks_past = bool(async_names)
        frontier.excluded |= queues
        frontier.serves_own = OWN_QUEUE not in queues
        self.lines: dict[LineKey, Frontier] = {line: frontier.of(line) for line in self.room.dry}
        self.options = options
        self.halted = False
        self.paused: frozenset[str] = frozenset()
        self.listening = threading.Event()
        self.hints = ReadyHints()
        self.notified = self.seen = 0
        self.announced: set[str] = set()
        """Groups of queues of which jobs were announced while their places were taken."""

        self.unconfirmed: UUID | None = None
        self.in_doubt = ClaimsInDoubt(options, self._on_released)
        self.asked: tuple[LineKey, ...] = (False,)
        self.left: dict[LineKey, bool] = {}
        """True for a line that surely has more: the last claim took as many as it might, or has not read it since."""

        self.next_due, self.locked = NextDue(), LockedRows()
        self.polled_at = self.woken_at = self.news_at = self.settles_at = self.busy_until = 0.0
        self.due_at = math.inf
        self.pause_seconds = POLL_SOON_SECONDS

    # Called by other threads

    def request(
        self, threads: int, loop: int = 0, *, most: int | None = None, slots: Mapping[str, int] | None = None
    ) -> None:
        """Set how many jobs main has room for, including claimed ones it has not read of; replaces the last value.

        ``most`` caps the total, regardless of the room, and ``slots`` what queues with places get of it.
        """
        with self.wake:
            before = self.room.is_free()
            self.room.offer(threads, loop, most, slots)
            news = {group for group in self.announced if not self.room.is_full(group)}
            self.announced -= news
            self.notified += bool(news)
            if self.room.is_free() and (not before or news or self.room.may_find_more()):
                self.wake.notify_all()

    def adopted(self, jobs: Iterable[ClaimedJob]) -> None:
        """Record that main has read of these claimed jobs; until then they take room from what it reports."""
        with self.wake:
            self.room.adopted(jobs)

    def wake_for(self, pair: tuple[str, int]) -> None:
        """Record that jobs of a pair became ready; called by the listen thread."""
        with self.wake:
            self.hints.add(pair)
            self._wake_up(pair[0])

    def wake_for_admitted(self, pair: tuple[str, int]) -> None:
        """Record admitted jobs, perhaps older than those being claimed; called by the admitter."""
        with self.wake:
            self.hints.add_admitted(pair)
            self.wake_for(pair)

    def wake_for_released(self, queue: str) -> None:
        """Record released jobs, perhaps far older than those being claimed; called by the listen thread."""
        with self.wake:
            self.hints.add_released(queue)
            self._wake_up(queue)

    def poll_now(self) -> None:
        """Make the next scan a full one: something may have become ready without a notification."""
        with self.wake:
            self.hints.list_due = 0.0
            self.hints.released_anywhere = True
            self._wake_up()

    def pause(self, queues: frozenset[str]) -> None:
        """Leave out these queues from the next claim on; if one is resumed, scan it from the beginning."""
        with self.wake:
            resumed = self.paused - queues
            self.paused = queues
            if resumed:
                self.hints.list_due = 0.0
                self._wake_up()

    def keep_polling(self) -> None:
        """Poll for a moment; called by the listen thread while a producer is busy."""
        with self.wake:
            self.busy_until = clock.monotonic() + BUSY_SECONDS
            self.settles_at = max(self.settles_at, self.busy_until)
            self.wake.notify_all()

    def _wake_up(self, queue: str | None = None) -> None:
        if queue is not None and self.room.is_full(queue):
            self.announced.add(self.room.group(queue))  # the next room for it wakes the thread
            return
        self.notified += 1
        self.settles_at = max(self.settles_at, clock.monotonic() + POLL_AGAIN_SECONDS)
        self.wake.notify_all()

    def halt(self) -> None:
        """Claim nothing more; a claim that is ``busy`` still delivers."""
        with self.wake:
            self.halted = True
            self.room.close()

    @property
    def busy(self) -> bool:
        """True if a claim is under way on a reachable server, or its answer on the way to main."""
        return (self.unconfirmed is not None and self.reachable) or any(self.room.unadopted.values())

    def is_hungry(self, is_async: bool, now: float) -> bool:
        """Return whether this line surely has more jobs: its last claim left some, or some were announced since.

        Not while its database is away, silent, or refuses what it is asked.
        """
        silent = self.unconfirmed is not None and now > self.polled_at + SILENT_SECONDS
        able = self.reachable and not self.pausing and not silent
        if self.notified != self.seen or not self.room.queues:
            return able and (self.notified != self.seen or self.left.get(is_async, False))
        left = [line for line, more in self.left.copy().items() if more and on_loop(line) == is_async]
        return able and any(self.room.has_slots(line) for line in left)

    def serves(self, queue: str) -> bool:
        """Return whether this worker takes jobs of ``queue`` now."""
        return any(frontier.serves(queue) for frontier in self.lines.values())

    # The thread

    def serve(self, db: WorkerConnection) -> None:
        """Claim whenever main wants jobs; after a claim that found too few, sleep until something is due."""
        if self.unconfirmed is not None:
            self.in_doubt.resolve(db, self.unconfirmed)
            self.unconfirmed = None
        while not self.stopping.is_set():
            wanted, notified = self._until_wanted()
            if not wanted:
                continue
            if not self._claim(db, {line: min(room, BATCH) for line, room in wanted.items()}):
                self._rest(db, notified)

    def _until_wanted(self) -> tuple[dict[LineKey, int], int]:
        with self.wake:
            self.wake.wait_for(lambda: self.stopping.is_set() or (self.room.is_free() and not self.halted))
            self.hints.hand_over(self.lines.values())
            wanted = {} if self.stopping.is_set() else self.room.asked()
            if self.seen != self.notified:  # a line without room is not read, so this may be of that
                self.left |= {line: True for line in self.lines if line not in wanted}
            self.seen = self.notified
            return wanted, self.notified

    def _claim(self, db: WorkerConnection, limits: Mapping[LineKey, int]) -> bool:
        """Claim up to these numbers from each line; return whether to claim again at once."""
        self.polled_at = asked_at = clock.monotonic()
        self.asked = tuple(limits)
        # A line without room was not read, so its jobs are unknown.
        self.room.dry = {line: line in limits and self.room.dry[line] for line in self.lines}
        for frontier in self.lines.values():
            frontier.pause(self.paused)
        self.hints.refresh(db, self.lines)
        plans = {line: self.lines[line].plan(asked_at) for line in limits}
        claim_id = uuid4()
        with self.wake:
            # Main leaves when nothing is ``busy``: a claim that began unseen would take jobs that no thread runs.
            if not any(plans.values()) or self.halted:
                self.pause_seconds = POLL_AGAIN_SECONDS  # all of them are paused
                self.room.dry, self.left = self.room.dry | dict.fromkeys(limits, True), {}
                return False
            self.unconfirmed, most = claim_id, self.room.most
        lines = {line: Line([visit.pair for visit in plan], limits[line]) for line, plan in plans.items()}
        sent_at = clock.monotonic()
        ask = partial(claiming.claim_lines, db, lines, self.async_names, most=most, **self.options.terms(claim_id))
        try:
            claimed = self._ask(db, claim_id, ask)
        except psycopg.errors.QueryCanceled:
            now = clock.monotonic()
            for line, plan in plans.items():
                self.lines[line].gave_up(plan, now, now - max(asked_at, db.sent_at))
            raise
        if isinstance(claimed, Exception):
            self._isolate(db, plans, limits, claimed)
            return True
        now, begun_at = clock.monotonic(), max(asked_at, db.sent_at)
        full = most is not None and len(claimed.jobs) >= most
        for line, found in self.room.by_line(claimed.jobs).items():
            if line in plans:
                limit = len(found) if full else limits[line]
                self.lines[line].saw(plans[line], found, limit, now, now - begun_at, claimed.scanned_at)
                self.left[line] = len(found) >= limit
                self.room.dry[line] = not self.left[line] and self.lines[line].is_passed
        self._hand_over(db, asked_at, claimed, now - max(sent_at, db.sent_at))
        with self.wake:
            # With a listener, notifications announce more jobs; without one, a claim that found jobs may find more.
            return self.room.asks_again(limits, expects=bool(claimed.jobs) and not self.listening.is_set())

    def _ask(self, db: WorkerConnection, claim_id: UUID, ask: Callable[[], ClaimReply]) -> ClaimReply | Exception:
        """Return the answer to a claim, or the error if it fails on the data of a row; other errors pass through."""
        try:
            return ask()
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            self.unconfirmed = None  # the server says so: the claim took nothing
            raise
        except (psycopg.Error, UnicodeError) as error:
            if not is_data_trouble(error):
                raise
            if not sqlstate_of(error):
                self.in_doubt.resolve(db, claim_id)  # the server did its part; this process cannot read the answer
            self.unconfirmed = None
            return error

    def _hand_over(self, db: WorkerConnection, asked_at: float, claimed: ClaimReply, seconds: float) -> None:
        self.pause_seconds = POLL_SOON_SECONDS if claimed.jobs else min(2 * self.pause_seconds, POLL_AGAIN_SECONDS)
        if claimed.jobs:
            log_claimed(claimed.jobs, seconds)
            self.woken_at = self.news_at = asked_at
            with self.wake:
                self.room.took(claimed.jobs)
            self.inbox.post(Claimed(max(asked_at, db.sent_at), claimed.jobs, claimed.scanned_at))
        self.unconfirmed = None

    # Trouble

    def check_doubts(self, db: Database) -> None:
        """Look up the claims in doubt that are due for it; called by the maintenance thread."""
        self.in_doubt.check_doubts(db, all_of_them=self.halted)

    def _on_released(self, job: ReleasedJob) -> None:
        self.wake_for((job.queue, job.priority))
        self.wake_for_released(job.queue)

    def _isolate(
        self,
        db: WorkerConnection,
        plans: Mapping[LineKey, list[Visit]],
        limits: Mapping[LineKey, int],
        error: Exception,
    ) -> None:
        """Claim fewer and fewer jobs of ``plans``, until the row that makes the claim fail stands alone."""
        limit = max(limits.values())
        if limit > 1:
            log.warning("claim failed on data, halving limit=%d: %s", limit, one_line(error))
            self._claim(db, {line: max(1, most // 2) for line, most in limits.items()})
            return
        # Use this very plan, as another starts with another queue. The row that failed may be parked by now, by another
        # worker doing the same: the row that is first now is innocent until its own claim fails.
        for line, plan in plans.items():
            pairs = [visit.pair for visit in plan]
            job_id = claiming.next_claimable(db, pairs, is_async=on_loop(line), async_names=self.async_names)
            if job_id is not None:
                self._claim_one(db, job_id)

    def _claim_one(self, db: WorkerConnection, job_id: int) -> None:
        """Claim exactly this job; park it if its own data makes the claim fail."""
        asked_at, claim_id = clock.monotonic(), uuid4()
        with self.wake:
            if self.halted:
                return
            self.unconfirmed = claim_id
        claimed = self._ask(db, claim_id, partial(claiming.claim_one, db, job_id, **self.options.terms(claim_id)))
        if isinstance(claimed, Exception):
            park_unclaimable(db, job_id, claimed)
        else:
            self._hand_over(db, asked_at, claimed, clock.monotonic() - asked_at)

    # Idle

    def _rest(self, db: WorkerConnection, notified: int) -> None:
        """Sleep until a job is due, a notification comes or the next poll; but scan once after all notifications.

        The announced jobs may lie a little behind the frontier; the next claim covers that stretch too. The
        first polls after that come soon, for rows that claims have skipped because they were locked.
        """
        now = clock.monotonic()
        if now < self.settles_at:
            pause = self.pause_seconds if now < self.busy_until else POLL_AGAIN_SECONDS
            self._sleep(min(self.settles_at - now, pause), notified)
            self._scan_near()
            return
        longest = min(self.options.poll_seconds, math.inf if self.listening.is_set() else DEAF_POLL_SECONDS)
        if self.due_at <= now:
            self.news_at = max(self.news_at, self.due_at)
        due = self.next_due.seconds(db, self.lines.values(), notified)
        self.due_at = math.inf if due is None else now + due
        seconds = longest if due is None else min(longest, max(due, 0.0))
        # A line without room was not read; read it as soon as there is room.
        asked = [self.lines[line] for line in self.asked]
        since, scanned = max(self.woken_at, self.settles_at), min(frontier.scanned() for frontier in asked)
        if scanned < since:
            # Never sleep before a full pass: rows come in behind the frontier.
            next_scan = min(frontier.next_scan(since) for frontier in asked)
            if self._sleep(max(0.0, min(seconds, DEAF_POLL_SECONDS, next_scan - clock.monotonic())), notified):
                self._scan_near()
            return
        if len(asked) == len(self.lines) and all(self.room.dry.values()) and not self._waits_for_locked(db):
            self.inbox.post(Idle(min(scanned, self.polled_at)))
        seconds = min(seconds, max(FIRST_POLL_SECONDS, now - max(self.news_at, self.settles_at)))
        if self._sleep(seconds, notified):
            self._scan_near()
        with self.wake:
            # Claim the announced jobs before reading the list of all pairs again.
            self.hints.list_due = self.settles_at if seconds >= longest else max(self.hints.list_due, self.settles_at)
        self.woken_at = clock.monotonic()

    def _waits_for_locked(self, db: WorkerConnection) -> bool:
        pairs = {pair for frontier in self.lines.values() for pair in frontier.reaches}
        return self.options.until_idle and self.locked.wait(db, pairs)

    def _scan_near(self) -> None:
        for frontier in self.lines.values():
            frontier.scan_near()

    def _sleep(self, seconds: float, notified: int) -> bool:
        """Return whether a notification came; also ends when there is room for jobs that were left."""
        room = self.room
        with self.wake:
            self.wake.wait_for(
                lambda: self.stopping.is_set() or self.notified != notified or room.may_find_more(), seconds
            )
            self.hints.hand_over(self.lines.values())
            woken = self.notified != notified
        if woken:
            self.woken_at = clock.monotonic()
        return woken
