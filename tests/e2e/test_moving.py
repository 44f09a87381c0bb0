"""Jobs move between two servers beside a worker that serves both; the mover, and a server, die on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

from django_pgjobs import register_many
from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Action, Job
from tests.e2e import jobs
from tests.e2e.elsewhere import ask, manage
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ROOT, Workers, database_url

JOBS = 2400


def mover(server: EmbeddedServer) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "PGJOBS_TEST_SECOND_DATABASE_URL": server.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "django", "pgjobs", "move", "--from=default", "--to=second", "--all", "--yes"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def until_seen(process: subprocess.Popen[str], fact: Callable[[], bool]) -> None:
    wait_until(lambda: process.poll() is not None or fact(), 60, "the mover has come so far, or has ended")


def test_each_job_runs_once_whatever_dies_while_they_move(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    process = worker("--database=default,second", env={"PGJOBS_TEST_SECOND_DATABASE_URL": server.url})
    calls = [jobs.notes_its_home.using(delay=4 if n % 3 else 0).bind(n) for n in range(JOBS)]
    register_many(calls)
    marked = Job.objects.filter(hold="moving").exists
    facts: tuple[Callable[[], bool], ...] = (
        marked,
        lambda: ask(server.url, "SELECT count(*) FROM pgjobs_job WHERE hold = 'moving'") != [(0,)],
        lambda: Action.objects.filter(verb="move").exists(),
    )
    for fact in facts:
        moving = mover(server)
        until_seen(moving, fact)
        os.kill(moving.pid, signal.SIGKILL)
        moving.communicate()
    # A crash loses the claims of the last moment, which commit asynchronously: nothing is claimed there meanwhile.
    manage(server.url, "pgjobs", "pause", "default")
    process.wait_for_log("pauses have changed queue=default")
    running = "SELECT count(*) FROM pgjobs_job WHERE claim_id IS NOT NULL AND finished_at IS NULL"
    wait_until(lambda: ask(server.url, running) == [(0,)], 60, "what ran there has ended")
    ask(server.url, "UPDATE pgjobs_heartbeat SET pid = pid")  # takes the ends to the disk
    moving = mover(server)
    until_seen(moving, marked)
    server.halt(immediate=True)
    said = moving.communicate(timeout=120)[0]
    assert moving.returncode in (0, 1), said
    assert "Traceback" not in said, said
    server.start()
    manage(server.url, "pgjobs", "resume", "default")
    moving = mover(server)
    assert "move: " in moving.communicate(timeout=120)[0]
    wait_until(lambda: stage.count("home") >= JOBS, 60, "all have run")
    text = "SELECT payload #>> '{args,0}', attempt FROM pgjobs_job WHERE outcome = 'succeeded'"
    wait_until(lambda: len(ask(server.url, text) + ask(database_url(), text)) == JOBS, 60, "all have succeeded")
    attempts = [(int(number), attempt) for number, attempt in ask(server.url, text) + ask(database_url(), text)]
    assert sorted(number for number, _ in attempts) == [*range(JOBS)], "each is in one database"
    ran = Counter(int(trace.words[1]) for trace in stage.traces("home"))
    assert {number: times for number, times in ran.items() if times > dict(attempts)[number]} == {}, process.log
    assert len(ask(server.url, text)) > JOBS // 4, "and many have moved"
    assert ask(server.url, "SELECT id FROM pgjobs_job WHERE hold IS NOT NULL") == []
    assert not Job.objects.exclude(hold=None).exists()
