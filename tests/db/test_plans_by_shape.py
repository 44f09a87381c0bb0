"""The plans of what producers, operators and the admin run: on Django's connection, which pins none.

Statistics may say anything: those of the empty table or of one that had nothing but history, those from before all
keys came, those of thousands of queues.
Each statement is explained as it is run, so what the ORM makes of a queryset is bounded too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import StringIO
from typing import Any, cast

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings

from django_pgjobs import Cron, Event, Unique, job, register_many, reverting
from django_pgjobs.context import Inputs
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import JobFailed, QueueFull
from django_pgjobs.flows.undoing import parts_of
from django_pgjobs.inspection.results import read_results
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.store import explaining, firing, keeping, keys, memos, moving
from django_pgjobs.store.database import PINS, on
from django_pgjobs.store.memos import NewMemo
from tests.db.test_plans import ENDED
from tests.plugins.explaining import Explained, analysed_while_empty, as_if_emptied
from tests.plugins.fix_db import RawDatabase, claim

READY = 40_000
KEYED = 20_000
PAIRS = 3001
BATCH = 100

INSERT = (
    "INSERT INTO pgjobs_job (name, payload, queue, priority, run_at, outcome, finished_at, claim_id, key, key_scope, "
)
INSERT += "unique_key, limit_key, hold, cron_entry) SELECT 'shapes.plain', '{}', "
SEED = {
    "ended": [
        "'default', 0, now(), 'succeeded', now() - g * interval '1 s', gen_random_uuid(), NULL, '', NULL, NULL, NULL, "
        f"NULL FROM generate_series(1, {ENDED}) AS g",
        "'default', 0, now(), 'abandoned', now() - g * interval '1 s', NULL, 'a' || g, 'until_finished', NULL, NULL, "
        "NULL, NULL FROM generate_series(1, 1000) AS g",
    ],
    "plain": [
        f"'default', mod(g, 2) * 3, now() - interval '1 hour', NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL "
        f"FROM generate_series(1, {READY}) AS g",
        "'default', 1, now() + interval '1 hour', NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL "
        "FROM generate_series(1, 5000)",
        "'limited', 0, now() - interval '1 hour', NULL, NULL, NULL, NULL, '', NULL, 'k' || mod(g, 1000), "
        "'limited', NULL FROM generate_series(1, 5000) AS g",
        "'limited', 0, now() - interval '1 hour', NULL, NULL, NULL, NULL, '', NULL, 'k' || g, NULL, NULL "
        "FROM generate_series(1, 100) AS g",
        "'default', 0, now(), NULL, NULL, NULL, NULL, '', NULL, NULL, 'parked', NULL FROM generate_series(1, 1000)",
        "'default', 0, now(), NULL, NULL, NULL, NULL, '', NULL, NULL, 'paused', NULL FROM generate_series(1, 1000)",
        "'crons', 0, now(), NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, 'clean' FROM generate_series(1, 50)",
    ],
    "keyed": [
        "'default', 0, now() - interval '1 hour', NULL, NULL, NULL, 'k' || g, 'until_finished', 'k' || g, "
        f"NULL, NULL, NULL FROM generate_series(1, {KEYED}) AS g",
    ],
    "pairs": [
        "'q' || mod(g, 1500), mod(g, 200) - 100, now(), NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL "
        f"FROM generate_series(1, {PAIRS}) AS g",
    ],
}


MEMOS = [
    "SELECT id, 'wait', 'event', 'shapes.approval:' || mod(id, 1000), now() + interval '1 hour', NULL FROM pgjobs_job "
    "WHERE outcome IS NULL",
    "SELECT id, 'step#' || g, 'step', NULL, NULL, now() FROM pgjobs_job, generate_series(1, 3) AS g "
    "WHERE outcome IS DISTINCT FROM 'succeeded' AND hold IS NULL",
    "SELECT id, 'gather', 'gather', 'pgjobs.gathered:' || id, now() + interval '1 hour', NULL FROM pgjobs_job "
    "WHERE claim_id IS NOT NULL AND outcome IS NULL",
]


def plain(n: int = 1) -> None: ...


KINDS = {
    "keys": "unique_key IS NOT NULL AND claim_id IS NULL",
    "plain": "unique_key IS NULL AND outcome IS NULL AND hold IS NULL AND claim_id IS NULL AND queue = 'default' "
    "AND run_at < now() AND name = 'shapes.plain'",
    "running": "outcome IS NULL AND claim_id IS NOT NULL",
    "ended": "outcome = 'abandoned'",
    "parked": "hold = 'parked'",
    "limited": "hold = 'limited'",
}
IDS: dict[str, list[int]] = {}

LINKS = [
    (f"(SELECT id FROM pgjobs_job WHERE outcome = 'abandoned' ORDER BY id LIMIT {BATCH // 4})", KINDS["running"]),
    ("SELECT max(id) AS id FROM pgjobs_job WHERE hold = 'parked'", KINDS["running"]),
    (f"(SELECT id FROM pgjobs_job WHERE outcome = 'succeeded' LIMIT {BATCH})", KINDS["limited"]),
]
"""Which jobs needed which."""


@contextmanager
def connected() -> Iterator[RawDatabase]:
    """A worker's connection: the seed is no statement of theirs."""
    params = connection.get_connection_params() | {"cursor_factory": None}
    with psycopg.connect(**params, autocommit=True) as raw:
        for name, value in PINS.items():
            raw.execute(f"SET {name} = {value}")
        yield RawDatabase(raw)


