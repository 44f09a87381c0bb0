"""A separate process beside the supervisor: it ends the executors of a supervisor that is killed or stands still.

Run by path, on the standard library alone, so that it starts in milliseconds and needs no project. Its stdin is one
end of a socket whose other end only the supervisor has; lines on it say which executors there are (``add``,
``remove``) and until when the worker's leases are trusted (``until``, nanoseconds of ``clock``). *The end of the
stream* means that the supervisor is dead: its executors hear that too and get a moment to stop by themselves. *An
instant that passes* means that it is frozen: others may have its jobs by now, so what runs must end. It says so on
the socket first, then asks each executor for the stacks of its threads (SIGABRT, answered by ``faulthandler`` even
while a job holds the interpreter), then kills their groups.

A timer inside the executor would not do: a job that holds the interpreter for longer than a lease keeps it from
being reset, and its executor would be killed while its supervisor renews its lease all the time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

FIRED = b"fired"
ORPHAN_SECONDS = 3.5
STACKS_SECONDS = 0.3
LAST_READ_SECONDS = 0.1

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _seconds_left(until_ns: int) -> float:
    return (until_ns - time.clock_gettime_ns(_CLOCK)) / 1e9


def watch(channel: int) -> int:
    """Watch until the supervisor ends or stands still; return the exit status."""
    executors: set[int] = set()
    until_ns = 0
    received = bytearray()
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        # After a pause of this process or of the machine, a line of the supervisor may be waiting: read it first.
        patience = max(_seconds_left(until_ns), LAST_READ_SECONDS) * 1000 if until_ns else None
        if poll.poll(patience):
            said = _read(channel)
            if not said:
                return _outlive(executors, _seconds_left(until_ns) if until_ns else ORPHAN_SECONDS)
            received += said
            *lines, rest = received.split(b"\n")
            received = bytearray(rest)
            for line in lines:
                verb, number = line.split()
                if verb == b"until":
                    until_ns = int(number)
                elif verb == b"add":
                    executors.add(int(number))
                else:
                    executors.discard(int(number))
        elif until_ns and _seconds_left(until_ns) <= 0:
            return _fire(channel, executors)


def _read(channel: int) -> bytes:
    try:
        return os.read(channel, 65536)
    except OSError:
        return b""


def _fire(channel: int, executors: set[int]) -> int:
    """End the executors of a supervisor that stands still."""
    with suppress(OSError):
        os.write(channel, FIRED)  # before the first of them dies, so that none is taken for a crash
    _end(executors)
    _say("the supervisor has stalled and its leases have expired: its executors were ended")
    return 75


def _outlive(executors: set[int], trusted_seconds: float) -> int:
    """End the remaining executors of a dead supervisor, after a moment, and before its leases end."""
    until = time.monotonic() + min(ORPHAN_SECONDS, max(trusted_seconds, LAST_READ_SECONDS))
    while executors and time.monotonic() < until:
        for pid in [pid for pid in executors if not _lives(pid)]:
            _signal(os.killpg, pid, signal.SIGKILL)  # the programs that its jobs have started
            executors.discard(pid)
        time.sleep(0.02)
    if executors:
        _end(executors)
        _say(f"the supervisor is dead: {len(executors)} executors that did not stop were ended")
    return 0


def _end(executors: set[int]) -> None:
    kills = {pid: _kill_of(pid) for pid in executors}
    for pid in executors:
        _signal(os.kill, pid, signal.SIGABRT)
    time.sleep(STACKS_SECONDS if executors else 0)
    for pid, (send, target) in kills.items():
        _signal(os.killpg, pid, signal.SIGKILL)
        _signal(send, target, signal.SIGKILL)  # a job may have moved it to another group


def _kill_of(pid: int) -> tuple[object, int]:
    """Return how to signal a process later, when its pid may be another's already; where that can be said."""
    if hasattr(signal, "pidfd_send_signal"):
        with suppress(OSError):
            return signal.pidfd_send_signal, os.pidfd_open(pid)
    return os.kill, pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(send: object, pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        send(pid, number)  # type: ignore[operator]


def _say(words: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"pgjobs watchdog: {words}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    # The supervisor drains for a while after these signals; sent to the whole group, they must not end its watchdog.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(watch(0))
