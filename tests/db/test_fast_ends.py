"""The fast statements of ends beside those that skip locked rows: the same ends, whatever a batch holds.

``forms_differ`` gives one batch to both forms, each in a transaction that is rolled back, so that both meet the same
rows. What the finaliser makes of a locked row is tested with the real finaliser at the end of this module.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_pgjobs import Batch, job, sql
from django_pgjobs.ends.kinds import SUCCESS
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, keeping, steering
from django_pgjobs.store.database import Database, is_data_trouble
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.threads import end_writer
from django_pgjobs.worker.threads.finaliser import DEADLOCK_SECONDS, Finaliser
from django_pgjobs.worker.threads.inbox_messages import RefusedEnds
from tests.plugins.fix_db import (
    AUTHOR,
    TABLES,
    Background,
    Claimed,
    RawDatabase,
    blocked_by,
    claim,
    register,
    wait_until,
)
from tests.plugins.sabotage import lines_of, sabotage
from tests.unit.worker_fakes import Heard

SEED = int(os.environ.get("PGJOBS_TEST_SEED", random.randrange(10**6)))

STORABLE = (
    None, None, None, "null", "0", "-1.5e10", "true", '"a, b] \\" \\n"', '"ä€😀"', "[]", "[1, [2, null]]", "{}",
    '{"a": {"b": [1, 2]}, "id": 7}', "1e300", '" "',
)  # fmt: skip
POISON = ("{", "[1", "NaN", '"\\u0000"', '"\\ud800"', "\0", "\ud800", "1e400000", "}{")
SEVERAL = "1,2"
"""No JSON value, and yet two elements of an array."""

RELEASED = 3
LOCKED = 3


@job(name="fast_ends.member")
def fast_ends_member() -> None: ...


class Ground:
    """Jobs in all states that an end may meet, under several claims."""

    def __init__(self, raw: RawDatabase, other: RawDatabase, chance: random.Random) -> None:
        self.db = raw
        self.chance = chance
        register(60)
        claims = [claim(raw, 15) for _ in range(3)]
        self.fences = [fence for claimed in claims for fence in claimed.fences()]
        chance.shuffle(self.fences)
        self.claims = [str(claimed.claim_id) for claimed in claims]
        ended, lost, cancelled, waited, locked, foreign = (self._some(LOCKED) for _ in range(6))
        for job_id, _ in waited:
            keeping.mark_waited(raw, job_id)
        steering.cancel_jobs(raw, [job_id for job_id, _ in cancelled], mode="ask", by="", reason="", with_callback=[])
        finalising.finalise_success(raw, [End(*fence, result='"before"') for fence in ended], AUTHOR)
        finalising.release_jobs(raw, [End(*fence) for fence in lost], AUTHOR)
        self.claims.append(str(claim(raw, RELEASED).claim_id))
        raw.query(
            "UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = ANY (%s)", [[job for job, _ in foreign]]
        )
        other.lock(*[job for job, _ in (*locked, *foreign)])
        # Autovacuum does not wait for a table that somebody reads. It would cut off the empty end of one, and keep it
        # for longer than a fast form waits.
        other.query(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS SHARE MODE")
        self.locked_fences = locked
        self.locked = {job for job, _ in locked}
        self.free = [fence for fence in self.fences if fence not in locked]
        self.owned = set(raw.query("SELECT id, claim_id::text FROM pgjobs_job WHERE outcome IS NULL"))
        self.ready = [job_id for (job_id,) in raw.query("SELECT id FROM pgjobs_job WHERE claim_id IS NULL")]

    def _some(self, count: int) -> list[tuple[int, str]]:
        taken, self.fences = self.fences[:count], [*self.fences[count:], *self.fences[:count]]
        return taken

    def batch(self, number: int) -> list[End]:
        """Return the ends of some jobs: mostly of their owners, some with a claim that was never theirs.

        A locked job is among those of batch ``number`` 0, 10, 20 …, each of which takes its 50 ms; one result or more
        of batch 3, 10, 17 … cannot be stored.
        """
        chance = self.chance
        fences = chance.sample(self.free, chance.randint(1, 12))
        if number % 10 == 0:
            fences += chance.sample(self.locked_fences, chance.randint(1, LOCKED))
        if chance.random() < 0.3:
            fences += [(job_id, chance.choice(self.claims)) for job_id, _ in chance.sample(fences, 1)]
        if chance.random() < 0.1:
            fences += [(chance.choice(self.ready), chance.choice(self.claims)), (10**15, chance.choice(self.claims))]
        chance.shuffle(fences)
        results: Sequence[str | None] = STORABLE if chance.random() < 0.7 else (None,)
        culprit = chance.choice(fences) if number % 7 == 3 else None
        ends = []
        for fence in dict.fromkeys(fences):
            poisoned = fence == culprit or (culprit is not None and chance.random() < 0.3)
            result = chance.choice(POISON if poisoned else results)
            ends.append(End(*fence, chance.choice((None, 0.0, chance.randrange(10**8) / 1e6)), result))
        if chance.random() < 0.02:
            chance.choice(ends).result = SEVERAL
        return ends

    def rows(self) -> list[Any]:
        """Return all that an end may change, but for the instants."""
        return self.db.query("SELECT id, to_jsonb(j) - 'finished_at' FROM pgjobs_job AS j ORDER BY id")


Form = Callable[..., list[int]]


def deletes_fast(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    return finalising.finalise_delete_fast(db, ends)


def deletes(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    return finalising.finalise_delete(db, ends)


SKIPS: dict[Form, Form] = {finalising.finalise_success_fast: finalising.finalise_success, deletes_fast: deletes}
"""For each fast form the one that skips locked rows."""


class Came(list[int]):
    """The ids that a form wrote; the ends of ``poisoned`` could not be stored, ``gave_up``: it met a locked row."""

    poisoned: set[tuple[int, str]]
    gave_up = False


def written(ground: Ground, form: Form, ends: Sequence[End]) -> Came:
    """Write a batch as the finaliser does: in halves if a row cannot be stored, without the locked rows if it must."""
    came = Came()
    came.poisoned = set()
    halves: list[Sequence[End]] = [ends]
    while halves:
        some = halves.pop()
        try:
            with ground.db.raw.transaction():
                came += form(ground.db, some, AUTHOR)
        except psycopg.errors.LockNotAvailable:
            came.gave_up = True
            halves.append(some)
            form = SKIPS[form]
        except (psycopg.Error, UnicodeError) as error:
            if not is_data_trouble(error):
                raise
            if len(some) == 1:
                came.poisoned.add((some[0].id, some[0].claim_id))
            else:
                halves += [some[: len(some) // 2], some[len(some) // 2 :]]
    return came


def forms_differ(ground: Ground, ends: list[End], fast_form: Form) -> tuple[str, Came]:
    """Return how the two forms differ about a batch, empty if they do not, and what the fast one wrote."""
    answers = list[Came]()
    rows = list[list[Any]]()
    for form in (fast_form, SKIPS[fast_form]):
        with ground.db.raw.transaction(force_rollback=True):
            came = written(ground, form, ends)
            if form is finalising.finalise_success_fast and any(end.result == SEVERAL for end in ends):
                # Nothing of its batch, or of its half, was written: the finaliser takes these jobs for busy, and the
                # other form next, even if another half has given up meanwhile.
                left = [end for end in ends if end.id not in came and (end.id, end.claim_id) not in came.poisoned]
                again = written(ground, finalising.finalise_success, left)
                came.poisoned |= again.poisoned
                came += again
            answers.append(came)
            rows.append(ground.rows())
    fast, skipping = answers
    assert not skipping.gave_up
    found = {
        "written": sorted(fast) != sorted(skipping),
        # The result of a job that is not ours any more is not even read by the fast form.
        "poisoned": fast.poisoned & ground.owned != skipping.poisoned & ground.owned,
        "rows": rows[0] != rows[1],
        "gave up though nothing was locked": fast.gave_up and not ground.locked & {end.id for end in ends},
    }
    return ", ".join(what for what, so in found.items() if so), fast


@pytest.mark.parametrize("batches", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_both_forms_agree_on_every_row_of_random_batches(raw: RawDatabase, other: RawDatabase, batches: int) -> None:
    """C39, C44 to C47, C55, C57: ended, lost, locked, poisoned, waited for, twice in a batch, of any claim."""
    print(f"PGJOBS_TEST_SEED={SEED}")  # noqa: T201 (a failure shows it)
    chance = random.Random(SEED)
    ground = Ground(raw, other, chance)
    seen = Counter[str]()
    for number in range(batches):
        ends = ground.batch(number)
        how, came = forms_differ(ground, ends, finalising.finalise_success_fast)
        assert not how, (SEED, number, how, ends)
        seen["written"] += len(came)
        seen["missing"] += len(came) < len(ends)
        seen["poisoned"] += bool(came.poisoned)
        seen["gave up"] += came.gave_up
    assert all(seen[what] for what in ("written", "missing", "poisoned", "gave up")), seen


@pytest.mark.parametrize("batches", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_both_forms_of_a_delete_agree_on_every_row(raw: RawDatabase, other: RawDatabase, batches: int) -> None:
    """P28 X7, C47: a job that somebody waits for keeps its row, in both."""
    print(f"PGJOBS_TEST_SEED={SEED}")  # noqa: T201 (a failure shows it)
    ground = Ground(raw, other, random.Random(SEED))
    seen = Counter[str]()
    for number in range(batches):
        ends = ground.batch(number)
        how, came = forms_differ(ground, ends, deletes_fast)
        assert not how, (SEED, number, how, ends)
        seen["written"] += len(came)
        seen["missing"] += len(came) < len(ends)
        seen["gave up"] += came.gave_up
    assert all(seen[what] for what in ("written", "missing", "gave up")), seen


def test_both_forms_agree_where_one_half_gives_up_and_the_other_has_a_result_of_two_values(
    raw: RawDatabase, other: RawDatabase
) -> None:
    """The fast form writes nothing of that half and does not complain; the ends that are left show the culprit."""
    ground = Ground(raw, other, random.Random(SEED))
    fences = [ground.locked_fences[0], *[fence for fence in ground.free if fence in ground.owned][:3]]
    ends = [End(*fence, result=result) for fence, result in zip(fences, ("1", "2", SEVERAL, "}{"), strict=True)]
    how, came = forms_differ(ground, ends, finalising.finalise_success_fast)
    assert not how
    assert (came, came.poisoned, came.gave_up) == ([fences[1][0]], {*fences[2:]}, True)


def test_a_waiter_who_comes_while_the_fast_delete_waits_keeps_the_row(
    raw: RawDatabase, other: RawDatabase, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C38: and without the line that asks for him he would lose the result."""
    for sabotaged in (False, True):
        [one] = register()
        ends = claim(raw).ends()
        patient(monkeypatch, "finalise_delete_fast")
        if sabotaged:
            sabotage(monkeypatch, "finalise_delete_fast", "AND NOT j.waited")
        keeping.mark_waited(other, one)
        answer = background(finalising.finalise_delete_fast, raw, ends)
        wait_until(lambda: blocked_by(other, other.pid), 10, "the delete waits for the row")
        other.commit()
        assert answer.result(30) == ([one] if sabotaged else [])
        monkeypatch.undo()


