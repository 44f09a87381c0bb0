"""Each abandoned job is in one notice, whatever happens: beside other leaders, and if its end is committed late."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_pgjobs import sql
from django_pgjobs.maintenance.notices import PATIENCE_SECONDS, Horizon, Notifier
from django_pgjobs.models import Job
from django_pgjobs.store import noticing, steering
from django_pgjobs.store.database import Params, Rows
from django_pgjobs.store.new_jobs import NewJob
from tests.db.notices_ground import (
    Connect,
    Found,
    abandon,
    at_once,
    counted,
    delivered,
    found,
    leader,
    notified,
    notifier,
    silence,
    turns,
)
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import Background, RawDatabase, blocked_by, register, wait_until

__all__ = ["at_once", "found", "leader", "notified", "notifier"]


# Once


def test_two_leaders_make_one_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, db_connection: Connect, background: Background
) -> None:
    """The second has read before the first has written, and waits for its row."""
    abandon(raw)
    reached = noticing.read_notice(raw)
    until = raw.value("SELECT statement_timestamp()::text")
    delivery = NewJob("pgjobs.notify", "{}")
    written = noticing.write_notice(other, reached, until=until, problems=[], delivery=delivery, notify=True)
    assert written[0]
    second = background(
        noticing.write_notice, db_connection(), reached, until=until, problems=[], delivery=delivery, notify=True
    )
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the second waits")
    other.commit()
    assert second.result(10) == (False, None)
    assert Job.objects.filter(name="pgjobs.notify").count() == 1


@pytest.mark.parametrize(
    "predicate",
    ["n.finished_at = %(finished_at)s::timestamptz", "n.notified_at IS NOT DISTINCT FROM %(notified_at)s::timestamptz"],
)
def test_each_half_of_the_comparison_is_needed(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, predicate: str
) -> None:
    """Notices have reached further; or have reached as far, of problems."""
    reached = noticing.read_notice(raw)
    further = "'2020-01-01'" if predicate.startswith("n.finished_at") else "finished_at"
    told = "notified_at" if predicate.startswith("n.finished_at") else "statement_timestamp()"
    raw.query(f"UPDATE pgjobs_notice SET finished_at = {further}, notified_at = {told}")
    given: dict[str, Any] = {"until": reached.finished_at, "problems": [], "delivery": None, "notify": False}
    assert noticing.write_notice(raw, reached, **given) == (False, None)
    whole = sql.statement
    sabotaged = whole("write_notice").replace(predicate, "true")
    assert sabotaged != whole("write_notice")
    monkeypatch.setattr(sql, "statement", lambda name: sabotaged if name == "write_notice" else whole(name))
    assert noticing.write_notice(raw, reached, **given) == (True, None)


def test_a_delivery_and_the_row_are_written_together_or_not_at_all(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    """The leader dies before its commit: nothing is lost, and the next leader makes the notice."""
    abandon(raw)
    assert any(notifier(other) for _ in range(3))
    other.rollback()
    assert not Job.objects.filter(name="pgjobs.notify").exists()
    assert counted(turns(Notifier(notifier.leader, Found()), raw)) == {("shop.pay", "shop.Declined"): 1}


def test_a_new_leader_goes_on_where_the_last_has_been(notifier: Notifier, raw: RawDatabase) -> None:
    abandon(raw)
    assert turns(notifier, raw)
    delivered(raw)
    abandon(raw)
    assert turns(Notifier(notifier.leader, Found()), raw) is None, "it keeps the silence"


# Late commits


def test_an_end_that_is_committed_late_is_in_the_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    """It has finished before another that is visible already."""
    abandon(other, name="late")
    abandon(raw, name="early")
    for _ in range(5):
        assert notifier(raw) is None
    other.commit()
    assert counted(turns(notifier, raw)) == {("late", "shop.Declined"): 1, ("early", "shop.Declined"): 1}


def test_without_the_wait_for_writers_it_would_be_lost(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin."""
    whole = sql.statement
    blind = whole("list_writers").replace("'RowExclusiveLock'", "'NoLock'")
    monkeypatch.setattr(sql, "statement", lambda name: blind if name == "list_writers" else whole(name))
    abandon(other, name="late")
    abandon(raw, name="early")
    assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1}
    other.commit()
    assert not noticing.read_notice(raw).news


def test_an_end_that_waits_for_a_lock_is_in_the_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, db_connection: Connect, background: Background
) -> None:
    """Its statement has begun, so its clock stands; it has no transaction id yet."""
    [job_id] = register()
    other.lock(job_id)
    late = background(steering.abandon_jobs, db_connection(), [job_id], reason="", with_callback=[])
    wait_until(lambda: blocked_by(raw, other.pid), 5, "it waits")
    abandon(raw, name="early")
    for _ in range(5):
        assert notifier(raw) is None
    other.rollback()
    late.result(10)
    assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1, ("test.job", ""): 1}


def test_a_transaction_that_never_ends_is_waited_for_a_minute(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """And once: the next notice does not wait for it."""
    abandon(other, name="late")
    abandon(raw, name="early")
    assert turns(notifier, raw) is None
    time(PATIENCE_SECONDS - 1)
    assert turns(notifier, raw) is None
    time(1)
    with caplog.at_level(logging.WARNING):
        assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1}
    assert "waits no longer for open transactions transactions=1" in caplog.text
    delivered(raw)
    silence(raw, time)
    abandon(raw, name="next")
    assert counted(turns(notifier, raw)) == {("next", "shop.Declined"): 1}


def test_a_transaction_that_writes_no_jobs_delays_no_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    other.query("INSERT INTO pgjobs_event (name) VALUES ('x')")
    other.query("SELECT count(*) FROM pgjobs_job")
    abandon(raw)
    assert turns(notifier, raw)
    other.rollback()


def test_a_statement_may_take_a_moment_to_its_lock(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 3600.0)
    abandon(raw)
    assert turns(notifier, raw) is None
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 0.0)
    assert turns(notifier, raw)


def test_a_prepared_transaction_has_another_name_than_before() -> None:
    """Until its commit its ends are invisible, and the server of the tests prepares none."""

    class Server:
        writers: list[str] = []
        at = 0

        def fetch(self, name: str, params: Params) -> Rows:
            self.at += 1
            return [(str(self.at), self.writers)]

    server, horizon = Server(), Horizon()
    server.writers = ["3/17"]
    assert horizon.advance(server, 0.0) is None
    server.writers = ["-1/900"]
    assert horizon.advance(server, 1.0) is None
    server.writers = ["4/1"]
    assert horizon.advance(server, 2.0) == "1"
    server.writers = ["4/2"]
    assert horizon.advance(server, 3.0) == "3"
