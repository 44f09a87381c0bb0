"""Jobs move to another database, each once, whatever dies on the way; the two databases are on servers of their own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from django_pgjobs import Batch, Unique
from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.models import Action, Attempt, Job, LogLine, Memo, Step
from django_pgjobs.steering import moving
from django_pgjobs.store import finalising
from django_pgjobs.store import moving as moves
from django_pgjobs.store.database import on
from django_pgjobs.store.keeping import expire_jobs
from django_pgjobs.values.built_in import Act, refusal
from tests.db.moving_ground import (
    POINTS,
    claimable,
    dies_at,
    fails,
    far,
    far_server,
    keyed,
    move,
    plain,
    rows,
    windowed,
)
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, RawDatabase, claim, patience, wait_until
from tests.plugins.fix_worker import database_url
from tests.plugins.sabotage import lines_of, sabotage

__all__ = ["far", "far_server"]

pytestmark = pytest.mark.usefixtures("committed", "far")

CHANGES = {"id", "options", "ready_at", "hold", "hold_reason", "waited"}


def test_a_job_moves_with_all_that_is_its_own(far: str, raw: RawDatabase) -> None:
    registered = fails.using(priority=7, delay=3600, tags=["a", "b"], description="who it is for").register()
    Attempt.objects.create(
        job_id=registered.pk, claim_id="00000000-0000-4000-8000-000000000009", number=1, cause="failed"
    )
    [before] = rows("default")
    ids, done = move(by="anna", reason="new home")
    assert (done.changed, done.skipped) == (1, {})
    assert rows("default") == []
    assert not Attempt.objects.exists()
    [there] = rows(far)
    assert ids == {registered.pk: there["id"]}
    assert {name: there[name] for name in there.keys() - CHANGES} == {
        name: before[name] for name in before.keys() - CHANGES
    }
    assert there["options"] == {"moved": {"from": "default", "id": registered.pk}}
    assert (there["hold"], there["hold_reason"]) == (None, "")
    assert [(one.job_id, one.number) for one in Attempt.objects.using(far)] == [(there["id"], 1)]
    trails = [
        list(Action.objects.using(alias).values_list("verb", "mode", "acted_by", "reason", "changed"))
        for alias in ("default", far)
    ]
    assert trails == [[("move", "to far", "anna", "new home", 1)], [("move", "from default", "anna", "new home", 1)]]


def test_a_move_leaves_the_lines_of_its_jobs_behind_and_deletes_them(far: str) -> None:
    moved, stays = plain.register(), plain.register()
    for job in (moved, stays):
        LogLine.objects.create(
            job=job, claimed_at=job.created_at, number=1, claim_id=UUID(int=9), attempt=1, level=20, logger="shop",
            message="paid", logged_at=job.created_at,
        )  # fmt: skip
    _, done = move(Job.objects.filter(pk=moved.pk))
    assert done.changed == 1
    assert list(LogLine.objects.values_list("job_id", flat=True)) == [stays.pk]
    assert not LogLine.objects.using(far).exists()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_mover_that_dies_at_a_statement_leaves_each_job_to_one_database(far: str, after: bool) -> None:
    numbers, at = range(3), 0
    while True:
        for alias in ("default", far):
            with connections[alias].cursor() as cursor:
                cursor.execute("DELETE FROM pgjobs_job")
        for number in numbers:
            plain.register(number)
        with dies_at(at, after=after) as seen:
            move()
        runnable = claimable("default") + claimable(far)
        assert len(runnable) == len(set(runnable)), f"twice after {seen[-1]}"
        move()
        assert (claimable("default"), sorted(claimable(far))) == ([], [*numbers]), seen[-1]
        assert len(rows(far)) == len(numbers)
        if len(seen) <= at:
            break
        at += 1
    assert at > 12


HELD = [("limited", "limited"), ("paused", "limited"), ("parked", "parked"), (None, "limited")]


@pytest.mark.parametrize(("hold", "there"), HELD)
def test_a_held_job_waits_for_admission_there_and_a_parked_one_stays_parked(far: str, hold: str, there: str) -> None:
    one = plain.register()
    Job.objects.filter(pk=one.pk).update(hold=hold, hold_reason="no such code", hold_fingerprint="f", limit_key="k")
    move()
    [moved] = rows(far)
    assert (moved["hold"], moved["hold_fingerprint"]) == (there, "f")
    assert moved["hold_reason"] == ("no such code" if there == "parked" else "")


def test_what_a_durable_function_remembers_goes_with_it(far: str) -> None:
    one = plain.register()
    Job.objects.filter(pk=one.pk).update(flow=32 | 8)
    for n in range(12):
        Memo.objects.create(
            job_id=one.pk, name=f"m{n}", kind="step", result={"n": n}, finished_at="2030-01-01T00:00:00Z"
        )
        Step.objects.create(job_id=one.pk, claim_id=UUID(int=n), name=f"s{n}", queue="q", payload={}, attempt=1)
    ids, _ = move()
    there = ids[one.pk]
    remembered = Memo.objects.using(far).filter(job_id=there).order_by("pk").values_list("name", "result")
    assert list(remembered) == [(f"m{n}", {"n": n}) for n in range(12)]
    assert [step.name for step in Step.objects.using(far).filter(job_id=there).order_by("pk")] == [
        f"s{n}" for n in range(12)
    ]
    assert not Memo.objects.exists()
    assert not Step.objects.exists()


def test_a_key_that_is_taken_there_keeps_its_job_here(far: str, raw: RawDatabase) -> None:
    """Registered before the move, and while it inserts: the unique index finds that one."""
    for key in "abc":
        keyed.register(key)
    keyed.using(database=far).register("b")
    ids, done = move()
    assert done.skipped == {"key taken": 1}
    assert len(ids) == 2
    [stayed] = rows("default")
    assert (stayed["unique_key"], stayed["hold"], stayed["hold_reason"], stayed["options"]) == ("b", None, "", None)
    assert keyed.using(database=far).register("a").pk in ids.values(), "the key went with its job"


def test_a_window_goes_with_its_job_and_stays_here_too(far: str) -> None:
    first, second = windowed.register("a"), windowed.register("b")
    taken = windowed.using(database=far).register("b")
    ids, done = move()
    assert (list(ids), done.skipped) == ([first.pk], {"key taken": 1})
    assert windowed.using(database=far).register("a").pk == ids[first.pk]
    assert windowed.using(database=far).register("b").pk == taken.pk
    assert [row["id"] for row in rows("default")] == [second.pk]


def test_what_does_not_wait_or_is_part_of_a_flow_stays(far: str, raw: RawDatabase) -> None:
    running = plain.register()
    assert claim(raw).ids == [running.pk]
    ended, ending, fired, waiting = (plain.register() for _ in range(4))
    ended.cancel()
    Job.objects.filter(pk=ending.pk).update(ending="cancelled")
    Job.objects.filter(pk=fired.pk).update(cron_entry="nightly")
    Job.objects.filter(pk=waiting.pk).update(flow=32)
    Memo.objects.create(job_id=waiting.pk, name="w", kind="event", event="paid:7")
    needed = plain.register()
    plain.using(after=needed).register()
    with Batch() as batch:
        batch.add(plain.bind())
    before = rows("default")
    dry = {
        "running": 1, "cancelled": 1, "ending": 1, "of a cron entry": 1, "waits for an event, or has gathered": 1,
        "part of a flow": 3, refusal("pgjobs.batch", Act.MOVE): 1,
    }  # fmt: skip
    for options in ({"dry_run": True}, {}):
        ids, done = move(**options)
        assert (ids, done.skipped) == ({}, dry)
        assert rows("default") == before
    assert rows(far) == []


def test_a_dry_run_only_counts(far: str) -> None:
    registered = [plain.register(n).pk for n in range(3)]
    before = rows("default")
    assert moving.move(Job.objects.filter(pk__in=registered[:2]), "default", to=far, dry_run=True).changed == 2
    assert rows("default") == before
    assert rows(far) == []


@pytest.fixture
def half_way(far: str) -> tuple[int, int]:
    """A job that is marked here, and has arrived there: its two ids."""
    first = plain.register(1)
    with dies_at("DELETE FROM pgjobs_job"):
        move()
    ids = [row["id"] for row in rows("default")] + [row["id"] for row in rows(far)]
    assert [row["hold"] for row in rows("default") + rows(far)] == ["moving"] * 2
    assert ids[0] == first.pk
    return ids[0], ids[1]


ACTS: dict[str, Any] = {
    "cancel": lambda jobs: jobs.cancel(mode="kill"),
    "abandon": lambda jobs: jobs.abandon(),
    "retry": lambda jobs: jobs.retry(),
    "release": lambda jobs: jobs.release(),
    "unblock": lambda jobs: jobs.unblock(),
    "reschedule": lambda jobs: jobs.reschedule(delay=0, queue="elsewhere"),
}


@pytest.mark.parametrize("act", ACTS)
def test_nobody_steers_a_job_in_the_middle_of_a_move(far: str, half_way: tuple[int, int], act: str) -> None:
    for alias, job_id in zip(("default", far), half_way, strict=True):
        before = rows(alias)
        done = ACTS[act](Job.objects.using(alias).filter(pk=job_id))
        assert (done.changed, done.skipped) == (0, {"moving": 1})
        assert rows(alias) == before


GUARD = re.compile(r"(j\.)?hold IS DISTINCT FROM 'moving'")


def again(on_conflict: Any, **options: Any) -> Job:
    return keyed.using(unique=Unique("k", on_conflict=on_conflict), **options).register("k")


def expire(one: Job) -> None:
    expire_jobs(on("default"), after="2000-01-01", limit=9, reason="expired", without_on_cancel=[one.name])


BESIDE: dict[str, tuple[str, Callable[[Job], object]]] = {
    "its expiry": ("expire_jobs", expire),
    "a registration that replaces it": ("free_keys", lambda one: again("replace")),
    "one that postpones it": ("postpone_jobs", lambda one: again("postpone", delay=60)),
    "one that needs it": ("need_jobs", lambda one: plain.using(after=one).register()),
}  # fmt: skip


@pytest.mark.parametrize("what", BESIDE)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "not"])
def test_nothing_else_changes_it_either(monkeypatch: pytest.MonkeyPatch, what: str, guarded: bool) -> None:
    one = keyed.register("k")
    Job.objects.filter(pk=one.pk).update(hold="moving", expires_at="2001-01-01T00:00:00Z")
    [before] = rows("default")
    statement, act = BESIDE[what]
    if not guarded:
        for name, line in lines_of("'moving'", [statement, "find_keys"]):
            sabotage(
                monkeypatch,
                name,
                line,
                GUARD.sub("true", line).replace("coalesce(j.hold = 'moving', false)", "false"),
            )
    with suppress(InvalidJob, DuplicateJob):
        act(one)
    assert (rows("default")[0] == before) == guarded
    assert Job.objects.count() == 1 + ((not guarded and "needs" in what) or (not guarded and "replaces" in what))


def test_nothing_moves_to_where_it_is_or_to_what_cannot_take_it(far: str) -> None:
    jobs = Job.objects.all()
    with pytest.raises(InvalidJob, match="'default' and 'default' are the same database"):
        moving.move(jobs, "default", to="default")
    with pytest.raises(InvalidJob, match="There is no database alias 'nowhere'"):
        moving.move(jobs, "default", to="nowhere")
    with transaction.atomic(), pytest.raises(InvalidJob, match="not inside a transaction"):
        moving.move(jobs, "default", to=far)
    with connections[far].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        with pytest.raises(InvalidJob, match="'far' takes no writes"):
            moving.move(jobs, "default", to=far)
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute("ALTER TABLE pgjobs_job ADD COLUMN newer integer")
        try:
            with pytest.raises(InvalidJob, match="'default' and 'far' are of different versions"):
                moving.move(jobs, "default", to=far)
        finally:
            cursor.execute("ALTER TABLE pgjobs_job DROP COLUMN newer")


@pytest.mark.parametrize(("name", "act"), [("give_away", moves.give_away), ("keep_jobs", moves.keep_jobs)])
def test_only_the_mover_that_took_them_last_gives_them_away_or_keeps_them(
    monkeypatch: pytest.MonkeyPatch, half_way: tuple[int, int], name: str, act: Callable[..., object]
) -> None:
    """A mover that was suspended goes on with the token of its time."""
    before = rows("default")
    token = before[0]["options"]["move"]["token"]
    with transaction.atomic():
        moves.take_moving(on("default"), target=before[0]["options"]["move"]["to"], token="a later one")
        taken = rows("default")
        act(on("default"), [half_way[0]], token)
        assert rows("default") == taken
        for _, line in lines_of("{move,token}", [name]):
            sabotage(monkeypatch, name, line)
        act(on("default"), [half_way[0]], token)
        assert rows("default") != taken
        transaction.set_rollback(True)


LOCK = "pg_advisory_xact_lock"


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "not"])
def test_two_movers_insert_no_job_twice(
    monkeypatch: pytest.MonkeyPatch, far: str, raw: RawDatabase, background: Background, locked: bool
) -> None:
    """The first has read the rows and is suspended; the second does all the work, unless it waits for the first."""
    plain.register(1)
    if not locked:
        [(_, line)] = lines_of(LOCK, ["lock_moving"])
        sabotage(monkeypatch, "lock_moving", line, "SELECT %(class)s::integer")
    second: list[Any] = []

    def suspend(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INTO pgjobs_job" in sql and not second:
            second.append(background(move))
            wait_until(lambda: second[0].done() or waits_there(far), 20, "the second mover is done, or waits")
        return execute(sql, params, many, context)

    with connections[far].execute_wrapper(suspend):
        moving.move(Job.objects.all(), "default", to=far)
    second[0].result(timeout=patience(30))
    moving.move(Job.objects.all(), "default", to=far)
    assert rows("default") == []
    assert claimable(far) == ([1] if locked else [1, 1])


def waits_there(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(cursor.fetchone()[0])


def test_a_key_that_is_registered_while_the_jobs_arrive_keeps_its_own_only(far: str, background: Background) -> None:
    """The statement sees no rival, waits for it at the unique index, and fails there: the others arrive without it."""
    for key in "abcd":
        keyed.register(key)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    with (
        psycopg.connect(database_url(**connections[far].settings_dict)) as rival,
        psycopg.connect(database_url(**connections[far].settings_dict), autocommit=True) as eyes,
    ):
        rival.execute(
            "INSERT INTO pgjobs_job (name, payload, key, unique_key, key_scope)"
            " VALUES ('moving.keyed', '{}', 'c', 'c', 'until_finished')"
        )
        moved = background(move)
        wait_until(lambda: eyes.execute(waiting).fetchone() == (1,), 10, "it waits for the rival")
        rival.commit()
        ids, done = moved.result(timeout=patience(30))
    assert (len(ids), done.skipped) == (3, {"key taken": 1})
    assert [row["key"] for row in rows("default")] == ["c"]


def test_a_running_job_is_waited_for(monkeypatch: pytest.MonkeyPatch, far: str, raw: RawDatabase) -> None:
    """It has failed, and is to be tried again: now it waits, and moves with its history."""
    plain.register(1)
    claimed = claim(raw)
    gone = plain.register(2)

    def end(seconds: float) -> None:
        ends = claimed.ends(delay=60.0, cause="failed", seconds=1.0, failure=FAILURE)
        assert finalising.finalise_retry(raw, ends, AUTHOR)

    monkeypatch.setattr(time, "sleep", end)
    ids, done = move(wait=30)
    assert (len(ids), done.skipped) == (2, {})
    assert gone.pk in ids
    assert [one.message for one in Attempt.objects.using(far)] == [FAILURE.message]


def test_only_those_that_ran_are_waited_for_and_each_says_why_it_stayed(
    monkeypatch: pytest.MonkeyPatch, far: str
) -> None:
    """One must stay as it becomes ready, and another moves two polls later; a slice takes no other in their place."""
    stays, moves_late, other = (plain.register(number) for number in range(3))
    Job.objects.filter(pk__in=[stays.pk, moves_late.pk]).update(claim_id=UUID(int=9))
    polls: list[float] = []

    def passes(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 1:
            Job.objects.filter(pk=stays.pk).update(claim_id=None, cron_entry="nightly")
        if len(polls) == 3:
            Job.objects.filter(pk=moves_late.pk).update(claim_id=None)

    monkeypatch.setattr(time, "sleep", passes)
    ids, done = move(Job.objects.exclude(claim_id=None).order_by("pk")[:2], wait=30)
    assert (list(ids), done.skipped) == ([moves_late.pk], {"of a cron entry": 1})
    assert sorted(row["id"] for row in rows("default")) == [stays.pk, other.pk]
    assert len(polls) == 3


def test_a_lock_there_lets_nothing_stay_that_has_arrived(far: str, far_server: EmbeddedServer) -> None:
    """The lock of one key refuses the rest of a batch: of a job that has arrived, the row here is not let run."""
    late = [keyed.register(f"k{number}").pk for number in range(64)]
    early = [plain.register(number).pk for number in range(4)]
    with dies_at("DELETE FROM pgjobs_job"):
        move(Job.objects.filter(pk__in=early))
    assert sorted(row["options"]["move"]["id"] for row in rows(far)) == early
    target = rows("default")[-1]["options"]["move"]["to"]
    moves.mark_moving(on("default"), late, target=target, token="of another mover", words="It moves.")
    with psycopg.connect(far_server.url) as rival:
        for number in range(64):
            rival.execute(
                "INSERT INTO pgjobs_job (name, payload, key, unique_key, key_scope)"
                " VALUES ('moving.keyed', '{}', %s, %s, 'until_finished')",
                [f"k{number}"] * 2,
            )
        ids, done = move(Job.objects.none())
        rival.rollback()
    assert sorted(ids) == early
    assert done.skipped == {"busy": 64}
    assert [row["id"] for row in rows("default")] == late
    assert claimable(far) == [0, 1, 2, 3]


def test_an_admitted_job_that_stays_waits_for_its_limit_again(far: str) -> None:
    """Its place was free while it was held, and another may have it."""
    one = keyed.register("k")
    keyed.using(database=far).register("k")
    Job.objects.filter(pk=one.pk).update(limit_key="x")
    _, done = move()
    assert done.skipped == {"key taken": 1}
    [kept] = rows("default")
    assert (kept["hold"], kept["options"]) == ("limited", None)


def test_a_statement_gets_no_more_text_than_it_may(monkeypatch: pytest.MonkeyPatch, far: str) -> None:
    """Rows are read by their size on disk, where a text may be a hundredth of itself."""
    monkeypatch.setattr(moves, "BATCH_BYTES", 200_000)
    large = "x" * 60_000
    plain.register_many([(f"{number} {large}",) for number in range(10)])
    sent: list[int] = []

    def measured(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INTO pgjobs_job" in sql:
            sent.append(len(params["rows"]))
        return execute(sql, params, many, context)

    with connections[far].execute_wrapper(measured):
        ids, _ = move()
    assert len(ids) == 10
    assert len(sent) >= 4
    assert max(sent) < 250_000


def mark(one: int) -> object:
    return moves.mark_moving(on("default"), [one], target="t", token="t", words="It moves.")


def land(one: int) -> object:
    return moves.land_jobs(on("default"), [one], source="there", alias="far")[0]


def give(one: int) -> object:
    return moves.give_away(on("default"), [one], "t")


CLAIMED: dict[str, Any] = {"hold": None, "claim_id": UUID(int=9)}

GUARDS: dict[str, tuple[Callable[[int], object], str, str, dict[str, Any]]] = {
    "a job that runs is not marked": (mark, "mark_moving", "j.claim_id IS NULL", {**CLAIMED, "options": None}),
    "one that moves is not marked": (mark, "mark_moving", "AND j.hold IS DISTINCT FROM 'moving'", {}),
    "one that has landed does not land": (
        land, "land_jobs", "AND j.hold = 'moving'", {**CLAIMED, "options": {"move": {"from": "there", "id": 7}}},
    ),
    "one that leaves does not land": (land, "land_jobs", "AND j.options #>> '{move,from}'", {}),
    "one that stays is not given away": (
        give, "give_away", "AND j.hold = 'moving'", {"hold": "parked", "options": {"move": {"token": "t"}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "not"])
@pytest.mark.parametrize("what", GUARDS)
def test_each_condition_keeps_a_mover_from_what_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch, half_way: tuple[int, int], what: str, guarded: bool
) -> None:
    act, statement, line, changes = GUARDS[what]
    Job.objects.filter(pk=half_way[0]).update(**changes)
    if not guarded:
        [(_, found)] = lines_of(line, [statement])
        sabotage(monkeypatch, statement, found)
    with transaction.atomic():
        assert bool(act(half_way[0])) is not guarded
        transaction.set_rollback(True)


def test_each_commit_waits_for_the_disk(far: str) -> None:
    """Whatever the roles' default is: one server that forgets its last commits would have the job twice, or not."""
    plain.register(1)
    seen: list[str] = []

    def looks(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(point in sql for point in POINTS):
            with context["connection"].connection.cursor() as raw:
                seen.append(raw.execute("SHOW synchronous_commit").fetchone()[0])
        return execute(sql, params, many, context)

    with ExitStack() as stack:
        for alias in ("default", far):
            with connections[alias].cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
            stack.enter_context(connections[alias].execute_wrapper(looks))
        move()
    with connections["default"].cursor() as cursor:
        cursor.execute("RESET synchronous_commit")
    assert len(seen) > 8
    assert set(seen) == {"on"}


def test_the_shell_says_both_ids_and_why_others_stay(far: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = keyed.register("a")
    keyed.register("b")
    taken = keyed.using(database=far).register("b")
    command = ["pgjobs", "move", "--from=default", "--to=far", "--name=moving.keyed"]
    call_command(*command, "--dry-run")
    assert capsys.readouterr().out == "move: 2 would move, 0 skipped\n"
    with pytest.raises(SystemExit, match="1"):
        call_command(*command, "--yes")
    new = Job.objects.using(far).exclude(pk=taken.pk).get().pk
    assert capsys.readouterr().out == (f"  {first.pk} -> {new}\nmove: 1 moved, 1 skipped\n  1 skipped: key taken\n")
    call_command("pgjobs", "move", "--from=far", "--to=default", str(new), "--format=json")
    [back] = Job.objects.filter(key="a")
    said = {"dry_run": False, "moved": 1, "skipped": {}, "ids": [[new, back.pk]]}
    assert json.loads(capsys.readouterr().out) == said
    with pytest.raises(CommandError, match="are the same database"):
        call_command("pgjobs", "move", "--from=far", "--to=far", "--all", "--yes")


@pytest.mark.parametrize("alias", ["default", "far"])
def test_why_says_where_it_goes(far: str, half_way: tuple[int, int], alias: str) -> None:
    job_id = half_way[alias == far]
    why = Job.objects.using(alias).get(pk=job_id).why()
    assert why.code == "moving"
    words = (
        "It moves to database far."
        if alias == "default"
        else f"It moves here from database default, where its number is {half_way[0]}."
    )
    assert words.rstrip(".") in why.text
    assert "pgjobs move again" in why.advice
