"""Where a job stands when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from django_pgjobs.execution.prepared import UNGUARDED
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor.stacks import ASKED as STACK_TITLE
from django_pgjobs.worker.executor.stacks import of_thread as stack_of


@pytest.fixture
def hung() -> Iterator[tuple[threading.Thread, threading.Event]]:
    """A thread that waits in a job's own code, and what lets it go on."""
    go_on, there = threading.Event(), threading.Event()

    def hangs_here() -> None:
        there.set()
        go_on.wait(30)

    thread = threading.Thread(target=UNGUARDED.call, args=(hangs_here,))
    thread.start()
    assert there.wait(30)
    yield thread, go_on
    go_on.set()
    thread.join()


def test_the_stack_begins_in_the_jobs_own_code(hung: tuple[threading.Thread, threading.Event]) -> None:
    """The frames that lead there are the same for every job."""
    thread, _ = hung
    title, first, *_ = stack_of(thread, 10_000).splitlines()
    assert title == STACK_TITLE
    assert first.endswith("in hangs_here")
    assert not any(name in first for name in OUR_FILES)


def test_the_stack_is_shortened(hung: tuple[threading.Thread, threading.Event]) -> None:
    thread, _ = hung
    assert " characters …" in stack_of(thread, 100)


def test_a_thread_without_a_job_has_none(hung: tuple[threading.Thread, threading.Event]) -> None:
    thread, go_on = hung
    assert stack_of(None, 1000) == ""
    assert stack_of(threading.Thread(), 1000) == ""
    go_on.set()
    thread.join()
    assert stack_of(thread, 1000) == ""
