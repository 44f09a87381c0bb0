"""Random graphs of jobs that need each other, under writers that race and operators who lock rows: as a model says.

A graph is jobs with random needs and rules, and batches with what comes after them. Four writers claim and end them in
slices, as finalisers do; an operator locks jobs and gates meanwhile. Then every outcome must be the model's, nothing
may wait, every gate must count what the rows say, and the server must have seen no deadlock. Then some failed jobs are
retried, and all of it must be true once more.

``PGJOBS_TEST_GRAPHS`` says how many graphs there are. A soak registers such graphs all the time, beside those who end
them and an operator: ``PGJOBS_TEST_SOAK_SECONDS=600`` is for ten minutes, after which the server has seen no deadlock.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.models import F

from django_pgjobs import Batch, job
from django_pgjobs.ends import kinds
from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.states import Rule
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import End
from django_pgjobs.store.gates import is_met
from tests.e2e import flows
from tests.e2e.stage import Stage
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, RawDatabase, claim, patience, wait_until
from tests.plugins.fix_worker import Workers

pytestmark = [pytest.mark.chaos, pytest.mark.usefixtures("committed")]
log = logging.getLogger(__name__)

GRAPHS = int(os.environ.get("PGJOBS_TEST_GRAPHS", "30"))
SOAK_SECONDS = float(os.environ.get("PGJOBS_TEST_SOAK_SECONDS", "10"))
SEED = int(os.environ.get("PGJOBS_TEST_SEED", "0")) or random.SystemRandom().randrange(2**32)
NODES = 200
WRITERS = 4
REGISTRARS = 3


@job(name="faults.node", max_attempts=1)
def node(fails: bool) -> None:
    if fails:
        raise ValueError("it fails")


@dataclass
class Graph:
    """What was registered: which jobs each needs, by which rule, whether it fails when it runs, and who is a member."""

    needs: dict[int, dict[int, Rule]] = field(default_factory=dict)
    fails: dict[int, bool] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def outcomes(self, begun: dict[int, str]) -> dict[int, str]:
        """Return the outcome of each job; ``begun``: those that had run before keep theirs, unless they run again."""
        found: dict[int, str] = {}
        for each in self.order:
            if each in begun:
                found[each] = begun[each]
            elif each in self.members:
                succeeded = all(found[member] == "succeeded" for member in self.members[each])
                found[each] = "succeeded" if succeeded else "abandoned"
            elif all(is_met(rule, found[needed]) for needed, rule in self.needs.get(each, {}).items()):
                found[each] = "abandoned" if self.fails[each] else "succeeded"
            else:
                found[each] = "cancelled"
        return found


def grown(chance: random.Random) -> Graph:
    """Register a random graph."""
    graph = Graph()

    def add(call: Any, needs: dict[int, Rule]) -> int:
        fails = chance.random() < 0.15
        by_rule: dict[Rule, list[int]] = {}
        for needed, rule in needs.items():
            by_rule.setdefault(rule, []).append(needed)
        rule, after = next(iter(by_rule.items()), (Rule.SUCCEEDED, []))
        made = call.using(after=after, when=str(rule)).register(fails) if after else call.register(fails)
        graph.order.append(made.pk)
        graph.fails[made.pk] = fails
        graph.needs[made.pk] = dict.fromkeys(after, rule)
        return int(made.pk)

    for _ in range(NODES):
        pick = chance.random()
        if pick < 0.05:
            sizes = chance.randrange(0, 12)
            calls = [chance.random() < 0.1 for _ in range(sizes)]
            after = {rule: chance.random() < 0.1 for rule in Rule if chance.random() < 0.5}
            with Batch("random", **{str(rule): node.bind(fails) for rule, fails in after.items()}) as batch:  # type: ignore[arg-type]
                batch.add_many(node.bind(fails) for fails in calls)
            ids = list(Job.objects.filter(parent_id=batch.job.pk).order_by("pk").values_list("pk", flat=True))
            graph.order += ids
            graph.fails.update(zip(ids, calls, strict=True))
            graph.order.append(batch.job.pk)
            graph.members[batch.job.pk] = ids
            for rule, fails in after.items():
                callback = Job.objects.get(needs__parent=batch.job.pk, needs__rule=rule)
                graph.order.append(callback.pk)
                graph.fails[callback.pk] = fails
                graph.needs[callback.pk] = {batch.job.pk: rule}
        else:
            known = graph.order[-40:]
            count = min(len(known), chance.choice((0, 1, 1, 2, 3)))
            rule = chance.choice((Rule.SUCCEEDED, Rule.SUCCEEDED, Rule.SETTLED, Rule.FAILED))
            add(node, dict.fromkeys(chance.sample(known, count), rule))
    return graph


@dataclass
class Run:
    """Writers and an operator, until nothing is unfinished."""

    dsn: dict[str, Any]
    seed: int
    fails: dict[int, bool]
    ids: list[int] = field(default_factory=list)

    def done(self) -> bool:
        return not Job.objects.filter(finished_at=None).exists()

    def connect(self) -> RawDatabase:
        # The server looks for circles before a writer gives up.
        return RawDatabase(psycopg.connect(**self.dsn, autocommit=True, options="-c deadlock_timeout=20ms"))

    def write(self, number: int, until: float) -> int:
        """Claim and end jobs as a worker does; return how often a gate was locked for too long."""
        chance, db, given_up = random.Random(self.seed * 100 + number), self.connect(), 0
        try:
            while time.monotonic() < until and not self.done():
                taken = claim(db, chance.randrange(1, 12), lease=600.0)
                ends = [self.end_of(job, str(taken.claim_id)) for job in taken.jobs]
                chance.shuffle(ends)
                while ends:
                    some, ends = ends[:5], ends[5:]
                    given_up += self.flush(db, some)
                open_due_gates(db)
        finally:
            db.raw.close()
            connections.close_all()
        return given_up

    def end_of(self, job: ClaimedJob, claim_id: str) -> End:
        fails = self.fails.get(job.id, False)
        outcome = job.ending or ("abandoned" if fails else "")
        failure = FAILURE if fails and job.ending is None else None
        return End(job.id, claim_id, 0.0, outcome=outcome, failure=failure, cause="failed" if failure else None)

    def flush(self, db: RawDatabase, ends: list[End]) -> int:
        given_up = 0
        while ends:
            try:
                with db.transaction():
                    recorded, _ = kinds.write_counted(db, ends, AUTHOR, lock_seconds=0.1)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                given_up += 1
                continue
            ends = [end for end in ends if end.id not in recorded]
        return given_up

    def known(self, db: RawDatabase) -> list[int]:
        """Return jobs that an operator may look at."""
        return self.ids

    def operate(self, until: float) -> int:
        """Lock some jobs, then some gates, as a view of a project might; return how often."""
        chance, db, times = random.Random(self.seed), self.connect(), 0
        try:
            while time.monotonic() < until and not self.done():
                known = self.known(db)
                some = sorted(chance.sample(known, min(len(known), 25)))
                others = sorted(chance.sample(known, len(some)))
                with db.transaction():
                    for table, column, wanted in (
                        ("pgjobs_job", "id", some),
                        ("pgjobs_gate", "job_id", chance.choice((some, others))),
                    ):
                        db.query(
                            f"SELECT 1 FROM {table} WHERE {column} = ANY (%s) ORDER BY {column} FOR UPDATE", [wanted]
                        )
                        time.sleep(chance.random() * 0.02)
                times += 1
        finally:
            db.raw.close()
            connections.close_all()
        return times


@pytest.fixture
def dsn(db_connection: Any) -> dict[str, Any]:
    known = connection.get_connection_params()
    return {key: known[key] for key in ("dbname", "host", "port", "user", "password") if known.get(key)}


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def run(graph: Graph, seed: int, dsn: dict[str, Any], background: Background) -> int:
    course = Run(dsn, seed, graph.fails, graph.order)
    until = time.monotonic() + patience(60)
    operator = background(course.operate, until)
    writers = [background(course.write, number, until) for number in range(WRITERS)]
    given_up = sum(writer.result() for writer in writers)
    operator.result()
    return given_up


def check(graph: Graph, begun: dict[int, str], seed: int) -> dict[int, str]:
    """Compare outcomes and gates with the model; return the outcomes."""
    found = dict(Job.objects.filter(pk__in=graph.order).values_list("pk", "outcome"))
    wanted = graph.outcomes(begun)
    wrong = {each: (found[each], wanted[each]) for each in graph.order if found[each] != wanted[each]}
    assert not wrong, f"seed {seed}: (found, model) {wrong}"
    for gate in Gate.objects.all():
        inputs = graph.members.get(gate.pk, list(graph.needs.get(gate.pk, {})))
        outcomes = [found[each] for each in inputs]
        assert (gate.pending, gate.total, gate.succeeded, gate.abandoned, gate.cancelled, gate.due) == (
            0, len(inputs), outcomes.count("succeeded"), outcomes.count("abandoned"), outcomes.count("cancelled"), False
        ), f"seed {seed}: gate of {gate.pk}"  # fmt: skip
    return {each: outcome for each, outcome in found.items() if outcome is not None}


@pytest.mark.timeout(900)
def test_random_graphs_end_as_the_model_says_and_so_after_retries(dsn: dict[str, Any], background: Background) -> None:
    before, nodes, given_up, revived = deadlocks(), 0, 0, 0
    for number in range(GRAPHS):
        seed = SEED + number
        chance = random.Random(seed)
        graph = grown(chance)
        given_up += run(graph, seed, dsn, background)
        outcomes = check(graph, {}, seed)
        nodes += len(graph.order)

        failed = [each for each in graph.order if outcomes[each] == "abandoned" and each not in graph.members]
        retried = chance.sample(failed, min(len(failed), chance.randrange(1, 7)))
        graph.fails.update(dict.fromkeys(retried, False))
        begun = {
            each: outcome for each, outcome in outcomes.items()
            if outcome != "cancelled" and each not in graph.members
        } | dict.fromkeys(retried, "succeeded")  # fmt: skip
        Job.objects.filter(pk__in=retried).retry()
        given_up += run(graph, seed, dsn, background)
        again = check(graph, begun, seed)
        revived += sum(outcomes[each] != again[each] for each in graph.order) - len(retried)
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgjobs_job, pgjobs_gate, pgjobs_link, pgjobs_attempt, pgjobs_claim")
    words = "graphs=%d nodes=%d revived=%d given_up=%d deadlocks=%d first_seed=%d"
    log.warning(words, GRAPHS, nodes, revived, given_up, deadlocks() - before, SEED)
    assert deadlocks() == before


GATES_THAT_ARE_OFF = """
    WITH inputs AS (
        SELECT j.parent_id AS job_id, j.outcome FROM pgjobs_job AS j WHERE j.flow & 1 = 1
        UNION ALL
        SELECT l.job_id, n.outcome FROM pgjobs_link AS l JOIN pgjobs_job AS n ON n.id = l.parent_id
    ),
    counted AS (
        SELECT
            job_id, count(*) AS n, count(*) FILTER (WHERE outcome = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE outcome = 'abandoned') AS abandoned,
            count(*) FILTER (WHERE outcome = 'cancelled') AS cancelled
        FROM inputs
        GROUP BY job_id
    )
    SELECT g.job_id FROM pgjobs_gate AS g LEFT JOIN counted AS c USING (job_id)
    WHERE (g.pending, g.total, g.succeeded, g.abandoned, g.cancelled, g.due)
        <> (0, coalesce(c.n, 0), coalesce(c.succeeded, 0), coalesce(c.abandoned, 0), coalesce(c.cancelled, 0), false)
    LIMIT 10