def test_without_its_guard_a_result_of_two_values_would_move_those_behind_it(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: nothing is written, and the statement that skips locked rows then finds the culprit."""
    register(3)
    ends = claim(raw, 3).ends(result="7")
    ends[0].result = SEVERAL
    assert finalising.finalise_success_fast(raw, ends, AUTHOR) == []
    with pytest.raises(psycopg.DataError):
        finalising.finalise_success(raw, ends, AUTHOR)
    [(_, line)] = lines_of("json_array_length", ("finalise_success_fast",))
    sabotage(monkeypatch, "finalise_success_fast", line)
    assert len(finalising.finalise_success_fast(raw, ends, AUTHOR)) == 3
    assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == [1, 2, 7]


# --- locked rows ------------------------------------------------------------------------------------------------------


def test_a_locked_row_makes_the_fast_form_give_up_with_nothing_written(raw: RawDatabase, other: RawDatabase) -> None:
    """C46, C55, A54: a cancel that is not committed, and a lost fence; the other form writes the rest meanwhile."""
    register(500)
    claimed = claim(raw, 500)
    held, lost = claimed.ids[250], claimed.ids[400]
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [lost])
    steering.cancel_jobs(other, [held], mode="ask", by="anna", reason="", with_callback=[])
    ends = claimed.ends(result='"done"', seconds=0.5)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        finalising.finalise_success_fast(raw, ends, AUTHOR)
    assert raw.value("SELECT count(*) FROM pgjobs_job WHERE outcome IS NOT NULL") == 0
    others = sorted(set(claimed.ids) - {held, lost})
    assert sorted(finalising.finalise_success(raw, ends, AUTHOR)) == others
    other.commit()
    assert finalising.finalise_success_fast(raw, ends, AUTHOR) == [held]
    freed = raw.row(held)
    assert (freed["outcome"], freed["result"], freed["duration_seconds"]) == ("succeeded", "done", 0.5)
    assert freed["cancel_requested_at"] is not None
    assert raw.row(lost)["outcome"] is None


@pytest.mark.parametrize(
    ("change", "line"),
    [("claim_id = gen_random_uuid()", "claim_id"), ("outcome = 'cancelled', finished_at = run_at", "outcome")],
    ids=["reclaimed", "ended"],
)
@pytest.mark.parametrize("sabotaged", [False, True], ids=["fenced", "sabotaged"])
def test_a_fence_that_changes_while_the_fast_form_waits_writes_nothing(
    raw: RawDatabase,
    other: RawDatabase,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    line: str,
    *,
    sabotaged: bool,
) -> None:
    """C39, C44, C47: the server evaluates the fence again on the row as it is after the wait."""
    name = "finalise_success_fast"
    if sabotaged:
        [(_, fence)] = [found for found in lines_of("-- fence", (name,)) if f".{line} " in found[1]]
        sabotage(monkeypatch, name, fence)
    [one] = register()
    end = claim(raw).ends(result="1")
    patient(monkeypatch, name)
    other.query(f"UPDATE pgjobs_job SET {change} WHERE id = %s", [one])
    answer = background(finalising.finalise_success_fast, raw, end, AUTHOR)
    wait_until(lambda: blocked_by(other, other.pid), 10, "the end waits for the row")
    other.commit()
    assert answer.result(30) == ([one] if sabotaged else [])
    assert (raw.row(one)["outcome"] == "succeeded") == sabotaged


def patient(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a fast statement wait for as long as a test needs to see it waiting."""
    whole = sql.statement
    assert "'50ms'" in whole(name)
    monkeypatch.setattr(
        sql, "statement", lambda asked: whole(asked).replace("'50ms'", "'30s'") if asked == name else whole(asked)
    )


def test_the_lock_timeout_ends_with_the_statement(raw: RawDatabase, other: RawDatabase) -> None:
    """What the connection sends next may wait, for a table or for somebody's key, as long as a statement may take."""
    register(2)
    claimed = claim(raw, 2)
    raw.query("SET lock_timeout = '7s'")
    finalising.finalise_success_fast(raw, claimed.ends()[:1], AUTHOR)
    assert raw.value("SHOW lock_timeout") == "7s"
    other.lock(claimed.ids[1])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        finalising.finalise_success_fast(raw, claimed.ends(), AUTHOR)
    assert raw.value("SHOW lock_timeout") == "7s"


def test_a_waiter_is_notified_of_an_end_that_the_fast_form_writes(raw: RawDatabase, other: RawDatabase) -> None:
    other.raw.autocommit = True
    other.query("LISTEN pgjobs_ended")
    waited, _ = register(2)
    claimed = claim(raw, 2)
    keeping.mark_waited(raw, waited)
    finalising.finalise_success_fast(raw, claimed.ends(), AUTHOR)
    assert [notice.payload for notice in other.raw.notifies(timeout=10, stop_after=1)] == [str(waited)]


# --- the finaliser ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["repeatable read", "serializable", "pooled", ""], ids=lambda value: value or "plain")
def link(committed: None, request: pytest.FixtureRequest) -> Iterator[WorkerConnection]:
    """The finaliser's connection: with a stricter default of its role, behind a pooler, and as it mostly is."""
    level = request.param if request.param in ("repeatable read", "serializable") else "read committed"
    with role_setting("default_transaction_isolation", level):
        db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    if request.param == "pooled":
        db.connection.execute("RESET ALL")
        db.connection.prepare_threshold = None
        db.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        db.pooled = True
    yield db
    db.close()


@contextmanager
def role_setting(name: str, value: str) -> Iterator[None]:
    """Give every new session of our role in this database this setting."""
    role = f"ALTER ROLE CURRENT_USER IN DATABASE {connection.settings_dict['NAME']}"
    with connection.cursor() as cursor:
        cursor.execute(f"{role} SET {name} = '{value}'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"{role} RESET {name}")


class Flushing:
    """A finaliser whose thread is the test's; ``sent`` are the statements that write ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, link: WorkerConnection) -> None:
        self.heard = Heard()
        self.finaliser = Finaliser(lambda: pytest.fail("connected"), self.heard, AUTHOR)
        self.finaliser.writer.may_wait = link.identity.deadlock_seconds >= DEADLOCK_SECONDS
        self.link = link
        self.sent: list[str] = []
        for name in (SKIPPING, FAST, SETTLED):
            monkeypatch.setattr(finalising, name, partial(self._send, name, getattr(finalising, name)))

    def _send(self, name: str, form: Form, *args: Any, **options: Any) -> list[int]:
        self.sent.append(f"{name}, fast" if options.get("fast") else name)
        return form(*args, **options)

    def put(self, claimed: Claimed, gate: int | None = None, **facts: Any) -> None:
        held = HeldClaim(str(claimed.claim_id), 0.0, len(claimed.jobs), 1e12)
        ends = claimed.ends(**facts)
        runs = [HeldRun(job, held, fresh_until=1e12) for job in claimed.jobs]
        for run in runs if gate else ():
            run.gate, self.finaliser.counts = gate, True
        self.finaliser.put_many(SUCCESS, list(zip(runs, ends, strict=True)))

    def flush(self) -> tuple[list[int], list[str]]:
        """Return the jobs whose ends were stored by this flush, after any pause, and the statements that it took."""
        self.finaliser.busy.until = 0.0
        self.heard.posts.clear()
        self.sent.clear()
        self.finaliser._flush(self.link)
        assert not self.heard.of(RefusedEnds)
        return sorted(self.heard.told("stored")), self.sent


FAST, SKIPPING, SETTLED = "finalise_success_fast", "finalise_success", "finalise_settled"


def test_a_locked_row_costs_its_neighbours_one_wait_and_ends_once_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase, link: WorkerConnection
) -> None:
    """C46 W20: known as busy it makes no batch wait again; SERIALIZABLE as a role's default changes nothing."""
    flushing = Flushing(monkeypatch, link)
    register(9)
    first, second, third = (claim(raw, 3) for _ in range(3))
    held = first.ids[1]
    other.query("UPDATE pgjobs_job SET cancel_requested_at = statement_timestamp() WHERE id = %s", [held])
    flushing.put(first, result='"kept"')
    assert flushing.flush() == ([first.ids[0], first.ids[2]], [FAST, SKIPPING])
    flushing.put(second)
    assert flushing.flush() == (second.ids, [SKIPPING])
    other.commit()
    flushing.put(third)
    assert flushing.flush() == ([held, *third.ids], [SKIPPING])
    assert (raw.row(held)["result"], raw.row(held)["attempt"]) == ("kept", 1)
    assert flushing.finaliser.count == 0
    register(1)
    last = claim(raw)
    flushing.put(last)
    assert flushing.flush() == (last.ids, [FAST])


def test_a_locked_member_costs_its_neighbours_one_wait_and_counts_once_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase, link: WorkerConnection
) -> None:
    """Members as plain jobs: what is locked is known as busy then, and keeps no other batch waiting."""
    flushing = Flushing(monkeypatch, link)
    with Batch("members") as batch:
        batch.add_many(fast_ends_member.bind() for _ in range(6))
    first, second = claim(raw, 3), claim(raw, 3)
    held = first.ids[1]
    other.query("UPDATE pgjobs_job SET cancel_requested_at = statement_timestamp() WHERE id = %s", [held])
    flushing.put(first, gate=batch.job.pk)
    assert flushing.flush() == ([first.ids[0], first.ids[2]], [f"{SETTLED}, fast", SETTLED])
    assert batch.figures.succeeded == 2
    flushing.put(second, gate=batch.job.pk)
    assert flushing.flush() == (second.ids, [SETTLED])
    other.commit()
    assert flushing.flush() == ([held], [SETTLED])
    assert (batch.figures.succeeded, batch.figures.pending, flushing.finaliser.count) == (6, 0, 0)


def test_a_short_wait_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    raw: RawDatabase,
    other: RawDatabase,
    background: Background,
    link: WorkerConnection,
) -> None:
    """The row is written as it is after the other's commit, whatever the role's default isolation level."""
    flushing = Flushing(monkeypatch, link)
    register(3)
    claimed = claim(raw, 3)
    patient(monkeypatch, FAST)
    other.query("UPDATE pgjobs_job SET description = 'seen' WHERE id = %s", [claimed.ids[1]])
    flushing.put(claimed)
    answer = background(flushing.flush)
    wait_until(lambda: blocked_by(other, other.pid), 10, "the end waits for the row")
    other.commit()
    assert answer.result(30) == (claimed.ids, [FAST])
    assert raw.row(claimed.ids[1])["description"] == "seen"


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "skipping"])
def test_a_row_that_cannot_be_stored_is_found_by_halves_and_the_others_end(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, link: WorkerConnection, *, fast: bool, strict: bool
) -> None:
    """Both forms: the job whose result is at fault succeeds without it, a strict one is abandoned; each says why."""
    monkeypatch.setattr(end_writer, "is_strict", lambda name: strict)
    flushing = Flushing(monkeypatch, link)
    flushing.finaliser.writer.may_wait = fast
    register(8)
    claimed = claim(raw, 8)
    flushing.put(Claimed(claimed.claim_id, claimed.jobs[:5]), result="1")
    flushing.put(Claimed(claimed.claim_id, claimed.jobs[5:6]), result='"\\u0000"')
    flushing.put(Claimed(claimed.claim_id, claimed.jobs[6:]), result="2")
    stored, sent = flushing.flush()
    assert (stored, set(sent)) == (claimed.ids, {FAST if fast else SKIPPING})
    rows = raw.query("SELECT outcome, result, error FROM pgjobs_job ORDER BY id")
    outcome, result, error = rows.pop(5)
    assert rows == [*[("succeeded", 1, "")] * 5, *[("succeeded", 2, "")] * 2]
    if strict:
        assert (outcome, result) == ("abandoned", None)
        assert "The end of the job cannot be stored: unsupported Unicode escape" in error
    else:
        assert (outcome, error) == ("succeeded", "")
        assert result["$unstored"].startswith("unsupported Unicode escape sequence")


