"""What jobs log, in the database: who may store it, how much stays and for how long, who sees it (I34)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_pgjobs import job as declare_job
from django_pgjobs import sql
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution import single_job
from django_pgjobs.execution.log_lines import as_json
from django_pgjobs.execution.single_job import Performer
from django_pgjobs.maintenance import expiry
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.management import logs
from django_pgjobs.models import Job, LogLine
from django_pgjobs.store import finalising, pruning
from django_pgjobs.store.asking import ask_each
from django_pgjobs.worker.threads import line_writer
from django_pgjobs.worker.threads.line_writer import LineWriter
from tests.plugins.fix_admin import LIST, client_with, html, user_with
from tests.plugins.fix_db import AUTHOR, Background, Claimed, RawDatabase, claim, register, wait_until
from tests.plugins.sabotage import sabotage
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")


def line(number: int, message: str = "", /, **fields: object) -> list[object]:
    row = {"number": number, "level": 20, "logger": "shop", "message": message or f"line {number}", "at": 1.5e9}
    return list((row | fields).values())


def text_of(*rows: list[object]) -> str:
    return as_json(rows)


def store(raw: RawDatabase, claimed: Claimed, *rows: list[object], first: bool = False) -> list[int]:
    return finalising.write_lines(raw, [(claimed.ids[0], str(claimed.claim_id), first, text_of(*rows))])


def held(raw: RawDatabase, **given: Any) -> Claimed:
    register(**given)
    return claim(raw)


def kept(job_id: int | None = None) -> list[str]:
    rows = LogLine.objects.all() if job_id is None else LogLine.objects.filter(job_id=job_id)
    return list(rows.order_by("job_id", "claimed_at", "number").values_list("message", flat=True))


def test_a_line_is_stored_with_its_claim_and_once(raw: RawDatabase) -> None:
    """The answer to a first try may have been lost."""
    claimed = held(raw)
    assert store(raw, claimed, line(7)) == store(raw, claimed, line(7), line(8)) == claimed.ids
    first, second = LogLine.objects.order_by("number")
    assert (first.claim_id, first.attempt, first.level, first.logger) == (claimed.claim_id, 1, 20, "shop")
    assert (first.claimed_at, second.number) == (Job.objects.get().claimed_at, 8)


def test_a_job_that_has_ended_itself_gets_its_last_lines_for_a_while(raw: RawDatabase) -> None:
    claimed = held(raw)
    finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    assert store(raw, claimed, line(1)) == claimed.ids
    raw.query("UPDATE pgjobs_job SET finished_at = finished_at - interval '31 seconds'")
    assert store(raw, claimed, line(2)) == []
    assert kept() == ["line 1"]


BOUND = "AND coalesce(j.finished_at > statement_timestamp() - interval '30 seconds', true)"


@pytest.mark.parametrize(("twin", "left"), [(False, []), (True, ["line 1"])], ids=["bound", "sabotaged"])
def test_without_its_bound_a_prune_would_leave_lines_behind(
    raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch, twin: bool, left: list[str]
) -> None:
    """They are stored while it has its snapshot, and not yet the row."""
    claimed = held(raw)
    finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    raw.query("UPDATE pgjobs_job SET finished_at = finished_at - interval '1 day'")
    other.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.query("SELECT FROM pgjobs_job")
    with monkeypatch.context() as patch:
        if twin:
            sabotage(patch, "write_lines", BOUND)
        store(raw, claimed, line(1))
    assert pruning.prune_jobs(other, claimed.ids, until="infinity") == claimed.ids
    other.raw.commit()
    assert (Job.objects.count(), kept()) == (0, left)


NEXT = '{"name": "test.job", "queue": "default", "max_attempts": 5, "payload": {}}'


def step(raw: RawDatabase, claimed: Claimed) -> None:
    """Enter the next step, as the transaction of an atomic job does."""
    assert finalising.next_step(raw, claimed.ends(columns=NEXT, seconds=1.0), AUTHOR)


def test_a_job_that_has_entered_its_next_step_gets_the_last_lines_of_the_one_before(
    raw: RawDatabase, other: RawDatabase
) -> None:
    """However far the next step is, and whoever is about to claim it."""
    first, silent = held(raw), held(raw)
    store(raw, first, line(1))
    claimed_at = Job.objects.get(pk=first.ids[0]).claimed_at
    step(raw, first)
    step(raw, silent)
    other.query("SELECT FROM pgjobs_job FOR NO KEY UPDATE")
    assert store(raw, first, line(2)) == store(raw, first, line(2)) == first.ids
    assert store(raw, silent, line(3)) == silent.ids
    other.rollback()
    second = claim(raw, 2)
    for job_id in second.ids:
        finalising.write_lines(raw, [(job_id, str(second.claim_id), True, text_of(line(1, "of the second step")))])
    assert store(raw, first, line(9)) == first.ids
    assert kept(first.ids[0]) == ["line 1", "line 2", "line 9", "of the second step"]
    assert kept(silent.ids[0]) == ["line 3", "of the second step"]
    stored = LogLine.objects.filter(claim_id=first.claim_id)
    assert {(each.claimed_at, each.attempt) for each in stored} == {(claimed_at, 1)}


@pytest.mark.parametrize(
    ("bound", "claim_id", "seconds"),
    [
        ("AND s.claim_id = logged.claim_id", str(uuid4()), 0),
        ("AND s.finished_at > statement_timestamp() - interval '30 seconds'", None, 31),
    ],
    ids=["claim", "time"],
)
def test_nobody_else_and_nobody_later_writes_behind_a_step(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, bound: str, claim_id: str | None, seconds: float
) -> None:
    """With the sabotaged twin."""
    claimed = held(raw)
    step(raw, claimed)
    raw.query("UPDATE pgjobs_step SET finished_at = finished_at - make_interval(secs => %s)", [seconds])
    given: list[finalising.RunLines] = [(claimed.ids[0], claim_id or str(claimed.claim_id), True, text_of(line(1)))]
    assert (finalising.write_lines(raw, given), kept()) == ([], [])
    sabotage(monkeypatch, "write_lines", bound)
    assert finalising.write_lines(raw, given) == claimed.ids


def test_a_job_keeps_its_latest_lines_of_earlier_runs(raw: RawDatabase) -> None:
    claimed, other = held(raw), held(raw)
    raw.query(
        "INSERT INTO pgjobs_log_line (job_id, claimed_at, number, claim_id, attempt, level, logger, message, logged_at)"
        " SELECT id, now() - interval '1 hour', n, claim_id, 1, 20, '', n::text, now()"
        " FROM pgjobs_job, generate_series(1, CASE id WHEN %s THEN 10100 ELSE 5 END) AS n",
        claimed.ids,
    )
    store(raw, claimed, line(1), first=False)
    assert len(kept(claimed.ids[0])) == 10_101
    store(raw, claimed, line(2), first=True)
    of_job = kept(claimed.ids[0])
    assert (len(of_job), of_job[0], of_job[-1]) == (10_001, "102", "line 2")
    assert len(kept(other.ids[0])) == 5


def test_lines_are_pruned_with_their_job_and_only_looked_up_if_there_are_any(raw: RawDatabase) -> None:
    gone, stays = held(raw), held(raw)
    raw.query("TRUNCATE pgjobs_log_line")
    assert "never executed" in _plan_of_lines(raw)
    store(raw, gone, line(1))
    store(raw, stays, line(2))
    assert "never executed" not in _plan_of_lines(raw)
    finalising.finalise_success(raw, gone.ends(result="1"), AUTHOR)
    finalising.finalise_success(raw, stays.ends(result="1"), AUTHOR)
    assert pruning.prune_jobs(raw, gone.ids, until="infinity") == gone.ids
    assert kept() == ["line 2"]


def _plan_of_lines(raw: RawDatabase) -> str:
    given = {"ids": [1], "until": "infinity"}
    plan = [row[0] for row in raw.query(f"EXPLAIN (ANALYZE, COSTS OFF) {sql.statement('prune_jobs')}", given)]
    at = next(number for number, text in enumerate(plan) if "Delete on pgjobs_log_line" in text)
    return "\n".join(plan[at : at + 6])


def test_the_leader_finds_lines_whose_job_went_without_them(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small batches: the walk continues behind the last one."""
    monkeypatch.setattr(expiry, "LINES_BATCH", 2)
    jobs = [held(raw) for _ in range(5)]
    for each in jobs:
        store(raw, each, line(1), line(2))
    gone = [jobs[0].ids[0], jobs[3].ids[0]]
    raw.query("DELETE FROM pgjobs_job WHERE id = ANY (%s)", [gone])
    Expirer()(raw)
    left = set(LogLine.objects.values_list("job_id", flat=True))
    assert left == {each.ids[0] for each in jobs} - set(gone)


