"""``context.each``: a job goes through rows behind a cursor on its own row, run by ``run_jobs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, transaction

from django_pgjobs import JobContext, Next, Unique, job
from django_pgjobs.exceptions import InvalidJob, JobSuspended, Release, RolledBack, WorkerStopping
from django_pgjobs.execution import walks
from django_pgjobs.models import Attempt, Job
from django_pgjobs.testing import context, run_job, run_jobs
from tests.db.each_ground import NOW, atomic, cursors, effects, groups, meet, plain, said, stop, troubles
from tests.plugins.sabotage import lines_of, sabotage

pytestmark = pytest.mark.django_db

NAMES = [f"g{number:03}" for number in range(8)]


@pytest.fixture(autouse=True)
def some_groups() -> Iterator[list[Group]]:
    said.clear()
    troubles.clear()
    yield groups(8)
    assert not troubles, "each trouble has happened"


both = pytest.mark.parametrize("kind", [plain, atomic], ids=["plain", "atomic"])


@both
def test_it_goes_through_a_queryset_in_the_order_of_its_key(kind: Any) -> None:
    registered = kind.register()
    run_jobs()
    assert said == effects() == NAMES
    assert cursors(registered) == {"each": 8}
    assert (registered.result, registered.progress) == (8, {"n": 8, "total": 8, "message": ""})


@both
@pytest.mark.parametrize("at", [0, 1, 2, 4, 7])
def test_a_job_that_is_to_stop_is_released_and_goes_on_behind_the_row(
    kind: Any, at: int, some_groups: list[Group]
) -> None:
    """Uncharged, in its old place, and with one line in its history; a batch ends early for it."""
    troubles[NAMES[at]] = "stop"
    registered = kind.register()
    before = Job.objects.get().run_at
    run_job(registered)
    assert (registered.state, registered.attempt, registered.run_at) == ("ready", 0, before)
    at_stop = {"n": at + 1, "of": 8, "by": "auth.group.id", "at": some_groups[at].pk}
    assert cursors(registered) == {"each": at_stop}
    assert effects() == NAMES[: at + 1]
    attempt = Attempt.objects.get()
    assert (attempt.cause, attempt.exception) == ("released", "")
    assert attempt.message == "The job released itself (drain)."
    run_job(registered)
    assert (registered.outcome, registered.attempt, registered.result) == ("succeeded", 1, 7 - at)
    assert said == effects() == NAMES


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("how", ["fail", "fail in the database"])
def test_a_row_that_fails_is_the_first_of_the_next_attempt(at: int, how: str) -> None:
    troubles[NAMES[at]] = how
    registered = plain.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.attempt) == ("succeeded", 2)
    assert said == effects() == [*NAMES[: at + 1], *NAMES[at:]]


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
def test_the_batch_of_a_row_that_fails_leaves_no_effect(at: int) -> None:
    """Each row has its effect once; those of the batch are done again."""
    troubles[NAMES[at]] = "fail"
    registered = atomic.register()
    run_job(registered)
    begins = at // 3 * 3
    assert effects() == NAMES[:begins]
    assert cursors(registered)["each"]["n"] == begins
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.attempt) == ("succeeded", 2)
    assert effects() == NAMES
    assert said == [*NAMES[: at + 1], *NAMES[begins:]]


def test_a_cursor_is_written_once_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as it begins, with the number of rows."""
    written: list[str] = []
    keep = walks.Walks._write_cursor

    def write(memory: walks.Walks, name: str, cursor: str, *given: Any) -> bool:
        written.append(cursor)
        return keep(memory, name, cursor, *given)

    monkeypatch.setattr(walks.Walks, "_write_cursor", write)
    plain.register()
    run_jobs()
    assert written == ['{"n": 0, "of": 8, "by": "auth.group.id"}', "8"]
    written.clear()
    monkeypatch.setattr(walks, "KEEP_SECONDS", 0.0)
    plain.register()
    run_jobs()
    assert len(written) == 10


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


