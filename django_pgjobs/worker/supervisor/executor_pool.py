"""The executors of a worker: starts, reads, checks deadlines of, reaps and replaces them. Main thread only.

The first starts alone: a child that cannot boot stops the worker, instead of being restarted forever. If a later one
cannot boot, the worker tries a few times with growing pauses, then drains and exits with 1.
"""

from __future__ import annotations

import random
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, assert_never

from django_pgjobs import __version__, clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.values.stopping import DRAIN, RECYCLE
from django_pgjobs.worker.shared.build import build
from django_pgjobs.worker.shared.channel import PROTOCOL
from django_pgjobs.worker.shared.channel_messages import (
    BootFailed,
    Bye,
    Decided,
    Drain,
    FromExecutor,
    Hello,
    Interest,
    Interrupted,
    Learned,
    Logged,
    Notified,
    Progress,
    Reached,
    Ready,
    RunsReleased,
    StackRead,
    StackTaken,
    StopSoon,
    Successes,
)
from django_pgjobs.worker.supervisor import escalation, executor_liveness, executor_process
from django_pgjobs.worker.supervisor.executor_death import OURS, REASONS, Death
from django_pgjobs.worker.supervisor.executor_process import (
    DEAD,
    DRAINING,
    KILLED,
    READY,
    STARTING,
    TERMINATING,
    ExecutorProcess,
    Recipe,
)
from django_pgjobs.worker.supervisor.held_jobs import HeldByHome, HeldJobs
from django_pgjobs.worker.supervisor.lease_guard import LeaseGuard
from django_pgjobs.worker.supervisor.memory_guard import MemoryGuard
from django_pgjobs.worker.supervisor.recycling import OutOfMemory, Recycling
from django_pgjobs.worker.supervisor.signal_relay import SignalRelay
from django_pgjobs.worker.supervisor.stack_requests import StackRequests

BOOT_TRIES = 3
SHORT_LIFE_SECONDS = 5.0
SHORT_LIVES = 10
LONGEST_PAUSE_SECONDS = 15.0
"""An executor that dies so soon is one of a storm; so many in a row are replaced at once, the next after a pause."""

