"""Which records become lines of a job, and that none of them harms who logs."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.conf import JobBounds
from django_pgjobs.execution import log_lines
from django_pgjobs.execution.log_lines import JobLines, as_json, begin
from django_pgjobs.logs import running
from django_pgjobs.worker.executor import line_sender
from django_pgjobs.worker.executor.line_sender import LineSender
from tests.plugins.fix_db import wait_until

logger = logging.getLogger("tests.lines")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobLines]:
    """Lines from INFO on of a job that runs in this context."""
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    before = logging.getLogRecordFactory()
    control: Any = SimpleNamespace(lines=None)
    token = running.set(SimpleNamespace(control=control, job=None))
    yield begin(control, logging.INFO)
    running.reset(token)
    logging.setLogRecordFactory(before)


def texts(lines: JobLines) -> list[str]:
    return [line[3] for line in lines.sent()]


def test_a_record_is_taken_once_whatever_factories_it_passes(lines: JobLines) -> None:
    """A project that sets a factory of its own after ours calls ours, and we come on top again."""
    ours = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *args, **kwargs: ours(*args, **kwargs))
    log_lines._install()
    assert logging.getLogRecordFactory() is not ours
    logger.info("once")
    assert texts(lines) == ["once"]


def test_a_record_made_of_the_fields_of_another_is_none(lines: JobLines) -> None:
    """As ``QueueHandler`` and ``SocketHandler`` are read: its first form has no level."""
    made = logging.makeLogRecord({"msg": "of another process", "levelno": 40, "name": "far"})
    assert (made.levelno, texts(lines)) == (40, [])


class Loud:
    """A value whose text logs itself."""

    def __str__(self) -> str:
        logger.info("inside %s", self)
        return "loud"


class Broken:
    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("message", "args", "line"),
    [
        ("%d", ("x",), "%d (TypeError)"),
        ("%s", (Broken(),), "%s (LookupError)"),
        (Broken(), (), " (LookupError)"),
        ({"a": 1}, (), "{'a': 1}"),
        (7, (), "7"),
        ("nul \0 and %s", ("\ud800",), "nul \\0 and \\ud800"),
    ],
    ids=["wrong conversion", "argument raises", "message raises", "mapping", "number", "no UTF-8"],
)
def test_whatever_is_logged_becomes_a_line_and_harms_nobody(
    lines: JobLines, message: object, args: tuple[object, ...], line: str
) -> None:
    lines.offer(logging.LogRecord("tests.lines", logging.INFO, "", 1, message, args, None))
    [row] = lines.sent()
    assert row[3] == line
    as_json([row]).encode()


def test_a_text_that_logs_itself_ends(lines: JobLines) -> None:
    lines.offer(logging.LogRecord("tests.lines", logging.INFO, "", 1, "%s", (Loud(),), None))
    assert "inside" not in "".join(texts(lines))


def test_fields_that_a_factory_has_spoilt_are_replaced(lines: JobLines) -> None:
    record: Any = logging.LogRecord("tests.lines", 10**9, "", 1, "text", (), None)
    record.name, record.created = ["no", "name"], float("nan")
    lines.offer(record)
    [(_, level, name, text, at)] = lines.sent()
    assert (level, name, text) == (1000, "", "text")
    assert at > 1e9


def test_levels_other_threads_and_our_own_lines_are_skipped(lines: JobLines) -> None:
    logger.debug("too low")
    logging.getLogger("django_pgjobs").warning("of the worker")
    thread = threading.Thread(target=logger.error, args=("of a thread",))
    thread.start()
    thread.join()
    logging.getLogger("django_pgjobs.job").error("of context.log")
    assert texts(lines) == ["of context.log"]


def test_a_flood_is_bounded_and_counted_and_numbers_only_grow(lines: JobLines) -> None:
    lines.lines_left, lines.bytes_left = 3, 1000
    for number in range(1000):
        logger.info("line %d", number)
    assert len(lines.rows) == 3
    lines.close(JobBounds(log_lines=3, log_bytes=1000))
    logger.info("after its end")
    rows = lines.sent()
    assert [row[3] for row in rows[2:]] == [
        "line 2", "997 more lines were left out: an attempt keeps 3 lines and 1000 bytes",
    ]  # fmt: skip
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})


def test_bytes_are_a_bound_too(lines: JobLines) -> None:
    lines.bytes_left = 10
    logger.info("ä" * 5)
    logger.info("x")
    assert texts(lines) == ["ä" * 5]
    assert lines.skipped == 1


def test_a_long_line_keeps_its_beginning_and_its_end(lines: JobLines) -> None:
    logger.info("a" * 10_000 + "z")
    [text] = texts(lines)
    assert len(text) < log_lines.LINE_CHARS + 100
    assert text.startswith("aaa")
    assert text.endswith("az")


def test_what_a_job_has_logged_is_not_kept_alive(lines: JobLines) -> None:
    """A record holds its exception, whose frames hold what the job had in hand."""

    def body() -> weakref.ref[Loud]:
        big = Loud()
        try:
            raise LookupError
        except LookupError as error:
            caught = (LookupError, error, error.__traceback__)
            lines.offer(logging.LogRecord("tests.lines", logging.INFO, "", 1, "caught", (), caught))
            error.__traceback__ = caught = None  # type: ignore[assignment]  # no cycle of this frame and its own traceback
        return weakref.ref(big)

    assert body()() is None
    assert len(lines.rows) == 1


def test_each_line_rings(lines: JobLines) -> None:
    """The sender may have taken those before it, and read the bell, a moment ago."""
    logger.info("one")
    logger.info("two")
    assert lines.bell.qsize() == 2


def test_threads_of_a_job_number_their_lines_in_order(lines: JobLines, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is held up between the number of its line and its place in the queue."""
    record = logging.LogRecord("tests.lines", logging.INFO, "", 1, "text", (), None)
    second = threading.Thread(target=lines.take, args=(record,))

    def instant() -> int:
        if threading.current_thread() is second:
            return 9_000_000
        if second.ident is None:
            second.start()
            second.join(0.2)
        return 5_000_000

    monkeypatch.setattr(clock, "monotonic_ns", instant)
    lines.take(record)
    second.join()
    assert [row[0] for row in lines.sent()] == [5000, 9000]


def test_a_thread_that_has_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise lines would wait for the end of their jobs."""
    monkeypatch.setattr(line_sender, "SECONDS", 0)
    before = logging.getLogRecordFactory()
    frames: list[Any] = []
    control: Any = SimpleNamespace(lines=None, run=1)
    sender = LineSender(SimpleNamespace(send=frames.append), lambda: [control])  # type: ignore[arg-type]
    sender.thread = threading.Thread(target=int)
    sender.thread.start()
    sender.thread.join()
    prepared: Any = SimpleNamespace(definition=SimpleNamespace(_log_level=logging.INFO), control=control)
    sender.begin(prepared)
    logging.setLogRecordFactory(before)
    control.lines.offer(logging.LogRecord("tests.lines", logging.INFO, "", 1, "text", (), None))
    wait_until(lambda: frames, 20, "the line is sent")
