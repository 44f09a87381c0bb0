"""What people write who come from other job queues, or by mistake: one sentence that says what to write instead."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_pgjobs import register_many, store
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Attempt, Job
from tests import jobs
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, job, register

pytestmark = pytest.mark.usefixtures("committed")

succeeds: Any = jobs.succeeds


@pytest.mark.parametrize("given", [jobs.succeeds, (1,), None, "x"], ids=["definition", "tuple", "none", "text"])
def test_register_many_names_what_is_no_call(given: Any) -> None:
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=r"takes calls, made by a definition's bind\(…\), not "):
            register_many([jobs.succeeds.bind(), given])
        assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("delay", r"has no delay\(\): write register\(…\), or using\(delay=…\)"),
        ("enqueue", r"has no enqueue\(\): write register\(…\)"),
        ("defer", r"has no defer\(\): write register\(…\)"),
        ("apply_async", r"has no apply_async\(\): write using\(…\).register\(…\)"),
        ("nonsense", "a job definition has no 'nonsense'"),
    ],
)
def test_the_verbs_of_other_queues_name_ours(word: str, cure: str) -> None:
    with pytest.raises(AttributeError, match=cure):
        getattr(succeeds, word)
    assert not hasattr(succeeds, word)


def test_a_definition_is_still_copied_and_pickled_by_its_name() -> None:
    assert copy.deepcopy(jobs.succeeds) is copy.copy(jobs.succeeds) is jobs.succeeds
    assert pickle.loads(pickle.dumps(jobs.succeeds)) is jobs.succeeds


@pytest.mark.parametrize(
    ("option", "ours"), [("eta", "run_at"), ("countdown", "delay"), ("max_retries", "max_attempts"), ("lock", "key")]
)
def test_the_options_of_other_queues_name_ours(option: str, ours: str) -> None:
    with pytest.raises(InvalidJob, match=rf"unknown option '{option}' \(did you mean '{ours}'\?\)"):
        succeeds.using(**{option: 1})


@pytest.mark.parametrize("timeout", ["x", True, object()], ids=["text", "flag", "object"])
def test_waiting_for_no_time_at_all_is_refused(timeout: Any) -> None:
    registered = jobs.succeeds.register()
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="timeout must be seconds, a timedelta or None for no end, not "):
            registered.wait(timeout)
        assert Job.objects.count() == 1


def test_registering_in_asynchronous_code_names_the_twin() -> None:
    async def wrong() -> None:
        for ask in (jobs.succeeds.register, jobs.succeeds.using(delay=1).register, jobs.succeeds.bind().register):
            with pytest.raises(SynchronousOnlyOperation, match="await aregister"):
                ask()
        with pytest.raises(SynchronousOnlyOperation, match="await aregister_many"):
            register_many([jobs.succeeds.bind()])
        await jobs.succeeds.aregister()

    async_to_sync(wrong)()
    assert Job.objects.count() == 1


def test_a_job_is_not_deleted_whatever_its_state(raw: RawDatabase) -> None:
    """A worker may be running it: its end would be *lost*, and its key free while it works."""
    [one] = register()
    claim(raw)
    with transaction.atomic():
        with pytest.raises(TypeError, match=r"A job is not deleted.*cancel\(\) or abandon\(\).*pgjobs prune"):
            job(one).delete()
        with pytest.raises(TypeError, match="A job is not deleted"):
            Job.objects.filter(pk=one).delete()
        assert not hasattr(Job.objects, "delete")
        assert job(one).state == "running"


def test_what_points_to_a_job_goes_without_it(raw: RawDatabase) -> None:
    """Its history may be deleted, and a test's own clean-up goes below the model."""
    [one] = register()
    failed = claim(raw)
    raw_end = failed.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE)
    store.finalise_end(raw, raw_end, AUTHOR)
    assert Attempt.objects.filter(job_id=one).delete()[0] == 1
    assert Job._base_manager.filter(pk=one).delete()[0] == 1
