"""Pruning: which ended jobs go and when, in what steps, at what cost, and what stops at a row that cannot go."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command

from django_pgjobs import sql
from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance import pruning as room
from django_pgjobs.maintenance.duties import TimedDuty
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.pruning import (
    ANEW_SECONDS,
    BATCH,
    REST_SECONDS,
    STUCK_SECONDS,
    WHOLE_SECONDS,
    Pruner,
    PruneRule,
    rules_of,
)
from django_pgjobs.models import Attempt, Job
from django_pgjobs.store import finalising, pruning
from django_pgjobs.store.database import Enclosing, Params, Rows
from django_pgjobs.values.retention import OutcomeRetention, Retention
from tests.plugins.explaining import Explaining, analysed_while_empty, nodes, pages
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, RawDatabase, claim, register, slow_duty

HOUR = 3600.0


class Counting:
    """A database that keeps what it was asked for."""

    def __init__(self, db: RawDatabase) -> None:
        self.db = db
        self.asked: list[tuple[str, Params]] = []

    def fetch(self, name: str, params: Params) -> Rows:
        self.asked.append((name, params))
        return self.db.fetch(name, params)

    def transaction(self) -> AbstractContextManager[object]:
        return self.db.transaction()

    def walked(self) -> int:
        """How many slices were listed since it was asked last."""
        count = sum(name == "list_prunable" for name, _ in self.asked)
        self.asked.clear()
        return count

    def batches(self) -> list[int]:
        return [len(params["ids"]) for name, params in self.asked if name == "prune_jobs"]


def put(
    raw: RawDatabase, count: int = 1, outcome: str = "succeeded", hours: float = 25.0, queue: str = "default"
) -> list[int]:
    """Insert jobs that ended so long ago, each a microsecond after the other; return their ids, oldest first."""
    rows = raw.query(
        "INSERT INTO pgjobs_job (name, payload, queue, outcome, finished_at)"
        " SELECT 'test.job', '{}', %s, %s, statement_timestamp() - make_interval(secs => %s) + n * interval '1 us'"
        " FROM generate_series(1, %s) AS n RETURNING id",
        [queue, outcome, hours * HOUR, count],
    )
    return [row[0] for row in rows]


def left() -> list[int]:
    return sorted(Job.objects.values_list("pk", flat=True))


def to_the_end(pruner: Pruner, db: Enclosing) -> int:
    total = pruner(db)
    while not pruner.done:
        total += pruner(db)
    return total


# Which jobs go


def test_each_outcome_is_kept_for_its_time(raw: RawDatabase) -> None:
    """W33 X7: a day, three days and thirty, by the database's clock; a minute before and a minute after."""
    minute, kept, old = 1 / 60, [], []
    for outcome, hours in (("succeeded", 24), ("cancelled", 72), ("abandoned", 720)):
        kept += put(raw, 2, outcome, hours - minute)
        old += put(raw, 2, outcome, hours + minute)
    assert to_the_end(Pruner(), raw) == len(old)
    assert left() == sorted(kept)


def test_what_has_not_ended_stays_however_old_it_is(raw: RawDatabase) -> None:
    """W34: ready, scheduled, running and parked jobs."""
    ids = register(4)
    claim(raw, 1)
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id = %s", [ids[3]])
    raw.query(
        "UPDATE pgjobs_job SET run_at = run_at - interval '9 years', created_at = created_at - interval '9 years'"
    )
    assert to_the_end(Pruner(rules=[PruneRule(o, 1.0) for o in ("succeeded", "cancelled", "abandoned")]), raw) == 0
    assert left() == sorted(ids)


def test_a_queue_may_keep_its_jobs_longer_shorter_or_for_ever(raw: RawDatabase, settings: Any) -> None:
    """W34 X7: both directions, one outcome of one queue alone."""
    settings.PGJOBS = {
        "RETENTION": {
            "abandoned": None,
            "queues": {
                "bill": {"succeeded": 100 * 3600},
                "metrics": {"succeeded": timedelta(hours=1), "abandoned": timedelta(hours=2)},
                "law": None,
            },
        }
    }
    put(raw, 1, hours=25), put(raw, 1, hours=101, queue="bill"), put(raw, 1, hours=2, queue="metrics")
    put(raw, 1, "abandoned", 3, "metrics"), put(raw, 1, "cancelled", 73, "bill")
    kept = [
        *put(raw, 1, hours=99, queue="bill"), *put(raw, 1, hours=23), *put(raw, 1, "abandoned", 9999),
        *put(raw, 1, hours=9999, queue="law"), *put(raw, 1, "cancelled", 9999, "law"),
    ]  # fmt: skip
    assert to_the_end(Pruner(), raw) == 5
    assert left() == sorted(kept)


