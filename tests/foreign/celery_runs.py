"""What packages with tasks of Celery do on Celery and here: their own tests, and their tasks in real workers.

Celery's workers need ``redis-server``, which a scenario starts for itself on a free port.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from django_pgjobs.models import Job
from tests.foreign.fixtures import PREFIX, Server, StartWorker
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT, database_url

SDIST = Path(sys.prefix) / "sdist"
MODES = ("celery", "bridge", "rows")
CELERY_WORKER = ("celery", "worker", "--concurrency=1", "--loglevel=warning")

Record = Callable[[str, object], None]
Outcome = Callable[[str], dict[str, Any]]


def own_tests(site: str, record: Record, *tests: str) -> dict[str, set[str]]:
    """Run tests of a package, out of its released sources, in each mode; return those that pass, and note how many."""
    passed = {mode: _passed(site, mode, tests) for mode in MODES}
    for mode, found in passed.items():
        record(mode, len(found))
    record("jobs", len((Path(os.environ["PGJOBS_FOREIGN_FILES"]) / "rows").read_text().splitlines()))
    return passed


def _passed(site: str, mode: str, tests: tuple[str, ...]) -> set[str]:
    report = Path(os.environ["PGJOBS_FOREIGN_FILES"]) / f"{site}-{mode}.xml"
    options = ["-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = _environment(site, mode, DJANGO_SETTINGS_MODULE=f"tests.foreign.{site}_site.own_settings")
    done = subprocess.run(command, cwd=SDIST, env=environment, timeout=patience(600), stdout=subprocess.PIPE, text=True)
    assert report.exists(), done.stdout
    passed = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if bad := [each for kind in ("failure", "error", "skipped") for each in case.findall(kind)]:
            sys.stdout.write(f"{mode}: {name}: {bad[0].get('message')}\n")
        else:
            passed.add(name)
    return passed


def _environment(site: str, mode: str, **more: str) -> dict[str, str]:
    return {
        **os.environ, "DATABASE_URL": database_url(), "PGJOBS_FOREIGN_CELERY": "" if mode == "celery" else mode,
        "DJANGO_SETTINGS_MODULE": f"tests.foreign.{site}_site.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(SDIST)]), **more,
    }  # fmt: skip


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Any]:
    """Run a Redis and yield its client."""
    from redis import Redis  # here because only the environments of these sites have it
    from redis.exceptions import ConnectionError as NotYet

    program, port = shutil.which("redis-server"), _free_port()
    assert program, "no redis-server found; on Debian: apt-get install redis-server"
    server = subprocess.Popen(
        [program, f"--port {port}", "--bind 127.0.0.1", "--save ''", f"--dir {tmp_path}"], stdout=subprocess.DEVNULL
    )
    client = Redis(port=port)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except NotYet:
            return False

    try:
        wait_until(answers, 30, "Redis answers")
        yield client
    finally:
        server.terminate()
        server.wait(patience(30))


@pytest.fixture
def outcome(
    request: pytest.FixtureRequest, redis: Any, server: Server, template: str, worker: StartWorker, tmp_path: Path
) -> Outcome:
    """Run the ``driving`` of the site with a worker of Celery (``celery``, ``back``) or of ours; return what it saw.

    Each run has a database and a folder of its own. Where a task ran is checked: all of them on the one side.
    """
    site = request.path.parent.name.removesuffix("_site")

    def run(mode: str) -> dict[str, Any]:
        server.make(PREFIX, template)
        redis.flushall()
        files = tmp_path / mode
        files.mkdir()
        environment = _environment(
            site, mode, PGJOBS_FOREIGN_FILES=str(files), PGJOBS_FOREIGN_PORT=str(_free_port()),
            PGJOBS_FOREIGN_REDIS=f"redis://127.0.0.1:{redis.get_connection_kwargs()['port']}/0",
        )  # fmt: skip
        driving = [sys.executable, "-m", f"tests.foreign.{site}_site.driving"]
        if mode == "bridge":
            started = worker(threads=1, env=environment).process
        else:
            command = [sys.executable, "-m", CELERY_WORKER[0], "-A", f"tests.foreign.{site}_site", *CELERY_WORKER[1:]]
            started = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            done = subprocess.run(
                driving, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=patience(300), check=True
            )
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(patience(60))
        jobs = Job.objects.exclude(name__startswith="django_pgjobs.").count()
        assert (jobs > 0, redis.dbsize() > 0) == (mode == "bridge", mode != "bridge")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
