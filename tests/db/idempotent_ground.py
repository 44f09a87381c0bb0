"""Jobs of a shop made of Django's own tables, with a hole each, or right: what ``assert_idempotent`` says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import Group, User
from django.core.mail import send_mail
from django.db import connection, connections, transaction
from django.db.models import F

from django_pgjobs import JobContext, Next, job

BESIDE = "beside"

calls: list[str] = []
"""The HTTP requests of this process."""


@contextmanager
def database_beside() -> Iterator[None]:
    """Another connection to the test's database, as if that were another one."""
    own = connection.copy(BESIDE)
    own.connect()
    connections[BESIDE], connections.settings[BESIDE] = own, own.settings_dict
    try:
        yield
    finally:
        own.close()
        del connections[BESIDE], connections.settings[BESIDE]


def ann() -> User:
    return User.objects.get(username="ann")


def note(text: str, using: str | None = None) -> None:
    """An order line, a parcel, a booking: a row that nothing keeps from being there twice."""
    LogEntry.objects.using(using or "default").create(
        user_id=ann().pk, object_repr=text, action_flag=ADDITION, change_message=""
    )


def write_mail(subject: str = "Shipped") -> None:
    send_mail(subject, "…", "shop@example.org", ["ann@example.org"])


@dataclass(frozen=True)
class Case:
    """``declare`` makes the job; a message has all of ``says``; ``options`` are those of ``assert_idempotent``."""

    declare: Callable[[], Any]
    says: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


holes: dict[str, Case] = {}
right: dict[str, Case] = {}


