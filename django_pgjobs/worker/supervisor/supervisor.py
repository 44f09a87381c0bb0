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
from functools import partial
from typing import Any, assert_never

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log, speaking_of
from django_pgjobs.states import Outcome
from django_pgjobs.steering.trail import signed
from django_pgjobs.store.keeping import Control, Rescued
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.tallies import TalliesOfHomes
from django_pgjobs.worker.supervisor.claim_requests import ClaimRequests
from django_pgjobs.worker.supervisor.dispatcher import START_WITHIN_SECONDS, RunNumbers
from django_pgjobs.worker.supervisor.executor_pool import ExecutorPool
from django_pgjobs.worker.supervisor.executor_process import READY, ExecutorProcess, Recipe
from django_pgjobs.worker.supervisor.held_jobs import HeldByHome
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.lease_guard import LeaseGuard
from django_pgjobs.worker.supervisor.queue_slots import QueueSlots
from django_pgjobs.worker.supervisor.recycling import WorkerLimits
from django_pgjobs.worker.supervisor.run_events import event_of_expiry, events_of_rescue
from django_pgjobs.worker.supervisor.signal_relay import SignalRelay
from django_pgjobs.worker.supervisor.visits import Visits
from django_pgjobs.worker.threads.inbox_messages import (
    BackendsEnded,
    Claimed,
    ControlRead,
    FlagsRead,
    HomeOpened,
    Idle,
    InboxMessage,
    JobsExpired,
    JobsRescued,
    NothingHeld,
    OfSchemas,
    PausesRead,
    RefusedEnds,
    Renewed,
    StacksAsked,
    Stored,
)

TICK_SECONDS = 0.1
IDLE_TICK_SECONDS = 1.0
LEAVE_SECONDS = 5.0


