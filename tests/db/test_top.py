"""``pgjobs top`` and ``--watch``: what they draw, at a real terminal, and that they give it back."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connection

from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Heartbeat
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store.database import on
from tests.plugins.fix_admin import CLAIM, WORKER, make, make_one_of_each, now_plus
from tests.plugins.fix_db import AUTHOR, patience
from tests.plugins.shell import pgjobs, printed, run

pytestmark = pytest.mark.usefixtures("committed")

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class Terminal:
    """A subcommand at a terminal of 24 lines."""

    def __init__(self, process: subprocess.Popen[bytes], keys: int) -> None:
        self.process, self.keys, self.seen = process, keys, ""

    def until(self, text: str, times: int = 1) -> str:
        """Read until the text has been drawn so often; return what was drawn."""
        while self.seen.count(text) < times:
            assert select.select([self.keys], [], [], patience(30))[0], self.seen
            self.seen += os.read(self.keys, 65_536).decode()
        return self.seen

    def rest(self) -> str:
        """Read to the end, and wait for it."""
        try:
            while select.select([self.keys], [], [], patience(30))[0]:
                self.seen += os.read(self.keys, 65_536).decode()
        except OSError:
            pass
        self.process.wait(patience(30))
        return self.seen


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    keys, screen = pty.openpty()
    termios.tcsetwinsize(screen, (24, 100))
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    ours = {
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}", "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [sys.executable, "-m", "django", "pgjobs", *arguments]
    process = subprocess.Popen(
        command, stdin=screen, stdout=screen, stderr=screen, env={**os.environ, **ours}, start_new_session=True
    )
    os.close(screen)
    try:
        yield Terminal(process, keys)
    finally:
        process.kill()
        process.wait()
        os.close(keys)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("top", "--interval", "0.2"), "healthy"),
        (("stats", "--watch", "0.2"), "QUEUE"),
        (("workers", "--watch", "0.2"), "NAME"),
        (("check", "--watch", "0.2"), "leader: "),
    ],
)
def test_it_draws_again_and_again_until_q(arguments: tuple[str, ...], shown: str) -> None:
    if shown == "healthy":
        make_led()
    with terminal(*arguments) as seen:
        seen.until(shown, times=3)
        os.write(seen.keys, b"q")
        text = seen.rest()
        assert seen.process.returncode == 0
    assert text.startswith(ENTER)
    assert text.endswith(LEAVE)


def make_led() -> None:
    Leader(AUTHOR).tick(on("default"))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(end: signal.Signals) -> None:
    with terminal("top", "--interval", "0.2") as seen:
        seen.until("leader: ")
        seen.process.send_signal(end)
        text = seen.rest()
    assert text.rstrip().endswith(LEAVE)
    assert "Traceback" not in text


def test_it_shows_problems_queues_workers_with_their_jobs_and_failures() -> None:
    rows = make_one_of_each()
    make(outcome="abandoned", finished_at=now_plus(-60), error_class="shop.Declined")
    status, text = printed("top", "--once")
    assert status == 0
    lines = text.splitlines()
    assert any(line.startswith("leader: ") for line in lines)
    assert any(line.startswith("default") for line in lines)
    [worker] = [line for line in lines if line.startswith("web-1")]
    assert f"#{rows['running'].pk} shop.charge" in worker
    assert any("shop.Declined" in line and line.split()[0] == "1" for line in lines)


def test_a_worker_with_many_jobs_names_the_longest() -> None:
    jobs = [make(claim_id=CLAIM, claimed_at=now_plus(-number)) for number in range(8)]
    beat: dict[str, Any] = {"host": "h", "pid": 1, "processes": 1, "threads": 1, "async_slots": 1, "version": "1"}
    Heartbeat.objects.create(id=WORKER, name="web-1", **beat)
    far = now_plus(60)
    Claim.objects.create(
        claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[row.pk for row in jobs]
    )
    [worker] = [line for line in printed("top", "--once")[1].splitlines() if line.startswith("web-1")]
    assert [f"#{row.pk} " in worker for row in jobs] == [False] * 3 + [True] * 5
    assert worker.endswith(", …")


def test_texts_of_strangers_never_reach_the_terminal_raw() -> None:
    evil = "\x1b]0;x\x07\u202e"
    make(name=evil, queue=evil, outcome="abandoned", finished_at=now_plus(-60), error_class=evil)
    make(name=evil, queue=evil, run_at=now_plus(-600), created_at=now_plus(-600))
    text = printed("top", "--once")[1]
    assert not set("\x1b\x07\u202e") & set(text)


def test_without_a_terminal_it_prints_once() -> None:
    for arguments in (["top"], ["stats", "--watch"], ["workers", "--watch"], ["check", "--watch"]):
        found = run(*arguments)
        assert found.returncode == 0, found.stderr
        assert "\x1b" not in found.stdout
        assert found.stdout


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1e9"])
def test_an_interval_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(CommandError, match="must be a number of seconds"):
        pgjobs("top", "--interval", wrong)
