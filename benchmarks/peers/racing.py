"""Measuring one peer: its drain at its best setting, its single enqueue, its pickup latency."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from benchmarks import stamps, workers
from benchmarks.figures import percentile, rounded
from benchmarks.lines import paces
from benchmarks.peers.environments import environment
from benchmarks.peers.installing import Environment
from benchmarks.peers.known import Peer
from benchmarks.peers.side import HELLO, WARM_UP
from benchmarks.plan import Plan
from benchmarks.server import PREFIX

WORK_SECONDS = 600
SERVE_SECONDS = 60
SHORTEST = 1e-6
OUR_PROCESSES = 2


def race(peer: Peer, plan: Plan) -> dict[str, Any]:
    """Return what is known of a peer after measuring it, each drain on a database of its own."""
    home = environment(peer)
    found: dict[str, Any] = {
        "name": peer.name,
        "version": home.version,
        "runtime": home.runtime,
        "notes": list(peer.notes),
        "settings": [],
    }
    count = plan.count(peer.jobs, least=300 if plan.quick else 2000)
    for setting in peer.settings:
        rates = []
        for _ in range(1 if plan.quick else 2):
            with Track(peer, home, plan) as track:
                rates.append(track.drain(setting, count))
        found["settings"].append({"setting": setting, "jobs": count, "rates": [rounded(rate) for rate in rates]})
    best = max(found["settings"], key=lambda tried: max(tried["rates"]))
    found |= {"best": best["setting"], "drain": max(best["rates"])}
    with Track(peer, home, plan) as track:
        enqueued = plan.fixed(1500, quick=100)
        found["enqueue"] = rounded(enqueued / track.ask("enqueue", str(enqueued))["seconds"])
    with Track(peer, home, plan) as track:
        waits = track.pickup(plan.fixed(1000, quick=60))
    found |= {"p50": rounded(percentile(waits, 0.5)), "p99": rounded(percentile(waits, 0.99))}
    if home.runtime.startswith("Python"):
        found["paces"] = {}
        for producers, rate in itertools.product(stamps.PRODUCERS, stamps.RATES):
            with Track(peer, home, plan) as track:
                waits = track.paced(paces.pace_of(plan, rate), producers)
            found["paces"][stamps.name_of(rate, producers)] = [
                rounded(percentile(waits, share)) for share in (0.5, 0.99)
            ]
    return found


def take_turns(peer: Peer, plan: Plan, best: dict[str, Any]) -> list[list[float]]:
    """Return our drain and the peer's, in pairs: minutes apart, the same machine may be half as fast."""
    from django.db import connections

    from benchmarks.lines import drain

    count = plan.count(peer.jobs, least=300 if plan.quick else 2000)
    pairs: list[list[float]] = []
    for number in range(plan.rounds(4)):
        turns: dict[bool, float] = {}
        for is_ours in (True, False) if number % 2 else (False, True):
            if is_ours:
                turns[True] = drain.drain(OUR_PROCESSES, plan.count(drain.JOBS, least=2000))[0]
                connections.close_all()
            else:
                with Track(peer, environment(peer), plan) as track:
                    turns[False] = track.drain(best, count)
        pairs.append([rounded(turns[True]), rounded(turns[False])])
    return pairs