@job(name="each.cancelled", takes_context=True)
def cancelled(context: JobContext, at: str) -> None:
    for group in context.each(Group.objects.all(), atomic=True):
        meet(context, group.name)
        if group.name == at:
            control: Any = context._cancellation
            control.requested, control.by = True, "anna"


def test_a_cancel_ends_the_job_behind_the_row() -> None:
    registered = cancelled.register(NAMES[2])
    run_jobs()
    assert effects() == NAMES[:3]
    assert (cursors(registered)["each"]["n"], registered.outcome) == (3, "cancelled")


@both
def test_a_claim_that_is_lost_takes_nothing_with_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence is asked in the transaction of the batch."""
    registered = kind.register()
    take = f"UPDATE pgjobs_job SET claim_id = '{uuid4()}', options = NULL WHERE id = {registered.pk}"

    def meet_and_lose(context: JobContext, name: str) -> None:
        said.append(name)
        User.objects.create(username=name, first_name=name)
        if name == NAMES[4]:
            with connection.cursor() as cursor:
                cursor.execute(take)

    monkeypatch.setattr("tests.db.each_ground.meet", meet_and_lose)
    with pytest.raises(WorkerStopping):
        run_jobs()
    registered.refresh_from_db()
    if kind is plain:  # its last write was refused; what each row has done stays
        assert (registered.options, effects()) == (None, NAMES)
    else:  # with the batch the claim came back
        assert (cursors(registered)["each"]["n"], effects()) == (3, NAMES[:3])


@pytest.mark.parametrize(("name", "line"), lines_of("j.claim_id = ", ["write_cursor"]), ids=["claim"])
def test_without_its_fence_a_lost_claim_would_commit(monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    """The sabotaged twin of the test above."""
    sabotage(monkeypatch, name, line)
    registered = atomic.register()

    def meet_and_lose(context: JobContext, name: str) -> None:
        User.objects.create(username=name, first_name=name)
        Job.objects.filter(pk=registered.pk).update(claim_id=uuid4())

    monkeypatch.setattr("tests.db.each_ground.meet", meet_and_lose)
    run_jobs()
    assert effects() == NAMES


# What is retried, registered again, and replaced


def test_a_retry_goes_on_and_a_new_job_begins_anew() -> None:
    registered = plain.using(max_attempts=1).register()
    troubles[NAMES[4]] = "fail"
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    again = registered.register_again()
    assert again.options is None
    assert registered.retry().changed == 1
    said.clear()
    run_job(registered)
    assert said == NAMES[4:]
    said.clear()
    run_job(again)
    assert said == NAMES


def test_what_has_a_cursor_is_not_replaced() -> None:
    """What it has done is done: other arguments could not continue behind it."""
    unique = plain.using(unique=Unique("all", on_conflict="replace"))
    registered = unique.register()
    troubles[NAMES[1]] = "stop"
    run_job(registered)
    with pytest.raises(Exception, match="has the key 'all'"):
        unique.register(5)


@job(name="each.steps", takes_context=True)
def steps(context: JobContext) -> Next:
    for group in context.each(Group.objects.all()):
        said.append(group.name)
    return Next(plain.bind())


def test_the_next_step_has_cursors_of_its_own() -> None:
    registered = steps.register()
    run_jobs()
    assert said == [*NAMES, *NAMES]
    assert (cursors(registered), registered.outcome) == ({"each": 8}, "succeeded")


@job(name="each.releases", takes_context=True, max_attempts=1)
def releases(context: JobContext) -> str:
    said.append("run")
    if len(said) < 3:
        raise Release
    return "done"


def test_a_job_releases_itself() -> None:
    """Uncharged, due at once, in its old place."""
    registered = releases.register()
    before = Job.objects.get().run_at
    run_job(registered)
    assert (registered.state, registered.attempt, registered.run_at) == ("ready", 0, before)
    run_jobs()
    registered.refresh_from_db()
    assert (registered.result, registered.attempt) == ("done", 1)
    assert list(Attempt.objects.values_list("cause", "exception")) == [("released", "")] * 2


# Several, and other sources


@job(name="each.two", takes_context=True)
def two(context: JobContext, names: list[str], stops: list[str]) -> None:
    for name in names:
        for group in context.each(Group.objects.all(), name=name):
            said.append(f"{name} {group.name}")
            if said[-1] in stops:
                stop(context)


def test_two_have_a_name_each_and_the_first_is_passed_once_it_is_done() -> None:
    registered = two.register(["one", "two"], ["two g003"])
    run_job(registered)
    assert cursors(registered)["one"] == 8
    run_job(registered)
    assert said == [f"{name} {each}" for name in ("one", "two") for each in NAMES]


def test_two_of_one_name_are_refused() -> None:
    registered = two.using(max_attempts=1).register(["one", "one"], [])
    run_jobs()
    registered.refresh_from_db()
    assert "each: 'one' was used before in this run of the job: give each a name=…" in registered.error


def test_more_cursors_than_a_row_has_room_for_are_refused() -> None:
    registered = two.using(max_attempts=1).register([f"number {number}" for number in range(50)], [])
    run_jobs()
    registered.refresh_from_db()
    assert "a job may have 25 cursors, and 600 bytes for them and other options" in registered.error


def test_the_number_of_short_cursors_is_limited_too() -> None:
    names = [chr(ord("a") + number) for number in range(26)]
    enough, many = two.register(names[:25], []), two.using(max_attempts=1).register(names, [])
    run_jobs()
    assert cursors(enough) == dict.fromkeys(names[:25], 8)
    assert enough.outcome == "succeeded"
    many.refresh_from_db()
    assert "each 'z': a job may have 25 cursors" in many.error


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


# Where it may not be called


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


@job(name="each.async", takes_context=True, max_attempts=2, backoff=NOW)
async def in_a_coroutine(context: JobContext, stops: str) -> int:
    done = 0
    async for group in context.aeach(Group.objects.all(), every=3):
        said.append(group.name)
        done += 1
        match troubles.pop(group.name, ""):
            case "fail":
                raise ValueError(group.name)
            case "sleep":
                await context.asleep(0.001, name=f"behind {group.pk}")
            case "sleep in a task":
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(context.asleep(60, name="x"))
        if group.name == stops:
            stop(context)
    return done


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("how", ["fail", "sleep"])
def test_a_coroutine_goes_on_with_the_row_that_failed_or_slept(at: int, how: str) -> None:
    """What was done in the last second before that is not done again."""
    troubles[NAMES[at]] = how
    registered = in_a_coroutine.register("")
    run_job(registered)
    assert cursors(registered)["each"]["n"] == at
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("succeeded", [*NAMES[: at + 1], *NAMES[at:]])


def test_a_coroutine_whose_tasks_sleep_keeps_its_cursor() -> None:
    """What leaves it is a group of suspensions."""
    troubles[NAMES[4]] = "sleep in a task"
    registered = in_a_coroutine.register("")
    run_job(registered)
    assert (registered.outcome, cursors(registered)["each"]["n"]) == (None, 4)


def test_a_coroutine_goes_through_rows() -> None:
    registered = in_a_coroutine.register(NAMES[3])
    run_job(registered)
    assert (registered.state, registered.attempt, cursors(registered)["each"]["n"]) == ("ready", 0, 4)
    run_job(registered)
    assert (registered.result, said) == (4, NAMES)


def test_a_test_goes_through_rows_without_a_job() -> None:
    running = context()
    assert plain.func(running) == 8
    assert said == NAMES
    running = context()
    troubles[NAMES[2]] = "stop"
    with pytest.raises(JobSuspended):
        atomic.func(running)
