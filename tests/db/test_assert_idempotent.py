"""``assert_idempotent``: planted holes, each named with its query, jobs that are right, and how a test finds itself."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.core import mail
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Job
from django_pgjobs.testing import assert_idempotent, isolated_registry, run_jobs, send_event
from tests.db import idempotent_ground as ground
from tests.plugins.mailing import LOCMEM, use_mailer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quiet")]


@pytest.fixture(autouse=True)
def _apart(settings: Any) -> Iterator[None]:
    ground.calls.clear()
    use_mailer(settings, LOCMEM)
    with isolated_registry():
        yield


def shop() -> None:
    User.objects.create(username="ann", email="ann@example.org")
    Group.objects.create(name="old customers")


def found() -> tuple[Any, ...]:
    """What a test has to find as it was."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sequencename, last_value FROM pg_sequences ORDER BY 1")
        sequences = cursor.fetchall()
    rows = [list(model.objects.order_by("pk").values()) for model in (User, Group, Job)]
    state = {name: value for name, value in vars(connection).items() if name not in ("queries_log", "savepoint_state")}
    return type(connection), rows, sequences, [m.subject for m in mail.outbox], repr(sorted(state.items()))


def complaint(call: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_idempotent(call, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ground.holes)
def test_a_hole_is_named_with_the_query_behind_which_it_opens(name: str) -> None:
    case = ground.holes[name]
    shop()
    if ground.BESIDE in " ".join(case.says):
        with ground.database_beside():
            said = complaint(case.declare(), **case.options)
    else:
        said = complaint(case.declare(), **case.options)
    assert [each for each in case.says if each not in said] == [], said


@pytest.mark.parametrize("name", ground.right)
def test_a_job_that_is_right_passes(name: str) -> None:
    shop()
    before = found()
    said = assert_idempotent(ground.right[name].declare(), **ground.right[name].options)
    assert "survives" in said
    assert " 0 kills" not in said
    assert found() == before


class _Either:
    def setUp(self) -> None:
        shop()
        self.before = found()

    def tearDown(self) -> None:
        assert found() == self.before

    def test_a_job_that_is_right_passes(self) -> None:
        assert_idempotent(ground.a_flag_is_locked_and_set_with_the_row())

    def test_a_hole_is_named(self) -> None:
        assert "COMMIT behind query 3 of 7" in complaint(ground.two_transactions_are_not_one())

    def test_a_hook_runs_after_its_commit(self) -> None:
        assert "'Shipped' to ann@example.org not sent" in complaint(ground.a_hook_is_lost())


class InATestCase(_Either, TestCase):
    pass


class InATransactionTestCase(_Either, TransactionTestCase):
    pass


def test_after_the_kill_nothing_of_the_process_lives_on() -> None:
    """What ``finally`` writes and sends, and a body that swallows the kill, is not what a dead process does."""

    @job
    def clings() -> None:
        try:
            with transaction.atomic():
                Group.objects.get_or_create(name="a")
                try:
                    User.objects.get_or_create(username="a")
                except BaseException:
                    ground.write_mail("never")
                Group.objects.get_or_create(name="b")
        finally:
            Group.objects.filter(name="c").delete()
            ground.write_mail("in the end")

    said = assert_idempotent(clings, may_resend=True)
    assert "survives" in said
    assert mail.outbox == []


def test_an_end_that_was_not_recorded_is_one_of_the_kills() -> None:
    @job
    def sends() -> None:
        ground.calls.append("charge")

    said = complaint(sends, effects=lambda: len(ground.calls))
    assert "1 of 1 kills break it" in said
    assert "Killed after its function returned, before that was recorded" in said
    assert "effects: a call sent twice" in said


def test_the_second_run_is_the_second_attempt() -> None:
    attempts = []

    @job
    def asks(context: JobContext) -> None:
        attempts.append(context.attempt)
        Group.objects.count()

    assert_idempotent(asks)
    assert attempts == [1, 1, 1, 2, 1, 2]


def test_a_job_that_nothing_runs_again_is_told() -> None:
    @job(on_crash="abandon")
    def once() -> None:
        Group.objects.create(name="a")
        Group.objects.create(name="b")

    said = complaint(once)
    assert "nothing runs it again: it is abandoned" in said
    assert "auth_group: 1 row missing" in said


def test_kills_are_capped_and_the_message_says_so() -> None:
    @job
    def looks() -> None:
        for _ in range(20):
            Group.objects.count()

    said = assert_idempotent(looks, limit=5)
    assert "survives 5 kills" in said
    assert "5 of 21 kills were tried, evenly spread: limit=5" in said


def test_a_number_of_queries_that_varies_is_told() -> None:
    runs = []

    @job
    def looks() -> None:
        runs.append(1)
        for _ in range(4 if len(runs) == 2 else 1):
            Group.objects.count()

    assert "Its queries vary from run to run; 3 kills came too late" in assert_idempotent(looks)


def test_a_query_is_named_where_the_first_run_has_filled_a_cache() -> None:
    shop()
    ContentType.objects.clear_cache()

    @job
    def ships() -> None:
        ContentType.objects.get_for_model(User)
        ground.note("parcel")

    assert 'Killed after query 2 of 2: INSERT INTO "django_admin_log"' in complaint(ships)


def test_what_a_test_has_made_with_a_key_of_its_own_is_not_in_the_way() -> None:
    Group.objects.create(pk=1_000_000, name="mine")

    @job
    def sorts() -> None:
        for name in ("a", "b", "c"):
            Group.objects.get_or_create(name=name)

    assert "survives 10 kills" in assert_idempotent(sorts)


def test_numbers_of_a_sequence_are_not_given_twice() -> None:
    """As in a database: only what an undisturbed run needs is wound back, and only between trials."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE bill_no")
        cursor.execute("CREATE UNIQUE INDEX ON auth_group (name)")

    @job
    def bills() -> None:
        for user in ("a", "b"):
            if not User.objects.filter(username=user).exists():
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("INSERT INTO auth_group (name) SELECT nextval('bill_no')::text")
                    User.objects.create(username=user)

    assert "is not idempotent" not in assert_idempotent(bills, ignore=["auth_group.name"])


def test_constraints_that_do_not_wait_for_a_commit_do_not_wait() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE auth_group DROP CONSTRAINT auth_group_name_key")
        cursor.execute("ALTER TABLE auth_group ADD CONSTRAINT one_name UNIQUE (name) DEFERRABLE INITIALLY IMMEDIATE")
    shop()

    @job
    def looks_before_it_leaps() -> None:
        with transaction.atomic():
            try:
                with transaction.atomic():
                    Group.objects.create(name="old customers")
            except IntegrityError:
                User.objects.update(is_staff=True)

    assert "survives" in assert_idempotent(looks_before_it_leaps)


def test_effects_may_be_asked_of_the_database() -> None:
    shop()

    @job
    def ships() -> None:
        ground.note("parcel")

    assert "effects: a call sent twice" in complaint(ships, effects=LogEntry.objects.count)


def test_locks_of_a_session_are_refused() -> None:
    @job
    def locks() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(4711)")

    assert "would outlive the test: use pg_advisory_xact_lock()" in complaint(locks)


def test_a_job_has_to_succeed_undisturbed() -> None:
    @job
    def fails() -> None:
        Group.objects.get(name="nobody")

    said = complaint(fails)
    assert "must succeed undisturbed, but fails: django.contrib.auth.models.Group.DoesNotExist" in said


def test_a_value_that_chance_makes_is_named_and_can_be_ignored() -> None:
    shop()

    @job
    def signs() -> None:
        User.objects.filter(username="ann").update(password=secrets.token_hex(8))

    assert "ignore=('auth_user.password',)" in complaint(signs)
    assert "survives" in assert_idempotent(signs, ignore=["password"])


def test_what_is_ignored_is_still_there_or_not() -> None:
    @job
    def flags() -> None:
        User.objects.get_or_create(username="bob", defaults={"last_login": None})
        if not Group.objects.filter(name="seen").exists():
            Group.objects.create(name="seen")
            User.objects.filter(username="bob").update(last_login="2026-01-01T00:00Z")

    said = complaint(flags, ignore=["last_login"])
    assert "auth_user: 1 row changed: last_login is None instead of '…'" in said


def test_options_that_cannot_be() -> None:
    @job
    def works() -> None: ...

    with pytest.raises(ValueError, match=r"ignore: no table has a column 'pasword'.*password"):
        assert_idempotent(works, ignore=["pasword"])
    with pytest.raises(ValueError, match="limit"):
        assert_idempotent(works, limit=0)


def test_an_event_has_to_be_sent_before() -> None:
    shop()
    paid: Event[int] = Event("idempotent.paid")

    @job
    def ships(context: JobContext) -> None:
        context.wait_for(paid, 7, timeout=60)
        context.step.using(atomic=True)(ground.note, "parcel")

    assert "waits for the event 'idempotent.paid:7': send it before" in complaint(ships)
    send_event(paid, 7, payload=1)
    assert "survives" in assert_idempotent(ships)


def test_what_is_in_no_database_can_be_put_back() -> None:
    seen: set[str] = set()

    @job
    def remembers() -> None:
        if "a" not in seen:
            seen.add("a")
            Group.objects.get_or_create(name="a")

    assert "Two undisturbed runs" in complaint(remembers)
    assert "auth_group: 1 row missing" in complaint(remembers, reset=seen.clear)


def elsewhere() -> None:
    Group.objects.count()
    connection.close()


def test_what_cannot_be_played_is_refused() -> None:
    @job
    def commits() -> None:
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")

    @job
    def threads() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert "'COMMIT' cannot be played in a test" in complaint(commits)
    assert "in another thread" in complaint(threads)


def test_a_constraint_is_checked_at_its_commit() -> None:
    shop()

    @job
    def links() -> None:
        with transaction.atomic():
            User.groups.through.objects.create(user_id=ground.ann().pk, group_id=-1)

    assert "must succeed undisturbed, but fails: django.db.utils.IntegrityError" in complaint(links)


def test_a_registered_job_stays_unrun() -> None:
    @job
    def other() -> None:
        raise AssertionError

    @job(unique="one")
    def first() -> None:
        other.using(unique="other").register()

    assert_idempotent(first)
    assert run_jobs().ran == []


async def _coroutine() -> None:
    await sync_to_async(Group.objects.get_or_create)(name="a")


def test_a_coroutine_that_is_right() -> None:
    assert "survives" in assert_idempotent(job(_coroutine))
