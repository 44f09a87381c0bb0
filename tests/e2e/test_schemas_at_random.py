"""Many schemas under producers, an operator and kills: every job is of its schema, and none is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter

from tests.e2e.schemas_ground import ManySchemas, Tenants, noted
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess

JOBS = 400
CONF = {"LEASE_SECONDS": 2, "RENEW_SECONDS": 0.5}


class Operator(threading.Thread):
    """Pauses, resumes, cancels and postpones in schemas taken at random, by statements of its own."""

    def __init__(self, tenants: Tenants, seed: int) -> None:
        super().__init__(daemon=True)
        self.tenants = tenants
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.02):
                self.act(self.random.choice(self.tenants.names))
        except BaseException as error:
            self.error = error

    def act(self, name: str) -> None:
        match self.random.randrange(4):
            case 0:
                pause = (
                    "INSERT INTO pgjobs_queue_state (kind, name, paused_at, paused_by, reason, until)"
                    " VALUES ('queue', 'default', statement_timestamp(), 'ann', '',"
                    " statement_timestamp() + interval '1 s') ON CONFLICT DO NOTHING"
                )
                self.tenants.ask(name, pause)
            case 1:
                self.tenants.ask(name, "DELETE FROM pgjobs_queue_state")
            case 2:
                postpone = (
                    "UPDATE pgjobs_job SET run_at = statement_timestamp() + interval '0.3 s'"
                    " WHERE id = (SELECT id FROM pgjobs_job WHERE claim_id IS NULL AND finished_at IS NULL"
                    " ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)"
                )
                self.tenants.ask(name, postpone)
            case 3:
                self.tenants.ask(name, "SELECT pg_notify('pgjobs', '0:default@nowhere')")


def produce(tenants: Tenants, seed: int, acknowledged: list[tuple[str, str]]) -> None:
    """Register jobs that note their own key, some with a notification, some that are due a little later."""
    chance = random.Random(seed)
    for n in range(JOBS // 2):
        name, key = chance.choice(tenants.names), f"{seed}-{n}"
        kind = chance.choice(("notes", "anotes", "notes"))
        tenants.put(name, kind, key, due=chance.choice((0.0, 0.0, 0.5)))
        acknowledged.append((name, key))
        if chance.random() < 0.5:
            tenants.ask(name, "SELECT pg_notify('pgjobs', concat('0:default@', current_schema()))")


def test_every_job_is_of_its_schema_and_none_is_lost(start: ManySchemas, tenants: Tenants, stage: Stage) -> None:
    seed = int(os.environ.get("PGJOBS_TEST_SEED", "1"))
    chance = random.Random(seed)
    tenants.make(*(f"t{n}" for n in range(1, 25)))
    workers: list[WorkerProcess] = [start(conf=CONF, threads=2), start(conf=CONF, threads=2)]
    acknowledged: list[tuple[str, str]] = []
    producers = [threading.Thread(target=produce, args=(tenants, seed + n, acknowledged)) for n in range(2)]
    operator = Operator(tenants, seed)
    for thread in (*producers, operator):
        thread.start()
    for at in range(1, 5):
        wait_until(lambda at=at: len(acknowledged) >= at * JOBS // 5, 60, "producers go on")  # type: ignore[misc]
        if chance.random() < 0.5:
            victim = workers.pop(0)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            workers.append(start(conf=CONF, threads=2))
        elif executors := chance.choice(workers).executors():
            os.kill(chance.choice(executors), signal.SIGKILL)
    for producer in producers:
        producer.join()
    operator.stopping.set()
    operator.join()
    assert operator.error is None
    for name in tenants.names:
        tenants.ask(name, "DELETE FROM pgjobs_queue_state")

    def left() -> int:
        unended = "SELECT count(*) FILTER (WHERE finished_at IS NULL) FROM pgjobs_job"
        text = f"SELECT ({unended}) + count(*) FROM pgjobs_claim"
        return sum(tenants.ask(name, text)[0][0] for name in tenants.names)

    wait_until(lambda: not left(), 60, "all have ended, and the leader has swept what dead workers left in the ledger")
    for worker in workers:
        assert worker.stop() == 0
    done = Counter((own, key) for key, own, _ in noted(stage))
    assert {(own, here) for _, own, here in noted(stage) if own != here} == set()
    assert set(acknowledged) == set(done)
    for name in tenants.names:
        outcomes = tenants.ask(name, "SELECT DISTINCT outcome FROM pgjobs_job")
        assert outcomes in ([("succeeded",)], [])
        assert tenants.ask(name, "SELECT count(*) FROM pgjobs_claim") == [(0,)]
