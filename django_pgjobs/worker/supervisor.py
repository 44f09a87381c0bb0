"""The supervisor's main thread: it hears, decides and dispatches; it runs no query, no job, and never blocks.

    boot → serve → drain → leave

*boot* starts the first executor alone (a child that cannot boot stops the worker) and then the others. *serve* is
one selector over signals, the inbox of the database threads, the executors' sockets and their pidfds, with a tick
for deadlines. Each held job is in exactly one place: waiting here, outstanding at one executor, or ending in the
ack thread; a run ends in exactly one of DONE, BACK or the death of its executor, and its job is struck only when
its end was flushed or is known to be lost. *drain* claims nothing, takes back what has not started, lets the rest
finish up to a limit, then kills and hands back. *leave* flushes, says farewell, and returns the exit status.
"""

from __future__ import annotations

import json
import logging
import random
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django_pgjobs import clock, events, finalising
from django_pgjobs import decisions as decide
from django_pgjobs.attempt import BODY
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Decision
from django_pgjobs.finalising import CALLBACK_OF, CALLBACK_STARTS, END, MARK, RETRY, SUCCESS
from django_pgjobs.states import Outcome
from django_pgjobs.store import ClaimedJob, End, Flag, Released, Rescheduled
from django_pgjobs.worker import channel, children
from django_pgjobs.worker.acking import Acker
from django_pgjobs.worker.children import DEAD, READY, STARTING, TERMINATING, Child, Crew
from django_pgjobs.worker.claiming import Claimer
from django_pgjobs.worker.decided import unpack_decision
from django_pgjobs.worker.deaths import Death
from django_pgjobs.worker.dispatching import START_WITHIN_SECONDS, Dispatcher
from django_pgjobs.worker.inbox import Inbox
from django_pgjobs.worker.runs import ENDING, FRESH_SECONDS, SENT, WAITING, Run, Table

log = logging.getLogger("django_pgjobs")

