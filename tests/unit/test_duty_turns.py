"""What is logged of a duty's turn."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from django_pgjobs.maintenance.duties import TimedDuty
from django_pgjobs.maintenance.turns import idle_log


@pytest.mark.parametrize(
    ("did", "done", "logger"),
    [
        (3, 3, "django_pgjobs"), (["a", "b"], 2, "django_pgjobs"),
        (0, 0, "django_pgjobs.duties"), ([], 0, "django_pgjobs.duties"), (None, 0, "django_pgjobs.duties"),
    ],
)  # fmt: skip
def test_a_turn_is_one_line_and_an_idle_one_can_be_silenced(
    did: object, done: int, logger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """W54: with the duty's name, and how much it did."""
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        TimedDuty("unpark", lambda db: did, 60.0).tick(None)
    [record] = caplog.records
    assert (record.levelno, record.name) == (logging.DEBUG, logger)
    assert re.fullmatch(rf"duty took its turn duty=unpark done={done} seconds=\d+\.\d{{4}}", record.getMessage())


def test_a_duty_that_is_not_due_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is asked twice a second."""
    duty = TimedDuty("unpark", lambda db: 1, 60.0, last=True)
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        duty.tick(None)
        duty.tick(None)
        assert len(caplog.records) == 1
        duty.leave(None)
    assert len(caplog.records) == 2


def test_the_logger_of_idle_turns_is_silenced_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[Any] = [0, 5]
    duty = TimedDuty("unpark", lambda db: turns.pop(0), 60.0, urgent=lambda: True)
    idle_log.logger.setLevel(logging.INFO)
    try:
        with caplog.at_level(logging.DEBUG, "django_pgjobs"):
            duty.tick(None)
            duty.tick(None)
    finally:
        idle_log.logger.setLevel(logging.NOTSET)
    assert [record.name for record in caplog.records] == ["django_pgjobs"]
    assert turns == []


def test_a_turn_that_fails_is_told_by_its_thread_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "django_pgjobs"), pytest.raises(ZeroDivisionError):
        TimedDuty("unpark", lambda db: 1 / 0, 60.0).tick(None)
    assert caplog.records == []
