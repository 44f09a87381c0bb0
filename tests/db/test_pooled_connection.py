"""A worker's connection behind a transaction pooler: answers come, settings last for one statement."""

from __future__ import annotations

import psycopg
import pytest

from django_pgjobs import store
from django_pgjobs.worker.connection import WorkerConnection
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase


def test_a_statement_behind_a_pooler_is_answered_and_leaves_nothing_behind(committed: None, raw: RawDatabase) -> None:
    """The pipeline that carries the settings ends before the answer is read; nothing is prepared."""
    jobs.effect.register("one")
    db = WorkerConnection("default", "pgjobs test pooled", statement_seconds=1)
    try:
        db.pooled = True
        db.connection.prepare_threshold = None
        before = db.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert store.list_pairs(db) == [("default", 0)]
        assert db.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == before
        raw.query("BEGIN")
        raw.query("LOCK TABLE pgjobs_job")
        with pytest.raises(psycopg.errors.QueryCanceled):
            store.list_pairs(db)
        raw.query("ROLLBACK")
        assert store.list_pairs(db) == [("default", 0)]
    finally:
        db.close()
