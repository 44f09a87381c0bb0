"""Deleting ended jobs beside a worker, oldest first and as many as have ended meanwhile: a history of constant size.

Stands for the pruning of a worker, whose retention is a time: at whatever rate a benchmark runs, that would keep
another number of jobs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from django.db import connection

BATCH = 1000
REST_SECONDS = 0.05

_DELETE = """
WITH old AS MATERIALIZED (
    SELECT id, finished_at FROM pgjobs_job
    WHERE outcome = 'succeeded' AND finished_at >= to_timestamp(%s)
    ORDER BY finished_at LIMIT %s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM pgjobs_job WHERE id = ANY (ARRAY (SELECT id FROM old))
), history AS (
    DELETE FROM pgjobs_attempt WHERE job_id = ANY (ARRAY (SELECT id FROM old))
)
SELECT count(*), extract(epoch FROM max(finished_at))::float8 FROM old
"""


@dataclass(slots=True)
class Pruner:
    """Deletes in batches on a thread and a connection of its own; ``ended`` says how many may go in all."""

    ended: int = 0
    deleted: int = 0
    failure: BaseException | None = None
    _since: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Pruner:
        self._thread = threading.Thread(target=self._run, name="pruner")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.ended - self.deleted < BATCH or not self._delete():
                    self._stop.wait(REST_SECONDS)
        except BaseException as failure:
            self.failure = failure
        finally:
            connection.close()

    def _delete(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(_DELETE, [self._since, BATCH])
            count, until = cursor.fetchone()
        # Begin where this batch ended: what lies before are dead entries of the index.
        self._since = until or self._since
        self.deleted += count
        return int(count)
