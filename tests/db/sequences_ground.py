"""What judges sequences: triggers that note whenever somebody gets the turn, or runs, who may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

# A registration writes the gates by the statement behind that of the jobs.
WITHOUT = "CASE WHEN o.hold = 'blocked' THEN 1 ELSE 0 END"
HANDS = f"coalesce((SELECT g.hands FROM pgjobs_gate AS g WHERE g.job_id = o.id), {WITHOUT})"

MAKE = f"""
CREATE TABLE broken_order (what text, id bigint, other bigint);
CREATE TABLE begun_order (n bigserial, id bigint, sequence text);
CREATE FUNCTION judge_turn(one bigint, place text) RETURNS void LANGUAGE sql AS $$
    -- The lock on the sequence is held: nothing that matters is uncommitted elsewhere.
    INSERT INTO broken_order
    SELECT 'two have the turn', one, o.id FROM pgjobs_job AS o
    WHERE o.sequence = place AND o.id <> one AND o.finished_at IS NULL AND {HANDS} = 0;
    INSERT INTO broken_order
    SELECT 'has overtaken', one, o.id FROM pgjobs_job AS o
    WHERE o.sequence = place AND o.id < one
      AND ((o.finished_at IS NULL AND o.hold = 'blocked') OR (o.outcome = 'abandoned' AND o.flow & 128 = 0));
$$;
CREATE FUNCTION judge_begun() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM judge_turn(NEW.id, NEW.sequence);
    RETURN NULL;
END $$;
CREATE FUNCTION judge_hand() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM judge_turn(j.id, j.sequence) FROM pgjobs_job AS j WHERE j.id = NEW.job_id AND j.sequence IS NOT NULL;
    RETURN NULL;
END $$;
CREATE FUNCTION judge_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO broken_order
    SELECT 'runs beside', NEW.id, o.id FROM pgjobs_job AS o
    WHERE o.sequence = NEW.sequence AND o.id <> NEW.id AND o.finished_at IS NULL
      AND o.claim_id IS NOT NULL AND o.ending IS NULL;
    INSERT INTO broken_order
    SELECT 'runs without the turn', NEW.id, NULL FROM pgjobs_gate AS g WHERE g.job_id = NEW.id AND g.hands > 0;
    INSERT INTO begun_order (id, sequence) VALUES (NEW.id, NEW.sequence);
    RETURN NULL;
END $$;
CREATE TRIGGER judge_begun AFTER INSERT ON pgjobs_job FOR EACH ROW
WHEN (NEW.sequence IS NOT NULL AND NEW.hold IS DISTINCT FROM 'blocked') EXECUTE FUNCTION judge_begun();
CREATE TRIGGER judge_hand AFTER UPDATE ON pgjobs_gate FOR EACH ROW
WHEN (OLD.hands > 0 AND NEW.hands = 0 AND NEW.eager) EXECUTE FUNCTION judge_hand();
CREATE TRIGGER judge_claim AFTER UPDATE ON pgjobs_job FOR EACH ROW
WHEN (
    NEW.sequence IS NOT NULL AND NEW.claim_id IS NOT NULL AND NEW.claim_id IS DISTINCT FROM OLD.claim_id
    AND NEW.ending IS NULL AND NEW.outcome IS NULL
) EXECUTE FUNCTION judge_claim();
"""

DROP = """
DROP FUNCTION IF EXISTS judge_begun() CASCADE;
DROP FUNCTION IF EXISTS judge_hand() CASCADE;
DROP FUNCTION IF EXISTS judge_claim() CASCADE;
DROP FUNCTION IF EXISTS judge_turn(bigint, text) CASCADE;
DROP TABLE IF EXISTS broken_order, begun_order;
"""


@contextmanager
def judged() -> Iterator[None]:
    """Inside, the database itself notes each break of an order; none may be left at the end."""
    with connection.cursor() as cursor:
        cursor.execute(DROP + MAKE)
    try:
        yield
        assert broken() == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute(DROP)


def broken() -> list[tuple[str, int, int | None]]:
    """What was noted: what is wrong, the job, and the one that it should not have been beside."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT what, id, other FROM broken_order LIMIT 20")
        return list(cursor.fetchall())


STUCK = (
    "SELECT j.sequence, j.id FROM (SELECT sequence, min(id) AS id FROM pgjobs_job"
    " WHERE hold = 'blocked' AND sequence IS NOT NULL GROUP BY sequence) AS j"
    " WHERE NOT EXISTS (SELECT FROM pgjobs_job AS o WHERE o.sequence = j.sequence AND o.hold IS DISTINCT FROM 'blocked'"
    " AND ((o.finished_at IS NULL AND coalesce((SELECT g.hands FROM pgjobs_gate AS g WHERE g.job_id = o.id), 0) = 0)"
    " OR (coalesce(o.outcome, o.ending) = 'abandoned' AND o.flow & 128 = 0 AND o.id < j.id)))"
    " AND NOT EXISTS (SELECT FROM pgjobs_gate AS g WHERE g.due)"
)


def stuck() -> list[tuple[str, int]]:
    """The sequences in which a job waits although nobody stands before it and no gate is due, with that job."""
    with connection.cursor() as cursor:
        cursor.execute(STUCK)
        return list(cursor.fetchall())