def put(writer: LineWriter, claimed: Claimed, *rows: list[object]) -> None:
    writer.put(claimed.ids[0], str(claimed.claim_id), rows, first=False)


class CommitsBefore:
    """A worker's connection; the transaction of ``other`` commits before statement ``name``."""

    def __init__(self, raw: RawDatabase, other: RawDatabase, name: str) -> None:
        self.raw, self.other, self.name = raw, other, name

    def fetch(self, name: str, params: Any) -> Any:
        if name == self.name:
            self.other.raw.commit()
        return self.raw.fetch(name, params)

    def transaction(self) -> Any:
        return self.raw.transaction()


def test_lines_that_a_step_overtakes_are_written_all_the_same(raw: RawDatabase, other: RawDatabase) -> None:
    """It commits between their statement and the reading of the fence."""
    writer, claimed = LineWriter(), held(raw)
    put(writer, claimed, line(1))
    step(other, claimed)
    taken = writer.take()
    line_writer.write(CommitsBefore(raw, other, "read_fences"), taken)
    assert (taken, kept()) == ([], ["line 1"])


@pytest.mark.parametrize(("ago", "left"), [(0, ["line 1"]), (31, [])])
def test_lines_that_the_end_of_an_atomic_job_overtakes_are_written_all_the_same(
    raw: RawDatabase, other: RawDatabase, ago: int, left: list[str]
) -> None:
    writer, claimed = LineWriter(), held(raw)
    put(writer, claimed, line(1))
    finalising.finalise_success(other, claimed.ends(result="1"), AUTHOR)
    other.query("UPDATE pgjobs_job SET finished_at = finished_at - make_interval(secs => %s)", [ago])
    taken = writer.take()
    line_writer.write(CommitsBefore(raw, other, "read_fences"), taken)
    assert (taken, kept()) == ([], left)