class Track:
    """A database with the peer's schema in it, dropped at the end, and the peer's side to talk to."""

    def __init__(self, peer: Peer, home: Environment, plan: Plan) -> None:
        self._peer = peer
        self._home = home
        self._server = plan.server
        self._database = f"{PREFIX}_{peer.project.replace('-', '_')}"
        self._url = ""

    def __enter__(self) -> Track:
        self._url = self._server.make(self._database)
        self.ask("prepare", "")
        self._server.settle()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.drop(self._database)

    def ask(self, verb: str, argument: str) -> dict[str, Any]:
        """Let the side do something and return its answer."""
        return _last_line(self._finish(self._start(verb, argument), verb))

    def drain(self, setting: dict[str, Any], count: int) -> float:
        """Enqueue jobs, start the workers, and return jobs per second by the peer's own instants."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            self.ask("fill", str(count))
            connection.execute("VACUUM ANALYZE")
            printed = self._together(setting)
            if self._peer.span:
                return count / self._kept(connection, count)
            left = _value(connection, self._peer.left)
        if left:
            raise workers.BenchmarkError(f"{self._peer.name}: {left} of {count} jobs are left")
        return count / seconds_of_all(self._peer.name, [_last_line(output) for output in printed], count)

    def _kept(self, connection: psycopg.Connection[Any], count: int) -> float:
        """Return the seconds from the first start to the last end, by what the peer has kept."""
        done = _value(connection, self._peer.done)
        if done != count:
            raise workers.BenchmarkError(f"{self._peer.name}: {done} of {count} jobs succeeded")
        row = connection.execute(self._peer.span.encode()).fetchone()
        assert row is not None
        return max(float(row[1]) - float(row[0]), SHORTEST)

    def pickup(self, count: int) -> list[float]:
        """Return the milliseconds from each call's return to the first line of its job."""
        total = count + WARM_UP
        with workers.stamp_file() as path, self._serving(path):
            returned = self._pickup(path, str(total))
            if stamps.wait_for(path, total - 1, 10) is None:
                raise workers.BenchmarkError(f"{self._peer.name}: a job did not start")
            started = stamps.read(path)
        return [(started[number] - returned[number]) * 1000 for number in range(WARM_UP, total)]

    def paced(self, pace: str, producers: int) -> list[float]:
        """Return the same at a steady pace of so many producers together."""
        with workers.stamp_file() as path, self._serving(path):
            return paces.kept(self._pickup(path, *stamps.shared(pace, producers)), path)

    def _pickup(self, path: str, *arguments: str) -> dict[int, float]:
        sides = [self._start("pickup", argument, path) for argument in arguments]
        answers = [_last_line(self._finish(side, "pickup"))["returned"] for side in sides]
        return {int(number): instant for answer in answers for number, instant in answer.items()}

    def _together(self, setting: dict[str, Any]) -> list[str]:
        argument = json.dumps(setting)
        working = [self._start("work", argument) for _ in range(setting["processes"])]
        return [self._finish(process, "work") for process in working]

    @contextmanager
    def _serving(self, path: str) -> Iterator[None]:
        serving = self._start("serve", json.dumps(self._peer.idle), path)
        try:
            self._finish(self._start("hello", "", path), "hello")
            if stamps.wait_for(path, HELLO, SERVE_SECONDS) is None:
                raise workers.BenchmarkError(f"{self._peer.name}: its worker does not start")
            yield
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=30)
        finally:
            serving.kill()
            serving.wait()

    def _start(self, verb: str, argument: str, path: str = "") -> subprocess.Popen[str]:
        foreign = ("DJANGO_", "PYTHON", "PG", "NODE_")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(foreign)}
        return subprocess.Popen(
            [*self._home.command, verb, argument],
            cwd=workers.ROOT,
            env={**kept, **self._home.variables, "PEER_URL": self._url, "PEER_STAMPS": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _finish(self, process: subprocess.Popen[str], verb: str) -> str:
        try:
            output, errors = process.communicate(timeout=WORK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise workers.BenchmarkError(f"{self._peer.name}: {verb} was not done after {WORK_SECONDS} s") from None
        if process.returncode:
            raise workers.BenchmarkError(f"{self._peer.name}: {verb} failed: {errors.strip().splitlines()[-1:]}")
        return output


def _value(connection: psycopg.Connection[Any], statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    return int(row[0]) if row else 0


def _last_line(output: str) -> dict[str, Any]:
    return dict(json.loads(output.splitlines()[-1])) if output.strip() else {}


def seconds_of_all(name: str, answers: Sequence[dict[str, Any]], count: int) -> float:
    """Return the seconds from the first start to the last end, by the answers of workers that keep nothing.

    Each answer has ``began`` (None if it ran nothing) and ``ended`` by the server's clock, ``numbers``, whose bit n is
    set if it ran job n, and how many it ran ``twice``. Raises BenchmarkError unless each job ran exactly once.
    """
    twice = sum(answer["twice"] for answer in answers)
    ran = 0
    for answer in answers:
        numbers = int(answer["numbers"] or "0", 16)
        twice += (ran & numbers).bit_count()
        ran |= numbers
    registered = (1 << count) - 1
    if twice or ran != registered:
        raise workers.BenchmarkError(
            f"{name}: {(ran & registered).bit_count()} of {count} jobs ran, {twice} of them again"
        )
    working = [answer for answer in answers if answer["began"] is not None]
    began, ended = min(answer["began"] for answer in working), max(answer["ended"] for answer in working)
    return max(float(ended) - float(began), SHORTEST)
