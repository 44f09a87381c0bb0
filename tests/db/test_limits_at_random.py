"""Workers, an operator who changes a limit a hundred times, and deaths: never more than either number allows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Event

import psycopg
import pytest
from django.db import connection

from django_pgjobs import job as define
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.queues import Queue
from django_pgjobs.store import finalising, limiting, pausing
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.finalising import End
from tests.db.limits_ground import admit, blocked, terms
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience, register, wait_until
from tests.plugins.fix_worker import database_url

pytestmark = pytest.mark.usefixtures("committed", "watched")

CODE, CHANGES, WORKERS, JOBS = 4, 100, 3, 200

WATCH = f"""
CREATE TABLE limit_number (
    id bigint GENERATED ALWAYS AS IDENTITY, number integer, set_at timestamptz DEFAULT clock_timestamp()
);
INSERT INTO limit_number (number) VALUES ({CODE});
CREATE TABLE limit_breach (admitted integer, allowed integer);
CREATE TABLE limit_admitted (job_id bigint PRIMARY KEY);
CREATE FUNCTION limit_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO limit_number (number) VALUES (
        CASE WHEN NEW.until IS NULL THEN NEW.concurrency ELSE {CODE} END
    );
    RETURN NULL;
END $$;
CREATE TRIGGER limit_number AFTER INSERT OR UPDATE ON pgjobs_limit FOR EACH ROW EXECUTE FUNCTION limit_number();
CREATE FUNCTION limit_breach() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    admitted integer;
    allowed integer;
BEGIN
    IF NEW.hold = 'limited' THEN
        DELETE FROM limit_admitted WHERE job_id = NEW.id;
        RETURN NULL;
    END IF;
    INSERT INTO limit_admitted VALUES (NEW.id) ON CONFLICT DO NOTHING;
    -- Not those that ran uncounted and are counted since: no admission has let them in.
    SELECT count(*) INTO admitted FROM limit_admitted JOIN pgjobs_job ON id = job_id
    WHERE queue = 'default' AND hold IS NULL AND finished_at IS NULL AND ending IS NULL;
    -- All that were in force since the statement began: of those set before it, the last may have committed later.
    SELECT max(number) INTO allowed FROM limit_number WHERE id >= (
        SELECT min(id) FROM (
            SELECT id FROM limit_number WHERE set_at <= statement_timestamp() ORDER BY id DESC LIMIT 2
        ) AS before
    );
    IF admitted > allowed THEN INSERT INTO limit_breach VALUES (admitted, allowed); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER limit_breach AFTER UPDATE ON pgjobs_job FOR EACH ROW
WHEN (OLD.hold IS DISTINCT FROM NEW.hold AND NEW.finished_at IS NULL) EXECUTE FUNCTION limit_breach();
"""
GONE = """
DROP TRIGGER limit_breach ON pgjobs_job; DROP TRIGGER limit_number ON pgjobs_limit;
DROP FUNCTION limit_breach(); DROP FUNCTION limit_number(); DROP TABLE limit_breach, limit_number, limit_admitted;
"""


def test_job() -> None: ...


test_job.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def watched(committed: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(WATCH)
    try:
        with registry.isolated():
            define(name="test.job")(test_job)
            yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(GONE)


class Worker:
    """Admits, claims and ends as a worker does; may die in the middle of an admission, or with its jobs."""

    def __init__(self, seed: str) -> None:
        self.luck = random.Random(seed)
        self.turns = 0
        self.held: list[End] = []
        self.succeeded: list[int] = []

    def live(self, over: Event) -> None:
        while not over.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(database_url(), autocommit=True) as raw:
                while not over.is_set():
                    self.turn(RawDatabase(raw))

    def turn(self, db: RawDatabase) -> None:
        if self.luck.random() < 0.1:
            self._dies_admitting()
        limits = pausing.read_pauses(db).limits
        if limits:
            limiting.limit_running(db, registry.names(), limit=100)
        self._admit(db)
        claimed = claim(db, self.luck.randrange(1, 4))
        known = {each.id: each for each in claimed.jobs}
        for end in claimed.ends():
            if limits and known[end.id].limit_key is None:
                end.outcome = "limited"
            self.held.append(end)
        self.luck.shuffle(self.held)
        self.held = [end for end in self.held if not self._ends(db, end)]
        self.turns += 1

    def _ends(self, db: RawDatabase, end: End) -> bool:
        """Hold, release or end a job, or go on with it; what another has locked is held longer."""
        if end.outcome:
            return bool(finalising.hold_jobs(db, [end]))
        chance = self.luck.random()
        if chance < 0.2:  # as a rescue does after a death
            return bool(finalising.release_jobs(db, [end], AUTHOR))
        if chance < 0.7:
            done = finalising.finalise_success(db, [end], AUTHOR)
            self.succeeded += done
            return bool(done)
        return False

    def _admit(self, db: RawDatabase) -> None:
        with suppress(AssertionError):  # another worker is at it
            admit(db, terms(of_queue=Bounds(CODE)))

    def _dies_admitting(self) -> None:
        raw = psycopg.connect(database_url())
        try:
            self._admit(RawDatabase(raw))
        finally:
            raw.close()


def _have_turned(workers: list[Worker], before: list[int]) -> bool:
    return all(worker.turns > turns for worker, turns in zip(workers, before, strict=True))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_limit_that_is_changed_a_hundred_times_is_never_passed(background: Background, seed: int) -> None:
    luck = random.Random(seed)
    ids = blocked(JOBS // 2) + register(JOBS // 2)
    workers = [Worker(f"{seed} {number}") for number in range(WORKERS)]
    over = Event()
    lives = [background(worker.live, over) for worker in workers]
    queue = Queue("default")
    try:
        for _ in range(CHANGES):
            before = [worker.turns for worker in workers]
            if luck.random() < 0.25:
                queue.restore_limit()
            else:
                queue.limit(luck.randrange(1, 9))
            # Each worker ends its turn: none sees two changes in one.
            wait_until(partial(_have_turned, workers, before), 20, "each worker has ended a turn")
            if not Job.objects.filter(finished_at=None).exists():
                ids += blocked(JOBS // 2) + register(JOBS // 2)
        queue.restore_limit()
        left = Job.objects.filter(finished_at=None)
        wait_until(lambda: not left.exists(), 60, "all have run")
    finally:
        over.set()
    for life in lives:
        life.result(timeout=patience(60))
    with connection.cursor() as cursor:
        cursor.execute("SELECT admitted, allowed FROM limit_breach")
        assert cursor.fetchall() == []
        cursor.execute("SELECT count(*) FROM limit_number")
        assert cursor.fetchone()[0] > CHANGES / 2
    done = [each for worker in workers for each in worker.succeeded]
    assert sorted(done) == sorted(ids)


def test_the_watch_sees_a_limit_that_is_passed(raw: RawDatabase) -> None:
    """The red twin: an admission that does not read the operator's number passes it."""
    blocked(10)
    Queue("default").limit(1)
    Queue("default").limit(2)
    admit(raw, terms(of_queue=Bounds(CODE)))
    assert raw.query("SELECT admitted, allowed FROM limit_breach") == []
    raw.query("UPDATE pgjobs_job SET hold = NULL WHERE hold = 'limited'")
    assert max(raw.query("SELECT admitted, allowed FROM limit_breach")) == (10, 2)
