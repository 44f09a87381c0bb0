"""The executor: a child process that runs jobs in threads, and ``async def`` jobs on an event loop.

Its main thread is the control thread: it reads frames and never runs a job or a query. ``run_queue`` starts and ends
jobs, ``job_threads`` and ``event_loop`` run them, ``outbox`` sends their outcomes. The executor grants no right to a
job and writes no outcome but the end of an atomic job, in that job's own transaction. When the supervisor is gone, it
releases the jobs that have not started, and exits.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, assert_never

import psycopg
from django.db import OperationalError

from django_pgjobs import __version__, clock
from django_pgjobs.conf import get_conf
from django_pgjobs.context import name_executor
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DeadlinePassed, MemoryExceeded, SoftDeadlinePassed
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.logs import log
from django_pgjobs.registering import local_pool
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import read_statements
from django_pgjobs.values import stopping
from django_pgjobs.worker.executor import cleanup, lifecycle, orphan, stacks
from django_pgjobs.worker.executor.event_loop import EventLoop
from django_pgjobs.worker.executor.interrupts import KINDS, raise_ignored_again
from django_pgjobs.worker.executor.job_threads import JobThreads
from django_pgjobs.worker.executor.outbox import FLUSH_SECONDS, Outbox
from django_pgjobs.worker.executor.reaching import Reaching
from django_pgjobs.worker.executor.run_queue import Buffers
from django_pgjobs.worker.executor.signal_sender import SignalSender
from django_pgjobs.worker.shared import channel, process
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.build import build
from django_pgjobs.worker.shared.channel_messages import (
    BootFailed,
    Bye,
    Drain,
    Hello,
    Notified,
    Notify,
    Reached,
    ReadStack,
    Ready,
    ReleaseRuns,
    RunJobs,
    RunsReleased,
    StackRead,
    StackTaken,
    StopRun,
    StopSoon,
    ToExecutor,
    TrustUntil,
)
from django_pgjobs.worker.shared.identity import TableIdentity, identity_of
from django_pgjobs.worker.shared.ladders import CANCELLED, FLAG, INTERRUPT, INTERRUPT_SECONDS, LOST, RELEASED

IDENTITY_SECONDS = 15.0
AWAY = (OperationalError, psycopg.OperationalError, TimeoutError)


class Executor:
    """One executor process; ``run()`` is its life."""

    def __init__(
        self,
        end: channel.ExecutorEnd,
        board: Board,
        threads: int,
        async_slots: int,
        database: str,
        application_name: str = "",
    ) -> None:
        self.end = end
        self.pid = os.getpid()
        self.parent = os.getppid()
        self.databases = database.split(",")
        self.application_name = application_name
        self.leads = os.getpgrp() == self.pid
        self.leaving = threading.RLock()  # the sender of BYE may find that the supervisor is gone
        self.outbox = Outbox(end, self._orphaned)
        self.buffers = Buffers(end, board, self.outbox, self._bye)
        self.threads = JobThreads(self.buffers, threads, database)
        self.loop = EventLoop(self.buffers, range(threads, threads + async_slots), database)
        self.sender = SignalSender(self._confirm, self.databases[0])

    def run(self, identity: list[object], ready: Callable[[], object] = lambda: None) -> None:
        """Say READY, with the ``identity`` of the database that it sees; then serve until drained or orphaned.

        ``ready`` is called after READY.
        """
        os.register_at_fork(after_in_child=self.end.sock.close)
        # A handler, not SIG_IGN: programs that jobs start would inherit that.
        with process.handling(lambda *_: None):
            self.threads.start()
            self.end.send(Ready(self._hello(identity)))
            ready()
            self._control()

    def _hello(self, identity: list[object]) -> Hello:
        return {
            "protocol": channel.PROTOCOL,
            "version": __version__,
            "build": build(),
            "pid": self.pid,
            "identity": identity,
            "jobs": len(registry.definitions()),
            "rss": rss_bytes(),
            "listens": self.outbox.declared_interest(),
        }

    def _control(self) -> None:
        poll = select.poll()
        poll.register(self.end.sock, select.POLLIN)
        outbox = self.outbox
        while True:
            outbox.timer_armed = outbox.timer_armed or outbox.waits
            if not poll.poll(FLUSH_SECONDS * 1000 if outbox.timer_armed else None):
                outbox.timer_armed = outbox.waits or bool(self.buffers.waiting["sync"])
                outbox.flush()
                self.buffers.rouse()
                continue
            messages = self.end.receive()
            if messages is None:
                self._orphaned()
            for message in messages:
                self._obey(message)

    def _obey(self, message: ToExecutor) -> None:
        match message:
            case RunJobs():
                for_the_loop = self.buffers.add(message.start_by, message.groups)
                self.outbox.timer_armed = True
                if for_the_loop:
                    self.loop.pump_soon()
            case ReleaseRuns():
                # Answered even with nothing: else the supervisor cannot tell whether a job holds the interpreter.
                self.end.send(RunsReleased(self.buffers.release(set(message.runs)), "asked"))
            case StopRun():
                control = self.buffers.started.get(message.run)
                if control is not None:
                    self._stop(control, message)
            case ReadStack():
                self.end.send(StackTaken(message.run, self._stack_now(message.run)))
            case TrustUntil():
                self.buffers.trust(message.until, message.database)
                self.outbox.flush()  # so that a changed interest is known before the next end
                self.threads.revive()
                self.sender.start()  # each few seconds: there may have been no thread for it
            case Notify():
                self.sender.notify(message.batch, message.events)
            case StopSoon():
                stopping.of_this_process.announce(message.why, message.until)
            case Drain():
                self._drain()
            case _:
                assert_never(message)

    def _stop(self, control: RunControl, stop: StopRun) -> None:
        if stop.cause in (CANCELLED, LOST):
            control.by, control.reason, control.requested = stop.by, stop.reason, True
        elif stop.cause == RELEASED and stop.rung == FLAG:
            control.stopping.announce(stopping.RELEASE, clock.monotonic() + INTERRUPT_SECONDS)
        kind = KINDS.get(stop.cause) if stop.rung == INTERRUPT else None
        if kind is None or control.interrupt is kind:
            return
        if kind is SoftDeadlinePassed and control.interrupt is not None:
            return  # it is being stopped already
        if control.slot < self.threads.count:
            if kind in (DeadlinePassed, MemoryExceeded):
                self._send_stack(stop.run, control)
            self.threads.interrupt(control, kind)
        else:
            self.loop.interrupt(stop.run, kind)

    def _send_stack(self, run: int, control: RunControl) -> None:
        """Report the stack of a job that has to end, before it is interrupted: it may have to be killed."""
        try:
            owner = self.threads.owners[control.slot]
            stack = stacks.of_thread(owner, get_conf().bounds.traceback_chars, stacks.INTERRUPTED)
        except Exception:
            log.exception("stack of a job cannot be read slot=%d", control.slot)
            return
        if stack:
            self.end.send(StackRead(run, stack))

    def _stack_now(self, run: int) -> str:
        """Return where a run is now; empty if it is in no code of its job, or has ended in the meantime."""
        control, limit = self.buffers.started.get(run), get_conf().bounds.traceback_chars
        if control is None:
            return ""
        try:
            if control.slot < self.threads.count:
                stack = stacks.of_thread(self.threads.owners[control.slot], limit)
            else:
                stack = self.loop.stack_of(run, limit)
        except Exception:
            log.exception("stack of a job cannot be read slot=%d", control.slot)
            return ""
        return stack if self.buffers.started.get(run) is control else ""  # else it may be another job's

    def _confirm(self, number: int) -> None:
        # Called in the sender's thread. A supervisor that is gone is the control thread's business.
        with suppress(OSError):
            self.end.send(Notified(number))

    def _drain(self) -> None:
        released, running = self.buffers.drain()
        if released:
            self.end.send(RunsReleased(released, "drain"))
        if not running:
            self._bye()

    def _bye(self) -> NoReturn:
        self.leaving.acquire()
        lifecycle.end_after(lifecycle.before_bye_seconds())
        self.outbox.flush()
        self.sender.close(lifecycle.NOTIFY_SECONDS)
        self._wait_for_bypassed()
        with suppress(OSError):  # the supervisor may be gone
            self.end.send(Bye(rss_bytes()))
        lifecycle.last_steps(lifecycle.DRAINED, lifecycle.EXIT_SECONDS)
        os._exit(0)

    def _wait_for_bypassed(self) -> None:
        """Wait for jobs here that bypassed the queue: this process ends without the ``atexit`` that would wait."""
        if running := local_pool.of_this_process.running:
            log.info("executor waits for jobs that bypassed the queue pid=%d running=%d", self.pid, running)
            local_pool.of_this_process.leave()

    def _orphaned(self) -> NoReturn:
        self.leaving.acquire()  # by the first thread that notices; others must not end the process before it is done
        until = clock.monotonic() + lifecycle.ORPHANED_SECONDS
        lifecycle.end_after(lifecycle.ORPHANED_SECONDS)
        unstarted, _ = self.buffers.empty()
        alone = orphan.supervisor_has_ended(self.parent)
        if alone:
            orphan.release_unstarted([run.job for run in unstarted], self.databases, self.application_name)
        log.warning("supervisor is gone, executor stops pid=%d", self.pid)
        if alone:
            lifecycle.last_steps(lifecycle.ORPHANED, until - clock.monotonic())
        logging.shutdown()
        process.flush_streams()
        if self.leads:  # even if a job has moved this process to another group
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # the programs that its jobs have started too
        os._exit(1)


def rss_bytes() -> int:
    """Return the peak memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(
    *, channel_fd: int, board_fd: int, threads: int, async_slots: int, database: str, application_name: str
) -> None:
    """Run an executor on inherited file descriptors: the hidden subcommand ``pgjobs executor``."""
    for descriptor in (channel_fd, board_fd):
        os.set_inheritable(descriptor, False)
    process.print_at_once()
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # without a usable stderr
        faulthandler.enable()  # shows all stacks at a crash in C, or when the watchdog asks
    end = channel.ExecutorEnd(socket.socket(fileno=channel_fd))
    name_executor(application_name)
    read_statements()
    cleanup.prepare_connections(application_name, get_conf().executor_conn_max_age_seconds)
    board = Board(board_fd, threads, async_slots)
    seconds = min(IDENTITY_SECONDS, get_conf().ready_seconds / 2)
    first, *others = database.split(",")
    identity: list[object] = []
    ready: Callable[[], object] = lambda: None  # noqa: E731
    try:
        if others:
            reaching = Reaching([first, *others], application_name, lambda *found: _report_reached(end, *found))
            ready = reaching.ready.set
            if not reaching.any.wait(seconds):
                raise TimeoutError(f"none answers within {seconds:g} s")
        else:
            identity = list(identity_of(database, application_name, seconds))
    except Exception as error:
        away = isinstance(error, AWAY)
        log.error("executor cannot reach its database alias=%s", database, exc_info=not away)
        end.send(BootFailed(f"it cannot reach database {database!r}: {one_line(error)}", away))
        sys.exit(3)
    raise_ignored_again()
    lifecycle.say_started(first, threads, async_slots)
    Executor(end, board, threads, async_slots, database, application_name).run(identity, ready)


def _report_reached(end: channel.ExecutorEnd, alias: str, identity: TableIdentity) -> None:
    # Called in a thread of its own. A supervisor that is gone is the control thread's business.
    with suppress(OSError):
        end.send(Reached(alias, list(identity)))
