"""The supervisor's main thread: it receives, decides and dispatches; it runs no query, no job, and never blocks.

    boot → serve → drain → leave

One selector over signals, the inbox of the database threads, the executors' sockets and their pidfds, with a tick for
deadlines. *Drain* claims nothing, releases jobs that have not started, lets the rest finish up to a limit, then kills
and releases; renewals, cancels and beats continue. A second signal hurries. If the database is away at the end, the
worker does not wait for it: leases expire, and other workers rescue the unrecorded jobs.
"""

from __future__ import annotations

import selectors
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.states import Outcome
from django_pgjobs.store.keeping import Rescued
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import START_WITHIN_SECONDS, Dispatcher
from django_pgjobs.worker.supervisor.executor_pool import ExecutorPool
from django_pgjobs.worker.supervisor.executor_process import READY, ExecutorProcess, Recipe
from django_pgjobs.worker.supervisor.held_jobs import HeldJobs
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.lease_guard import LeaseGuard
from django_pgjobs.worker.supervisor.recycling import Recycling
from django_pgjobs.worker.supervisor.run_events import event_of_expiry, events_of_rescue
from django_pgjobs.worker.supervisor.signal_relay import SignalRelay
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import (
    BackendsEnded,
    Claimed,
    FlagsRead,
    Idle,
    InboxMessage,
    JobsExpired,
    JobsRescued,
    NothingHeld,
    PausesRead,
    RefusedEnds,
    Renewed,
    Stored,
)
from django_pgjobs.worker.threads.loop import Loop

log = safe_logger("django_pgjobs")

