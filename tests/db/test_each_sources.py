"""What ``context.each`` goes through, by which key, and what may have changed when it continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User

from django_pgjobs import JobContext, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Attempt, Job
from django_pgjobs.testing import context, run_job, run_jobs
from tests.db.each_ground import NAMES, cursors, said, some_groups, stop

__all__ = ["some_groups"]

pytestmark = pytest.mark.django_db


# What it goes through


Rows = Callable[[], Any]

sources: dict[str, Rows] = {}


@job(name="each.of", takes_context=True, max_attempts=1)
def of(context: JobContext, source: str, stops_behind: int = 0, key: str = "pk") -> None:
    for number, row in enumerate(context.each(sources[source](), key=key, every=2), 1):
        said.append(row)
        if number == stops_behind and not Attempt.objects.exists():
            stop(context)


@pytest.mark.parametrize(
    ("rows", "key", "expected"),
    [
        (lambda: Group.objects.order_by("-name").values_list("name", flat=True), "name", NAMES),
        (lambda: Group.objects.order_by("name").reverse().values_list("name", flat=True), "name", NAMES),
        (
            lambda: Group.objects.values("name", "permissions"),
            "name",
            [{"name": n, "permissions": None} for n in NAMES],
        ),
        (lambda: ["b", "a", "c"], "pk", ["b", "a", "c"]),
        (lambda: range(100, 105), "pk", [100, 101, 102, 103, 104]),
        (lambda: (f"x{number}" for number in range(5)), "pk", [f"x{number}" for number in range(5)]),
        (lambda: [("a", 1), ("a", 2)], "pk", [("a", 1), ("a", 2)]),
        (lambda: [uuid4()][:0], "pk", []),
    ],
    ids=["values_list", "reversed", "values", "list", "range", "generator", "tuples", "empty"],
)
def test_it_goes_through(rows: Rows, key: str, expected: list[object]) -> None:
    """A queryset of values too, whatever its order, and any iterable."""
    sources["it"] = rows
    registered = of.register("it", 1, key)
    for _ in range(2 if expected else 1):
        run_job(registered)
    assert (registered.outcome, registered.error, said) == ("succeeded", "", expected)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda: {1, 2}, "a set has no order"),
        (lambda: "abc", "each takes a queryset or an iterable of keys, not str"),
        (lambda: 5, "each takes a queryset or an iterable of keys, not int"),
        (lambda: [object()], "each 'each': key cannot be stored: it is of type object"),
        (lambda: ["x" * 300], "each 'each': The key takes 302 bytes"),
        (lambda: Group.objects.all()[:5], "a queryset that is sliced"),
        (lambda: Group.objects.all().union(Group.objects.all()), "a queryset that is sliced"),
        (lambda: User.objects.distinct("email"), "a queryset that is sliced"),
        (lambda: Group.objects.values("permissions"), "values() has to hold the key 'id'"),
        (lambda: Group.objects.values_list("name", flat=True), "values() has to hold the key 'id'"),
        (lambda: Group.objects.values_list("pk", "name"), "values() has to hold the key 'id'"),
    ],
)
def test_it_does_not_go_through(rows: Rows, words: str) -> None:
    sources["it"] = rows
    registered = of.register("it")
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("abandoned", [])
    assert words in registered.error


def test_rows_that_come_twice_are_refused() -> None:
    """A batch could end between the two."""
    user = User.objects.create(username="u")
    Group.objects.get(name=NAMES[0]).user_set.add(user, User.objects.create(username="v"))
    sources["it"] = lambda: Group.objects.filter(user__is_active=True)
    registered = of.register("it")
    run_jobs()
    registered.refresh_from_db()
    assert "returns rows of auth.group.id more than once: add distinct()" in registered.error


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nothing", "each: key: Group has no field named 'nothing'"),
        ("permissions", "key must name a unique field without NULL of auth.Group, not 'permissions'"),
    ],
)
def test_a_key_that_names_no_place_is_refused(key: str, words: str) -> None:
    sources["it"] = Group.objects.all
    registered = of.register("it", 0, key)
    run_jobs()
    registered.refresh_from_db()
    assert words in registered.error


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"every": 0}, "every must be a whole number from 1 to 10000, not 0"),
        ({"every": True}, "every must be a whole number from 1 to 10000, not True"),
        ({"every": 10_001}, "every must be a whole number"),
        ({"total": -1}, "total must be a whole number, or None to count the rows, not -1"),
        ({"name": ""}, "name must be a printable text"),
    ],
)
def test_options_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        context().each([1], **given)


# What has changed before it continues


def stopped_behind(count: int, rows: Rows, key: str = "pk") -> Job:
    sources["it"] = rows
    registered = of.register("it", count, key)
    run_job(registered)
    assert cursors(registered)["each"]["n"] == count
    said.clear()
    return registered


def test_rows_that_are_gone_or_new_do_not_matter(some_groups: list[Group]) -> None:
    """Those behind the cursor are met, also new ones; those in front of it are not."""
    registered = stopped_behind(3, lambda: Group.objects.all())
    Group.objects.filter(pk__in=[some_groups[2].pk, some_groups[4].pk]).delete()
    Group.objects.create(pk=some_groups[0].pk - 1, name="in front")
    Group.objects.create(name="behind")
    run_job(registered)
    assert [group.name for group in said] == [*NAMES[3:4], *NAMES[5:], "behind"]
    assert registered.progress == {"n": 8, "total": 8, "message": ""}


def test_a_filter_that_has_changed_is_that_of_the_rest() -> None:
    registered = stopped_behind(3, lambda: Group.objects.all())
    sources["it"] = lambda: Group.objects.exclude(name=NAMES[5])
    run_job(registered)
    assert [group.name for group in said] == [*NAMES[3:5], *NAMES[6:]]


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (lambda: Group.objects.all(), lambda: User.objects.all(), "and now goes by auth.user.id"),
        (lambda: Group.objects.all(), lambda: range(9), "before, and now goes through an iterable"),
        (lambda: range(9), lambda: Group.objects.all(), "went through an iterable before"),
        (lambda: range(9), lambda: range(1, 9), "item 3 of the iterable was 2 when the job stopped"),
        (lambda: range(9), lambda: range(2), "and is missing now"),
    ],
    ids=["model", "queryset", "iterable", "items", "fewer"],
)  # fmt: skip
def test_another_source_is_refused(before: Rows, now: Rows, words: str) -> None:
    registered = stopped_behind(3, before)
    sources["it"] = now
    run_job(registered)
    assert words in registered.error
    assert "To start from the beginning, give this each another name, or register the job again." in registered.error
    assert said == []
    assert cursors(registered)["each"]["n"] == 3


def test_a_key_of_another_type_is_refused() -> None:
    registered = stopped_behind(3, lambda: Group.objects.all())
    Job.objects.filter(pk=registered.pk).update(
        options={"each": {"each": {"n": 3, "of": 8, "by": "auth.group.id", "at": "seven"}}}
    )
    run_job(registered)
    assert "its cursor, 'seven', is no value of auth.group.id any more" in registered.error