def test_a_deadlock_is_ours_to_give_up(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase, background: Background, committed: None
) -> None:
    """C53: an operator's cancel in the opposite order waits for our rows and we for his: both are written."""
    db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    try:
        flushing = Flushing(monkeypatch, db)
        one, two = register(2)
        flushing.put(claim(raw, 2))
        cancel = {"mode": "ask", "by": "anna", "reason": "", "with_callback": []}
        steering.cancel_jobs(other, [two], **cancel)  # type: ignore[arg-type]
        patient(monkeypatch, FAST)  # so that it is a deadlock for certain, and the detector of our session ends it
        ends = background(flushing.flush)
        wait_until(lambda: blocked_by(other, other.pid), 10, "the end waits for the operator")
        steering.cancel_jobs(other, [one], **cancel)  # type: ignore[arg-type]
        other.commit()
        stored, sent = ends.result(30)
        assert sent == [FAST, SKIPPING]
        while flushing.finaliser.count:
            stored += flushing.flush()[0]
        assert sorted(stored) == [one, two]
        # The first may have ended before the operator, who waited for it, came to ask.
        assert (raw.row(one)["outcome"], raw.row(two)["outcome"]) == ("succeeded", "succeeded")
        assert raw.row(two)["cancel_requested_at"] is not None
    finally:
        db.close()


