"""What an executor shows in shared memory, and what is still to be read there when it is dead."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from django_pgjobs.worker.shared import board
from django_pgjobs.worker.shared.board import Board


@pytest.fixture
def both() -> Iterator[tuple[Board, Board]]:
    """The supervisor's and the executor's view of one board."""
    ours = Board.create(2, 3)
    theirs = Board(os.dup(ours.fd), 2, 3)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_new_board_shows_nothing(both: tuple[Board, Board]) -> None:
    ours, _ = both
    assert ours.running() == {}
    assert (ours.high("sync"), ours.high("async")) == (0, 0)


def test_a_start_is_seen_from_the_other_side_with_its_instant(both: tuple[Board, Board]) -> None:
    ours, theirs = both
    theirs.start(0, 7, 1_000, "sync")
    theirs.start(4, 2**63 + 9, 2_000, "async")
    assert ours.running() == {7: 1_000, 2**63 + 9: 2_000}
    assert (ours.high("sync"), ours.high("async")) == (7, 2**63 + 9)


def test_a_cleared_slot_is_free_and_its_run_stays_counted_as_started(both: tuple[Board, Board]) -> None:
    """So after a death it is known as finished, though its outcome is lost."""
    ours, theirs = both
    theirs.start(1, 7, 1_000, "sync")
    theirs.clear(1)
    assert ours.running() == {}
    assert ours.high("sync") == 7


def test_a_slot_shows_its_latest_run_only(both: tuple[Board, Board]) -> None:
    ours, theirs = both
    theirs.start(0, 7, 1_000, "sync")
    theirs.start(0, 8, 3_000, "sync")
    assert ours.running() == {8: 3_000}


def test_where_the_own_code_of_a_run_began_is_seen_until_the_slot_has_another(both: tuple[Board, Board]) -> None:
    ours, theirs = both
    theirs.start(1, 7, 1_000, "sync")
    assert ours.begun(7) == 0
    theirs.begin(1, 1_500)
    assert (ours.begun(7), ours.begun(8), ours.running()) == (1_500, 0, {7: 1_000})
    theirs.clear(1)
    assert ours.begun(7) == 0
    theirs.start(1, 8, 2_000, "sync")
    assert ours.begun(8) == 0


def test_a_system_without_memory_files_uses_one_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    one = Board.create(1, 0)
    one.start(0, 3, 5, "sync")
    assert one.running() == {3: 5}
    assert os.fstat(one.fd).st_nlink == 0
    one.close()


@pytest.mark.parametrize("fails", ["ftruncate", "map"])
def test_a_board_for_which_there_is_no_memory_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """An executor is tried again and again; each descriptor lost would bring the worker nearer to its end."""

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    fd = board._unlinked_file()
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(board, "_unlinked_file", lambda: fd)
    monkeypatch.setattr(*((os, "ftruncate") if fails == "ftruncate" else (mmap, "mmap")), refuse)
    with pytest.raises(OSError, match="allocate"):
        Board.create(1, 0)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
