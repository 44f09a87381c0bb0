"""A worker's connection through a transaction pooler: answers arrive, settings last for one statement."""

from __future__ import annotations

import psycopg
import pytest

from django_pgjobs.store import claiming, vacuuming
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, wait_until


def test_a_statement_behind_a_pooler_is_answered_and_leaves_nothing_behind(committed: None, raw: RawDatabase) -> None:
    """The pipeline that carries the settings ends before the answer is read; nothing is prepared."""
    jobs.effect.register("one")
    db = WorkerConnection("default", "pgjobs test pooled", statement_seconds=1)
    try:
        db.connection.execute("RESET ALL")
        db.pooled = True
        db.connection.prepare_threshold = None
        defaults = {
            name: db.connection.execute(f"SHOW {name}").fetchone() for name in ("plan_cache_mode", "statement_timeout")
        }
        before = db.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert claiming.list_pairs(db) == [("default", 0)]
        assert db.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == before
        for name in ("plan_cache_mode", "statement_timeout"):
            assert db.connection.execute(f"SHOW {name}").fetchone() == defaults[name], "others are served by it next"
        raw.query("BEGIN")
        raw.query("LOCK TABLE pgjobs_job")
        with pytest.raises(psycopg.errors.QueryCanceled):
            claiming.list_pairs(db)
        raw.query("ROLLBACK")
        assert claiming.list_pairs(db) == [("default", 0)]
    finally:
        db.close()


def test_a_vacuum_behind_a_pooler_takes_no_transaction_and_sets_nothing(committed: None, raw: RawDatabase) -> None:
    """A setting would stay on a server process that serves others next."""
    db = WorkerConnection("default", "pgjobs test pooled", statement_seconds=None)
    try:
        db.connection.execute("RESET lock_timeout")
        db.pooled = True
        db.connection.prepare_threshold = None
        counted = "SELECT pg_stat_get_vacuum_count('pgjobs_claim'::regclass)"
        before = raw.value(counted)
        vacuuming.VACUUMS["pgjobs_claim"](db)
        wait_until(lambda: raw.value(counted) == before + 1, 20, "it was vacuumed")
        assert db.connection.execute("SHOW lock_timeout").fetchone() == ("0",)
    finally:
        db.close()
