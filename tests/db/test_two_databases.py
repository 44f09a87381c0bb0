"""A job knows its database: what it registers goes there, and it is never taken for its number in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_pgjobs import Batch, Event, Flow, JobContext, job, register_many
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import EventState, Job
from django_pgjobs.queues import Queue
from django_pgjobs.registering import destination
from django_pgjobs.testing import run_jobs
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")


@job(name="two.work", max_attempts=1)
def work() -> None: ...


@job(name="two.at_home", unique="{home}:1")
def at_home(home: str) -> None: ...


@job(name="two.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext) -> None:
    context.gather([work.using(database="far").bind()])


queues: list[Queue] = []


@job(name="two.asks", max_attempts=1)
def asks(context: JobContext) -> None:
    queues.append(Queue(context))
    queues[-1].job(context.id)


@job(name="two.calls_back", max_attempts=1)
def calls_back(how: str) -> None:
    if how == "on_abandon":
        raise RuntimeError(how)


@calls_back.on_success
@calls_back.on_abandon
def told(context: JobContext, /, how: str) -> None:
    went.append((context.callback, context.database, work.register()._state.db))


goes: dict[str, Callable[[], object]] = {}
went: list[object] = []


@job(name="two.goes", max_attempts=1)
def going(context: JobContext, way: str) -> None:
    went.extend((context.database, goes[way]()))


def alias(name: str, options: str) -> Iterator[str]:
    own: Any = connection.copy(name)
    own.settings_dict["OPTIONS"] = {**own.settings_dict.get("OPTIONS", {}), "options": options}
    connections[name], connections.settings[name] = own, own.settings_dict
    yield name
    own.close()
    del connections[name], connections.settings[name]


@pytest.fixture
def far() -> Iterator[str]:
    """Another alias, where other jobs have the numbers of those in the default database."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA far")
        for table in ("job", "event", "cron_entry", "queue_state", "gate", "link"):
            cursor.execute(f"CREATE TABLE far.pgjobs_{table} (LIKE public.pgjobs_{table} INCLUDING ALL)")
    yield from alias("far", "-c search_path=far,public")
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA far CASCADE")


@pytest.fixture
def twins(far: str) -> tuple[Job, Job]:
    """Two jobs of one number: here, and in the other database."""
    here = work.register()
    there = work.using(database=far).register()
    Job.objects.filter(pk=here.pk).update(id=there.pk)
    return Job.objects.get(pk=there.pk), there


@pytest.mark.parametrize("way", ["register", "register_many", "a batch"])
def test_a_job_does_not_wait_for_the_job_of_its_number_in_another_database(twins: tuple[Job, Job], way: str) -> None:
    here, there = twins
    call = work.using(after=there).bind()
    ways: dict[str, Callable[[], Any]] = {
        "register": call.register,
        "register_many": lambda: register_many([call]),
        "a batch": lambda: Batch().add(call),
    }
    with pytest.raises(InvalidJob, match=f"after names job {there.pk} of database 'far', and this is for .*'default'"):
        ways[way]()
    assert work.using(after=here).register().state == "blocked"


@pytest.fixture
def replica() -> Iterator[str]:
    yield from alias("replica", "-c default_transaction_read_only=on")


def test_a_job_that_was_read_from_a_replica_is_the_same_job(replica: str) -> None:
    read = Job.objects.using(replica).get(pk=work.register().pk)
    assert work.using(after=[read]).register().state == "blocked"


def test_members_are_added_to_a_batch_that_was_read_from_a_replica(replica: str) -> None:
    with Batch() as batch:
        batch.add(work.bind())
    read = Job.objects.using(replica).get(pk=batch.job.pk)
    Batch.of(read).add(work.bind())
    assert batch.figures.total == 2


def test_a_gather_takes_no_call_for_another_database(far: str) -> None:
    registered = gathers.register()
    run_jobs()
    registered.refresh_from_db()
    assert "job 'two.work' has to go to database 'default', where this one is, not to 'far'" in registered.error


def test_a_job_finds_its_own_queue_in_its_own_database(far: str) -> None:
    there = asks.using(database=far, queue="mail").register()
    assert run_jobs(database=far, raise_errors=True).succeeded == [there.pk]
    assert queues == [Queue("mail", far)]


# What a job registers


class Tenants:
    """Sends each job where its key says, and asks no more than it is asked."""

    def __init__(self) -> None:
        self.hints: list[dict[str, Any]] = []

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        self.hints.append(hints)
        return str(hints["key"]).partition(":")[0] if hints.get("key") else None


def batch() -> Batch:
    with Batch() as made:
        made.add(work.bind())
    return made


