"""Whatever happens to a worker, no tool says something false of it: asked again and again, held against what is so.

The oracle knows nothing of our code: it looks at the processes by ``/proc``, and reads leases, heartbeats and terms
by plain SQL before and after each question. A claim is true if it fits one of the two looks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_pgjobs.models import Heartbeat, Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.slow

BEAT = 1.0
CONF = {
    "LEASE_SECONDS": 6.0, "RENEW_SECONDS": 1.0, "BEAT_SECONDS": BEAT, "STALE_SECONDS": 20.0, "POLL_SECONDS": 1.0,
}  # fmt: skip
SILENT = 2 * BEAT
SLACK = 0.5
"""How much later than two heartbeats a death may be told: a question takes its time."""

ASSURANCES = ("lives", "is renewed", "being stopped", " serve")
"""What nobody can know of a worker that may have died a moment ago."""

LEASE = "SELECT lease_expires_at > clock_timestamp() FROM pgjobs_claim WHERE claim_id = %s AND %s = ANY (job_ids)"
BEATS = "SELECT name, extract(epoch FROM clock_timestamp() - last_beat_at)::float8 FROM pgjobs_heartbeat"
LEADER = "SELECT worker_name FROM pgjobs_leader_term WHERE expires_at > clock_timestamp()"


def acts(process: WorkerProcess) -> bool:
    """Whether the supervisor can do anything: it is there, no zombie, and not stopped by a signal."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZTtX"
    except OSError:
        return False


@dataclass
class Look:
    """What is so at one instant."""

    leased: bool | None
    """Whether the job's claim has a lease that runs; None when nobody has claimed the job."""

    heard: dict[str, float]
    """Name of a worker → seconds since its last heartbeat."""

    leader: str | None


@dataclass
class Oracle:
    """Looks, and since when each worker has not acted."""

    raw: RawDatabase
    job: Job
    processes: list[WorkerProcess]
    idle_since: dict[str, float] = field(default_factory=dict)
    back_since: dict[str, float] = field(default_factory=dict)

    def look(self) -> Look:
        for process in self.processes:
            if acts(process):
                if self.idle_since.pop(process.name, None) is not None:
                    self.back_since[process.name] = time.monotonic()
            else:
                self.idle_since.setdefault(process.name, time.monotonic())
        [(claim, outcome)] = self.raw.query("SELECT claim_id, outcome FROM pgjobs_job WHERE id = %s", [self.job.pk])
        found = self.raw.query(LEASE, [claim, self.job.pk]) if claim and not outcome else []
        leader = self.raw.query(LEADER)
        return Look(
            found[0][0] if found else None,
            dict(self.raw.query(BEATS)),
            leader[0][0] if leader else None,
        )

    def gone_for(self, name: str) -> float:
        """Seconds for which this worker has not acted; 0 while it does."""
        since = self.idle_since.get(name)
        return 0.0 if since is None else time.monotonic() - since

    def may_be_told_live(self, name: str) -> bool:
        return self.gone_for(name) <= SILENT + SLACK

    def may_be_told_dead(self, name: str, looks: list[Look]) -> bool:
        """Whether heartbeats of it are missing, or it came back so lately that none has come."""
        back = time.monotonic() - self.back_since.get(name, float("-inf"))
        return back <= SILENT + SLACK or any(look.heard.get(name, 1e9) >= SILENT - 0.1 for look in looks)


@dataclass
class Question:
    """One tool's answer, and the looks before and after."""

    tool: str
    told: str
    looks: list[Look]
    codes: set[str] = field(default_factory=set)


def ask(oracle: Oracle, client: Client) -> Iterator[Question]:
    """Ask all five tools."""

    def with_looks(tool: str, answer: Any) -> tuple[str, list[Look]]:
        before = oracle.look()
        told = answer()
        return told, [before, oracle.look()]

    def command(*words: object) -> Any:
        return lambda: pgjobs(*words)[1]

    def page(path: str) -> Any:
        return lambda: client.get(path).content.decode()

    job = oracle.job.pk
    for tool, answer in (
        ("why", command("why", job, "--format", "json")),
        ("check", command("check", "--format", "json")),
        ("stats", command("stats", "--format", "json")),
        ("stats in words", command("stats")),
        ("workers", command("workers", "--all", "--format", "json")),
        ("list", command("list", job, "--format", "json")),
        ("job page", page(f"/admin/pgjobs/job/{job}/change/")),
        ("job list", page("/admin/pgjobs/job/")),
        ("workers page", page("/admin/pgjobs/heartbeat/")),
    ):
        told, looks = with_looks(tool, answer)
        yield Question(tool, told, looks)