class Supervisor:
    """The main thread of one worker. It receives its homes, at least one, or ``visits`` by which they come and go."""

    def __init__(
        self, recipe: Recipe, limits: WorkerLimits, homes: Sequence[Home], visits: Visits[Any] | None = None
    ) -> None:
        self.limits, self.visits = limits, visits
        self.homes = list(homes)
        self.tallies = TalliesOfHomes(self.homes)
        self.selector = selectors.DefaultSelector()
        self.signals, self._signalled = socket.socketpair()
        self.stop_signals: tuple[signal.Signals, ...] = ()
        self.numbers = RunNumbers()
        self.slots = QueueSlots(limits.places or {})
        self.requests = ClaimRequests(self.homes, self.slots, limits.max_jobs, several=visits is not None)
        children: list[ExecutorProcess] = []
        self.relay = SignalRelay(children)
        for home in homes:
            home.join(self.numbers, self.relay.notify, self.slots)
        alone = homes[0] if visits is None and len(homes) == 1 else None
        self.held_by_home = {home.alias: home.held_jobs for home in homes}
        self.tables = {home.alias: home.table for home in homes}
        if visits is not None:
            visits.added, visits.removed = self._add, self._remove
        self.pool = ExecutorPool(
            recipe,
            limits.processes,
            alone.identity if alone else [] if visits is None else visits.identity,
            children=children,
            relay=self.relay,
            selector=self.selector,
            held_jobs=alone.held_jobs if alone else HeldByHome(self.held_by_home),
            end_backends=self._end_backends,
            guard=LeaseGuard(self.tables, get_conf().lease_seconds, children),
            recycling=limits.recycling,
            failed=self._fail,
            reached=self._on_reached,
        )
        self.idle_tick_seconds = min(IDLE_TICK_SECONDS, get_conf().lease_seconds / 4)
        self.draining_until: float | None = None
        self.killed = self.quiet = False
        self.exit_status, self.last_tick = 0, 0.0

    @property
    def ended(self) -> int:
        """Number of jobs that have reached their end here."""
        return sum(home.table.ended for home in self.homes) + (self.visits.ended if self.visits else 0)

    @property
    def held(self) -> int:
        """Number of jobs that this worker holds."""
        return sum(len(home.table.held) for home in self.homes)

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
        busy = self.held or (self.visits and self.visits.awake) or any(c.state != READY for c in self.pool.children)
        return self.idle_tick_seconds if not busy and self.draining_until is None else TICK_SECONDS

    def _advance(self) -> None:
        now = clock.monotonic()
        if now >= self.last_tick + self._tick_seconds():
            self._dispatch(now)  # what was just claimed waits for no tick; at rest one is due with every job
            self.last_tick = now
            self._tick(now)
        self._dispatch(now)
        if self.draining_until is None:
            self.requests.make(self.pool.children, self.limits.jobs_left(self.ended + self.held), now)
            self._maybe_leave()
        self.pool.flush()

    def _dispatch(self, now: float) -> None:
        if self.draining_until is None:
            children = self.pool.children
            for home in self.requests.by_need():
                if not home.finaliser.full:
                    home.dispatcher.dispatch(home.executors(children), now, self.requests.most(home, children, now))
                else:
                    home.dispatcher.leave_bench()

    def _tick(self, now: float) -> None:
        for home in self.homes:
            with speaking_of(home.alias):
                for loop in home.loops:
                    loop.watch(now)
        self.pool.guard.tick(now)
        self.pool.tick(now)
        for home in self.homes:
            dispatcher = home.dispatcher
            dispatcher.release_unstarted(self.pool.children, lambda run: now > run.since + START_WITHIN_SECONDS)
            home.held_jobs.starts.release_stale(now)
            home.table.deaths.suspects = dispatcher.apart(self.pool.children)
        self.requests.take_turns()
        if self.visits is not None:
            self.visits.tick(now)
        if self.draining_until is not None:
            self._drain_on(now, self.draining_until)

    def _on_claimed(self, home: Home, claimed: Claimed) -> None:
        home.claimed_at = claimed.asked_at
        home.held_jobs.adopt(claimed.asked_at, claimed.jobs, claimed.scanned_at)
        home.tallies.claimed(len(claimed.jobs))
        self.pool.guard.adopted()
        home.finaliser.expect()
        home.claimer.adopted(claimed.jobs)

    def _on_pauses(self, home: Home, pauses: Pauses) -> None:
        home.claimer.pause(pauses.queues)
        home.held_jobs.starts.pause(pauses, self.pool.children)
        home.admitter.learn(pauses.limits)
        if pauses.limits:
            home.finaliser.writer.freed = home.admitter.wake_up
        home.knows_pauses = True

    def _on_control(self, home: Home, control: Control) -> None:
        """Do what an operator asks for, and let the heartbeats say so at once; in this home that it is taken up."""
        why = signed(control.by, control.reason)
        if self.draining_until is not None and control.verb != "drain":
            log.info("worker drains, and does not take up the request of an operator: %s %s", control.verb, why)
            return
        log.info("worker takes up the request of an operator: %s %s", control.verb, why)
        match control.verb:
            case "quiet" | "resume":
                self.quiet = control.verb == "quiet"
                for each in self.homes:
                    each.controls.quiet = self.quiet
                if self.visits is not None:
                    self.visits.rota.be_quiet(self.quiet)
            case "drain":
                self.drain(f"an operator asked for it {why}")
            case "recycle":
                self.pool.recycle(f"an operator asked for it {why}", clock.monotonic())
            case _:
                log.warning("worker does not know this request, newer code wrote it: %s", control.verb)
        home.controls.taken = control.number
        for each in self.homes:
            each.controls.beat_now()

    def _on_rescued(self, home: Home, rescued: list[Rescued]) -> None:
        home.admitter.wake_up()
        home.tallies.were_rescued(rescued)
        home.notify(lambda: [event for job in rescued for event in events_of_rescue(job)])

    def _add(self, home: Home) -> None:
        """Have one more home, before its threads are started."""
        home.controls.quiet = self.quiet
        home.join(self.numbers, self.relay.notify, self.slots)
        self.homes.append(home)
        self.held_by_home[home.alias], self.tables[home.alias] = home.held_jobs, home.table
        self.selector.register(home.inbox.wakes, selectors.EVENT_READ, partial(self._on_inbox, home))

    def _remove(self, home: Home) -> None:
        """Forget a home whose threads have ended."""
        self._on_inbox(home)
        self.tallies.remove(home)
        del self.held_by_home[home.alias], self.tables[home.alias]
        self.selector.unregister(home.inbox.wakes)
        home.inbox.close()

    def _on_opened(self, home: Home, identity: list[object]) -> None:
        """Serve one of several databases from now on."""
        home.identity = identity
        for child in self.pool.children:
            self._compare(home, child)
        home.start()

    def _on_reached(self, child: ExecutorProcess, alias: str, identity: list[object]) -> None:
        child.sees[alias] = identity
        for home in self.homes:
            if home.alias == alias:
                self._compare(home, child)

    def _compare(self, home: Home, child: ExecutorProcess) -> None:
        """Let an executor have the jobs of a home if it sees the same database there."""
        seen = child.sees.get(home.alias)
        if seen is not None and home.identity:
            if seen == home.identity:
                child.reached |= {home.alias}
            else:
                log.error(
                    "executor sees another database and gets no job of it pid=%d alias=%s: %s instead of %s",
                    child.pid, home.alias, seen, home.identity,
                )  # fmt: skip

    def _end_backends(self, application_name: str) -> None:
        """End what a dead executor has left running on each server: a job may use the database of another."""
        for home in self.homes:
            home.finaliser.terminate(application_name)

    def _maybe_leave(self) -> None:
        if self.limits.max_jobs is not None and self.ended >= self.limits.max_jobs:
            self.drain("the number of jobs asked for has ended")
        elif self.limits.until_idle and self.pool.booted and not self.held:
            # A job of one home may have registered one in another.
            changed = max(max(home.held_jobs.ends.last_removed, home.admitter.admitted_at) for home in self.homes)
            idle = [home.is_idle(changed) for home in self.homes]  # each of them asks
            if all(idle):
                self.drain("nothing is due")

    def _on_inbox(self, home: Home) -> None:
        with speaking_of(home.alias):
            for message in home.inbox.take():
                self._on_message(home, message)

    def _on_message(self, home: Home, message: InboxMessage) -> None:
        match message:
            case Claimed():
                self._on_claimed(home, message)
            case Stored():
                home.held_jobs.stored(message.kind, message.entries)
            case Idle():
                home.idle_at = message.at
            case Renewed():
                self.pool.guard.renewed(message.asked_at, message.claim_ids, home.alias)
            case FlagsRead():
                home.held_jobs.fresh(message.asked_at, message.job_ids, message.flags)
            case RefusedEnds():
                home.tallies.lost += len(message.refused)
                home.held_jobs.ends.lost(message.refused)
            case BackendsEnded():
                home.dispatcher.backends_ended(message.application_name)
            case PausesRead():
                self._on_pauses(home, message.pauses)
            case ControlRead():
                self._on_control(home, message.control)
            case StacksAsked():
                self.pool.stacks.ask(home.table, message.requests, home.controls.answer_stack, clock.monotonic())
            case JobsRescued():
                self._on_rescued(home, message.rescued)
            case JobsExpired():
                home.tallies.expired(message.expired)
                home.notify(lambda: [event_of_expiry(job) for job in message.expired], (Outcome.CANCELLED,))
            case HomeOpened():
                self._on_opened(home, message.identity)
            case NothingHeld() | OfSchemas():
                pass
            case _:
                assert_never(message)

    # Signals

    def _listen_for_signals(self) -> None:
        self.signals.setblocking(False)
        self._signalled.setblocking(False)
        self.selector.register(self.signals, selectors.EVENT_READ, self._on_signal)
        for home in self.homes:
            self.selector.register(home.inbox.wakes, selectors.EVENT_READ, partial(self._on_inbox, home))
        if self.visits is not None:
            self.selector.register(self.visits.inbox.wakes, selectors.EVENT_READ, self.visits.receive)
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
            log.info("worker drains held=%d: %s", self.held, why)
            self.draining_until = clock.monotonic() + self.limits.drain_seconds
            self.pool.draining = True
            if self.visits is not None:
                self.visits.stop()
            for home in self.homes:
                home.held_jobs.starts.draining = True
                home.claimer.halt()
                home.dispatcher.release_unstarted(self.pool.children, lambda run: True)
                home.held_jobs.ends.release(home.dispatcher.withdraw(lambda run: True))
                home.controls.draining = True
                home.controls.beat_now()
            self.pool.announce_drain(self.draining_until)
            self.last_tick = 0.0

    def _drain_on(self, now: float, until: float) -> None:
        if now >= until and not self.killed:
            self.killed = True
            running = self.held - sum(home.finaliser.busy.count for home in self.homes)
            if running > 0:
                log.warning("drain limit reached, running jobs are released held=%d", running)
            self.pool.kill("released")
        elif not self.killed:
            self.pool.dismiss()

    def _gone(self) -> bool:
        if self.draining_until is None or self.pool.children:
            return False
        done = not self.held and not any(home.claimer.busy for home in self.homes)
        return done or clock.monotonic() > self.draining_until + LEAVE_SECONDS