TICK_SECONDS = 0.1
IDLE_TICK_SECONDS = 1.0
LEAVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Number of executors, and conditions on which a worker ends by itself: ``max_jobs`` ended, or ``until_idle``."""

    processes: int
    max_jobs: int | None = None
    until_idle: bool = False
    drain_seconds: float = 25.0
    recycling: Recycling = Recycling()  # noqa: RUF009 (Recycling is frozen)


class Supervisor:
    """The main thread of one worker. It receives its parts before they are started."""

    def __init__(
        self,
        recipe: Recipe,
        limits: WorkerLimits,
        inbox: Inbox,
        table: RunTable,
        claimer: Claimer,
        finaliser: Finaliser,
        identity: list[Any],
        admitter: Admitter,
        loops: Sequence[Loop],
        tallies: Tallies,
    ) -> None:
        self.limits = limits
        self.inbox = inbox
        self.table = table
        self.claimer = claimer
        self.finaliser = finaliser
        self.admitter = admitter
        self.loops = loops
        self.tallies = tallies
        self.selector = selectors.DefaultSelector()
        self.signals, self._signalled = socket.socketpair()
        self.stop_signals: tuple[signal.Signals, ...] = ()
        self.dispatcher = Dispatcher()
        children: list[ExecutorProcess] = []
        self.relay = SignalRelay(children)
        self.held_jobs = HeldJobs(
            table, self.dispatcher, finaliser, wake_for=claimer.wake_for, notify=self.relay.notify, tallies=tallies
        )
        self.pool = ExecutorPool(
            recipe,
            limits.processes,
            identity,
            children=children,
            relay=self.relay,
            selector=self.selector,
            held_jobs=self.held_jobs,
            finaliser=finaliser,
            guard=LeaseGuard(table, get_conf().lease_seconds, children),
            recycling=limits.recycling,
            failed=self._fail,
        )
        self.idle_tick_seconds = min(IDLE_TICK_SECONDS, get_conf().lease_seconds / 4)
        self.draining_until: float | None = None
        self.killed = False
        self.exit_status = 0
        self.idle_at = 0.0
        self.knows_pauses = False
        self.asked_at = 0.0
        self.last_tick = 0.0

    @property
    def ended(self) -> int:
        """Number of jobs that have reached their end here."""
        return self.table.ended

    # Life

    def run(self, stopped: threading.Event) -> int:
        """Serve until drained, at once when ``stopped`` was set by a signal before; return the exit status."""
        with process.handling(lambda *_: None) as self.stop_signals:
            self._listen_for_signals()
            if stopped.is_set():
                self.drain("a signal came while it started")
            try:
                self._serve()
            except BaseException:
                log.critical("supervisor failed, its executors are killed", exc_info=True)
                self.pool.kill("released")
                raise
            finally:
                self._ignore_signals()
                self.pool.guard.close()
        return self.exit_status

    def _serve(self) -> None:
        while not self._gone():
            for key, _ in self.selector.select(self._pause()):
                key.data()
            self._advance()

    def _pause(self) -> float:
        return max(0.0, self.last_tick + self._tick_seconds() - clock.monotonic())

    def _tick_seconds(self) -> float:
        quiet = not self.table.held and all(child.state == READY for child in self.pool.children)
        return self.idle_tick_seconds if quiet and self.draining_until is None else TICK_SECONDS

    def _advance(self) -> None:
        now = clock.monotonic()
        if now >= self.last_tick + self._tick_seconds():
            self.last_tick = now
            self._tick(now)
        if self.draining_until is None:
            if not self.finaliser.full:
                self.dispatcher.dispatch(self.pool.children, now)
            self._want()
            self._maybe_leave()
        self.pool.flush()

    def _tick(self, now: float) -> None:
        for loop in self.loops:
            loop.watch(now)
        self.pool.guard.tick(now)
        self.pool.tick(now)
        self.dispatcher.release_unstarted(self.pool.children, lambda run: now > run.since + START_WITHIN_SECONDS)
        self.held_jobs.starts.release_stale(now)
        self.table.deaths.suspects = self.dispatcher.apart(self.pool.children)
        if self.draining_until is not None:
            self._drain_on(now, self.draining_until)

    def _want(self) -> None:
        """Ask for jobs when there is room: at once for idle threads and free slots, else when half the room is free."""
        executors = self.pool.children
        threads, loops = self.dispatcher.room(executors) if self.knows_pauses and not self.finaliser.full else (0, 0)
        most = None
        if self.limits.max_jobs is not None:
            most = self.limits.max_jobs - self.ended - len(self.table.held)
            threads = min(threads, most)
        capacity = sum(child.threads + child.prefetch() for child in executors if child.state == READY)
        wanted = threads * 2 >= capacity or self.dispatcher.idle_threads(executors) > 0
        self.claimer.request(threads if wanted else 0, loops, most=most)

    def _on_claimed(self, claimed: Claimed) -> None:
        self.held_jobs.adopt(claimed.asked_at, claimed.jobs, claimed.scanned_at)
        self.tallies.claimed(len(claimed.jobs))
        self.pool.guard.adopted()
        self.claimer.adopted(claimed.jobs)

    def _on_pauses(self, pauses: Pauses) -> None:
        self.claimer.pause(pauses.queues)
        self.held_jobs.starts.pause(pauses, self.pool.children)
        self.knows_pauses = True

    def _on_rescued(self, rescued: list[Rescued]) -> None:
        self.admitter.wake_up()
        self.tallies.were_rescued(rescued)
        self.relay.notify(lambda: [event for job in rescued for event in events_of_rescue(job)])

    def _maybe_leave(self) -> None:
        if self.limits.max_jobs is not None and self.ended >= self.limits.max_jobs:
            self.drain("the number of jobs asked for has ended")
        elif self.limits.until_idle and self.pool.booted and not self.table.held:
            changed = max(self.held_jobs.ends.last_removed, self.admitter.admitted_at)
            if self.idle_at > changed and self.admitter.idle_since(changed):
                self.drain("nothing is due")
            elif self.asked_at <= changed:
                # Only another query shows whether a job became due since the last one left.
                self.asked_at = clock.monotonic()
                self.admitter.wake_up()
                self.claimer.poll_now()

    def _on_inbox(self) -> None:
        for message in self.inbox.take():
            self._on_message(message)

    def _on_message(self, message: InboxMessage) -> None:
        match message:
            case Claimed():
                self._on_claimed(message)
            case Stored():
                self.held_jobs.stored(message.kind, message.entries)
            case Idle():
                self.idle_at = message.at
            case Renewed():
                self.pool.guard.renewed(message.asked_at, message.claim_ids)
            case FlagsRead():
                self.held_jobs.fresh(message.asked_at, message.job_ids, message.flags)
            case RefusedEnds():
                self.tallies.lost += len(message.refused)
                self.held_jobs.ends.lost(message.refused)
            case BackendsEnded():
                self.dispatcher.backends_ended(message.application_name)
            case PausesRead():
                self._on_pauses(message.pauses)
            case JobsRescued():
                self._on_rescued(message.rescued)
            case JobsExpired():
                self.tallies.expired(message.expired)
                self.relay.notify(lambda: [event_of_expiry(job) for job in message.expired], (Outcome.CANCELLED,))
            case NothingHeld():
                pass
            case _:
                assert_never(message)

    # Signals

    def _listen_for_signals(self) -> None:
        self.signals.setblocking(False)
        self._signalled.setblocking(False)
        self.selector.register(self.signals, selectors.EVENT_READ, self._on_signal)
        self.selector.register(self.inbox.wakes, selectors.EVENT_READ, self._on_inbox)
        self._wakeup_fd = signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)

    def _ignore_signals(self) -> None:
        signal.set_wakeup_fd(self._wakeup_fd)
        self.selector.close()
        self.signals.close()
        self._signalled.close()

    def _on_signal(self) -> None:
        for number in self.signals.recv(64):
            if number not in self.stop_signals:
                continue
            name = signal.Signals(number).name
            if self.draining_until is None:
                self.drain(name)
            else:
                log.warning("second signal, running jobs are released now signal=%s", name)
                self.draining_until = clock.monotonic()

    # Drain

    def _fail(self, why: str) -> None:
        self.exit_status = 1
        self.drain(why)

    def drain(self, why: str) -> None:
        """Claim nothing more, release jobs that have not started, let the rest finish up to the limit."""
        if self.draining_until is None:
            log.info("worker drains held=%d: %s", len(self.table.held), why)
            self.draining_until = clock.monotonic() + self.limits.drain_seconds
            self.held_jobs.starts.draining = self.pool.draining = True
            self.claimer.halt()
            self.dispatcher.release_unstarted(self.pool.children, lambda run: True)
            self.held_jobs.ends.release(self.dispatcher.withdraw(lambda run: True))
            self.pool.announce_drain(self.draining_until)
            self.last_tick = 0.0

    def _drain_on(self, now: float, until: float) -> None:
        if now >= until and not self.killed:
            self.killed = True
            busy = self.finaliser.busy.count
            if len(self.table.held) > busy:
                log.warning("drain limit reached, running jobs are released held=%d", len(self.table.held) - busy)
            self.pool.kill("released")
        elif not self.killed:
            self.pool.dismiss()

    def _gone(self) -> bool:
        if self.draining_until is None or self.pool.children:
            return False
        done = not self.table.held and not self.claimer.busy
        return done or clock.monotonic() > self.draining_until + LEAVE_SECONDS
