"""CPU time and WAL per no-op job: each thread of the supervisor, the executors, and the server processes beside them.

``python -m benchmarks.profile [--jobs N] [--processes N] [--threads N] [--functions ROLE]``

Boot, registering and waiting do not count: a worker starts and runs a few jobs, then one commit makes all jobs visible.
It reads the CPU clocks at that commit and after the last end. Unlike wall-clock time, CPU time hardly depends
on other load. "server, all" sums the worker's connections; the server's own processes are not in it.

WAL is what the whole server wrote between the two instants, so run nothing else on it. The first figure has no
full-page images: a checkpoint comes before the jobs are registered, into empty tables, and none until the last end. For
the second, the worker drains as many jobs once more, behind a checkpoint that comes when they are registered: the
server then writes each page whole when it first changes it. The role needs the right to CHECKPOINT.

``--functions main`` (or claim, finalise, keep) also prints how that thread of the supervisor spends its time;
``--functions executor`` times an executor's own part alone, in this process. Linux only: it reads the clocks of other
processes by their ids.
"""

from __future__ import annotations

import argparse
import contextvars
import cProfile
import os
import pstats
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import django

WARM_UP_JOBS = 3000
CHECK_SECONDS = 0.02
QUIET_SECONDS, QUIET_SHARE = 0.5, 0.1
PATIENCE_SECONDS = 300.0
LAST_CHECKPOINT = "SELECT redo_lsn::text FROM pg_control_checkpoint()"

Clocks = dict[str, float]


@dataclass(frozen=True, slots=True)
class Drain:
    """What a drain took: CPU seconds by who spent them, seconds in all, and bytes of WAL.

    ``checkpoints`` says whether one came meanwhile, so that full-page images are in the WAL.
    """

    clocks: Clocks
    seconds: float
    wal: int
    checkpoints: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--functions", choices=("main", "claim", "finalise", "keep", "executor"))
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    if options.functions == "executor":
        _alone(options.jobs)
        return
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    _threads(options)


# Threads and processes


def _threads(options: argparse.Namespace) -> None:
    from benchmarks import tables
    from django_pgjobs.running import runtime
    from django_pgjobs.running.worker import WorkerOptions
    from django_pgjobs.worker.shared.command_line import entry_point

    tables.empty()
    found: Future[tuple[Drain, Drain]] = Future()
    profiler = _profile(options.functions) if options.functions else None
    threading.Thread(
        target=_measure, args=(options.jobs, options.processes, found), name="pgjobs-measure", daemon=True
    ).start()
    worker = WorkerOptions(
        entry=entry_point(from_command_line=False),
        entry_options=("--settings=benchmarks.settings",),
        processes=options.processes,
        threads=options.threads,
    )
    runtime.run(worker)
    _print(told(options.jobs, *found.result()))
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def told(count: int, drain: Drain, behind_checkpoint: Drain) -> str:
    """Return the report: CPU time of the first drain, WAL of both."""
    server = sum(spent for name, spent in drain.clocks.items() if name.startswith("server "))
    spenders = sorted(drain.clocks.items(), key=lambda item: -item[1])
    sums = [("server, all", server), ("all", sum(drain.clocks.values()))]
    first = "some full-page images" if drain.checkpoints else "no full-page images"
    return "\n".join(
        [
            f"{count:,} no-op jobs in {drain.seconds:.2f} s = {count / drain.seconds:,.0f} jobs/s; CPU µs per job:",
            *(f"  {name:<24} {spent / count * 1e6:7.2f}" for name, spent in [*spenders, *sums]),
            "WAL bytes per job, without its registration:",
            f"  {first:<24} {drain.wal / count:7.0f}",
            f"  {'all full-page images':<24} {behind_checkpoint.wal / count:7.0f}",
            "",
        ]
    )


def _measure(count: int, processes: int, found: Future[tuple[Drain, Drain]]) -> None:
    """Let a worker in this process drain the jobs twice, and stop the worker."""
    from django.db import connection

    from benchmarks import jobs

    try:
        jobs.noop.register_many([(number,) for number in range(WARM_UP_JOBS)])
        _until_ended()
        _until_quiet(processes)
        found.set_result((_drain(count), _drain(count, behind_checkpoint=True)))
    except BaseException as error:
        found.set_exception(error)
    finally:
        connection.close()
        os.kill(os.getpid(), signal.SIGTERM)


def _drain(count: int, *, behind_checkpoint: bool = False) -> Drain:
    """Register jobs beside the worker and wait for their ends; a checkpoint comes before them or ``behind`` them."""
    from django.db import connection, transaction

    from benchmarks import jobs, tables

    tables.clear_jobs()
    _checkpoint(connection)
    with transaction.atomic():
        jobs.noop.register_many([(number,) for number in range(count)])
        if behind_checkpoint:
            _checkpoint(connection)
        _server_processes()
        last = tables.value(LAST_CHECKPOINT)
        wal, before, began = tables.wal_bytes(), _clocks(), time.perf_counter()
    _until_ended()
    seconds = time.perf_counter() - began
    after, wal = _clocks(), tables.wal_bytes() - wal
    if tables.value("SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded'") != count:
        raise RuntimeError("some jobs have not succeeded")
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    return Drain(spent, seconds, wal, tables.value(LAST_CHECKPOINT) != last)