def test_on_a_server_that_takes_no_writes_no_line_is_lost(raw: RawDatabase) -> None:
    """A standby now, after a failover: the finalise thread looks for the primary."""
    writer, one, two = LineWriter(), held(raw), held(raw)
    put(writer, one, line(1))
    put(writer, two, line(2))
    taken = writer.take()
    raw.query("SET default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        line_writer.write(raw, taken)
    raw.query("SET default_transaction_read_only = off")
    line_writer.write(raw, taken)
    assert (taken, kept()) == ([], ["line 1", "line 2"])


def test_what_no_single_job_is_to_blame_for_is_said_once(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    writer = LineWriter()
    for number in range(3):
        put(writer, held(raw), line(number))
    taken = writer.take()
    raw.query("ALTER TABLE pgjobs_log_line RENAME TO away")
    try:
        line_writer.write(raw, taken)
    finally:
        raw.query("ALTER TABLE away RENAME TO pgjobs_log_line")
    assert taken == []
    [said] = [record.getMessage() for record in caplog.records if "cannot be stored" in record.msg]
    assert " jobs=3: " in said


@pytest.fixture
def logging_job() -> Iterator[list[Any]]:
    """A job that logs one line, and then does what the test has put into the list."""
    does: list[Any] = []

    def body(*_: Any, **__: Any) -> None:
        logging.getLogger("tests.lines").warning("logged")
        for each in does:
            each()

    before = logging.getLogRecordFactory()
    with registry.isolated():
        declare_job(name="test.job", logs="INFO")(body)
        yield does
    logging.setLogRecordFactory(before)


def perform(raw: RawDatabase) -> None:
    [one] = held(raw).jobs
    Performer(raw, AUTHOR).perform(one)


def test_an_inline_job_ends_though_its_lines_are_refused(
    raw: RawDatabase, logging_job: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    raw.query("ALTER TABLE pgjobs_log_line ADD CONSTRAINT none CHECK (false) NOT VALID")
    try:
        perform(raw)
    finally:
        raw.query("ALTER TABLE pgjobs_log_line DROP CONSTRAINT none")
    assert Job.objects.get().outcome == "succeeded"
    assert "lines of a job cannot be stored job=" in caplog.text


def test_an_inline_job_whose_row_was_locked_keeps_its_lines(
    raw: RawDatabase, other: RawDatabase, logging_job: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    logging_job.append(lambda: other.query("SELECT FROM pgjobs_job FOR UPDATE"))
    monkeypatch.setattr(single_job, "time", SimpleNamespace(sleep=lambda seconds: other.rollback()))
    perform(raw)
    assert (Job.objects.get().outcome, kept()) == ("succeeded", ["logged"])


def test_an_inline_job_that_has_lost_its_claim_pauses_once_for_its_lines(
    raw: RawDatabase, logging_job: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    logging_job.append(lambda: raw.query("UPDATE pgjobs_job SET claim_id = %s", [uuid4()]))
    pauses: list[float] = []
    monkeypatch.setattr(single_job, "time", SimpleNamespace(sleep=pauses.append))
    perform(raw)
    assert (pauses, kept()) == ([single_job.BUSY_SECONDS], [])


def test_an_inline_job_whose_connection_is_lost_says_so(raw: RawDatabase, logging_job: list[Any]) -> None:
    logging_job.append(raw.raw.close)
    with pytest.raises(psycopg.OperationalError):
        perform(raw)


def test_lines_of_a_lost_claim_are_dropped_and_those_that_the_server_refuses_spoil_no_others(raw: RawDatabase) -> None:
    writer, lost, refused, sound = LineWriter(), held(raw), held(raw), held(raw)
    raw.query("UPDATE pgjobs_job SET claim_id = %s WHERE id = %s", [uuid4(), lost.ids[0]])
    put(writer, lost, line(1))
    put(writer, refused, line(2, "no such number", number=10**30))
    put(writer, sound, line(3))
    taken = writer.take()
    line_writer.write(raw, taken)
    assert (taken, kept()) == ([], ["line 3"])


def test_so_much_may_wait_and_no_more(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MOST_CHARS", 300)
    writer, claimed = LineWriter(), held(raw)
    for number in range(1, 100):
        put(writer, claimed, line(number))
    assert 0 < writer.chars <= 300
    line_writer.write(raw, writer.take())
    assert kept() == ["line 1", "line 2", "line 3"]


@pytest.fixture
def logged(raw: RawDatabase) -> Any:
    """A job with lines of two attempts, whose function this process knows."""
    with registry.isolated():
        declare_job(name="test.job")(_nothing)
        claimed = held(raw)
        store(raw, claimed, line(1, "one <b>"), line(2, "two\nTraceback", level=40))
        finalising.finalise_retry(raw, claimed.ends(seconds=1.0, delay=0.0, cause="failed"), AUTHOR)
        again = claim(raw)
        assert again.ids == claimed.ids
        store(raw, again, line(3, "red \x1b[31m"))
        yield again


def test_the_page_shows_them_escaped_and_the_latest(
    raw: RawDatabase, logged: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, viewer = f"{LIST}{logged.ids[0]}/change/", client_with()
    text = html(viewer.get(page))
    assert "one &lt;b&gt;" in text
    assert "ERROR" in text
    assert "\x1b" not in text
    assert "Showing only the latest lines." not in text
    monkeypatch.setattr("django_pgjobs.presentation.job_lines.SHOWN", 2)
    text = html(viewer.get(page))
    assert "one &lt;b&gt;" not in text
    assert text.index("Traceback") < text.index("red ")
    assert "Showing only the latest lines." in text


def test_of_a_job_with_secrets_they_are_hidden_from_who_may_not_see_them(raw: RawDatabase, logged: Claimed) -> None:
    with registry.isolated():
        declare_job(name="test.job", sensitive=("card",))(_charge)
        page = f"{LIST}{logged.ids[0]}/change/"
        text = html(client_with().get(page))
        assert "one " not in text
        assert "pgjobs-lines" in text
        allowed = Client()
        allowed.force_login(user_with("view_job", "view_payload", name="ben"))
        assert "one &lt;b&gt;" in html(allowed.get(page))
        status, out, err = pgjobs("logs", logged.ids[0])
        assert (status, out) == (1, "")
        assert err == "Its lines are hidden: it has sensitive arguments, or this process does not know it.\n"
    assert User.objects.exists()


def _nothing() -> None:
    """A job."""


def _charge(card: str = "") -> None:
    """A job with a secret."""


def test_the_shell_prints_them_in_order(raw: RawDatabase, logged: Claimed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SLICE", 1)
    status, out, err = pgjobs("logs", logged.ids[0])
    assert (status, err) == (0, "")
    start = out[:19]
    assert out.splitlines() == [
        f"{start} attempt 1 INFO shop: one <b>",
        f"{start} attempt 1 ERROR shop: two",
        "  Traceback",
        f"{start} attempt 2 INFO shop: red \\x1b[31m",
    ]
    _, out, _ = pgjobs("logs", logged.ids[0], "--attempt=2", "--format=json")
    fields = json.loads(out)
    assert (fields["job"], fields["attempt"], fields["level"], fields["message"]) == (
        logged.ids[0], 2, "INFO", "red \x1b[31m",
    )  # fmt: skip


def test_the_shell_says_why_there_are_none(raw: RawDatabase) -> None:
    with registry.isolated():
        declare_job(name="test.job")(_nothing)
        claimed = held(raw)
        assert pgjobs("logs", claimed.ids[0])[2].startswith("The job keeps no lines: ")
    with registry.isolated():
        declare_job(name="test.job", logs="INFO")(_nothing)
        assert pgjobs("logs", claimed.ids[0]) == (0, "", "There are no lines.\n")
    assert pgjobs("logs", 999999) == (1, "", "There is no job 999999.\n")


def test_who_follows_sees_retries_and_the_end(
    raw: RawDatabase, logged: Claimed, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    seen = background(pgjobs, "logs", logged.ids[0], "--follow")
    store(raw, logged, line(4, "four"))
    finalising.finalise_retry(raw, logged.ends(seconds=1.0, delay=0.0, cause="failed"), AUTHOR)
    third = claim(raw)
    store(raw, third, line(5, "five"))
    finalising.finalise_success(raw, third.ends(result="1"), AUTHOR)
    store(raw, third, line(6, "behind its own COMMIT"))
    wait_until(lambda: seen.done(), 20, "it ends with the job")
    status, out, err = seen.result()
    assert (status, err) == (0, "The job has ended: succeeded.\n")
    assert [text.split(": ")[-1] for text in out.splitlines() if " INFO " in text] == [
        "one <b>", "red \\x1b[31m", "four", "five", "behind its own COMMIT",
    ]  # fmt: skip
    assert "attempt 3 INFO" in out


def test_an_outage_is_said_to_who_follows_and_no_line_is_missing(
    raw: RawDatabase, logged: Claimed, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(*given: Any, **named: Any) -> Any:
        asked.extend(ask_each(*given, **named))
        return asked[-1:]

    monkeypatch.setattr(logs, "ask_each", ask)
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.05)
    seen = background(pgjobs, "logs", logged.ids[0], "--follow")
    wait_until(lambda: asked, 20, "it follows")
    with _refusing(raw):
        wait_until(lambda: asked[-1].trouble, 20, "the outage is noticed")
        store(raw, logged, line(4, "meanwhile"))
        finalising.finalise_success(raw, logged.ends(result="1"), AUTHOR)
    status, out, err = seen.result(60)
    assert status == 0
    assert out.endswith("meanwhile\n")
    first, second, last = err.splitlines()
    assert first.startswith("The database does not answer, trying again: it cannot be reached: ")
    assert (second, last) == ("The database answers again.", "The job has ended: succeeded.")


@contextmanager
def _refusing(raw: RawDatabase) -> Iterator[None]:
    """Inside, the database accepts no new connection; who has one keeps it."""
    known = raw.raw.info
    with psycopg.connect(
        dbname="postgres", host=known.host, port=known.port, user=known.user, password=known.password, autocommit=True
    ) as apart:
        allow = f"ALTER DATABASE {known.dbname} ALLOW_CONNECTIONS"
        apart.execute(f"{allow} false".encode())
        try:
            yield
        finally:
            apart.execute(f"{allow} true".encode())


def test_who_follows_one_attempt_is_let_go_when_the_next_one_runs(raw: RawDatabase, logged: Claimed) -> None:
    status, out, err = pgjobs("logs", logged.ids[0], "--follow", "--attempt=1")
    assert (status, err) == (0, "Attempt 1 is over.\n")
    assert "red" not in out