ENDED_BY_OTHERS = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Ends that say nothing about the code which an executor was to load: the kernel wanted memory, or a person."""


class ExecutorPool:
    """The executors; ``processes`` of them are kept in ``children``. ``failed`` is called when the worker must stop.

    ``identity`` is empty if there are several homes: then ``reached`` is called with which databases an executor sees.
    """

    def __init__(
        self,
        recipe: Recipe,
        processes: int,
        identity: list[object],
        *,
        children: list[ExecutorProcess],
        relay: SignalRelay,
        selector: selectors.BaseSelector,
        held_jobs: HeldJobs | HeldByHome,
        end_backends: Callable[[str], None],
        guard: LeaseGuard,
        recycling: Recycling,
        failed: Callable[[str], None],
        reached: Callable[[ExecutorProcess, str, list[object]], None] = lambda child, alias, identity: None,
    ) -> None:
        self.recipe = recipe
        self.processes = processes
        self.identity = identity
        self.selector = selector
        self.held_jobs = held_jobs
        self.end_backends = end_backends
        self.failed = failed
        self.reached = reached
        self.children = children
        self.recycling = recycling
        self.memory = MemoryGuard(recycling.kill_megabytes, held_jobs.keep_peak)
        self.out_of_memory = OutOfMemory()
        self.guard = guard
        self.booted = False
        self.draining = False
        self.recycled_at, self.recycled_by = 0.0, ""
        self.boot_failures = 0
        self.boot_delays = 0
        self.boot_after = 0.0
        self.short_lives = 0
        self.last_check = 0.0
        self.spawned = 0
        self.deaths = dict.fromkeys(REASONS, 0)
        self.relay = relay
        self.build = build()
        self.stacks = StackRequests()

    # Life

    def tick(self, now: float) -> None:
        """Check deadlines, deaths that no descriptor shows, and whether an executor is missing."""
        for child in self.children:
            escalation.lead(child, now, self.last_check)
            self.memory.check(child, now)
            if child.state == STARTING and now > child.started_at + get_conf().ready_seconds:
                child.boot_error = f"it was not READY within {get_conf().ready_seconds:g} s"
                child.kill()
            executor_liveness.check(child, now, self.last_check)
        self.last_check = now
        self.relay.send_pending()
        self.out_of_memory.poll(now)
        self.stacks.tick(now)
        if self.recipe.template is not None:
            self.recipe.template.tick()
        for child in list(self.children):
            self._on_exit(child)
        if not self.draining:
            self._recycle(now)
            if self._missing() > 0 and now >= self.boot_after:
                self.spawn()

    def _missing(self) -> int:
        staying = sum(not child.leaving for child in self.children)
        return (self.processes if self.booted else 1) - staying

    def _recycle(self, now: float) -> None:
        """Mark one executor at a time for replacement. It continues until its successor is ready."""
        if self._missing() <= 0 and all(child.state != STARTING for child in self.children):
            self._replaced()
        changing = any(child.leaving and child.state == READY for child in self.children)
        if changing or len(self.children) >= 2 * self.processes:
            return
        for child in self.children:
            asked = self.recycled_by if child.started_at <= self.recycled_at else ""
            if child.state == READY and (why := asked or self.recycling.why(child, now)):
                child.leaving = why
                log.info("executor is recycled, its successor starts first pid=%d: %s", child.pid, why)
                return

    def recycle(self, why: str, now: float) -> None:
        """Replace all executors that there are now, one after the other."""
        self.recycled_at, self.recycled_by = now, why

    def spawn(self) -> None:
        """Start one more executor."""
        self.spawned += 1
        try:
            child = executor_process.spawn(self.recipe, self.spawned)
        except OSError as error:
            # No memory, process or descriptor is left: the jobs of the other executors continue.
            self._cannot_boot(f"it cannot be started: {error}", pid=0, passes=True)
            return
        self.children.append(child)
        self.guard.add(child)
        self.selector.register(child.end.sock, selectors.EVENT_READ, lambda: self._on_frames(child))
        if child.pidfd is not None:
            self.selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._on_exit(child))

    def flush(self) -> None:
        """Send what the sockets did not take before."""
        for child in self.children:
            if child.end.kept:
                child.end.flush()

    def dismiss(self) -> None:
        """Dismiss executors that have nothing left to do."""
        for child in self.children:
            if child.state == STARTING:
                child.kill()
            elif child.state == READY and not child.runs and not (self.held_jobs.holds_any and self.relay.needs(child)):
                self._retire(child)

    def announce_drain(self, until: float) -> None:
        """Tell the jobs of all executors that they are killed at ``until``, if they still run then."""
        for child in self.children:
            if child.state in (READY, DRAINING, TERMINATING):
                child.end.send(StopSoon(DRAIN, until))

    def _retire(self, child: ExecutorProcess) -> None:
        child.state = DRAINING
        child.end.send(Drain())

    def kill(self, cause: str) -> None:
        """Kill all executors; record their running jobs with ``cause``."""
        for child in self.children:
            if child.state != KILLED:
                if child.runs:
                    log.warning("executor killed cause=%s pid=%d jobs=%d", cause, child.pid, len(child.runs))
                escalation.blame(child)
                child.culprits = dict.fromkeys(child.runs, cause) | child.culprits
                child.kill()

    # Frames

    def _on_frames(self, child: ExecutorProcess) -> None:
        self._receive(child)
        if child.end.eof:
            self._unregister(child.end.sock)
        if child.end.broken and child.state != KILLED:
            log.error("executor sent an unreadable message, it is killed pid=%d: %s", child.pid, child.end.broken)
            child.kill()

    def _receive(self, child: ExecutorProcess) -> None:
        """Handle the messages that arrived. Nonsense costs the executor that sent it, not the worker."""
        try:
            for message in child.end.receive():
                self._on_message(child, message)
        except Exception as error:
            log.exception("message of an executor cannot be obeyed pid=%d", child.pid)
            child.end.eof, child.end.broken = True, repr(error)

    def _on_message(self, child: ExecutorProcess, message: FromExecutor) -> None:
        match message:
            case Successes():
                self.held_jobs.succeeded(child, message.runs, message.micros, message.results)
            case Decided():
                self.held_jobs.done(child, message.items)
            case RunsReleased():
                child.asked_at = None
                self.held_jobs.unstarted(child, message.runs)
            case Progress():
                self.held_jobs.progress(child, message.run, message.progress)
            case Logged():
                self.held_jobs.logged(child, message.run, message.lines)
            case Interest():
                self.relay.interested(child, message.kinds)
            case Notified():
                self.relay.confirmed(child, message.batch)
            case StackRead():
                if (run := child.runs.get(message.run)) is not None:
                    run.stack = message.stack
            case StackTaken():
                self.stacks.taken(message.run, message.stack)
            case Interrupted():
                self._on_interrupted(child, message)
            case Learned():
                self.held_jobs.learn(message.name, message.traits)
            case Ready():
                self._on_ready(child, message.hello)
            case Reached():
                self.reached(child, message.alias, message.identity)
            case BootFailed():
                child.boot_error, child.database_away = message.why, message.away
            case Bye():
                child.said_bye, child.idle_since = True, None
                log.debug("executor leaves pid=%d rss=%.0fMB", child.pid, message.rss / 1e6)
            case _:
                assert_never(message)

    def _on_interrupted(self, child: ExecutorProcess, message: Interrupted) -> None:
        child.interrupted += 1
        if message.kind:
            log.warning("thread of an executor got an exception from outside pid=%d: %s", child.pid, message.kind)
        else:
            log.info("thread of an executor was interrupted pid=%d seconds=%.3f", child.pid, message.held_seconds)

    def _on_ready(self, child: ExecutorProcess, hello: Hello) -> None:
        if (hello["protocol"], hello["version"], hello["build"]) != (PROTOCOL, __version__, self.build):
            self._stop_for_another_version(child, hello)
        elif hello["identity"] != self.identity:
            child.boot_error = f"it sees another database: {hello['identity']} instead of {self.identity}"
        if child.boot_error:
            child.kill()
        elif child.state == STARTING:
            child.state, child.ready_at = READY, clock.monotonic()
            log.info("executor is ready pid=%d jobs=%d rss=%.0fMB", child.pid, hello["jobs"], hello["rss"] / 1e6)
            self.boot_failures = self.boot_delays = 0
            first, self.booted = not self.booted, True
            if first and (shortage := self.recycling.shortage(child.pid, self.processes)):
                log.warning("memory may run out: %s", shortage)
            if (why := self.memory.got_ready(child)) and first:
                log.critical("no room for the memory of jobs, worker stops: %s", why)
                self.failed("the limit of an executor's memory is too small")
            for _ in range(self._missing() if first and not self.draining else 0):
                self.spawn()
            self.relay.interested(child, hello["listens"])
            self._replaced()

    def _replaced(self) -> None:
        """Dismiss the executor whose successor is ready."""
        old = next((child for child in self.children if child.leaving and child.state == READY), None)
        if old is not None:
            old.end.send(StopSoon(RECYCLE, None))
            self._retire(old)

    def _stop_for_another_version(self, child: ExecutorProcess, hello: Hello) -> None:
        """The code was replaced beneath us. Old and new code do not talk; a worker started now is of one piece."""
        theirs = f"version {hello['version']} of django-pgjobs (protocol {hello['protocol']}, build {hello['build']})"
        child.boot_error = f"it runs {theirs}, this worker {__version__} ({PROTOCOL}, {self.build})"
        log.critical("another version was deployed, worker stops pid=%d: %s", child.pid, child.boot_error)
        self.failed("another version was deployed")

    # Deaths

    def _on_exit(self, child: ExecutorProcess) -> None:
        """Reap an executor that has ended, settle its runs, and replace it."""
        if child.state == DEAD:
            return
        status = child.exit_status(lambda: self.guard.remove(child))
        if status is None:
            return
        self._receive(child)
        was, child.state = child.state, DEAD
        self._unregister(child.end.sock)
        if child.pidfd is not None:
            self._unregister(child.pidfd)
        self.children.remove(child)
        left = was == DRAINING and status == 0
        self.relay.died(child, by_itself=was not in OURS and not left)
        # Before its jobs are released: a statement of a killed process continues in its backend, and would commit.
        self.end_backends(child.application_name)
        now = clock.monotonic()
        death = Death.of(
            child, status, now,
            frozen=self.guard.ended(child),
            out_of_memory=was not in OURS and status == -signal.SIGKILL and self.out_of_memory.killed_one(now),
        )  # fmt: skip
        self.held_jobs.settle(death, by_itself=was not in OURS and not left and not death.frozen)
        child.close()
        if not left and not (self.draining and was in OURS):
            self.deaths[death.reason(was, booting=was == STARTING or bool(child.boot_error))] += 1
        if self.draining:
            return
        if was == STARTING or child.boot_error:
            self._boot_failed(child, status, death.suffix)
        elif was == DRAINING and status == 0:
            log.info("executor has been recycled pid=%d jobs=%d", child.pid, child.done)
        else:
            log.warning("executor ended, replaced pid=%d status=%d%s", child.pid, status, death.suffix)
            self._replace(child, was, now)

    def _replace(self, child: ExecutorProcess, was: str, now: float) -> None:
        """Start another at once, or after growing pauses if one after the other dies soon after its start."""
        if was in OURS or now > child.ready_at + SHORT_LIFE_SECONDS:
            self.short_lives = 0
        else:
            self.short_lives += 1
        pause = min(0.5 * 2.0 ** (self.short_lives - SHORT_LIVES), LONGEST_PAUSE_SECONDS)
        if self.short_lives > SHORT_LIVES:
            self.boot_after = now + pause
            log.error("executors die soon after their start, the next is started in %.1f s", pause)
        elif self._missing() > 0:
            self.spawn()

    def _unregister(self, descriptor: Any) -> None:
        with suppress(KeyError, ValueError):
            self.selector.unregister(descriptor)

    def _boot_failed(self, child: ExecutorProcess, status: int, suffix: str = "") -> None:
        by_others = status in ENDED_BY_OTHERS and not child.boot_error
        if by_others:
            why = f"{signal.Signals(-status).name} ended it before it was ready{suffix}"
        else:
            why = child.boot_error or f"it exited with status {status} before it was ready; its own words are above"
        # The watchdog ended it because we stood still; that proves nothing about the code it was to load.
        innocent = child.database_away or self.guard.ended(child)
        self._cannot_boot(why, pid=child.pid, passes=innocent, again=innocent or by_others)

    def _cannot_boot(self, why: str, *, pid: int, passes: bool, again: bool = False) -> None:
        """Try again after a pause. ``passes``: without end; ``again``: though no executor has ever been ready."""
        if passes:
            # Wait out an outage, however long, for the first executor too: its supervisor has found a database.
            self.boot_delays += 1
        else:
            self.boot_failures += 1
        if (not self.booted and not again) or self.boot_failures > BOOT_TRIES:
            log.critical("executor cannot boot, worker stops pid=%d: %s", pid, why)
            self.failed("an executor cannot boot")
            return
        tries = min(self.boot_failures + self.boot_delays, BOOT_TRIES)
        pause = 2.0 ** (tries - 1) * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        self.boot_after = clock.monotonic() + pause
        log.error("executor cannot boot, tried again in %.1f s pid=%d: %s", pause, pid, why)