def _checkpoint(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")


def _until_ended() -> None:
    from benchmarks import tables

    until = time.monotonic() + PATIENCE_SECONDS
    while tables.value("SELECT EXISTS (SELECT FROM pgjobs_job WHERE finished_at IS NULL AND hold IS NULL)"):
        if time.monotonic() > until:
            raise TimeoutError("the jobs have not ended")
        time.sleep(CHECK_SECONDS)


def _until_quiet(processes: int) -> None:
    """Wait until so many executors have booted: only the first is ready when the worker begins."""
    until, before = time.monotonic() + PATIENCE_SECONDS, 0.0
    while True:
        now = sum(map(_process_clock, _executors()))
        if len(_executors()) == processes and now - before < QUIET_SHARE * QUIET_SECONDS:
            return
        if time.monotonic() > until:
            raise TimeoutError("the executors have not booted")
        before = now
        time.sleep(QUIET_SECONDS)


def _executors() -> list[int]:
    return [pid for pid in _children() if b"executor" in _command_line(pid)]


def _clocks() -> Clocks:
    """CPU seconds so far by who spent them; the measuring thread and its server process are excluded."""
    clocks: Clocks = {}
    for thread in threading.enumerate():
        name = thread.name.removeprefix("pgjobs-").replace("MainThread", "main")
        if thread is not threading.current_thread() and thread.ident is not None:
            clocks[f"supervisor {name}"] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    clocks["executors"] = sum(map(_process_clock, _executors()))
    for role, pid in _server_processes():
        name = f"server {role}"
        clocks[name] = clocks.get(name, 0.0) + _process_clock(pid)
    return clocks


def _process_clock(pid: int) -> float:
    """The CPU clock of another process, by the id that Linux gives it; 0.0 where that is not to be had."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def _server_processes() -> list[tuple[str, int]]:
    """Role and pid of each of the worker's connections; meaningful for a server on this machine only."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substring(application_name FROM '[^ ]*$'), pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'pgjobs %'"
        )
        return list(cursor.fetchall())


def _profile(role: str) -> cProfile.Profile:
    """Return a profile under which the thread of this role will run."""
    from django_pgjobs.worker.supervisor.supervisor import Supervisor
    from django_pgjobs.worker.threads.loop import Loop

    profiler = cProfile.Profile(time.thread_time)
    owner, method = (Supervisor, "run") if role == "main" else (Loop, "run")
    original = getattr(owner, method)

    def run(self: Any, *args: Any) -> Any:
        if role in ("main", getattr(self, "role", "")):
            return profiler.runcall(original, self, *args)
        return original(self, *args)

    setattr(owner, method, run)
    return profiler


# An executor's part


def _alone(count: int) -> None:
    """Run no-op jobs in this process as a job thread does; print the cost of its functions."""
    from django_pgjobs.worker.executor.interrupts import Door
    from django_pgjobs.worker.executor.job_threads import JobThreads
    from django_pgjobs.worker.executor.outbox import Outbox
    from django_pgjobs.worker.executor.run_queue import Buffers
    from django_pgjobs.worker.shared import channel
    from django_pgjobs.worker.shared.board import Board

    ours, theirs = socket.socketpair()
    threading.Thread(target=_read_all, args=(theirs,), daemon=True).start()
    end, board = channel.ExecutorEnd(ours), Board.create(1, 1)
    outbox = Outbox(end, lambda: None)
    outbox.timer_armed = True
    buffers = Buffers(end, board, outbox, lambda: None)
    threads = JobThreads(buffers, 1, "default")
    door = Door()

    def work(groups: list[list[Any]]) -> None:
        buffers.add(time.monotonic() + 1e9, groups)
        for _ in range(count):
            run = door.control = buffers.next(0, rouse=False)
            buffers.finish(run, contextvars.Context().run(threads.run, run, door))

    first, second = _travelling(1, count), _travelling(count + 1, count)
    began = time.thread_time()
    work(first)
    _print(f"{count:,} no-op jobs in one job thread: {(time.thread_time() - began) / count * 1e6:.2f} CPU µs per job\n")
    profiler = cProfile.Profile(time.thread_time)
    profiler.runcall(work, second)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    board.close()


def _read_all(sock: socket.socket) -> None:
    while sock.recv(1 << 18):
        pass


def _travelling(first: int, count: int) -> list[list[Any]]:
    """No-op jobs as the supervisor sends them."""
    from benchmarks import jobs
    from django_pgjobs.store.claiming import ClaimedJob
    from django_pgjobs.worker.shared.run_groups import groups_of
    from django_pgjobs.worker.shared.runs import RunTable

    due, claim_id = datetime.now(UTC), "0b0d9a52-7c51-4a05-8a3e-6f1b2a1c9d10"
    claimed = [
        ClaimedJob(
            number, due, f'{{"args": [{number}], "kwargs": {{}}}}', "default", 0, jobs.noop.name, 1, 25, None, None,
            claim_id,
        )
        for number in range(first, first + count)
    ]  # fmt: skip
    runs = RunTable().adopt(0.0, claimed)
    for run in runs:
        run.run = run.job.id
    return groups_of(runs)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