TICK_SECONDS = 0.1
IDLE_TICK_SECONDS = 1.0
BOOT_TRIES = 3
LEAVE_SECONDS = 5.0
HAND_BACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker ends by itself: ``max_jobs`` ended, or ``until_idle``; seconds it waits for running jobs."""

    processes: int
    max_jobs: int | None = None
    until_idle: bool = False
    drain_seconds: float = 25.0


class Supervisor:
    """The main thread of one worker. Everything it is given has not been started yet."""

    def __init__(
        self,
        crew: Crew,
        limits: Limits,
        inbox: Inbox,
        table: Table,
        claimer: Claimer,
        acker: Acker,
        identity: list[Any],
    ) -> None:
        self.crew = crew
        self.limits = limits
        self.inbox = inbox
        self.table = table
        self.claimer = claimer
        self.acker = acker
        self.identity = identity
        self.dispatcher = Dispatcher()
        self.children: list[Child] = []
        self.selector = selectors.DefaultSelector()
        self.signals, self._signalled = socket.socketpair()
        self.draining_until: float | None = None
        self.killed = False
        self.exit_status = 0
        self.booted = False
        self.boot_failures = 0
        self.boot_after = 0.0
        self.spawned = 0
        self.ended = 0
        self.counts: dict[str, int] = {}
        self.last_struck = 0.0
        self.idle_at = 0.0
        self.next_tick = 0.0
        self.cpu_seconds = 0.0

    # Life

    def run(self) -> int:
        """Serve until drained; return the exit status."""
        self._hear_signals()
        self._spawn()
        try:
            while not self._gone():
                for key, _ in self.selector.select(self._pause()):
                    key.data()
                self._advance()
        finally:
            self._unhear_signals()
        return self.exit_status

    def _hear_signals(self) -> None:
        self.signals.setblocking(False)
        self._signalled.setblocking(False)
        self.selector.register(self.signals, selectors.EVENT_READ, self._on_signal)
        self.selector.register(self.inbox.wakes, selectors.EVENT_READ, self._on_inbox)
        self._wakeup_fd = signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}

    def _unhear_signals(self) -> None:
        signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.selector.close()

    def _pause(self) -> float:
        busy = any(child.runs or child.state != READY for child in self.children) or self.draining_until is not None
        return max(0.0, min(self.next_tick - clock.monotonic(), TICK_SECONDS if busy else IDLE_TICK_SECONDS))

    def _advance(self) -> None:
        now = clock.monotonic()
        if now >= self.next_tick:
            self.next_tick = now + TICK_SECONDS
            self._tick(now)
        if self.draining_until is None:
            if not self.acker.full:
                self.dispatcher.dispatch(self.children, now)
            self._want()
            self._maybe_leave()
        for child in self.children:
            if child.end.kept:
                child.end.flush()

    def _want(self) -> None:
        """Ask for jobs when there is room: at once for idle threads, else when half the room is free."""
        room = 0 if self.acker.full else self.dispatcher.room(self.children)
        if self.limits.max_jobs is not None:
            room = min(room, self.limits.max_jobs - self.ended - len(self.table.held))
        capacity = sum(child.threads + child.prefetch() for child in self.children if child.state == READY)
        if room > 0 and (room * 2 >= capacity or self.dispatcher.idle_places(self.children) > 0):
            self.claimer.request(room)
        else:
            self.claimer.request(0)

    def _maybe_leave(self) -> None:
        if self.limits.max_jobs is not None and self.ended >= self.limits.max_jobs:
            self.drain("the number of jobs asked for has ended")
        elif self.limits.until_idle and self.booted and not self.table.held and self.idle_at > self.last_struck:
            self.drain("nothing is due")

    # Signals and drain

    def _on_signal(self) -> None:
        for number in self.signals.recv(64):
            if number in (signal.SIGTERM, signal.SIGINT):
                name = signal.Signals(number).name
                if self.draining_until is None:
                    self.drain(name)
                else:
                    log.warning("second signal, running jobs are handed back now signal=%s", name)
                    self.draining_until = 0.0

    def drain(self, why: str) -> None:
        """Claim nothing more, hand back what has not started, let the rest finish up to the limit."""
        if self.draining_until is None:
            log.info("worker drains: %s held=%d", why, len(self.table.held))
            self.draining_until = clock.monotonic() + self.limits.drain_seconds
            self.claimer.halt()
            self.dispatcher.take_back(self.children, lambda run: True)
            self._give_back(self.dispatcher.withdraw(lambda run: True))

    def _drain_on(self, now: float) -> None:
        assert self.draining_until is not None
        if now >= self.draining_until and not self.killed:
            self.killed = True
            for child in self.children:
                if child.runs:
                    log.warning("drain limit reached, executor killed pid=%d jobs=%d", child.pid, len(child.runs))
                    child.culprits.update(dict.fromkeys(child.runs, "released"))
                child.kill()
        if not self.table.held and not self.killed:
            for child in self.children:
                if child.state in (READY, STARTING):
                    child.state = children.DRAINING
                    child.end.send([channel.DRAIN])
        if not self.table.held and now >= self.draining_until + LEAVE_SECONDS:
            for child in self.children:
                child.kill()

    def _gone(self) -> bool:
        return self.draining_until is not None and not self.children and not self.table.held

    def _give_back(self, runs: list[Run]) -> None:
        """Release jobs that never started, uncharged."""
        for run in runs:
            self._decided(
                run, decide.Cancel() if run.cancelled and run.kind == BODY else decide.Release("not started"), None
            )

    # Tick: deadlines, stale dispatches, deaths that no descriptor tells

    def _tick(self, now: float) -> None:
        for child in self.children:
            self._check_deadlines(child, now)
            if child.state == STARTING and now > child.started_at + get_conf().ready_seconds:
                child.boot_error = f"it was not READY within {get_conf().ready_seconds:g} s"
                child.kill()
        for child in list(self.children):
            self._on_exit(child)
        self.dispatcher.take_back(self.children, lambda run: now > run.since + START_WITHIN_SECONDS)
        # Jobs that found no room for long go back: another worker may have some.
        stale = self.dispatcher.withdraw(lambda run: run.state == WAITING and now > run.since + HAND_BACK_SECONDS)
        self._give_back([run for run in stale if run.kind == BODY])
        self.dispatcher.add([run for run in stale if run.kind != BODY], now)
        if self.draining_until is not None:
            self._drain_on(now)
        elif (
            len(self.children) < self.limits.processes and (self.booted or not self.children) and now >= self.boot_after
        ):
            self._spawn()

    def _check_deadlines(self, child: Child, now: float) -> None:
        if not child.runs or child.state == TERMINATING:
            return
        for number, started_ns in child.board.running().items():
            run = child.runs.get(number)
            if run is None or run.timeout is None or now <= started_ns / 1e9 + run.timeout:
                continue
            log.warning(
                "deadline passed, executor killed job=%d attempt=%d claim=%s queue=%s timeout=%gs pid=%d",
                run.job.id, run.job.attempt, run.claim.claim_id, run.job.queue, run.timeout, child.pid,
            )  # fmt: skip
            child.culprits[number] = "timeout"
        if child.culprits:
            child.kill()

    # Executors

    def _spawn(self) -> None:
        self.spawned += 1
        child = children.spawn(self.crew, self.spawned)
        self.children.append(child)
        self.selector.register(child.end.sock, selectors.EVENT_READ, lambda: self._on_frames(child))
        if child.pidfd is not None:
            self.selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._on_exit(child))

    def _on_frames(self, child: Child) -> None:
        for message in child.end.receive():
            self._on_message(child, message)
        if child.end.eof:
            self._forget_descriptor(child.end.sock)

    def _on_message(self, child: Child, message: channel.Message) -> None:
        match message:
            case [channel.DONE, items]:
                self._on_done(child, items)
            case [channel.BACK, runs, why]:
                self._on_back(child, runs, why)
            case [channel.PROGRESS, number, progress]:
                run = child.runs.get(number)
                if run is not None:
                    self.acker.report(run.job.id, run.claim.claim_id, json.dumps(progress))
            case [channel.READY, hello]:
                self._on_ready(child, hello)
            case [channel.BOOT_FAILED, why]:
                child.boot_error = why
            case [channel.BYE, _rss]:
                pass

    def _on_ready(self, child: Child, hello: dict[str, Any]) -> None:
        if hello["protocol"] != channel.PROTOCOL:
            child.boot_error = "it runs another version of django-pgjobs"
        elif hello["identity"] != self.identity:
            child.boot_error = f"it sees another database: {hello['identity']} instead of {self.identity}"
        if child.boot_error:
            child.kill()
            return
        if self.draining_until is not None:
            return
        child.state, child.listens = READY, hello["listens"]
        self.boot_failures = 0
        log.info("executor is ready pid=%d jobs=%d rss=%.0fMB", child.pid, hello["jobs"], hello["rss"] / 1e6)
        if not self.booted:
            self.booted = True
            for _ in range(self.limits.processes - 1):
                self._spawn()

    def _on_exit(self, child: Child) -> None:
        """Reap an executor that has ended, settle its runs, and replace it."""
        if child.state == DEAD:
            return
        status = child.exit_status()
        if status is None:
            return
        for message in child.end.receive():
            self._on_message(child, message)
        was, child.state = child.state, DEAD
        self._forget_descriptor(child.end.sock)
        if child.pidfd is not None:
            self._forget_descriptor(child.pidfd)
        self.children.remove(child)
        self.acker.terminate(child.application_name)
        self._settle(Death.of(child, status))
        child.close()
        if was == STARTING or child.boot_error:
            self._boot_failed(child, status)
        elif self.draining_until is None:
            log.warning("executor ended, replaced pid=%d status=%d", child.pid, status)
            self._spawn()

    def _forget_descriptor(self, descriptor: Any) -> None:
        try:
            self.selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass

    def _boot_failed(self, child: Child, status: int) -> None:
        if self.draining_until is not None:
            return
        self.boot_failures += 1
        why = child.boot_error or f"it exited with status {status} before it was ready; its own words are above"
        if not self.booted or self.boot_failures > BOOT_TRIES:
            log.critical("executor cannot boot, worker stops pid=%d: %s", child.pid, why)
            self.exit_status = 1
            self.drain("an executor cannot boot")
            return
        self.boot_after = clock.monotonic() + 2.0 ** (self.boot_failures - 1) * random.uniform(0.5, 1.0)
        log.error("executor cannot boot, another try follows pid=%d: %s", child.pid, why)

    def _settle(self, death: Death) -> None:
        """Say of every run of a dead executor what became of it."""
        now = clock.monotonic()
        for run in death.unstarted:
            self._returned(run, now)
        for run, decision in death.decisions():
            self._ended_by_death(run, decision)
        if death.suspects:
            log.warning("executor died with jobs in company, each runs again alone jobs=%d", len(death.suspects))
            if self.draining_until is None:
                self.dispatcher.suspect(death.suspects, now)
            else:
                self._give_back(death.suspects)

    def _ended_by_death(self, run: Run, decision: Decision) -> None:
        log.warning(
            "attempt ended with its executor %s: %s", _facts(run), getattr(decision, "reason", None) or decision
        )
        if run.kind == BODY:
            self._decided(run, decision, None)
        elif run.stop_cause == "timeout":
            log.error("callback was stopped at its time limit %s kind=%s", _facts(run), run.kind)
            self._write(END, run, finalising.after_callback(run.job.id, run.claim.claim_id, run.outcome))
        elif isinstance(decision, decide.Release):
            self._decided(run, decision, None)
        else:
            # The claim counts the starts of a callback; what is kept here is the ending, so it is claimed again.
            failure = getattr(decision, "failure", None) or decide.Failure("", "")
            again = End(run.job.id, run.claim.claim_id, 0.0, delay=0.0, cause="crashed", failure=failure)
            self._write(RETRY, run, again)

    # Ends

    def _on_done(self, child: Child, items: list[list[Any]]) -> None:
        succeeded: list[tuple[Run, End]] = []
        total = 0.0
        for number, seconds, *packed in items:
            run = child.remove(number)
            total += seconds
            if run is None:
                continue
            if packed[0] == "succeed" and run.kind == BODY:
                run.state = ENDING
                succeeded.append((run, End(run.job.id, run.claim.claim_id, seconds, result=packed[1])))
            else:
                self._on_decision(run, unpack_decision(packed), seconds)
        if succeeded:
            self.acker.put_many(SUCCESS, succeeded)
        child.learn(total, len(items))

    def _on_decision(self, run: Run, decision: Decision, seconds: float) -> None:
        if run.kind != BODY and isinstance(decision, decide.Succeed):
            self._write(END, run, finalising.after_callback(run.job.id, run.claim.claim_id, run.outcome))
        else:
            self._decided(run, decision, seconds)

    def _decided(self, run: Run, decision: Decision, seconds: float | None) -> None:
        """Queue the statement that writes ``decision``; any end but success of a cancelled job is a cancel."""
        if run.cancelled and run.kind == BODY and not isinstance(decision, decide.Succeed | decide.Cancel):
            decision = decide.Cancel("", getattr(decision, "failure", None))
        job, claim_id = run.job, run.claim.claim_id
        kind, end = finalising.end_of(decision, job.id, claim_id, job.name, seconds)
        if kind == MARK:
            run.outcome, run.error = end.outcome, end.failure.summary if end.failure else ""
        self._write(kind, run, end)

    def _write(self, kind: str, run: Run, end: End) -> None:
        run.state, run.child = ENDING, None
        self.acker.put(kind, run, end)

    def _on_back(self, child: Child, runs: list[int], why: str) -> None:
        now = clock.monotonic()
        for number in runs:
            run = child.remove(number)
            if run is not None:
                self._returned(run, now)

    def _returned(self, run: Run, now: float) -> None:
        """A run that never started is free again: to be given back, ended, or dispatched anew."""
        if self.draining_until is not None or run.released:
            self._give_back([run])
        elif run.cancelled and run.kind == BODY:
            self._decided(run, decide.Cancel(run.cancel_reason), None)
        else:
            self.dispatcher.add([run], now)

    # What the database threads say

    def _on_inbox(self) -> None:
        handlers: dict[str, Callable[..., None]] = {
            "claimed": self._on_claimed,
            "stored": self._on_stored,
            "lost": self._on_lost,
            "fresh": self._on_fresh,
            "renewed": self._on_renewed,
            "idle": self._on_idle,
        }
        for kind, *rest in self.inbox.take():
            handlers[kind](*rest)

    def _on_claimed(self, claim_id: str, asked_at: float, jobs: list[ClaimedJob]) -> None:
        runs = self.table.adopt(claim_id, asked_at, jobs)
        now = clock.monotonic()
        if self.draining_until is not None:
            self._give_back(runs)
            return
        if any(job.ending or job.cancelled for job in jobs):
            runs = [run for run in runs if self._begin(run)]
        self.dispatcher.add(runs, now)

    def _begin(self, run: Run) -> bool:
        """Say what a claimed job is claimed for; return whether an executor is needed."""
        job = run.job
        if job.ending is None:
            run.cancelled = job.cancelled
            if job.cancelled:
                self._decided(run, decide.Cancel(), None)
            return not job.cancelled
        run.kind, run.outcome = CALLBACK_OF[job.ending], job.ending
        if job.ending_attempt <= CALLBACK_STARTS:
            return True
        log.error(
            "callback crashed %d times, the job ends without it %s kind=%s", CALLBACK_STARTS, _facts(run), run.kind
        )
        self._write(END, run, finalising.after_callback(job.id, run.claim.claim_id, job.ending))
        return False

    def _on_stored(self, kind: str, entries: list[tuple[Run, End, Any]]) -> None:
        if kind == MARK:
            self._start_callbacks([run for run, _, _ in entries])
            return
        done = [run for run, _, _ in entries]
        self._strike(done)
        if kind in (SUCCESS, END):
            self.ended += len(done)
        self.counts[kind] = self.counts.get(kind, 0) + len(done)
        for _, _, row in entries:
            if isinstance(row, Rescheduled | Released):
                self.claimer.hear((row.queue, row.priority))
        if kind in (SUCCESS, END, RETRY):
            self._tell([_event(kind, run, end) for run, end, _ in entries])

    def _start_callbacks(self, runs: list[Run]) -> None:
        now = clock.monotonic()
        for run in runs:
            run.kind = CALLBACK_OF[run.outcome]
            run.fresh_until = now + FRESH_SECONDS
        if self.draining_until is None:
            self.dispatcher.add(runs, now)
        else:
            self._give_back(runs)

    def _on_lost(self, runs: list[Run]) -> None:
        for run in runs:
            log.warning("lease lost, nothing of the job was changed %s", _facts(run))
        self.counts["lost"] = self.counts.get("lost", 0) + len(runs)
        self._strike(runs)
        self._tell([(events.LOST, {**_fields(run), "claim_id": run.claim.claim_id}) for run in runs])

    def _strike(self, runs: list[Run]) -> None:
        finished = [claim_id for run in runs if (claim_id := self.table.strike(run)) is not None]
        if finished:
            self.acker.delete(finished)
        self.last_struck = clock.monotonic()

    def _tell(self, items: list[tuple[str, dict[str, Any]]]) -> None:
        """Let an executor send the signals of durable writes, if somebody there listens."""
        listener = next((child for child in self.children if child.listens and child.state == READY), None)
        if listener is not None and items:
            listener.end.send([channel.STORED, items])

    def _on_renewed(self, asked_at: float, renewed: set[str]) -> None:
        for claim_id, claim in list(self.table.claims.items()):
            if claim_id not in renewed and claim.asked_at < asked_at:
                log.debug("claim has no ledger row any more claim=%s", claim_id)

    def _on_fresh(self, asked_at: float, ids: set[int], flags: list[Flag]) -> None:
        flagged = {(flag.id, flag.claim_id): flag for flag in flags}
        for job_id in ids:
            run = self.table.held.get(job_id)
            if run is None:
                continue
            flag = flagged.get((job_id, run.claim.claim_id))
            if flag is None or not flag.lost:
                run.fresh_until = asked_at + FRESH_SECONDS
            if flag is not None:
                self._on_flag(run, flag)

    def _on_flag(self, run: Run, flag: Flag) -> None:
        if run.state == ENDING or (run.kind != BODY and not flag.lost):
            return
        if flag.lost:
            self._on_lost_flag(run)
        elif flag.cancelled and not (run.cancelled and run.cancel_mode == flag.mode):
            run.cancelled, run.cancel_mode, run.cancel_by, run.cancel_reason = True, flag.mode, flag.by, flag.reason
            self._stop(run, "cancelled", kill=flag.mode == "kill")
        elif flag.released and not run.released:
            run.released = True
            self._stop(run, "released", kill=True)

    def _on_lost_flag(self, run: Run) -> None:
        if run.state == WAITING:
            self.dispatcher.withdraw(lambda other: other is run)
            self._on_lost([run])
        elif not run.told:
            run.told = True
            assert run.child is not None
            run.child.end.send([channel.TAKE_BACK, [run.run]])
            run.child.end.send([channel.STOP, run.run, "", "the job was taken from this worker"])

    def _stop(self, run: Run, cause: str, *, kill: bool) -> None:
        """Bring a wish to a job: before its start it ends here; while it runs it is told, or its executor killed."""
        if run.state == WAITING:
            self.dispatcher.withdraw(lambda other: other is run)
            self._returned(run, clock.monotonic())
            return
        child = run.child
        assert child is not None
        self.dispatcher.take_back([child], lambda other: other is run)
        if run.run not in child.board.running() and run.state != SENT and not kill:
            return
        child.end.send([channel.STOP, run.run, run.cancel_by, run.cancel_reason])
        if kill and run.run in child.board.running():
            log.warning("executor killed for a job cause=%s %s pid=%d", cause, _facts(run), child.pid)
            child.culprits[run.run] = cause
            child.kill()

    def _on_idle(self, at: float) -> None:
        self.idle_at = at


def _facts(run: Run) -> str:
    job = run.job
    return f"name={job.name} job={job.id} attempt={job.attempt}/{job.max_attempts} claim={run.claim.claim_id} queue={job.queue}"


def _fields(run: Run) -> dict[str, Any]:
    return {"job_id": run.job.id, "name": run.job.name, "attempt": run.job.attempt}


def _event(kind: str, run: Run, end: End) -> tuple[str, dict[str, Any]]:
    fields = _fields(run)
    if kind == RETRY:
        return events.RETRIED, {**fields, "delay": end.delay}
    return events.FINISHED, {**fields, "outcome": Outcome.SUCCEEDED if kind == SUCCESS else end.outcome}
