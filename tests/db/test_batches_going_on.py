"""Going on with an open batch: a key names one member of it, whatever has become of that; and a member is replaced."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs import Batch, Unique, job
from django_pgjobs.exceptions import DuplicateJob
from django_pgjobs.models import Job
from django_pgjobs.registering import waiting
from django_pgjobs.store import keys
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import Background

pytestmark = pytest.mark.django_db

sent: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


@job(name="going_on.send", unique="send:{user}", max_attempts=1)
def send(user: int) -> None:
    sent.append(user)
    if user < 0:
        raise ValueError("no such user")


def mail(users: list[int], crash: bool = False, **unique: Any) -> Batch:
    given = send.using(unique=Unique(**unique)) if unique else send.using()
    with Batch("newsletter 7", key="newsletter:7") as batch:
        batch.add_many(given.bind(user) for user in users)
        if crash:
            raise KeyboardInterrupt
    return batch


@pytest.mark.parametrize("until", ["finished", "started"])
@pytest.mark.parametrize("queue", ["default", "slow"])
@pytest.mark.parametrize("on_conflict", ["existing", "replace", "postpone"])
def test_who_goes_on_with_a_batch_adds_no_member_twice(until: str, queue: str, on_conflict: str) -> None:
    """Members that have ended, failed, been cancelled, moved or not begun: all of them once."""
    options: dict[str, Any] = {"until": until, "on_conflict": on_conflict}
    with pytest.raises(KeyboardInterrupt):
        mail([1, 2, -3, 4], crash=True, **options)
    Job.objects.filter(payload__args=[4]).cancel()
    if queue != "default":
        Job.objects.filter(name="going_on.send").reschedule(queue=queue)
    run_jobs(limit=2)
    batch = mail([1, 2, -3, 4, 5], **options)
    run_jobs()
    assert sorted(sent) == [-3, 1, 2, 5]
    figures = batch.figures
    assert (figures.succeeded, figures.abandoned, figures.pending) == (3, 1, 0)
    assert not batch.is_new


def test_who_wants_to_know_of_members_that_have_the_key_is_told() -> None:
    with pytest.raises(KeyboardInterrupt):
        mail([1], crash=True)
    run_jobs()
    [first] = Job.objects.filter(name="going_on.send")
    with pytest.raises(DuplicateJob) as caught:
        mail([2, 1], on_conflict="raise")
    assert caught.value.existing_id == first.pk
    assert Job.objects.filter(name="going_on.send").count() == 1


def test_a_key_is_free_in_another_batch_and_outside() -> None:
    mail([1])
    run_jobs()
    mail([1])
    run_jobs()
    send.register(1)
    run_jobs()
    assert sent == [1, 1, 1]


@pytest.mark.django_db(transaction=True)
def test_a_member_that_another_producer_adds_and_that_ends_meanwhile_runs_once(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the insert."""
    batch = Batch("newsletter 7", key="newsletter:7").open()
    look, looked = keys.find_members, list[bool]()

    def ends_meanwhile(*given: Any) -> Any:
        found = look(*given)
        if not looked:
            looked.append(True)
            background(lambda: Batch.of(batch.job).add_many([send.bind(1)])).result()
            background(run_jobs).result()
        return found

    monkeypatch.setattr(waiting, "find_members", ends_meanwhile)
    assert batch.add_many([send.bind(1), send.bind(2)]) == 1
    batch.close()
    run_jobs()
    assert sent == [1, 2]
    assert batch.figures.total == 2


def test_a_batch_does_not_fail_for_a_member_that_is_replaced_by_its_key() -> None:
    batch = Batch("one").open()
    batch.add_many([send.bind(1), send.bind(2)])
    newer = send.using(unique=Unique(on_conflict="replace")).register(1)
    batch.add(send.using(unique=Unique(on_conflict="replace")).bind(2))
    batch.close()
    run_jobs()
    assert sorted(sent) == [1, 2]
    assert newer.parent_id is None
    assert (batch.job.outcome, batch.figures.succeeded, batch.figures.cancelled) == ("succeeded", 1, 2)
    replaced = Job.objects.filter(state="cancelled")
    assert set(replaced.values_list("cancel_reason", flat=True)) == {"replaced"}
