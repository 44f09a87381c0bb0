"""When an executor has done enough, what the system says of its memory, and who killed it."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from django_pgjobs.worker.supervisor import recycling
from django_pgjobs.worker.supervisor.recycling import MEGABYTE, RISE_SECONDS, OutOfMemory, Recycling, resident_bytes
from tests.unit.worker_fakes import child_of


def test_an_executor_goes_in_which_a_thread_was_interrupted() -> None:
    """Whatever the interrupt may have left in it, no job meets it for long."""
    assert Recycling().why(child_of(interrupted=1), 100.0) == "one of its threads was interrupted"


def test_an_executor_goes_after_so_many_jobs() -> None:
    child = child_of()
    child.learn(0.1, 9)
    assert Recycling(max_jobs=10).why(child, 100.0) == ""
    child.learn(0.1, 1)
    assert Recycling(max_jobs=10).why(child, 100.0) == "it has run 10 jobs"
    assert Recycling().why(child, 100.0) == ""


def test_an_executor_goes_above_so_much_memory_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [200 * MEGABYTE]
    monkeypatch.setattr(recycling, "resident_bytes", lambda pid: held[0])
    child, limit = child_of(), Recycling(max_megabytes=200)
    child.done = 1
    assert limit.why(child, 100.0) == ""
    held[0] += MEGABYTE
    assert limit.why(child, 100.5) == ""
    assert limit.why(child, 101.0) == "it holds 201 MB"


def test_memory_is_what_a_process_holds_now() -> None:
    before = resident_bytes(os.getpid())
    with mmap.mmap(-1, 64 * MEGABYTE) as taken:  # a bytearray may get memory that the process holds already
        taken.write(b"x" * len(taken))
        assert resident_bytes(os.getpid()) - before > 50 * MEGABYTE
    assert resident_bytes(os.getpid()) - before < 50 * MEGABYTE


def test_executors_that_do_not_fit_into_memory_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each needs what it shares with no other process, or what it may grow to."""
    there = recycling.memory_bytes()
    assert 256 * MEGABYTE < there <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert Recycling().shortage(os.getpid(), 2) == ""
    own = recycling.own_bytes(os.getpid())
    assert MEGABYTE < own <= resident_bytes(os.getpid())
    monkeypatch.setattr(recycling, "memory_bytes", lambda: 10 * own)
    assert Recycling().shortage(os.getpid(), 5) == ""
    assert f"do not fit into {10 * own / MEGABYTE:.0f} MB: give --processes" in Recycling().shortage(os.getpid(), 20)
    most = 2 * own // MEGABYTE  # more than it has now
    monkeypatch.setattr(recycling, "memory_bytes", lambda: 2 * most * MEGABYTE)
    assert Recycling(max_megabytes=most).shortage(os.getpid(), 2) == ""
    assert Recycling(max_megabytes=most).shortage(os.getpid(), 3) == (
        f"3 executors of {most} MB, to which they may grow, do not fit into {2 * most} MB:"
        " give --processes a smaller number"
    )
    assert Recycling().shortage(-1, 1000) == ""


def test_memory_is_asked_of_ps_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS. A process that is gone holds none."""
    if not os.access("/bin/ps", os.X_OK):
        pytest.skip("there is no /bin/ps")
    asked = recycling._asked_of_ps(os.getpid())
    assert abs(asked - resident_bytes(os.getpid())) < 8 * MEGABYTE
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert (recycling._asked_of_ps(gone.pid), resident_bytes(gone.pid)) == (0, 0)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    monkeypatch.setattr(recycling, "_asked_of_ps", lambda pid: 42)
    assert resident_bytes(gone.pid) == 42


# Who killed it


def group(root: Path, cgroup: str, counter: str, count: int = 0) -> Path:
    """Write a system with a control group under ``root``."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    path = root / "sys/fs/cgroup" / counter
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
    return path


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        ("0::/shop.slice/worker\n", "shop.slice/worker/memory.events"),
        ("0::/shop:blue/worker\n", "shop:blue/worker/memory.events"),
        ("0::/../only/the/host/knows\n", "memory.events"),
        ("5:cpu:/\n4:memory:/docker/abc\n0::/\n", "memory/docker/abc/memory.oom_control"),
        ("4:memory:/docker/abc\n0::/\n", "memory/memory.oom_control"),
    ],
)
def test_a_count_that_has_risen_names_the_kernel_once(tmp_path: Path, cgroup: str, counter: str) -> None:
    path = group(tmp_path, cgroup, counter, 3)
    memory = OutOfMemory(tmp_path)
    assert memory.path == path
    assert not memory.killed_one(100.0)
    group(tmp_path, cgroup, counter, 5)
    memory.poll(101.0)
    assert [memory.killed_one(102.0) for _ in range(3)] == [True, True, False]


def test_a_count_that_rose_long_ago_explains_nothing(tmp_path: Path) -> None:
    group(tmp_path, "0::/\n", "memory.events")
    memory = OutOfMemory(tmp_path)
    group(tmp_path, "0::/\n", "memory.events", 1)
    memory.poll(100.0)
    assert not memory.killed_one(100.0 + RISE_SECONDS)


def test_without_a_count_nobody_is_accused(tmp_path: Path) -> None:
    assert not OutOfMemory(tmp_path).killed_one(100.0)
    path = group(tmp_path, "3:cpu:/\n0::/\n", "memory.events", 7)
    memory = OutOfMemory(tmp_path)
    path.unlink()
    assert not memory.killed_one(100.0)
    assert OutOfMemory(tmp_path).path is None


def test_an_executor_that_has_run_nothing_is_not_replaced_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit below what the project weighs would start processes for ever, and run nothing."""
    monkeypatch.setattr(recycling, "resident_bytes", lambda pid: 500 * recycling.MEGABYTE)
    child = child_of()
    rule = recycling.Recycling(max_megabytes=300)
    assert rule.why(child, 10.0) == ""
    child.done = 1
    assert rule.why(child, 20.0) == "it holds 500 MB"
    child.close()
