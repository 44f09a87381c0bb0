"""Run jobs in your project's tests: no worker process, no commit, a plain ``TestCase``.

::

    class WelcomeTest(TestCase):
        def test_a_new_user_is_welcomed(self):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/sign-up/", {"email": "anna@example.org"})
                assert_registered(send_welcome, "anna@example.org", queue="mail")
                run_jobs()
            self.assertEqual(len(mail.outbox), 1)

Jobs run in the calling thread, on its own connections, one after the other. They end by the same fenced statements as
in production, and errors are logged in the same way. Inside a transaction each job has a savepoint: a job that breaks
the transaction loses its own writes and nothing else. (Outside a test it would keep what it wrote *before* the error.)
Callbacks that a job passes to ``transaction.on_commit`` wait, as always in a ``TestCase``: see
``captureOnCommitCallbacks``. In a ``TransactionTestCase`` jobs run in autocommit, as they do in a worker. Timeouts are
not enforced, and ``context.cancelled`` does not change while a job runs.

Do not stub time: ``backdate`` moves rows into the past, since the database's clock decides.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_pgjobs.eventing import Event
    from django_pgjobs.testing.contexts import FakeContext, context
    from django_pgjobs.testing.crashing import CrashPoint, crash_at
    from django_pgjobs.testing.eager import EagerBackend as EagerBackend
    from django_pgjobs.testing.idempotent import assert_idempotent, crash_tests
    from django_pgjobs.testing.moving import backdate
    from django_pgjobs.testing.registered import assert_not_registered, assert_registered
    from django_pgjobs.testing.replaying import StoppedAt, replay
    from django_pgjobs.testing.running import Ran, arun_jobs, run_job, run_jobs

__all__ = [
    "CrashPoint",
    "FakeContext",
    "Ran",
    "StoppedAt",
    "arun_jobs",
    "assert_idempotent",
    "assert_not_registered",
    "assert_registered",
    "backdate",
    "context",
    "crash_at",
    "crash_tests",
    "isolated_registry",
    "replay",
    "reset_rate_limits",
    "run_job",
    "run_jobs",
    "send_event",
    "wait_for_bypassed",
]

_LATE = {
    "CrashPoint": "crashing",
    "EagerBackend": "eager",
    "FakeContext": "contexts",
    "Ran": "running",
    "StoppedAt": "replaying",
    "arun_jobs": "running",
    "assert_idempotent": "idempotent",
    "assert_not_registered": "registered",
    "assert_registered": "registered",
    "backdate": "moving",
    "context": "contexts",
    "crash_at": "crashing",
    "crash_tests": "idempotent",
    "replay": "replaying",
    "run_job": "running",
    "run_jobs": "running",
}
"""Name → the module that has it. ``TASKS`` may name ``EagerBackend``, which is made before there are any models.

That one is not in ``__all__``, as it needs a Django with tasks or the backport.
"""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def isolated_registry() -> AbstractContextManager[None]:
    """Within this block only jobs declared in it exist, including functions inside the test.

    The block restores the registry when it ends. ``run_jobs`` runs these jobs; a worker, being another process, cannot
    find them.
    """
    from django_pgjobs.definition.registry import registry  # here: TASKS may name this package before there are models

    return registry.isolated()


def reset_rate_limits() -> None:
    """Fill the token buckets of this process: see the setting ``REGISTRATION_RATE``."""
    from django_pgjobs.registering import token_bucket  # here: TASKS may name this package before there are models

    token_bucket.of_this_process.reset()


def send_event(
    event: Event[Any] | str, /, *key: str | int, payload: object = None, by: object = None, database: str | None = None
) -> bool:
    """Send an event, by itself or by its name, for ``key``; jobs that wait for it can continue. See ``Event.send``.

    A text without a key is the whole name, as it is stored: ``order.approval:7``. Return False if it was sent before:
    the first one counts.
    """
    from django_pgjobs.eventing import Event, send_named  # here: TASKS may name this package before there are models

    if isinstance(event, str) and not key:
        return send_named(event, payload, by=by, database=database)
    known = Event(event) if isinstance(event, str) else event
    return known.send(*key, payload=payload, by=by, database=database)


def wait_for_bypassed(timeout: float = 10.0) -> None:
    """Block until no job that bypassed the queue runs in this process. Raises ``TimeoutError`` after ``timeout`` s."""
    from django_pgjobs.registering import local_pool  # here: TASKS may name this package before there are models

    if not local_pool.of_this_process.wait(timeout):
        raise TimeoutError(f"A job that bypassed the queue still runs after {timeout:g} s.")
