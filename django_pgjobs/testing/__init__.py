"""Jobs in a project's own tests: no worker process, no commit, a plain ``TestCase``.

::

    class WelcomeTest(TestCase):
        def test_a_new_user_is_welcomed(self):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/sign-up/", {"email": "anna@example.org"})
                assert_registered(send_welcome, "anna@example.org", queue="mail")
                run_jobs()
            self.assertEqual(len(mail.outbox), 1)

Jobs run in the calling thread, on its own connections, one after the other, and end by the same fenced statements
as in production; what goes wrong is logged as there. Inside a transaction each job has a savepoint: one that leaves
the transaction broken loses what it wrote (outside of a test it would keep what it wrote *before* the error), and
nothing else is lost. What a job gives to ``transaction.on_commit`` waits there, as everything does in a
``TestCase``: see ``captureOnCommitCallbacks``. In a ``TransactionTestCase`` jobs run in autocommit, as they do in a
worker. A timeout is not enforced, and ``context.cancelled`` does not change while a job runs.

Time is not stubbed: ``backdate`` moves rows into the past, since the database's clock decides.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from django_pgjobs.definition.registry import registry
from django_pgjobs.registering import local_pool, token_bucket
from django_pgjobs.testing.contexts import FakeContext, context
from django_pgjobs.testing.moving import backdate
from django_pgjobs.testing.registered import assert_not_registered, assert_registered
from django_pgjobs.testing.running import Ran, arun_jobs, run_job, run_jobs

__all__ = [
    "FakeContext",
    "Ran",
    "arun_jobs",
    "assert_not_registered",
    "assert_registered",
    "backdate",
    "context",
    "isolated_registry",
    "reset_rate_limits",
    "run_job",
    "run_jobs",
    "wait_for_bypassed",
]


def isolated_registry() -> AbstractContextManager[None]:
    """Within this block no job is known but those declared in it, functions of the test included.

    Afterwards all is as before. ``run_jobs`` runs them; a worker, another process, cannot find them.
    """
    return registry.isolated()


def reset_rate_limits() -> None:
    """Fill the token buckets of this process: see the setting ``REGISTRATION_RATE``."""
    token_bucket.of_this_process.reset()


def wait_for_bypassed(timeout: float = 10.0) -> None:
    """Block until no job that bypassed the queue runs in this process. Raises ``TimeoutError`` after ``timeout`` s."""
    if not local_pool.of_this_process.wait(timeout):
        raise TimeoutError(f"A job that bypassed the queue still runs after {timeout:g} s.")