def test_a_retention_is_read_as_rules_for_groups_of_queues() -> None:
    retention = Retention(
        HOUR,
        None,
        0.0,
        (
            ("a", OutcomeRetention(2 * HOUR, None, 0.0)),
            ("b", OutcomeRetention(2 * HOUR, HOUR, 0.0)),
            ("c", OutcomeRetention(HOUR, None, 9 * HOUR)),
        ),
    )
    assert rules_of(retention) == [
        PruneRule("succeeded", HOUR, ("a", "b")),
        PruneRule("succeeded", 2 * HOUR, ("a", "b"), only=True),
        PruneRule("cancelled", HOUR, ("b",), only=True),
        PruneRule("abandoned", room.LEAST_SECONDS, ("c",)),
        PruneRule("abandoned", 9 * HOUR, ("c",), only=True),
    ]


def test_the_history_goes_with_its_job(raw: RawDatabase) -> None:
    """W35: no attempt of the job remains, and none of another job goes."""
    gone, kept = register(2)
    for _ in range(2):
        claimed = claim(raw, 2)
        finalising.finalise_retry(raw, claimed.ends(cause="failed", seconds=1.0, failure=FAILURE), AUTHOR)
    finalising.finalise_end(
        raw, claim(raw, 2).ends(outcome="abandoned", cause="failed", seconds=1.0, failure=FAILURE), AUTHOR
    )
    assert Attempt.objects.count() == 6
    raw.query("UPDATE pgjobs_job SET finished_at = finished_at - interval '31 days' WHERE id = %s", [gone])
    assert to_the_end(Pruner(), raw) == 1
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {kept}


def test_a_job_retried_since_it_was_listed_stays(raw: RawDatabase) -> None:
    """Made ready, or ended again: the listed row is a different one now."""
    ready, again, old = put(raw, 3, "abandoned", 999)
    found = pruning.list_prunable(raw, "abandoned", seconds=1, limit=10)
    assert found is not None
    assert found.ids == [ready, again, old]
    raw.query("UPDATE pgjobs_job SET outcome = NULL, finished_at = NULL WHERE id = %s", [ready])
    raw.query("UPDATE pgjobs_job SET finished_at = statement_timestamp() WHERE id = %s", [again])
    assert pruning.prune_jobs(raw, found.ids, until=found.until) == [old]


# In what steps


def test_a_batch_is_a_thousand_at_most_and_a_transaction_of_its_own(raw: RawDatabase, caplog: Any) -> None:
    """W32 W35: 2,500 old ones go in three batches; told in the log."""
    put(raw, 2500)
    counting = Counting(raw)
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        assert to_the_end(Pruner(), counting) == 2500
    assert counting.batches() == [1000, 1000, 500]
    assert sum(record.args[0] for record in caplog.records if "were pruned" in record.msg) == 2500