WAYS: dict[str, Callable[[], Any]] = {
    "register": lambda: work.register()._state.db,
    "register_many": lambda: Job.objects.using("far").get(pk=register_many([work.bind()])[0])._state.db,
    "a batch": lambda: batch().job._state.db,
    "a queue": lambda: Queue("mail").database,
    "an event": lambda: Event("arrived").send(1) and EventState.objects.using("far").get().name and "far",
    "a pause": lambda: work.pause()._state.db,
    "a schedule": lambda: work.schedule("0 3 * * *", name="nightly").register()._state.db,
    "named": lambda: work.using(database="far").register()._state.db,
    "a flow": lambda: flow().register()._state.db,
    "a need": lambda: work.using(after=work.register()).register()._state.db,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_job_registers_goes_to_its_own_database(far: str, settings: Any, way: str) -> None:
    settings.DATABASE_ROUTERS = []
    goes[way] = WAYS[way]
    went.clear()
    going.using(database=far).register(way)
    run_jobs(database=far, raise_errors=True)
    assert went[:2] == [far, far]


@pytest.mark.parametrize("how", ["on_success", "on_abandon"])
def test_what_a_callback_registers_goes_to_the_database_of_its_job(far: str, settings: Any, how: str) -> None:
    settings.DATABASE_ROUTERS = []
    went.clear()
    calls_back.using(database=far).register(how)
    run_jobs(database=far)
    assert went == [(how, far, far)]


def test_what_the_caller_or_a_router_says_counts_in_a_job_too(far: str, settings: Any) -> None:
    goes["named"] = lambda: work.using(database="default").register()._state.db
    goes["routed"] = lambda: work.register()._state.db
    went.clear()
    settings.DATABASE_ROUTERS = ["tests.routers.EverythingOnDefault"]
    for way in ("named", "routed"):
        going.using(database=far).register(way)
    run_jobs(database=far, raise_errors=True)
    assert went == [far, "default"] * 2


def test_routers_learn_which_job_is_registered(far: str, settings: Any) -> None:
    tenants = Tenants()
    settings.DATABASE_ROUTERS = [tenants]
    stored = work.using(unique="far:7", tags=["big"], queue="mail").register()
    assert stored._state.db == far
    assert tenants.hints[0] == {"name": "two.work", "queue": "mail", "key": "far:7", "tags": ("big",)}
    goes["routed"] = lambda: work.register()._state.db
    went.clear()
    going.using(database=far).register("routed")
    run_jobs(database=far, raise_errors=True)
    assert went == [far, far]
    assert tenants.hints[-1]["instance"]._state.db == far


def test_one_call_whose_jobs_the_routers_send_to_several_databases_is_refused(far: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Tenants()]
    calls = [work.using(unique=f"{name}:1").bind() for name in ("far", "default")]
    with pytest.raises(InvalidJob, match=r"one call registers in one database, and your routers .* default,far"):
        register_many(calls)
    with pytest.raises(InvalidJob, match="default,far"):
        at_home.register_many([("far",), ("default",), ("far",)])
    assert register_many(calls[:1])
    assert (Job.objects.using(far).count(), Job.objects.using("default").count()) == (1, 0)


# Whoever consists of others


class Letters(Tenants):
    """Sends jobs of the queue *mail* and their pauses, events and schedules to *far*; to all else it is silent."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        self.hints.append(hints)
        mail = hints.get("queue") == "mail" or hints.get("event", "").startswith("mail:") or "letter" in str(hints)
        return "far" if mail else super().db_for_write(model, **hints)


class ByMember(Tenants):
    """Sends what has a key, and members by name, so that a batch and its members may disagree."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "far" if hints.get("name") == "two.work" else super().db_for_write(model, **hints)


def flow(**given: Any) -> Flow:
    made = Flow(**given)
    made.add(work.bind(), after=made.add(work.bind()))
    return made


def in_far(far: str, state: str) -> list[str]:
    return sorted(Job.objects.using(far).filter(state=state).values_list("name", flat=True))


def test_a_batch_goes_by_its_own_key_and_takes_members_and_callbacks_along(far: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Tenants()]
    with Batch(key="far:b", settled=work.bind()) as made:
        made.add(work.bind())
        made.add(work.using(unique="far:m").bind())
        assert made.add_many([work.bind(), work.bind()]) == 2
    assert made.job._state.db == far
    assert Job.objects.using("default").count() == 0
    assert in_far(far, "ready") == ["two.work"] * 4
    with pytest.raises(InvalidJob, match=r"job 'two.work': .* go to database 'far', .* routers send it to 'default'"):
        made.add(work.using(unique="default:m").bind())


def test_a_flow_goes_by_its_own_key_and_takes_its_nodes_along(far: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Tenants()]
    assert flow(key="far:f").register()._state.db == far
    assert in_far(far, "ready") == ["two.work"]
    assert Job.objects.using("default").count() == 0


@pytest.mark.parametrize("way", ["member", "members", "callback", "node"])
def test_a_member_that_routers_send_elsewhere_is_refused(far: str, settings: Any, way: str) -> None:
    settings.DATABASE_ROUTERS = [ByMember()]
    ways: dict[str, Callable[[], Any]] = {
        "member": lambda: Batch().add(work.bind()),
        "members": lambda: Batch().add_many([work.bind(), work.bind()]),
        "callback": lambda: Batch(settled=work.bind()).open(),
        "node": lambda: flow().register(),
    }
    with pytest.raises(InvalidJob, match=r"go to database 'default', .* routers send it to 'far': pass database='far'"):
        ways[way]()
    assert Job.objects.using("default").filter(name="two.work").count() == 0
    assert Job.objects.using(far).count() == 0


def test_who_names_the_database_of_a_batch_has_said_where_its_members_go(far: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ByMember()]
    with Batch(database="default") as made:
        made.add(work.bind())
    flow(database="default").register()
    Batch.of(made.job).add(work.bind())
    assert Job.objects.using("default").filter(name="two.work").count() == 4
    with pytest.raises(InvalidJob, match=r"a member of batch \d+ has to go to database 'default', .* not to far"):
        made.add(work.using(database="far").bind())


def test_routers_learn_what_events_schedules_and_pauses_are_of(far: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [letters := Letters()]
    assert Queue("mail").database == far
    assert Queue("post").database == "default"
    Event("mail").send(1)
    assert {"event": "mail:1"} in letters.hints
    assert EventState.objects.using(far).count() == 1
    assert Event("mail").withdraw(1)
    nightly = work.using(queue="mail", tags=["big"]).schedule("0 3 * * *", name="nightly").register()
    assert nightly._state.db == far
    assert {**letters.hints[-1]} | {"instance": None} == {
        "name": "two.work", "queue": "mail", "key": None, "tags": ("big",), "instance": None
    }  # fmt: skip
    work.pause()
    assert letters.hints[-1] == {"name": "two.work"}


# Where no worker looks


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    destination._judged.clear()
    yield lambda: [text for text in caplog.messages if text.startswith("job registered where workers do not look")]
    destination._judged.clear()


ASKED: list[str] = []


def asks_which() -> list[str]:
    ASKED.append("asked")
    return ["default"]


@pytest.mark.parametrize("databases", [None, ["default"], asks_which])
def test_a_router_that_sends_jobs_where_no_worker_looks_is_one_warning(
    far: str, settings: Any, warned: Callable[[], list[str]], databases: Any
) -> None:
    settings.PGJOBS = {"DATABASES": databases}
    settings.DATABASE_ROUTERS = [Tenants()]
    for _ in range(2):
        work.register()
    assert warned() == []
    for number in range(3):
        work.using(unique=f"far:{number}").register()
    register_many([work.using(unique="far:9").bind()])
    [line] = warned()
    assert "alias=far served=default" in line
    assert __file__ in line


def test_a_callable_of_the_project_is_not_called_in_the_transaction_of_a_registration(
    far: str, settings: Any, warned: Callable[[], list[str]]
) -> None:
    settings.PGJOBS = {"DATABASES": asks_which}
    ASKED.clear()
    with transaction.atomic():
        work.using(database=far).register()
    assert (ASKED, warned()) == ([], [])
    work.using(database=far).register()
    assert (len(ASKED), len(warned())) == (1, 1)


def test_whoever_names_an_alias_is_warned_only_by_the_setting(
    far: str, settings: Any, warned: Callable[[], list[str]]
) -> None:
    work.using(database=far).register()
    assert warned() == []
    destination._judged.clear()
    settings.PGJOBS = {"DATABASES": ["default", far]}
    work.using(database=far).register()
    assert warned() == []
    destination._judged.clear()
    settings.PGJOBS = {"DATABASES": ["default"]}
    work.using(database=far).register()
    assert len(warned()) == 1


def test_what_a_job_registers_in_its_own_database_is_no_warning(
    far: str, settings: Any, warned: Callable[[], list[str]]
) -> None:
    settings.DATABASE_ROUTERS = []
    going.using(database=far).register("register")
    destination._judged.clear()
    went.clear()
    goes["register"] = WAYS["register"]
    run_jobs(database=far, raise_errors=True)
    assert (went, warned()) == ([far, far], [])


def test_a_row_is_read_again_where_it_was_read(twins: tuple[Job, Job]) -> None:
    """The suite's router sends every model to the default database."""
    Job.objects.update(description="here")
    deferred = Job.objects.using("far").defer("description").get()
    assert (deferred.description, deferred._state.db) == ("", "far")
    deferred.refresh_from_db()
    assert (deferred.description, deferred._state.db) == ("", "far")


def test_what_waits_in_each_is_bound_by_itself(far: str, settings: Any) -> None:
    settings.PGJOBS = {"DATABASES": ["default", "far"]}
    work.register()
    there = work.using(database=far).register()
    Job.objects.using(far).filter(pk=there.pk).update(name="far.gone")
    status, out, _ = pgjobs("check", "--in-flight")
    lines = out.splitlines()
    assert (status, lines[0]) == (1, "default:")
    assert lines[1] == "Looked at 1 jobs, 0 schedules, 0 unread events: all fit this code."
    assert lines[2] == "far:"
    assert lines[3].startswith("unknown: far.gone: 1 would park: No job named 'far.gone'")
    assert lines[4].startswith(f"  far:{there.pk}, the oldest of ")
    assert pgjobs("check", "--in-flight", "--database", "default")[0] == 0
