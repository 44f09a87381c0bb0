"""``app.backend``: what the rows of jobs say of tasks. Ends are written by the engine, so there is nothing to store."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from celery import states
from celery._state import get_current_task
from celery.app import backends
from celery.backends.base import BaseBackend
from celery.exceptions import TaskRevokedError, WorkerLostError
from celery.exceptions import TimeoutError as CeleryTimeoutError

from django_pgjobs.celery_bridge import messages
from django_pgjobs.celery_bridge.bridges import bridge_of
from django_pgjobs.celery_bridge.calls import RETRY_KIND, running
from django_pgjobs.celery_bridge.definitions import definition_of, placeholders
from django_pgjobs.celery_bridge.running import KEPT, OURS, POLLING
from django_pgjobs.exceptions import JobNotFinished, UnstorableResult
from django_pgjobs.logs import log
from django_pgjobs.models import Job
from django_pgjobs.serialization.payload import revive
from django_pgjobs.serialization.references import UNSTORED

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_TEXT = 200
"""Characters of a progress message."""

POLL = 0.1


class JobResults(BaseBackend):
    """Reads states and results from the rows; asks the project's own result backend about all other tasks."""

    @cached_property
    def elsewhere(self) -> Any:
        """The backend of ``result_backend``, for tasks that Celery's workers run; None without one."""
        url = self.app.conf.result_backend
        if not url or bridge_of(self.app).takes_all:
            return None
        backend, url = backends.by_url(url, self.app.loader)
        return backend(app=self.app, url=url)

    def call_elsewhere(self, producer: Any, task_id: str) -> None:
        """Prepare for the result of a task that goes to the broker."""
        if self.elsewhere is not None:
            self.elsewhere.on_task_call(producer, task_id)

    # Reading

    def get_task_meta(self, task_id: str, cache: bool = True) -> dict[str, Any]:
        """Ask the row each time: who asks makes a difference."""
        meta: dict[str, Any] = super().get_task_meta(task_id, cache=False)
        return meta

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        job = messages.job_of(task_id)
        if job is not None:
            return self._meta(task_id, job)
        if self.elsewhere is not None:
            meta: dict[str, Any] = self.elsewhere.get_task_meta(task_id, cache=False)
            return meta
        return {"status": states.PENDING, "result": None}

    def _meta(self, task_id: str, job: Job) -> dict[str, Any]:
        state, result = self._state(job)
        meta: dict[str, Any] = {"task_id": task_id, "status": state, "result": result, "children": []}
        if job.finished_at is not None:
            meta["date_done"] = job.finished_at.isoformat()
        if state == states.FAILURE:
            last = job.attempts.db_manager(job._state.db).order_by("-id").first()
            meta["traceback"] = getattr(last, "traceback", None)
        return meta

    def _state(self, job: Job) -> tuple[str, Any]:
        if job.state == Job.State.SUCCEEDED:
            if (why := _unstored(job)) and _is_for_a_body():
                return states.FAILURE, UnstorableResult(why)
            result = messages.unpacked(revive(job.result))
            if isinstance(result, dict) and result.keys() == {KEPT}:
                return str(result[KEPT][0]), result[KEPT][1]
            return states.SUCCESS, result
        if job.state == Job.State.CANCELLED:
            return states.REVOKED, TaskRevokedError(job.cancel_reason or "revoked")
        if job.state == Job.State.ABANDONED:
            return states.FAILURE, self._error(job) or WorkerLostError(job.error)
        if job.state == Job.State.RUNNING:
            if (reported := _reported(job)) is not None:
                return reported
            if self._tracks(job):
                return states.STARTED, None
        retried = job.attempt - (job.state == Job.State.RUNNING) > 0 or bool(messages.message_of(job).get("retries"))
        return (states.RETRY, self._error(job)) if retried else (states.PENDING, None)

    def _tracks(self, job: Job) -> bool:
        task = self.app.tasks.get(job.name)
        return task is not None and bool(task.track_started)

    def _error(self, job: Job) -> BaseException | None:
        last = job.attempts.db_manager(job._state.db).order_by("-id").first()
        if last is None or not last.exception:
            return None
        kind, text = last.exception, last.message
        if kind == RETRY_KIND and len(last.chain) > 1:  # Celery shows the error that the retry is about
            kind, text = last.chain[1]
        if kind in OURS:
            return OURS[kind](text)
        module, _, name = kind.rpartition(".")
        made: BaseException = self.exception_to_python(
            {"exc_type": name, "exc_message": [text], "exc_module": module or "builtins"}
        )
        return made

    # Waiting

    def wait_for_pending(self, result: Any, **options: Any) -> Any:
        """Wait for a task, wherever it runs."""
        if self.elsewhere is not None and messages.job_of(result.id) is None:
            self.elsewhere.add_pending_result(result)
            return self.elsewhere.wait_for_pending(result, **options)
        return super().wait_for_pending(result, **options)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = POLL,
        on_interval: Callable[[], object] | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Wait for the end of a job; a notification wakes it. Raises Celery's ``TimeoutError``."""
        self._ensure_not_eager()
        until = None if timeout is None else monotonic() + timeout
        while True:
            job = messages.job_of(task_id)
            left = None if until is None else max(until - monotonic(), 0.0)
            if job is not None and job.finished_at is None:
                with suppress(JobNotFinished):
                    job.wait(interval if on_interval else left)
            meta: dict[str, Any] = self.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                return meta
            if on_interval is not None:
                on_interval()
            if until is not None and monotonic() >= until:
                raise CeleryTimeoutError("The operation timed out.")
            sleep(POLL if left is None else min(POLL, left))

    # Storing

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Keep what no row says by itself: a state of the task's own, or the failure of a task that never ran."""
        run = running.get()
        if run is None and messages.job_of(task_id) is None:  # in a worker of Celery's
            if (elsewhere := self.elsewhere) is not None:
                return elsewhere.store_result(task_id, result, state, traceback, request=request, **kwargs)
            if state in states.PROPAGATE_STATES and self._was_to_be_a_job(request):
                self._store_failure(task_id, result, request)
            return None
        if run is not None and task_id == run.id:
            if state == states.SUCCESS:
                self._check_storable(result)
            elif state not in (states.STARTED, states.RETRY):
                run.kept = (state, self.encode_result(result, state))
                if state not in states.READY_STATES:
                    _report(run, state, result)
        elif state in states.PROPAGATE_STATES and self._has_no_end(task_id):
            self._store_failure(task_id, result, request)
        return result

    def _has_no_end(self, task_id: str) -> bool:
        """Return whether no row will say how this task ends, or only one that a chain has replaced."""
        job = messages.job_of(task_id)
        return job is None or (job.finished_at is not None and self._state(job)[0] == states.PENDING)

    def _was_to_be_a_job(self, request: Any) -> bool:
        """Return whether this is of the rest of a chain, whose requests are signatures, and not left to the broker."""
        if (options := getattr(request, "options", None)) is None:
            return False
        amqp = self.app.amqp
        return bool(amqp.takes(request.task, request.kwargs, amqp.router.route({**options}, request.task)))

    def _check_storable(self, result: Any) -> None:
        if self.app.conf.result_backend:  # without one, Celery asks no result whether it can be stored
            messages.packed(self.prepare_value(result))

    def _store_failure(self, task_id: str, error: Any, request: Any) -> None:
        name = getattr(request, "task", None) or "celery.accumulate"
        message = {"id": task_id, messages.FAILED: messages.packed(self.prepare_exception(error, "json"))}
        definition = definition_of(self.app, name)
        given = {**placeholders(definition), messages.MESSAGE: message}
        definition.using(tags=[messages.tag_of(task_id)]).register(**given)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Leave a chord to the project's own backend if none of its tasks is a job."""
        if (elsewhere := self._for_all) is not None:
            elsewhere.apply_chord(header_result_args, body, **kwargs)
        else:
            super().apply_chord(header_result_args, body, **kwargs)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Tell that backend how many tasks the header has: Redis counts them."""
        if (elsewhere := self._for_all) is not None:
            elsewhere.set_chord_size(group_id, chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> Any:
        """Tell that backend of one more. Raises ``NotImplementedError`` where a job is part of the chord."""
        if (elsewhere := self._for_all) is not None:
            return elsewhere.add_to_chord(chord_id, result)
        return super().add_to_chord(chord_id, result)

    @property
    def _for_all(self) -> Any:
        return self.elsewhere if bridge_of(self.app).takes_none else None

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Leave chords to ``celery.chord_unlock``, which asks for the states of the header."""
        if running.get() is None and self.elsewhere is not None and messages.job_of(request.id) is None:
            self.elsewhere.on_chord_part_return(request, state, result, **kwargs)

    def _forget(self, task_id: str) -> None:
        """Do nothing: a row stays for its retention."""

    def _save_group(self, group_id: str, result: Any) -> Any:
        if self.elsewhere is None:
            raise NotImplementedError("jobs keep no GroupResult: keep its ids, group.as_tuple(), where you need them")
        return self.elsewhere.save_group(group_id, result)

    def _restore_group(self, group_id: str) -> Any:
        return None if self.elsewhere is None else self.elsewhere.get_group_meta(group_id, cache=False)

    def _delete_group(self, group_id: str) -> None:
        if self.elsewhere is not None:
            self.elsewhere.delete_group(group_id)


