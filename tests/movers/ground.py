"""The shop's machine room: Redis, PostgreSQL, and the processes that a team starts and stops."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

from tests.e2e.elsewhere import ask
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT

CELERY = ("celery", "-A", "bookshop")
COMMANDS = {
    "worker": (*CELERY, "worker", "-c2", "-Q", "celery,mail,covers", "-l", "info", "--statedb", "worker.state"),
    "beat": (*CELERY, "beat", "-S", "django", "-l", "info"),
    "web 1": ("bookshop.orders.visitors",),
    "web 2": ("bookshop.orders.visitors",),
    "runjobs": ("django", "runjobs", "--processes=2", "--threads=1"),
}
READY = {
    "worker": " ready.",
    "beat": "beat: Starting",
    "web 1": "serving",
    "web 2": "serving",
    "runjobs": "executor is ready",
}


class Shop:
    """The shop in a folder of its own, and its processes. Each deploy restarts them one after another."""

    def __init__(self, folder: Path, database: str, redis: str) -> None:
        self.folder, self.database = folder, database
        self.deploys = folder / "deploys"
        self.environment = {
            **os.environ, "DATABASE_URL": database, "REDIS_URL": redis, "DJANGO_SETTINGS_MODULE": "bookshop.settings",
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONUNBUFFERED": "1",
            "SHOP_DEPLOYS": str(self.deploys),
        }  # fmt: skip
        shutil.copytree(Path(__file__).with_name("bookshop"), folder / "bookshop")
        self.deploys.touch()
        self.celery = folder / "bookshop" / "celery.py"
        self.before = self.celery.read_text()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run a program of the project to its end, and return what it printed."""
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self._of(""), timeout=patience(120), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert bool(done.returncode) == fails, f"{command}\n{done.stdout}"
        return done.stdout

    def manage(self, *arguments: str, fails: bool = False) -> str:
        """Run a management command."""
        return self.run("django", *arguments, fails=fails)

    def start(self, *names: str) -> None:
        """Start processes, and wait until they serve."""
        said = {name: self._said(name) for name in names}
        for name in names:
            with self.log(name).open("ab") as log:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-m", *COMMANDS[name]], cwd=self.folder, env=self._of(name),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        wait_until(lambda: all(self._serves(name, said[name]) for name in names), 90, f"{names} serve")

    def _serves(self, name: str, said: int) -> bool:
        assert self.running[name].poll() is None, self.log(name).read_text()[-5000:]
        return self._said(name) > said

    def _said(self, name: str) -> int:
        """How often a process has said that it is ready; a web process says it by its first order."""
        path = self.log(name)
        return path.read_text().count(READY[name]) if path.exists() else 0

    def stop(self, *names: str) -> None:
        """End processes as a platform does, by SIGTERM, and wait for them."""
        for name in names:
            self.running[name].send_signal(signal.SIGTERM)
        for name in names:
            assert self.running.pop(name).wait(patience(90)) == 0, self.log(name).read_text()[-5000:]

    def deploy(self, line: str) -> None:
        """Write this line at the end of ``celery.py``, and restart what runs, one half after the other."""
        head = "from django_pgjobs.celery_bridge import install\n\n" if line else ""
        self.celery.write_text(f"{self.before}\n{head}{line}\n")
        with self.deploys.open() as deploys:
            fcntl.flock(deploys, fcntl.LOCK_EX)
            if "worker" in self.running:  # its answer says that it has heard of what was revoked before
                assert Celery(broker=self.environment["REDIS_URL"]).control.ping(timeout=patience(20), limit=1)
            for half in (("web 1", "worker", "beat"), ("web 2", "runjobs")):
                names = [name for name in half if name in self.running]
                self.stop(*names)
                self.start(*names)

    def in_broker(self) -> int:
        """How many messages wait in the broker, or are with a worker of Celery."""
        with Redis.from_url(self.environment["REDIS_URL"]) as redis:
            return sum(map(redis.llen, redis.scan_iter(_type="list"))) + redis.hlen("unacked")

    def redelivered(self) -> list[str]:
        """Return the tasks that a worker of Celery had run when it was stopped, and gave back all the same."""
        ends = Counter(
            re.findall(r"\.(\w+)\[([0-9a-f-]{36})\] (succeeded|retry|raised)", self.log("worker").read_text())
        )
        return [
            task for (name, task, how), times in ends.items() if times > 1 + ((name, how) == ("newsletter", "retry"))
        ]

    def kill(self) -> None:
        """End whatever is left, with its children."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(patience(30))

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.folder / f"{name.replace(' ', '-')}.log"

    def ask(self, text: str, *params: object) -> list[tuple[Any, ...]]:
        """Query the shop's database."""
        return ask(self.database, text, *params)

    def wait(self, text: str, seconds: float, what: str, *params: object) -> None:
        """Wait until a query returns true."""
        wait_until(lambda: self.ask(text, *params)[0][0], seconds, what)

    def _of(self, name: str) -> dict[str, str]:
        return {**self.environment, "SHOP_WORKER": "celery" if name == "worker" else "pgjobs"}
