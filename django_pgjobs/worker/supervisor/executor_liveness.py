"""Kills executors that no longer take part: deaf or hung ones, and those that stay although nothing is left to do.

None of these reports itself. After a pause of this process or of the machine, an executor gets the whole time again.
"""

from __future__ import annotations

from django_pgjobs.logs import log
from django_pgjobs.worker.executor import lifecycle
from django_pgjobs.worker.supervisor.executor_process import DRAINING, KILLED, ExecutorProcess

DEAF_SECONDS = 1.0
"""Time that an executor may live after it closed its end of the channel."""

HUNG_SECONDS = 10.0
"""Time that an executor may leave a question unanswered while none of its jobs runs; a job may hold its interpreter."""

LEAVE_MARGIN_SECONDS = 1.0
"""Time beyond its own limit that an executor may take to leave."""


def check(child: ExecutorProcess, now: float, last_check: float) -> None:
    """Kill ``child`` if it is one of these. ``last_check``: the time of the previous check."""
    paused = now > last_check + HUNG_SECONDS / 2
    if child.end.eof:
        _check_deaf(child, now)
    _check_hung(child, now, paused=paused)
    _check_leaving(child, now, paused=paused)


def _check_deaf(child: ExecutorProcess, now: float) -> None:
    """Without its end of the channel none of its runs would ever end."""
    child.deaf_since = child.deaf_since or now
    if now > child.deaf_since + DEAF_SECONDS and child.state != KILLED:
        log.error("executor has closed its channel, it is killed pid=%d", child.pid)
        child.kill()


def _check_hung(child: ExecutorProcess, now: float, *, paused: bool) -> None:
    """It does not answer although no job runs there: jobs sent to it would never start."""
    if child.asked_at is None or child.state == KILLED or paused or child.board.running():
        child.hung_since = None
        return
    child.hung_since = child.hung_since or now
    if now > child.hung_since + HUNG_SECONDS:
        log.error(
            "executor does not answer and runs nothing, it is killed pid=%d seconds=%.0f jobs=%d",
            child.pid, now - child.asked_at, len(child.runs),
        )  # fmt: skip
        child.kill()


def _check_leaving(child: ExecutorProcess, now: float, *, paused: bool) -> None:
    """It has nothing left to do and does not leave: its slot would stay taken forever."""
    if child.state != DRAINING or child.runs or paused:
        child.idle_since = None
        return
    child.idle_since = child.idle_since or now
    limit = lifecycle.EXIT_SECONDS if child.said_bye else lifecycle.before_bye_seconds()
    if now > child.idle_since + limit + LEAVE_MARGIN_SECONDS:
        log.error("executor does not leave, it is killed pid=%d seconds=%.0f", child.pid, now - child.idle_since)
        child.kill()