def hole(*says: str, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(declare: Callable[[], Any]) -> Callable[[], Any]:
        holes[declare.__name__] = Case(declare, says, options)
        return declare

    return keep


def whole(**options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(declare: Callable[[], Any]) -> Callable[[], Any]:
        right[declare.__name__] = Case(declare, (), options)
        return declare

    return keep


# Holes


@hole("2 of 3 kills break it", "Killed after query 2 of 2: INSERT INTO", "django_admin_log: 1 row doubled", "parcel")
def a_row_is_made_twice() -> Any:
    @job
    def ships() -> None:
        note("parcel")

    return ships


@hole("Killed after query 1 of 1: UPDATE", "first_name is 'xx' instead of 'x'")
def a_counter_counts_twice() -> Any:
    from django.db.models import Value
    from django.db.models.functions import Concat

    @job
    def counts() -> None:
        User.objects.update(first_name=Concat(F("first_name"), Value("x")))

    return counts


@hole("Killed after query 2 of 2: UPDATE", "mail: 'Shipped' to ann@example.org not sent", "send first")
def a_flag_comes_before_the_mail() -> Any:
    @job
    def ships() -> None:
        user = ann()
        if not user.is_staff:
            user.is_staff = True
            user.save(update_fields=["is_staff"])
            write_mail()

    return ships


@hole("Killed before query 2 of 2: UPDATE", "mail: 'Shipped' to ann@example.org sent twice", "may_resend=True")
def a_mail_comes_before_the_flag() -> Any:
    @job
    def ships() -> None:
        user = ann()
        if not user.is_staff:
            write_mail()
            User.objects.filter(pk=user.pk).update(is_staff=True)

    return ships


@hole("1 of 4 kills break it", "Killed after query 2 of 3: UPDATE", "auth_group: 1 row missing", "shipped")
def a_flag_comes_before_the_row() -> Any:
    @job
    def ships() -> None:
        user = ann()
        if not user.is_staff:
            User.objects.filter(pk=user.pk).update(is_staff=True)
            Group.objects.create(name="shipped")

    return ships


@hole("Killed after query 1 of 1: INSERT", "fails when it runs again: django.db.utils.IntegrityError", "get_or_create")
def a_unique_row_is_in_its_own_way() -> Any:
    @job
    def opens() -> None:
        Group.objects.create(name="shipped")

    return opens


@hole("5 of 5 kills", "Killed before query 1 of 2", "effects: 'charge 7' sent twice", effects=lambda: calls)
def a_request_is_sent_twice() -> Any:
    @job
    def charges() -> None:
        calls.append("charge 7")
        Group.objects.get_or_create(name="charged")

    return charges


@hole("pgjobs_job: 1 row doubled", "unique=", "Killed after query 1 of 2", "sends")
def a_job_is_registered_twice() -> Any:
    @job
    def sends(number: int) -> None: ...

    @job
    def plans() -> None:
        sends.register(7)
        User.objects.update(is_staff=True)

    return plans


@hole("Killed after query 2 of 3: DELETE", "auth_group: 1 row missing")
def what_it_reads_is_gone() -> Any:
    @job
    def renames() -> None:
        names = list(Group.objects.filter(name__startswith="old").values_list("name", flat=True))
        Group.objects.filter(name__in=names)._raw_delete("default")
        for name in names:
            Group.objects.create(name=name.replace("old", "new"))

    return renames


@hole("Killed after the COMMIT behind query 2 of 2", "django_admin_log: 3 rows doubled")
def many_rows_are_made_twice() -> Any:
    @job
    def imports() -> None:
        user = ann()
        with transaction.atomic():  # which Django 6.1 opens no more
            LogEntry.objects.bulk_create(
                LogEntry(user=user, object_repr=str(n), action_flag=ADDITION, change_message="") for n in range(3)
            )

    return imports


@hole("django_admin_log: 1 row doubled", 'Killed after query 3 of 4: INSERT INTO "django_admin_log"')
def a_step_is_not_atomic() -> Any:
    @job
    def ships(context: JobContext) -> None:
        context.step(note, "parcel")

    return ships


@hole("django_admin_log: 1 row doubled", 'INSERT INTO "django_admin_log"', "parcel for")
def a_walk_is_not_atomic() -> Any:
    @job
    def ships(context: JobContext) -> None:
        for user in context.each(User.objects.all()):
            note(f"parcel for {user.username}")

    return ships


@hole("Killed after the COMMIT behind query 2 of 2", "mail: 'Shipped' to ann@example.org not sent", "by construction")
def a_hook_is_lost() -> Any:
    @job(atomic=True)
    def ships() -> None:
        Group.objects.create(name="shipped")
        transaction.on_commit(write_mail)

    return ships


@hole("Killed after the COMMIT behind query 2 of 2", "mail: 'Shipped' to ann@example.org not sent")
def a_hook_of_a_flag_is_lost() -> Any:
    @job
    def ships() -> None:
        with transaction.atomic():
            user = User.objects.select_for_update().get(username="ann")
            if not user.is_staff:
                User.objects.filter(pk=user.pk).update(is_staff=True)
                transaction.on_commit(write_mail)

    return ships


@hole("mail: 'Balance' to ann@example.org sent with another text", may_resend=True)
def a_mail_says_something_else() -> Any:
    @job
    def tells() -> None:
        user = ann()
        send_mail("Balance", user.last_name, "shop@example.org", ["ann@example.org"])
        User.objects.filter(pk=user.pk).update(last_name="told")

    return tells


@hole("Killed after query 1 of 2: UPDATE auth_user SET", "last_name is 'zz' instead of 'z'")
def raw_sql_counts_twice() -> Any:
    @job
    def counts() -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE auth_user SET last_name = last_name || 'z'")
        Group.objects.count()

    return counts


@hole("Killed after query 2 of 3: INSERT", "django_admin_log: 1 row doubled")
def a_coroutine_makes_a_row_twice() -> Any:
    @job
    async def ships() -> None:
        user = await User.objects.aget(username="ann")
        await LogEntry.objects.acreate(user=user, object_repr="parcel", action_flag=ADDITION, change_message="")
        await Group.objects.acount()

    return ships


@hole("Killed after the COMMIT behind query 3 of 7", "django_admin_log: 1 row doubled")
def two_transactions_are_not_one() -> Any:
    @job
    def ships() -> None:
        for name in ("parcel", "bill"):
            with transaction.atomic():
                user = User.objects.select_for_update().get(username="ann")
                if not user.is_staff:
                    note(name)
        User.objects.update(is_staff=True)

    return ships


@hole("on_success", "django_admin_log: 1 row doubled")
def a_callback_makes_a_row_twice() -> Any:
    @job
    def ships() -> None: ...

    @ships.on_success
    def on_success(context: JobContext) -> None:
        note("on_success")

    return ships


@hole(f"on '{BESIDE}'", "auth_group: 1 row too many", "Killed after query 2 of 3")
def another_database_is_no_part_of_it() -> Any:
    @job(atomic=True)
    def ships() -> None:
        groups = Group.objects.using(BESIDE)
        groups.create(name=f"parcel {groups.count()}")

    return ships


# Right


@whole()
def all_is_one_transaction() -> Any:
    @job(atomic=True)
    def ships() -> None:
        note("parcel")
        User.objects.update(is_staff=True)

    return ships


@whole()
def it_gets_or_creates() -> Any:
    @job
    def ships() -> None:
        group, _ = Group.objects.get_or_create(name="shipped")
        ann().groups.add(group)

    return ships


@whole()
def a_flag_is_locked_and_set_with_the_row() -> Any:
    @job
    def ships() -> None:
        with transaction.atomic():
            user = User.objects.select_for_update().get(username="ann")
            if not user.is_staff:
                note("parcel")
                user.is_staff = True
                user.save()

    return ships


@whole()
def steps_are_atomic() -> Any:
    @job
    def ships(context: JobContext) -> None:
        context.step.using(atomic=True)(note, "parcel")
        context.step.using(atomic=True, name="bill")(note, "bill")

    return ships


@whole()
def it_sleeps_between_steps() -> Any:
    @job
    def ships(context: JobContext) -> None:
        context.step.using(atomic=True)(note, "parcel")
        context.sleep(86400)
        context.step.using(atomic=True, name="bill")(note, "bill")

    return ships


@whole()
def a_walk_is_atomic() -> Any:
    @job
    def ships(context: JobContext) -> None:
        for user in context.each(User.objects.all(), every=1, atomic=True):
            note(f"parcel for {user.username}")

    return ships


@whole()
def a_job_is_registered_with_a_key() -> Any:
    @job(unique="send:{number}")
    def sends(number: int) -> None: ...

    @job
    def plans() -> None:
        sends.register(7)
        Group.objects.count()

    return plans


@whole()
def a_job_is_registered_with_the_row_it_is_about() -> Any:
    @job
    def sends(group: int) -> None: ...

    @job
    def plans() -> None:
        with transaction.atomic():
            group, made = Group.objects.get_or_create(name="shipped")
            if made:
                sends.register(group.pk)

    return plans


@whole(may_resend=True, effects=lambda: calls)
def what_is_sent_has_a_key() -> Any:
    @job
    def charges() -> None:
        calls.append("charge 7, key 7")
        write_mail()
        User.objects.update(is_staff=True)

    return charges


@whole()
def members_are_gathered_once() -> Any:
    @job
    def packs(number: int) -> int:
        return number

    @job
    def ships(context: JobContext) -> None:
        packed = context.gather([packs.bind(1), packs.bind(2)])
        context.step.using(atomic=True)(note, f"parcel of {packed}")

    return ships


@whole()
def members_may_sleep() -> Any:
    @job
    def packs(context: JobContext, number: int) -> int:
        context.sleep(60)
        return number

    @job
    def ships(context: JobContext) -> None:
        packed = context.gather([packs.bind(1), packs.bind(2)])
        context.step.using(atomic=True)(note, f"parcel of {packed}")

    return ships


@whole()
def it_goes_through_a_cursor_in_a_transaction() -> Any:
    @job
    def renames() -> None:
        with transaction.atomic():
            for user in User.objects.iterator():
                User.objects.filter(pk=user.pk).update(last_name="z")

    return renames


@whole()
def steps_of_a_machine_are_atomic() -> Any:
    @job(atomic=True)
    def bills() -> None:
        note("bill")

    @job(atomic=True)
    def ships() -> Any:
        note("parcel")
        return Next(bills.bind())

    return ships


@whole()
def an_error_is_caught_in_autocommit() -> Any:
    from django.db import IntegrityError

    @job
    def opens() -> None:
        try:
            Group.objects.create(name="shipped")
        except IntegrityError:
            Group.objects.get(name="shipped")

    return opens