def faults(question: Question, oracle: Oracle) -> Iterator[str]:
    """What an answer says that is not so."""
    looks, told = question.looks, question.told
    live = [process.name for process in oracle.processes if oracle.may_be_told_live(process.name)]
    surely = [
        process.name
        for process in oracle.processes
        if not oracle.gone_for(process.name) and not oracle.may_be_told_dead(process.name, looks)
    ]
    if question.tool in ("why", "stats in words"):
        yield from (f"assures that {words!r}" for words in ASSURANCES if words in told)
        for heard in re.findall(r"heard from (\d+) s ago", told):
            if not any(abs(float(heard) - each) <= 1.5 for look in looks for each in look.heard.values()):
                yield f"heard from {heard} s ago"
    if question.tool == "why":
        yield from _of_code(json.loads(told)["code"], question, oracle, live)
    if question.tool == "list":
        [row] = json.loads(told)
        yield from _of_code(row["label"], question, oracle, live)
    if question.tool in ("job page", "job list"):
        badge = re.search(r"pgjobs-state pgjobs-(\w+)", told)
        assert badge
        yield from _of_code(badge[1], question, oracle, live)
    if question.tool == "check":
        codes = {problem["code"] for problem in json.loads(told)["problems"]}
        silent = [problem["text"] for problem in json.loads(told)["problems"] if problem["code"] == "silent"]
        yield from (f"says of a worker that acts: {text}" for text in silent if any(name in text for name in surely))
        died = any(process.process.poll() != 0 for process in oracle.processes)
        if not codes and not live and died:
            yield "healthy while nobody acts"
    if question.tool == "stats":
        told_live = json.loads(told)["workers"]["live"]
        if not len(surely) <= told_live <= len(live):
            yield f"{told_live} live workers, of {surely} to {live}"
        by = json.loads(told)["measured_by"]
        if by is not None and by not in {look.leader for look in looks}:
            yield f"figures of {by}, who does not lead"
    if question.tool in ("workers", "workers page"):
        for name, status in _statuses(question):
            yield from _of_status(name, status, oracle, live, surely)


def _of_code(code: str, question: Question, oracle: Oracle, live: list[str]) -> Iterator[str]:
    leases = {look.leased for look in question.looks}
    if code == "running" and not live:
        yield "running on a worker that has been gone for two heartbeats"
    if code in ("running", "silent") and True not in leases:
        yield f"{code} without a lease"
    if code == "lost" and False not in leases:
        yield f"{code} while {leases}"
    if code in ("next", "behind", "busy", "no_worker", "ready") and None not in leases:
        yield f"{code} while it is claimed"
    if code in ("next", "behind", "busy") and not live:
        yield f"{code} while nobody acts"


def _statuses(question: Question) -> list[tuple[str, str]]:
    if question.tool == "workers":
        return [(each["name"], each["status"]) for each in json.loads(question.told)]
    return re.findall(r">(test-\w+)</a>.*?pgjobs-state pgjobs-(\w+)", question.told, re.DOTALL)


def _of_status(name: str, status: str, oracle: Oracle, live: list[str], surely: list[str]) -> Iterator[str]:
    process = next(process for process in oracle.processes if process.name == name)
    if status in ("running", "draining") and name not in live:
        yield f"{name} {status} though it has been gone for {oracle.gone_for(name):.1f} s"
    if status in ("silent", "lost") and name in surely:
        yield f"{name} {status} though it acts"
    if status == "stopped" and process.process.poll() != 0:
        yield f"{name} stopped though it did not leave"


@pytest.fixture
def client(committed: None) -> Iterator[Client]:
    """A superuser's browser, whose answers need no look at a template's cache."""
    browser = Client()
    user = User.objects.create_superuser("oracle")
    browser.force_login(user)
    yield browser
    user.delete()


@pytest.mark.parametrize("fate", ["killed", "killed, then another starts", "stopped and continued", "drained"])
def test_no_tool_says_anything_false_of_a_worker(
    worker: Workers, stage: Stage, raw: RawDatabase, client: Client, settings: Any, fate: str
) -> None:
    """C16 D20 W21: a heartbeat each second, a lease of six; all tools are asked twice a second."""
    settings.PGJOBS = {**getattr(settings, "PGJOBS", {}), **CONF}
    first = worker(conf=CONF, threads=1)
    job = jobs.waits.register("gate")
    wait_until(lambda: stage.count("start", "gate"), 30, "the job has started")
    processes = [first]
    if fate not in ("killed, then another starts", "drained"):
        processes.append(worker(conf=CONF, threads=1))
    wait_until(lambda: Heartbeat.objects.count() == len(processes), 20, "all beat")
    oracle = Oracle(raw, job, processes)
    found: list[str] = []
    seen: set[str] = set()

    def watch(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for question in ask(oracle, client):
                found.extend(f"{question.tool}: {words} ({question.told[:300]})" for words in faults(question, oracle))
                if question.tool == "why":
                    seen.add(json.loads(question.told)["code"])

    watch(2)
    if fate == "drained":
        first.signal(signal.SIGTERM)
        watch(1)
        stage.open("gate")
        assert first.wait() == 0
        watch(4)
    elif fate == "stopped and continued":
        os.kill(first.pid, signal.SIGSTOP)
        watch(11)
        os.kill(first.pid, signal.SIGCONT)
        watch(5)
    else:
        os.kill(first.pid, signal.SIGKILL)
        watch(8)
        if fate == "killed, then another starts":
            processes.append(worker(conf=CONF, threads=1))
        watch(8)
        wait_until(lambda: stage.count("start", "gate") == 2, 20, "another runs it")
        watch(1)
    assert not found, "\n".join(found[:20])
    if fate != "drained":
        assert {"running", "silent"} <= seen
    stage.open("gate")
    if fate != "drained":
        assert ended(job)[0].outcome == "succeeded"
    if fate.startswith("killed"):
        assert Heartbeat.objects.get(name=first.name).state == "lost"
        first.kill()
    elif fate == "stopped and continued":
        assert Heartbeat.objects.get(name=first.name).state == "running"
