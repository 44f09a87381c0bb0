"""Deleting what has ended, beside a worker: stands in for the leader's duty, whose batches it has.

Only jobs that ended after ``since`` go, so that a benchmark can keep others.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from django.db import connection

BATCH = 5000
KEPT_SECONDS = 1.0
"""How long a job is kept after its end."""

_DELETE = """
WITH old AS (
    SELECT id, finished_at FROM pgjobs_job
    WHERE outcome = 'succeeded' AND finished_at > to_timestamp(%s)
      AND finished_at < statement_timestamp() - make_interval(secs => %s)
    ORDER BY finished_at LIMIT %s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM pgjobs_job WHERE id IN (SELECT id FROM old)
)
SELECT count(*), extract(epoch FROM max(finished_at))::float8 FROM old
"""


@dataclass(slots=True)
class Pruner:
    """Deletes in batches, on a thread and a connection of its own, until told to stop."""

    since: float
    deleted: int = 0
    failure: BaseException | None = None
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
                if self._delete() < BATCH:
                    self._stop.wait(0.2)
        except BaseException as failure:
            self.failure = failure
        finally:
            connection.close()

    def _delete(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(_DELETE, [self.since, KEPT_SECONDS, BATCH])
            count, until = cursor.fetchone()
        # Begin where the last batch ended: what lies before are dead entries of the index.
        self.since = max(self.since, (until or 0.0) - 1.0)
        self.deleted += count
        return int(count)