def test_a_turn_ends_with_its_time_or_its_jobs_and_the_next_goes_on(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of old jobs is worked off in turns; no turn starves another outcome."""
    put(raw, 3000), put(raw, 3000, "cancelled", 99)
    monkeypatch.setattr(room, "TURN_JOBS", 2000)
    pruner = Pruner()
    assert pruner(raw) == 2000
    assert {o: Job.objects.filter(outcome=o).count() for o in ("succeeded", "cancelled")} == {
        "succeeded": 2000, "cancelled": 2000,
    }  # fmt: skip
    monkeypatch.setattr(room, "TURN_SECONDS", 0.0)
    assert pruner(raw) == 0, "no time, no work"
    monkeypatch.undo()
    assert to_the_end(pruner, raw) == 4000


def test_it_stops_as_soon_as_it_may_not_go_on(raw: RawDatabase) -> None:
    """W7: asked before every statement; a leader whose term is over deletes nothing more."""
    put(raw, 5000)
    counting = Counting(raw)
    pruner = Pruner(lambda: len(counting.batches()) < 2)
    assert pruner(counting) == 2 * BATCH
    assert len(left()) == 3000


def test_only_the_leader_prunes(raw: RawDatabase, time: Time) -> None:
    """W1: a standby rests; one that lost its term stops."""
    put(raw, 3)
    leader = Leader(AUTHOR)
    duty = slow_duty(leader, "prune")
    duty.tick(raw)
    assert len(left()) == 3
    leader.tick(raw)
    duty.tick(raw)
    assert left() == []


def test_a_walk_rests_when_it_is_done_and_begins_anew_now_and_then(raw: RawDatabase, time: Time) -> None:
    """What ended by a clock that was set back, or in a long transaction, is found by the walk of another day."""
    put(raw, 3)
    pruner, counting = Pruner(rules=[PruneRule("succeeded", HOUR)]), Counting(raw)
    assert pruner(counting) == 3
    asked = len(counting.asked)
    late = put(raw, 1, hours=99)
    pruner(counting)
    assert len(counting.asked) == asked, "it rests"
    time(REST_SECONDS)
    assert pruner(counting) == 0
    assert left() == late, "behind where it has come to"
    time(WHOLE_SECONDS)
    assert pruner(counting) == 1


def test_what_is_kept_is_walked_over_once_and_not_every_ten_minutes(raw: RawDatabase, time: Time) -> None:
    """However many jobs without or with a longer retention stand beside those that may go."""
    put(raw, 5 * BATCH, hours=99, queue="law"), put(raw, 2 * BATCH, hours=3, queue="bill"), put(raw, 3)
    rules = [PruneRule("succeeded", HOUR, ("law", "bill")), PruneRule("succeeded", 4 * HOUR, ("bill",), only=True)]
    pruner, counting = Pruner(rules=rules), Counting(raw)
    assert to_the_end(pruner, counting) == 3
    assert counting.walked() > 10
    for _ in range(20):
        gone = put(raw, 2, hours=2)
        time(ANEW_SECONDS)
        assert (to_the_end(pruner, counting), counting.walked()) == (len(gone), 2)
    raw.query("UPDATE pgjobs_job SET finished_at = finished_at - interval '1 h' WHERE queue = 'bill'")
    time(ANEW_SECONDS)
    assert to_the_end(pruner, counting) == 2 * BATCH, "each retention has a place of its own"


def test_a_walk_goes_back_to_the_oldest_that_it_left_and_no_further(
    raw: RawDatabase, other: RawDatabase, time: Time
) -> None:
    put(raw, 5 * BATCH, hours=99, queue="law")
    locked, *_ = put(raw, 2 * BATCH)
    other.lock(locked)
    pruner, counting = Pruner(rules=[PruneRule("succeeded", HOUR, ("law",))]), Counting(raw)
    assert to_the_end(pruner, counting) == 2 * BATCH - 1
    assert counting.walked() == 8
    time(ANEW_SECONDS)
    assert (to_the_end(pruner, counting), counting.walked()) == (0, 1), "still locked"
    other.rollback()
    time(ANEW_SECONDS)
    assert (to_the_end(pruner, counting), counting.walked()) == (1, 1)
    time(ANEW_SECONDS)
    assert (to_the_end(pruner, counting), counting.walked()) == (0, 1)


def test_a_walk_begins_anew_only_when_it_has_come_to_its_end(raw: RawDatabase, time: Time) -> None:
    """Jobs that may go stand after a queue without pruning, however long the way there takes."""
    put(raw, 5 * BATCH, hours=99, queue="law")
    gone = put(raw, 3)
    pruner = Pruner(rules=[PruneRule("succeeded", HOUR, ("law",))])

    class Slow(Counting):
        def fetch(self, name: str, params: Params) -> Rows:
            time(ANEW_SECONDS / 2)
            return super().fetch(name, params)

    slow = Slow(raw)
    assert sum(pruner(slow) for _ in range(12)) == len(gone)
    assert Job.objects.count() == 5 * BATCH


def test_locked_jobs_are_waited_for_by_nobody(raw: RawDatabase, other: RawDatabase, time: Time) -> None:
    first, _ = put(raw, 2)
    other.lock(first)
    pruner = Pruner(rules=[PruneRule("succeeded", HOUR)])
    assert (pruner(raw), left(), pruner.skipped) == (1, [first], 1)
    other.rollback()
    time(ANEW_SECONDS)
    assert (pruner(raw), left()) == (1, [])


def test_two_leaders_at_once_are_harmless(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """W11: each job is deleted once, none waits for the other, nothing fails."""
    put(raw, 8000)
    kept = put(raw, 10, hours=1)
    both = [background(to_the_end, Pruner(), db_connection()) for _ in range(2)]
    assert sum(each.result(60) for each in both) == 8000
    assert left() == kept


@pytest.mark.parametrize("kept", ["", "bill"])
def test_many_ends_of_one_instant_do_not_hold_the_walk_up(raw: RawDatabase, kept: str) -> None:
    """An UPDATE by hand, or a large batch: more than a slice has the same instant, and may even be kept."""
    old = put(raw, 3500, queue=kept or "default")
    put(raw, 10, hours=24.5)
    raw.query(
        "UPDATE pgjobs_job SET finished_at = (SELECT min(finished_at) FROM pgjobs_job) WHERE id = ANY (%s)", [old]
    )
    pruner = Pruner(rules=[PruneRule("succeeded", 24 * HOUR, ("bill",))])
    assert to_the_end(pruner, raw) == (10 if kept else 3510)


# At what cost


def test_a_batch_costs_no_more_after_many_were_pruned(
    db_connection: Callable[..., RawDatabase], raw: RawDatabase
) -> None:
    """An old snapshot keeps pruned rows in the index; a walk that knows its place does not read them again."""
    pinned, worker = db_connection(autocommit=False), db_connection()
    with analysed_while_empty(raw):
        put(raw, 20_000)
        pinned.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.query("SELECT count(*) FROM pgjobs_job")
        pruner = Pruner(rules=[PruneRule("succeeded", HOUR)])
        assert to_the_end(pruner, worker) == 20_000
        put(raw, 500, hours=24)
        explaining = Explaining(worker, set())
        pruning.list_prunable(explaining, "succeeded", seconds=HOUR, after=pruner.walks[0].after, limit=100)
        near, kinds = pages(explaining), {node.get("Index Name") for node in nodes(explaining.plan)}
        pruning.list_prunable(explaining, "succeeded", seconds=HOUR, limit=100)
        assert "pgjobs_job_ended" in kinds
        assert near < 200
        assert pages(explaining) > 10 * near
    pinned.rollback()


class Slow(Counting):
    """A server too slow to read the beginning of the index in time: ends before ``since`` cost the whole deadline."""

    def __init__(self, db: RawDatabase, since: str) -> None:
        super().__init__(db)
        self.since = since

    def fetch(self, name: str, params: Params) -> Rows:
        if name == "list_prunable":
            late = (
                "SELECT greatest(%s::timestamptz, statement_timestamp() - make_interval(secs => %s)) < %s::timestamptz"
            )
            if self.db.value(late, [params["after"], params["window"], self.since]):
                raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return self.db.fetch(name, params)


def test_a_beginning_that_cannot_be_read_in_time_is_left_out(raw: RawDatabase, time: Time) -> None:
    """A new leader finds a place after it; one that knows a place continues there; both look again later."""
    before, after = put(raw, 1, hours=240), put(raw, 1, hours=30)
    since = str(raw.value("SELECT statement_timestamp() - interval '5 days'"))
    slow = Slow(raw, since)
    pruner = Pruner(rules=[PruneRule("succeeded", 24 * HOUR)])
    turns = 0
    while left() != before:
        assert turns < len(room.WINDOWS)
        pruner(slow)
        time(REST_SECONDS)
        turns += 1
    assert after[0] not in left()
    place = pruner.walks[0].after
    time(ANEW_SECONDS)
    pruner(slow)
    assert pruner.walks[0].after == place
    time(ANEW_SECONDS)
    assert to_the_end(pruner, raw) == 1, "once the server can"


# Rows that block pruning


@pytest.fixture
def pointing(raw: RawDatabase) -> Iterator[Callable[[Sequence[int]], None]]:
    """A project's own table with a foreign key to jobs: deferred, as Django makes them."""
    raw.query(
        "CREATE TABLE shop_order (job_id bigint REFERENCES pgjobs_job DEFERRABLE INITIALLY DEFERRED)",
    )

    def point(ids: Sequence[int]) -> None:
        raw.query("INSERT INTO shop_order SELECT unnest(%s::bigint[])", [list(ids)])

    yield point
    raw.query("DROP TABLE shop_order")


def test_a_row_that_another_table_points_to_stops_only_itself(
    raw: RawDatabase, pointing: Callable[[Sequence[int]], None], time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Halving finds it, the log names it once an hour, the others go. Once nothing points to it, it goes too."""
    ids = put(raw, 1500)
    stuck = [ids[3], ids[700], ids[701], ids[1400]]
    pointing(stuck)
    pruner = Pruner(rules=[PruneRule("succeeded", HOUR)])
    for _ in range(3):
        to_the_end(pruner, raw)
        time(ANEW_SECONDS)
    assert left() == stuck
    named = [record.args[0] for record in caplog.records if "cannot be pruned" in record.msg]  # type: ignore[index]
    assert sorted(named) == stuck  # type: ignore[type-var]
    raw.query("DELETE FROM shop_order")
    time(STUCK_SECONDS)
    assert to_the_end(pruner, raw) == 4


def test_a_trigger_that_objects_is_a_rows_fault_too(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = put(raw, 2)
    raw.query(
        "CREATE FUNCTION keep_it() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF OLD.id = {first} THEN RAISE EXCEPTION 'audited'; END IF; RETURN OLD; END $$"
    )
    raw.query("CREATE TRIGGER keep_it BEFORE DELETE ON pgjobs_job FOR EACH ROW EXECUTE FUNCTION keep_it()")
    try:
        assert to_the_end(Pruner(), raw) == 1
    finally:
        raw.query("DROP TRIGGER keep_it ON pgjobs_job")
        raw.query("DROP FUNCTION keep_it()")
    assert (left(), "audited" in caplog.text) == ([first], True)


def test_when_too_many_cannot_go_small_batches_are_left_whole(
    raw: RawDatabase,
    pointing: Callable[[Sequence[int]], None],
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A foreign key from every row must not cost two statements or a line each: one line names it, the rest goes."""
    monkeypatch.setattr(room, "STUCK_MOST", 30)
    ids = put(raw, 3000)
    pointing(ids[:2000])
    counting, pruner = Counting(raw), Pruner(rules=[PruneRule("succeeded", HOUR)])
    assert to_the_end(pruner, counting) >= 1000 - room.STUCK_WHOLE
    assert len(counting.batches()) < 200
    assert len([r for r in caplog.records if "job cannot be pruned" in r.msg]) == room.STUCK_NAMED
    assert len([r for r in caplog.records if "too many jobs cannot be pruned" in r.msg]) == 1


def test_trouble_that_is_no_rows_fault_is_raised_and_rested_after(
    raw: RawDatabase, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W10: a standby or a missing right: the duty fails, its thread logs it, and it does not fail twice a second."""
    put(raw, 1)
    raw.query("SET default_transaction_read_only = on")
    pruner, counting = Pruner(rules=[PruneRule("succeeded", HOUR)]), Counting(raw)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        pruner(counting)
    asked = len(counting.asked)
    assert pruner(counting) == 0
    assert len(counting.asked) == asked
    raw.query("SET default_transaction_read_only = off")
    time(room.TROUBLE_SECONDS)
    assert (pruner(counting), left()) == (1, [])
    assert isinstance(slow_duty(Leader(AUTHOR), "prune"), TimedDuty)


# From the shell


def prune(*arguments: str) -> tuple[int, str]:
    """Run the command; return its exit status and what it said."""
    out = StringIO()
    try:
        call_command("pgjobs", "prune", *arguments, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


def test_the_command_does_to_the_end_what_the_settings_say(raw: RawDatabase, settings: Any) -> None:
    put(raw, 2500), put(raw, 3, "cancelled", 73)
    kept = put(raw, 2, "abandoned", 73)
    assert prune() == (0, "prune: 2503 pruned, 0 skipped\n  2500 succeeded\n  3 cancelled\n  0 abandoned\n")
    assert left() == kept
    settings.PGJOBS = {"RETENTION": None}
    put(raw, 1, hours=9999)
    assert prune("--format=json")[1] == '{"dry_run": false, "pruned": 0, "skipped": 0, "by_outcome": {}}\n'


def test_a_dry_run_counts_the_same_and_deletes_nothing(raw: RawDatabase) -> None:
    ids = [*put(raw, 1200), *put(raw, 7, hours=1)]
    status, said = prune("--dry-run", "--format=json")
    told = json.loads(said)
    assert (status, told["dry_run"], told["pruned"], told["by_outcome"]["succeeded"]) == (0, True, 1200, 1200)
    assert left() == sorted(ids)
    assert prune("--dry-run")[1].startswith("prune: 1200 would be pruned")
    assert json.loads(prune("--format=json")[1])["pruned"] == 1200


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        (["--older-than=90m", "--yes"], {"mail", "bulk", "cancelled"}),
        (["--older-than=2h", "--queue=mail", "--yes"], {"mail"}),
        (["--older-than=2h", "--outcome=cancelled", "--yes"], {"cancelled"}),
        (["--older-than=10d", "--yes"], set()),
        (["--older-than=0", "--yes"], {"mail", "bulk", "cancelled", "young"}),
        (["--queue=mail"], set()),
    ],
)
def test_an_age_a_queue_or_an_outcome_may_be_named(raw: RawDatabase, arguments: list[str], gone: set[str]) -> None:
    """Whatever is named, what ended within the last minute stays: its worker may be asking after it."""
    ids = {
        "mail": put(raw, 1, hours=3, queue="mail"),
        "bulk": put(raw, 1, hours=3, queue="bulk"),
        "cancelled": put(raw, 1, "cancelled", 3),
        "young": put(raw, 1, hours=1),
        "now": put(raw, 1, hours=0),
    }
    assert prune(*arguments)[0] == 0
    assert {name for name, (job,) in ids.items() if job not in left()} == gone


def test_queues_named_on_the_command_line_keep_their_own_retention(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"RETENTION": {"queues": {"mail": {"succeeded": 3600}, "law": None}}}
    put(raw, 1, hours=2, queue="mail")
    kept = [*put(raw, 1, hours=25), *put(raw, 1, hours=25, queue="law"), *put(raw, 1, hours=2, queue="bulk")]
    assert prune("--queue=mail", "--queue=law", "--queue=bulk")[0] == 0
    assert left() == sorted(kept)


def test_an_age_is_asked_for_before_it_is_taken(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    put(raw, 1)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert prune("--older-than=1h") == (1, "Nothing was changed.\n")
    assert len(left()) == 1
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert prune("--older-than=1h")[0] == 0
    assert left() == []


@pytest.mark.parametrize("wrong", ["--older-than=week", "--older-than=-1d", "--older-than=11000d", "--outcome=ready"])
def test_wrong_options_are_refused(raw: RawDatabase, wrong: str) -> None:
    with pytest.raises(CommandError):
        prune(wrong)


@pytest.mark.parametrize("wrong", ["--queue=a b", "--database=nowhere"])
def test_what_does_not_exist_is_refused(raw: RawDatabase, wrong: str) -> None:
    with pytest.raises(CommandError, match="There is no"):
        prune(wrong)


def test_what_cannot_be_deleted_makes_the_status_1(
    raw: RawDatabase, other: RawDatabase, pointing: Callable[[Sequence[int]], None]
) -> None:
    ids = put(raw, 20)
    pointing(ids[:1])
    other.lock(ids[1])
    status, said = prune()
    other.rollback()
    assert (status, said.splitlines()[0]) == (1, "prune: 18 pruned, 2 skipped")


def test_the_statements_that_delete_are_no_others() -> None:
    """A table of the project's is never touched: only jobs, their history, and what the worker keeps of itself.

    ``give_away`` deletes what has arrived in another database, ``withdraw_imported`` what goes back where it came from.
    """
    found = {name for name in sql.names() if "DELETE FROM pgjobs_job" in sql.statement(name)}
    moved = {"give_away", "withdraw_imported"}
    assert found == {"prune_jobs", "finalise_delete", "finalise_delete_fast", "finalise_delete_keyed"} | moved
    assert get_conf().retention == Retention()