"""


@dataclass
class Soak(Run):
    """Graphs are registered all the time, while others end them."""

    graphs: int = 0
    registering: int = REGISTRARS

    def done(self) -> bool:
        return not self.registering and super().done()

    def end_of(self, job: ClaimedJob, claim_id: str) -> End:
        self.fails[job.id] = job.name == node.name and job.id % 7 == 0
        return super().end_of(job, claim_id)

    def known(self, db: RawDatabase) -> list[int]:
        return [row[0] for row in db.query("SELECT id FROM pgjobs_job WHERE finished_at IS NULL LIMIT 200")]

    def register(self, number: int, until: float) -> None:
        """Register graph after graph."""
        chance = random.Random(self.seed * 100 + number)
        try:
            while time.monotonic() < until:
                grown(chance)
                self.graphs += 1
        finally:
            self.registering -= 1
            connections.close_all()


@pytest.mark.timeout(900 + SOAK_SECONDS)
def test_an_operator_beside_those_who_end_and_register_deadlocks_with_nobody(
    dsn: dict[str, Any], background: Background
) -> None:
    before, until = deadlocks(), time.monotonic() + SOAK_SECONDS
    soak = Soak(dsn, SEED, {})
    late = until + patience(120)
    registrars = [background(soak.register, number, until) for number in range(REGISTRARS)]
    operator = background(soak.operate, late)
    writers = [background(soak.write, number, late) for number in range(WRITERS)]
    for registrar in registrars:
        registrar.result()
    given_up = sum(writer.result() for writer in writers)
    operations = operator.result()
    words = "seconds=%.0f graphs=%d jobs=%d operations=%d given_up=%d deadlocks=%d seed=%d"
    jobs = Job.objects.count()
    log.warning(words, SOAK_SECONDS, soak.graphs, jobs, operations, given_up, deadlocks() - before, SEED)
    assert deadlocks() == before
    assert not Job.objects.filter(finished_at=None).exists()
    with connection.cursor() as cursor:
        cursor.execute(GATES_THAT_ARE_OFF)
        assert cursor.fetchall() == []


PAIRS = int(os.environ.get("PGJOBS_TEST_PAIRS", "10000"))
AT_ONCE = 500


@dataclass
class Meeting:
    """Two threads that begin each round together; ``end`` comes up to a millisecond or two later or earlier."""

    raw: RawDatabase
    ends: list[End]
    round: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=patience(60)))
    counted: int = 0
    released: int = 0

    def end(self, chance: random.Random) -> None:
        """End the jobs one by one, as a finaliser does."""
        for end in self.ends:
            self.round.wait()
            until = time.perf_counter() + chance.random() * 0.003
            while time.perf_counter() < until:
                pass
            if kinds.write(self.raw, kinds.SUCCESS, [end], kinds.EndTerms(AUTHOR)):
                continue
            done = False
            while not done:
                with self.raw.transaction():
                    recorded, opened = kinds.write_counted(self.raw, [end], AUTHOR)
                done = end.id in recorded
                self.released += len(opened)
            self.counted += 1

    def each(self, deeds: Iterable[Callable[[], object]]) -> None:
        """Do something else, one by one."""
        try:
            for deed in deeds:
                self.round.wait()
                deed()
        finally:
            connections.close_all()


def met(raw: RawDatabase, background: Background, deeds: list[Callable[[], object]], seed: int) -> Meeting:
    """Let what is ready end beside ``deeds``, then sweep once; nobody may wait any longer."""
    meeting = Meeting(raw, claim(raw, len(deeds), lease=600.0).ends(result="1"))
    assert len(meeting.ends) == len(deeds)
    ender = background(meeting.end, random.Random(seed))
    background(meeting.each, deeds).result()
    ender.result()
    open_due_gates(raw)
    asleep = list(Job.objects.filter(hold="blocked").values_list("pk", flat=True))
    off = Gate.objects.exclude(pending=0, due=False, succeeded=F("total"), opened_at__isnull=False)
    assert not asleep, f"seed {seed}: {asleep}"
    assert not off.exists(), f"seed {seed}"
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_gate, pgjobs_link, pgjobs_claim")
    return meeting


@pytest.mark.timeout(1800)
def test_late_needs_beside_ends_leave_nobody_asleep(raw: RawDatabase, background: Background) -> None:
    before, counted = deadlocks(), 0
    for start in range(0, PAIRS, AT_ONCE):
        ids = node.register_many([(False,)] * AT_ONCE)
        needs = [partial(node.using(after=[needed]).register, False) for needed in ids]
        counted += met(raw, background, list(needs), SEED + start).counted
    log.warning("pairs=%d needed_before_the_end=%d seed=%d", PAIRS, counted, SEED)
    assert deadlocks() == before


@pytest.mark.timeout(1800)
def test_closes_beside_ends_leave_no_batch_asleep(raw: RawDatabase, background: Background) -> None:
    before, released = deadlocks(), 0
    for start in range(0, PAIRS, AT_ONCE):
        batches = [Batch() for _ in range(AT_ONCE)]
        with transaction.atomic():
            for batch in batches:
                batch.add(node.bind(False))
        released += met(raw, background, [batch.close for batch in batches], SEED + start).released
    log.warning("pairs=%d released_by_the_end=%d seed=%d", PAIRS, released, SEED)
    assert deadlocks() == before


MEMBERS = int(os.environ.get("PGJOBS_TEST_MEMBERS", "200000"))
KILLS = int(os.environ.get("PGJOBS_TEST_FLOW_KILLS", "20"))
CONF = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 0.5, "POLL_SECONDS": 1}


def gate_and_rows(batch_id: int) -> tuple[list[int], list[int]]:
    """Return what the gate counts and what the rows say, at one instant."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT pending, succeeded, abandoned FROM pgjobs_gate WHERE job_id = %s", [batch_id])
        gate = list(cursor.fetchone())
        cursor.execute(
            "SELECT count(*) FILTER (WHERE outcome IS NULL), count(*) FILTER (WHERE outcome = 'succeeded'),"
            " count(*) FILTER (WHERE outcome = 'abandoned') FROM pgjobs_job WHERE parent_id = %s",
            [batch_id],
        )
        return gate, list(cursor.fetchone())


