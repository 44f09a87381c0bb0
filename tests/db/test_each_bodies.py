"""The body of ``context.each``: how it may be left, and what it may call."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_pgjobs import JobContext, job
from django_pgjobs.exceptions import RolledBack
from django_pgjobs.testing import run_jobs
from tests.db.each_ground import NAMES, effects, meet, said, some_groups, troubles

__all__ = ["some_groups"]

pytestmark = pytest.mark.django_db


# How a body may be left


@job(name="each.leaves", takes_context=True, max_attempts=1)
def leaves(context: JobContext, how: str, atomic: bool) -> str:
    walk = context.each(Group.objects.all(), every=3, atomic=atomic)
    if how == "holds":
        meet(context, next(walk).name)
        return how
    try:
        for group in walk if how == "named" else context.each(Group.objects.all(), every=3, atomic=atomic, name="b"):
            meet(context, group.name)
            if group.name == NAMES[4]:
                if how == "return":
                    return how
                if how == "raise":
                    raise LookupError(how)
                break
    except LookupError:
        pass
    return how


@pytest.mark.parametrize("how", ["break", "return", "raise", "named", "holds"])
def test_a_batch_that_is_not_brought_to_its_end_fails_the_job(how: str) -> None:
    """Its effects are rolled back, so the job must not succeed without them."""
    registered = leaves.register(how, atomic=True)
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "RolledBack: The job has left context.each(…, atomic=True)" in registered.error
    assert effects() == ([] if how == "holds" else NAMES[:3])


@pytest.mark.parametrize("how", ["break", "return", "raise", "named", "holds"])
def test_what_is_not_atomic_may_be_left(how: str) -> None:
    registered = leaves.register(how, atomic=False)
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", how)
    assert effects() == NAMES[: 1 if how == "holds" else 5]


@job(name="each.swallows", takes_context=True, max_attempts=1)
def swallows(context: JobContext) -> str:
    try:
        for group in context.each(Group.objects.all()):
            meet(context, group.name)
    except BaseException:
        said.append("swallowed")
    return "all done"


def test_a_job_that_keeps_its_stop_to_itself_has_not_succeeded() -> None:
    troubles[NAMES[2]] = "stop"
    registered = swallows.register()
    run_jobs()
    registered.refresh_from_db()
    assert said[-1] == "swallowed"
    assert (registered.outcome, "SuspensionSwallowed" in registered.error) == ("abandoned", True)


@job(name="each.breaks_at_commit", takes_context=True, max_attempts=1)
def breaks_at_commit(context: JobContext) -> str:
    try:
        for group in context.each(Group.objects.all(), every=3, atomic=True):
            meet(context, group.name)
            if group.name == NAMES[5]:
                transaction.set_rollback(True)
    except RolledBack:
        said.append("caught")
    return "done"


def test_a_batch_that_could_not_be_committed_fails_the_job_even_if_it_catches_that() -> None:
    registered = breaks_at_commit.register()
    run_jobs()
    registered.refresh_from_db()
    assert said[-1] == "caught"
    assert "The job has left context.each(…, atomic=True)" in registered.error
    assert effects() == NAMES[:3]


# Where it may not be called, and what a body may call


@job(name="each.misplaced", takes_context=True, max_attempts=1)
def misplaced(context: JobContext, where: str) -> None:
    match where:
        case "atomic":
            with transaction.atomic():
                list(context.each([1]))
        case "step":
            context.step(goes_through, context)
        case "unkeyed":
            for _ in context.each([1]):
                context.step(effects)
        case "sleep":
            for _ in context.each([1]):
                context.sleep(1)
        case "gather":
            for _ in context.each([1, 2]):
                context.gather([], name="all")


def goes_through(context: JobContext) -> None:
    list(context.each([1]))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("atomic", "context.each() inside atomic()"),
        ("step", "context.each() inside step"),
        ("unkeyed", "step 'effects' inside context.each()"),
        ("sleep", "sleep inside context.each()"),
        ("gather", "gather inside context.each()"),
    ],
)
def test_where_it_is_refused(where: str, words: str) -> None:
    registered = misplaced.register(where)
    run_jobs()
    registered.refresh_from_db()
    assert words in registered.error


@job(name="each.keyed", takes_context=True)
def keyed(context: JobContext) -> None:
    for group in context.each(Group.objects.all()):
        context.step.using(key=group.pk)(said.append, group.name)
        context.sleep(0 if group.name != NAMES[3] else 60, name=f"pause {group.pk}")
    context.step(said.append, "behind")


def test_steps_and_pauses_are_told_apart_by_the_row() -> None:
    registered = keyed.register()
    for _ in range(20):
        run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("succeeded", [*NAMES, "behind"])
