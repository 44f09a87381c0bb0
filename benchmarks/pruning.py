"""Pruning beside a worker, by its own statements: it deletes as many old jobs as have ended.

So the history keeps a constant size. The leader's own retention is a period of at least a minute: how many jobs that
keeps depends on the rate of a benchmark.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from django_pgjobs.store import pruning
from django_pgjobs.worker.shared.connection import WorkerConnection

BATCH = 1000
REST_SECONDS = 0.05


@dataclass(slots=True)
class Pruner:
    """Deletes in batches on a thread and a connection of its own; ``ended`` returns how many to delete in all."""

    ended: int = 0
    deleted: int = 0
    failure: BaseException | None = None
    _after: str = pruning.OLDEST
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
            db = WorkerConnection("default", "benchmark pruner", statement_seconds=60)
            try:
                while not self._stop.is_set():
                    if self.ended - self.deleted < BATCH or not self._delete(db):
                        self._stop.wait(REST_SECONDS)
            finally:
                db.close()
        except BaseException as failure:
            self.failure = failure

    def _delete(self, db: WorkerConnection) -> int:
        found = pruning.list_prunable(
            db, "succeeded", seconds=0.0, queues=(), only=False, after=self._after, window_seconds=None, limit=BATCH
        )
        if found is None:
            return 0
        gone = pruning.prune_jobs(db, found.ids, until=found.until) or []
        # Begin where this batch ended: only dead index entries lie before it.
        self._after = found.until
        self.deleted += len(gone)
        return len(gone)