@pytest.mark.parametrize("setting", ["20ms", "1s"])
def test_where_the_server_looks_for_deadlocks_often_no_end_waits_for_a_row(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, other: RawDatabase, committed: None, setting: str
) -> None:
    """C53: its detector could end an operator's statement before our own had given up."""
    with role_setting("deadlock_timeout", setting):
        db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    try:
        flushing = Flushing(monkeypatch, db)
        register(2)
        claimed = claim(raw, 2)
        other.lock(claimed.ids[1])
        flushing.put(claimed)
        assert flushing.flush() == (claimed.ids[:1], [SKIPPING] if setting == "20ms" else [FAST, SKIPPING])
    finally:
        db.close()


@pytest.mark.parametrize("setting", ["20ms", "1s"])
def test_an_operator_who_cancels_in_the_opposite_order_and_the_ends_beside_him_all_succeed(
    monkeypatch: pytest.MonkeyPatch,
    raw: RawDatabase,
    db_connection: Callable[..., RawDatabase],
    background: Background,
    setting: str,
) -> None:
    """C53: his transaction takes the rows one by one from the last to the first, we from the first to the last."""
    with role_setting("deadlock_timeout", setting):
        db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
        operator = db_connection(autocommit=False, pins=False)
    flushing = Flushing(monkeypatch, db)
    register(400)
    ids: list[int] = []

    def cancels() -> None:
        for job_id in reversed(ids):
            operator.query("UPDATE pgjobs_job SET cancel_requested_at = statement_timestamp() WHERE id = %s", [job_id])
        operator.commit()

    try:
        for _ in range(4):
            claimed = claim(raw, 100)
            ids = claimed.ids
            flushing.put(claimed)
            cancelling = background(cancels)
            while flushing.finaliser.count:
                flushing.flush()
            cancelling.result(30)
        left = raw.query("SELECT id FROM pgjobs_job WHERE outcome IS DISTINCT FROM 'succeeded'")
        assert left == []
        assert raw.value("SELECT bool_and(cancel_requested_at IS NOT NULL) FROM pgjobs_job")
    finally:
        db.close()