def _unstored(job: Job) -> str:
    """Return why the row of a job that has succeeded has no result; "" if it has one."""
    return str(job.result.get(UNSTORED, "")) if isinstance(job.result, dict) else ""


def _is_for_a_body() -> bool:
    """Return whether the body of a chord is to get this result, instead of the None that it reads as."""
    task = get_current_task()
    if task is None or task.name != POLLING:
        return False
    body = task.request.args[1]
    while body.get("subtask_type") == "chain":
        body = body["kwargs"]["tasks"][0]
    return not body.get("immutable")


def _report(run: Any, state: str, meta: Any) -> None:
    """Show a state of the task's own as its progress: ``["PROGRESS", {"current": 3, "total": 10}]``."""
    text = json.dumps([state, messages.packed(meta)])
    if len(text) > MOST_TEXT:
        log.warning("the state of a task is longer than a progress message job=%d", run.context.id)
        text = json.dumps([state, None])
    known = meta if isinstance(meta, dict) else {}
    numbers = [known.get(key) for key in ("current", "total")]
    current, total = ((n if isinstance(n, int | float) and n >= 0 else None) for n in numbers)
    run.context.progress(current or 0, total, text)


def _reported(job: Job) -> tuple[str, Any] | None:
    try:
        state, meta = json.loads((job.progress or {}).get("message") or "")
    except (TypeError, ValueError):
        return None  # a text that the task has written past Celery
    return str(state), messages.unpacked(meta)