def reached(batch: Batch, wanted: int) -> bool:
    return batch.figures.succeeded >= wanted


@pytest.mark.timeout(900)
def test_a_fan_in_whose_workers_are_killed_has_one_release(worker: Workers, stage: Stage) -> None:
    """The gate counts what the rows say at every kill, and what comes after the batch runs once."""
    chance = random.Random(SEED)
    with Batch("fan-in", settled=flows.after.bind("fan-in")) as batch:
        batch.add_many(flows.member.bind(n) for n in range(MEMBERS))
    batch_id = batch.job.pk
    workers = [worker(conf=CONF, threads=1) for _ in range(4)]
    for kill in range(KILLS):
        wanted = (kill + 1) * MEMBERS // (KILLS + 2)
        wait_until(partial(reached, batch, wanted), 120, f"{wanted} members have ended")
        victim = chance.randrange(len(workers))
        workers[victim].kill()
        gate, rows = gate_and_rows(batch_id)
        assert gate == rows, f"seed {SEED}, kill {kill}"
        workers[victim] = worker(conf=CONF, threads=1)
    try:
        wait_until(lambda: stage.count("after", "fan-in") > 0, 300, "what comes after the batch runs")
    except pytest.fail.Exception as error:
        left = list(
            Job.objects.filter(finished_at=None).values_list("pk", "name", "state", "attempt", "hold_reason")[:9]
        )
        logs = [each.log[-1500:] for each in workers]
        raise pytest.fail.Exception(f"{error} {gate_and_rows(batch_id)} {left} {logs}") from None
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 60, "all have ended")
    gate, rows = gate_and_rows(batch_id)
    assert (gate, rows) == ([0, MEMBERS, 0], [0, MEMBERS, 0])
    assert stage.count("after", "fan-in") == 1
    assert Job.objects.get(pk=batch_id).outcome == "succeeded"
    log.warning("members=%d kills=%d released=1 seed=%d", MEMBERS, KILLS, SEED)
