"""Checks against the settings of a project: of starts, deadlines, numbers of attempts, timeouts, and queues.

A check raises ``InvalidOption`` with the bare sentence, which names the setting.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_pgjobs.conf import Conf
from django_pgjobs.definition.validation import BackoffRule, did_you_mean
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.setting_rules import InvalidOption

CLOCKS_DIFFER_SECONDS = 60.0
"""Maximum difference between this machine's clock and the database's before an instant counts as a mistake."""


def wall_clock() -> datetime:
    """Return the time of this machine's clock, in UTC."""
    return datetime.now(UTC)


DAY = timedelta(days=1)


def check_start(run_at: datetime | None, delay: float | None, conf: Conf) -> None:
    """Refuse ``run_at`` and ``delay`` (seconds) together, and either beyond what the settings allow."""
    if run_at is not None and delay is not None:
        raise InvalidOption("give run_at or delay, not both")
    ceiling = timedelta(seconds=conf.bounds.ahead_seconds)
    if run_at is not None:
        # This machine's clock only bounds nonsense; the database's decides when the job runs.
        _check_ahead(run_at, run_at - wall_clock(), ceiling, conf.bounds.past_seconds)
    if delay is not None and delay > ceiling.total_seconds():
        raise InvalidOption(
            f"delay must be at most {ceiling / DAY:g} days, not {delay:g} seconds (BOUNDS['ahead_seconds'])"
        )


def _check_ahead(run_at: datetime, ahead: timedelta, ceiling: timedelta, past: float | None) -> None:
    if ahead > ceiling:
        raise InvalidOption(
            f"run_at must be at most {ceiling / DAY:g} days ahead, not {run_at} (BOUNDS['ahead_seconds'])"
        )
    if past is not None and -ahead.total_seconds() > past:
        raise InvalidOption(f"run_at must be at most {past:g} seconds ago, not {run_at} (BOUNDS['past_seconds'])")


def check_deadline(
    deadline: datetime, run_at: datetime | None, delay: float | None, conf: Conf, option: str = "deadline"
) -> None:
    """Refuse an instant that no job could meet, or that is further ahead than a start may be."""
    if run_at is not None and deadline <= run_at:
        raise InvalidOption(f"{option} must be after run_at, and {deadline} is not after {run_at}")
    # As for run_at: this machine's clock only bounds nonsense; the database's decides.
    ahead = (deadline - wall_clock()).total_seconds()
    if ahead < -CLOCKS_DIFFER_SECONDS:
        raise InvalidOption(f"{option} must be in the future, and {deadline} was {-ahead:.0f} seconds ago")
    if delay is not None and delay > ahead + CLOCKS_DIFFER_SECONDS:
        raise InvalidOption(f"{option} must be after the start, and {deadline} is before the delay ends")
    if ahead > (most := conf.bounds.ahead_seconds):
        raise InvalidOption(
            f"{option} must be at most {most / 86400:g} days ahead, not {deadline} (BOUNDS['ahead_seconds'])"
        )


def check_expiry_allowed(seconds: float, conf: Conf) -> None:
    """Refuse a number of seconds after the start that is further ahead than a start may be."""
    if seconds > conf.bounds.ahead_seconds:
        raise InvalidOption(
            f"expires must be at most {conf.bounds.ahead_seconds / 86400:g} days after the start, "
            f"not {seconds:g} seconds (BOUNDS['ahead_seconds'])"
        )


def check_attempts_allowed(attempts: int, conf: Conf) -> None:
    """Refuse more attempts than a job may have."""
    if attempts > (most := conf.bounds.max_attempts):
        raise InvalidOption(f"max_attempts must be between 1 and {most}, not {attempts} (BOUNDS['max_attempts'])")


def check_timeout_allowed(timeout: float | None, conf: Conf) -> None:
    """Refuse a longer time than a job may run."""
    if timeout is not None and timeout > (most := conf.bounds.timeout_seconds):
        raise InvalidOption(f"timeout must be at most {most:g} seconds, not {timeout:g} (BOUNDS['timeout_seconds'])")


def check_needs_allowed(count: int, conf: Conf) -> None:
    """Refuse more jobs than one may need."""
    if count > (most := conf.bounds.needs):
        raise InvalidOption(f"after takes at most {most} jobs (BOUNDS['needs']), not {count}")


def check_allowed_queue(queue: str, allowed: tuple[str, ...] | None) -> None:
    """Refuse a queue that ``PGJOBS["QUEUES"]`` does not list."""
    if allowed is not None and queue not in allowed:
        raise InvalidOption(f"queue {queue!r} is not in PGJOBS['QUEUES']{did_you_mean(queue, allowed)}")


def check_allowed_backoff(backoff: BackoffRule, conf: Conf) -> None:
    """Refuse a ``Backoff`` that the settings do not allow. Raises ``InvalidOption``."""
    if not isinstance(backoff, Backoff):
        return
    longest, (least, most) = conf.bounds.backoff_base_seconds, conf.bounds.backoff_factor
    if backoff.base > longest:
        raise InvalidOption(
            f"backoff must begin with at most {longest:g} seconds, not {backoff.base:g} "
            "(BOUNDS['backoff_base_seconds'])"
        )
    if not least <= backoff.factor <= most:
        raise InvalidOption(
            f"backoff must have a factor from {least:g} to {most:g}, not {backoff.factor:g} (BOUNDS['backoff_factor'])"
        )