@pytest.fixture(scope="module", params=["empty", "drained", "older", "pairs", "emptied"])
def statistics(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A full table whose statistics are of the empty one, of ended jobs only, older than its keyed jobs, of thousands
    of pairs, or of pages without a row.
    """
    with django_db_blocker.unblock(), registry.isolated(), connected() as raw:
        with analysed_while_empty(raw):
            for part, rows in SEED.items():
                if (request.param, part) in (("drained", "plain"), ("older", "keyed")):
                    raw.query("ANALYZE pgjobs_job")
                for some in rows:
                    raw.query(INSERT + some)
            claim(raw, BATCH)
            raw.query("""UPDATE pgjobs_job SET tags = '["vip"]' WHERE mod(id, 701) = 0""")
            for some in MEMOS:
                raw.query(f"INSERT INTO pgjobs_memo (job_id, name, kind, event, wake_at, finished_at) {some}")
            raw.query(
                "INSERT INTO pgjobs_event (name) SELECT 'shapes.approval:' || g FROM generate_series(0, 999) AS g"
            )
            raw.query(
                "INSERT INTO pgjobs_attempt (job_id, claim_id, number, cause) "
                "SELECT id, gen_random_uuid(), 1, 'failed' FROM pgjobs_job"
            )
            raw.query(
                "INSERT INTO pgjobs_step (job_id, claim_id, name, queue, payload, attempt) "
                "SELECT id, gen_random_uuid(), name, queue, payload, 1 FROM pgjobs_job"
            )
            raw.query("UPDATE pgjobs_job SET flow = 32 WHERE outcome = 'abandoned'")
            raw.query(
                "INSERT INTO pgjobs_job (name, payload, target_id) "
                "SELECT 'pgjobs.undo', '{}', g FROM generate_series(1, 5000) AS g"
            )
            # Of a handful of rows a scan is the right plan, and whether the server chose it hung on what ran before.
            raw.query(
                "INSERT INTO pgjobs_key_window (queue, key, begins_at, ends_at, job_id)"
                f" SELECT 'default', 'w' || g, now(), now() + interval '1 h', g FROM generate_series(1, {KEYED}) AS g"
            )
            declared = Cron("0 3 * * *", job(name="shapes.plain")(plain).bind(), name="clean").declared()
            firing.declare_cron(raw, declared, overwrite=True, fresh_seconds=0)
            for parents, condition in LINKS:
                raw.query(
                    "INSERT INTO pgjobs_link (parent_id, job_id, rule) "
                    f"SELECT p.id, j.id, 'ended' FROM ({parents}) AS p, "
                    f"(SELECT id FROM pgjobs_job WHERE {condition} ORDER BY id DESC LIMIT 50) AS j"
                )
            raw.query(
                "UPDATE pgjobs_job SET parent_id = (SELECT max(id) FROM pgjobs_job WHERE hold = 'parked') "
                f"WHERE id IN (SELECT id FROM pgjobs_job WHERE {KINDS['plain']} ORDER BY id LIMIT {BATCH // 2})"
            )
            if request.param == "pairs":
                raw.query("ANALYZE pgjobs_job")
            if request.param == "emptied":
                as_if_emptied(raw)
            for kind, where in KINDS.items():
                IDS[kind] = [
                    row[0]
                    for row in raw.query(f"SELECT id FROM pgjobs_job WHERE {where} ORDER BY id DESC LIMIT {BATCH}")
                ]
                assert len(IDS[kind]) == BATCH, kind
            yield request.param
        raw.query("TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_cron_entry, pgjobs_key_window, pgjobs_action, pgjobs_memo")
        raw.query("TRUNCATE pgjobs_attempt, pgjobs_step, pgjobs_link")
        raw.query("TRUNCATE pgjobs_event")
        connection.close()


def declared() -> Any:
    return registry.get("shapes.plain")


def keyed(**given: Any) -> list[Any]:
    """A batch of registrations whose keys are taken, far from each other."""
    found = cast("JobDefinition[..., Any]", registry.get("shapes.plain"))
    return [JobDefinition.using(found, unique=Unique(f"k{n * 190 + 7}", **given)).bind(n) for n in range(1, BATCH + 1)]


def some(kind: str) -> Any:
    """A batch of jobs as a queryset that names them by id."""
    return Job.objects.filter(pk__in=IDS[kind])


def one(kind: str) -> Job:
    return Job.objects.get(pk=IDS[kind][0])


WINDOW = timedelta(hours=1)


def value_of(job: Job) -> None:
    with suppress(JobFailed):
        job.value(1)


def show(*kinds: str) -> None:
    for kind in kinds:
        call_command("pgjobs", "show", str(IDS[kind][0]), stdout=StringIO())


def windows() -> None:
    """Taken, found taken, and taken by another."""
    for policy in ("existing", "existing", "replace"):
        assert register_many(keyed(window=WINDOW, on_conflict=policy))


approval: Event[str] = Event("shapes.approval")


def remembered() -> None:
    """What a durable function asks for and keeps while it runs."""
    db, some = on("default"), one("running")
    fence = (some.pk, str(some.claim_id))
    assert memos.read_memos(db, some.pk)
    assert memos.write_memo(db, *fence, NewMemo("pay", "step", "1", 0.0, 32))
    assert memos.read_cursors(db, *fence)
    assert memos.write_cursor(db, *fence, name="each", cursor="1", progress='{"n": 1}')
    waited = memos.finish_wait(db, *fence, name="wait", kind="event", event="shapes.approval:7")
    assert waited is not None
    before = f"pgjobs.gathered:{some.pk}"
    assert memos.begin_gather(db, *fence, name="gather", before=before, event="e", result="{}", seconds=60)


def bounded(queue: str) -> None:
    with override_settings(PGJOBS={"CAPACITY": {queue: BATCH}}), suppress(QueueFull):
        declared().using(queue=queue).register(1)


def inputs() -> Inputs:
    """Of a job that needs some jobs, and a batch of some members."""
    return Inputs(IDS["running"][0], "default")


def undone(steer: Callable[[], object]) -> None:
    assert steer()
    action = Action.objects.latest("pk")
    assert reverting.prospect(action).count == action.changed > 0
    assert reverting.revert(action.pk, by="anna", database="default").changed == action.changed


def moves() -> None:
    """As those of a move do here and there; the jobs arrive where they came from."""
    db, ids, turn = on("default"), IDS["plain"], {"target": "there", "token": "t"}
    assert not any(moving.mark_moving(db, ids, words="w", **turn).values())
    rows = moving.take_moving(db, **turn)
    assert len(rows) == len(ids)
    assert moving.arrive_jobs(db, list(rows.values()), source="here", words="w") == []
    arrivals = moving.list_arrivals(db, "here")
    assert len(arrivals) == len(ids)
    moving.keep_jobs(db, ids[:1], "t")
    assert len(moving.give_away(db, ids[1:], "t")) == len(ids) - 1
    assert len(moving.land_jobs(db, list(arrivals.values()), source="here", alias="here")[0]) == len(ids)


STATEMENTS: dict[str, tuple[int, Callable[[], object]]] = {
    "register, the key is taken": (BATCH, lambda: [bound.register() for bound in keyed()[:3]]),
    "register many, the keys are taken": (BATCH, lambda: register_many(keyed())),
    "replace one": (BATCH, lambda: [bound.register() for bound in keyed(on_conflict="replace")[:3]]),
    "replace many": (BATCH, lambda: register_many(keyed(on_conflict="replace"))),
    "postpone one": (BATCH, lambda: [bound.register() for bound in keyed(on_conflict="postpone")[:3]]),
    "postpone many": (BATCH, lambda: register_many(keyed(on_conflict="postpone"))),
    "windows": (BATCH, windows),
    "into a bounded queue that is full": (BATCH, lambda: bounded("default")),
    "into a bounded queue of held jobs": (BATCH, lambda: bounded("limited")),
    "register again": (BATCH, lambda: one("plain").register_again()),
    "register again, from its first step": (BATCH, lambda: one("ended").register_again()),
    "what it returned": (BATCH, lambda: value_of(one("ended"))),
    "what is undone of it": (BATCH, lambda: parts_of(IDS["ended"][0], None)),
    "show it": (BATCH, lambda: show("ended", "running", "limited")),
    "what it remembers": (1, remembered),
    "send an event": (BATCH, lambda: approval.send(7, payload="x")),
    "send an event that nobody knows": (1, lambda: approval.send(1000, payload="x")),
    "why is it suspended": (BATCH, lambda: memos.read_suspension(on("default"), one("plain").pk)),
    "let suspended jobs go on": (BATCH, lambda: some("plain").unblock()),
    "what they gather": (BATCH, lambda: memos.list_gathered(on("default"), IDS["running"])),
    "what they gathered": (BATCH, lambda: memos.list_gathered(on("default"), IDS["ended"], unasked=True)),
    "what is undone": (BATCH, lambda: memos.list_undone(on("default"), IDS["ended"])),
    "wait": (BATCH, lambda: keeping.mark_waited(on("default"), one("plain").pk)),
    "cancel": (BATCH, lambda: some("keys").cancel()),
    "cancel running ones": (BATCH, lambda: some("running").cancel(mode="kill")),
    "abandon": (BATCH, lambda: some("keys").abandon()),
    "retry ended ones": (BATCH, lambda: some("ended").retry()),
    "retry parked ones": (BATCH, lambda: some("parked").retry()),
    "release": (BATCH, lambda: some("running").release()),
    "move to another queue": (BATCH, lambda: some("keys").reschedule(queue="mail")),
    "move to another database": (BATCH, moves),
    "undo a retry": (2 * BATCH, lambda: undone(lambda: some("ended").retry())),
    "undo a move": (2 * BATCH, lambda: undone(lambda: some("plain").reschedule(delay=60, priority=3))),
    "run now": (BATCH, lambda: some("plain").reschedule(delay=0)),
    "pause a queue whose jobs a limit has let in": (BATCH, lambda: Queue("limited").pause()),
    "pause a job": (BATCH, lambda: pauses.pause("job", "shapes.plain")),
    "resume a job": (BATCH, lambda: pauses.resume("job", "shapes.plain")),
    "run a cron entry": (BATCH, lambda: CronEntry.objects.get().run_now()),
    "stop a cron entry": (BATCH, lambda: CronEntry.objects.get().stop()),
    "why is it not run": (explaining.MOST_COUNTED + 1, lambda: one("plain").why()),
    "why is it not run, with a key": (explaining.MOST_COUNTED + 1, lambda: one("keys").why()),
    "why is it held": (BATCH, lambda: one("limited").why()),
    "why did it end": (BATCH, lambda: one("ended").why()),
    "the result of its idempotency key": (
        BATCH, lambda: keys.find_result(on("default"), IDS["running"][0], ["shapes.plain"], "k7")
    ),
    "the jobs that it needed": (BATCH, lambda: list(inputs().jobs)),
    "the members of batches that it needed": (BATCH, lambda: list(inputs().members)),
    "those of both that failed": (BATCH, lambda: list(inputs().failed())),
    "how they went": (BATCH, lambda: read_results("default", IDS["running"] + IDS["ended"])),
    "what blocks it": (BATCH, lambda: one("limited").blocked_by()),
    "the parked ones of a queue": (BATCH, lambda: list(Queue("default").jobs("parked"))),
    "one of a queue by its key": (BATCH, lambda: Queue("default").job("k77")),
}  # fmt: skip
"""What is run → how many jobs it may cost."""


def test_what_producers_and_operators_run_costs_its_batch_and_not_the_table(
    statistics: str, django_db_blocker: Any
) -> None:
    """A plan that follows from the statement's shape, not from what the statistics say or a worker pins."""
    wrong = {}
    with django_db_blocker.unblock():
        for name, (jobs, run) in STATEMENTS.items():
            watch = Explained(jobs)
            with transaction.atomic():
                with connection.execute_wrapper(watch):
                    run()
                transaction.set_rollback(True)
            assert watch.seen, name
            if watch.faults:
                wrong[name] = watch.faults
    assert wrong == {}
