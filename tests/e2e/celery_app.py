"""A project's Celery app and tasks, for workers that import this module by ``MODULES``. No broker runs."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from django_pgjobs import job
from django_pgjobs.celery_bridge import install
from tests.e2e import stage

app = Celery("e2e", broker="amqp://127.0.0.1:1//", set_as_current=False)
app.conf.result_chord_retry_interval = 0.1
app.conf.beat_schedule = {"tick": {"task": "tests.e2e.celery_app.add", "schedule": 1, "args": (20, 22)}}
install(app, beat=os.environ.get("PGJOBS_TEST_BEAT") == "1")


@app.task(shared=False)
def add(a: int, b: int = 1) -> int:
    stage.here().note("add", a, b)
    return a + b


@app.task(shared=False)
def total(values: list[int]) -> int:
    return sum(values)


@app.task(bind=True, shared=False, max_retries=3)
def third_time(self: Any, key: str) -> list[Any]:
    stage.here().note("try", key, self.request.retries)
    if self.request.retries < 2:
        raise self.retry(exc=LookupError(key), countdown=0)
    return [self.request.id, self.request.retries]


@app.task(shared=False, soft_time_limit=0.3, time_limit=20)
def soft() -> str:
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "tidied up"


@app.task(shared=False, time_limit=0.3)
def hard() -> None:
    while True:
        time.sleep(0.01)


@app.task(shared=False)
def errback(request: Any, exc: BaseException, traceback: Any) -> None:
    stage.here().note("errback", request.id, type(exc).__name__)


@app.task(shared=False)
def dies(key: str) -> None:
    stage.here().note("dies", key)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(shared=False, acks_late=True)
def dies_late(key: str) -> None:
    dies(key)


class DiesOnce(app.Task):  # type: ignore[name-defined]
    """Dies when its task has succeeded and its links are called, before the job's end is written."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        here = stage.here()
        here.note("succeeded", task_id)
        if here.count("succeeded", task_id) == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@app.task(base=DiesOnce, shared=False, acks_late=True, reject_on_worker_lost=True)
def dies_once(key: str) -> int:
    return len(key)


@app.task(bind=True, shared=False)
def progresses(self: Any, gate: str, state: str = "PROGRESS") -> str:
    self.update_state(state=state, meta={"current": 1, "total": 2})
    stage.here().note("progresses")
    stage.here().wait(gate)
    return "done"


@job
def waits_plainly() -> int:
    return int(add.apply_async((1,), countdown=0.1).get(timeout=20))


@app.task(shared=False)
def waits_for_another() -> int:
    return int(add.delay(1).get(timeout=5))
