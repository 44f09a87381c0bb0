"""How a task becomes a job definition, is found by its path, and what crosses between the fronts. Paper §3."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_pgjobs import Backoff
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.tasks import enqueue_many, job_of, result_of
from django_pgjobs.tasks.definitions import TaskDefinition, define, resolver
from django_pgjobs.tasks.families import InvalidTask, TaskResultDoesNotExist
from django_pgjobs.tasks.settings import options_of
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import BACKEND, TASKS, cast

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("our_tasks")]

PATH = "tests.db.tasks_cast."


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """No definition or cron entry of these tests outlives them."""
    with registry.isolated():
        yield


# Names


def test_a_definition_is_made_of_what_the_module_has(our_tasks: None) -> None:
    """§3.1, O10: a second task of the same path, around another function or through another alias, changes nothing."""

    def wrapped(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("no worker finds this one")

    wrapped.__module__, wrapped.__qualname__ = cast.noop.func.__module__, "noop"
    second = type(cast.noop)(func=wrapped, priority=7)
    result = second.enqueue(1)
    assert job_of(second) is job_of(cast.noop)
    assert (job_of(second).priority, result.task.priority) == (0, 7)
    assert len(run_jobs().succeeded) == 1


def test_a_name_that_nobody_imported_is_found_by_its_path() -> None:
    """§3.1, O1: and kept; ``find`` never imports."""
    assert registry.find(f"{PATH}noop") is None
    found = registry.resolve(f"{PATH}noop")
    assert isinstance(found, TaskDefinition)
    assert (found._front, found._backend_alias, found.task) == ("@task", "default", cast.noop)
    assert registry.find(f"{PATH}noop") is found
    assert registry.resolve(f"{PATH}native") is cast.native


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain_function", "is no task"),
        ("calls", "is no task"),
        ("nothing", "does not define"),
        ("twin", "is the task tests.db.tasks_cast.undecorated"),
        ("undecorated", "is no task"),
    ],
)
def test_a_row_can_name_nothing_but_a_task(name: str, words: str) -> None:
    """§3.1: no arbitrary callables."""
    with pytest.raises(Exception, match=words):
        registry.resolve(PATH + name)


def test_a_task_that_no_worker_could_find_is_refused() -> None:
    with pytest.raises(InvalidTask, match=r"tests\.db\.tasks_cast\.undecorated is no task that a worker could find"):
        cast.twin.enqueue()
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    "given", [cast.noop.func, cast.native, f"{PATH}noop", None], ids=["function", "job", "path", "None"]
)
def test_the_bridge_takes_tasks_only(given: Any) -> None:
    """As a function whose ``@task`` was forgotten."""
    with pytest.raises(TypeError, match="is no task: write @task above the function"):
        job_of(given)
    with pytest.raises(TypeError, match="is no task: write @task above the function"):
        enqueue_many(given, [])


def test_without_an_alias_of_ours_nothing_is_a_task() -> None:
    with override_settings(TASKS={}):
        assert resolver(f"{PATH}noop") is None
        with pytest.raises(InvalidTask, match="no alias of TASKS has a BACKEND of django_pgjobs"):
            job_of(cast.noop)


def test_a_former_path_leads_to_the_task(with_options: Any) -> None:
    """§3.1: by ``@policy(aliases=…)``, and by ``ALIASES`` for code of others."""
    cast.nightly.enqueue()
    Job.objects.update(name=f"{PATH}former")
    define(cast.nightly)
    assert len(run_jobs().succeeded) == 1
    with with_options(ALIASES={"old.place.noop": f"{PATH}noop"}):
        cast.noop.enqueue()
        Job.objects.filter(name=f"{PATH}noop").update(name="old.place.noop")
        [ran] = run_jobs().succeeded
        assert cast.noop.get_result(str(ran)).task == cast.noop


def test_an_unknown_task_is_parked_with_its_reason() -> None:
    """§3.1, §8.7."""
    result = cast.noop.enqueue()
    Job.objects.update(name=f"{PATH}gone")
    assert run_jobs().parked == [int(result.id)]
    assert "does not define" in Job.objects.get().hold_reason


# Policy


def test_options_come_from_the_first_place_that_gives_them(with_options: Any) -> None:
    """§3.2: exact path, pattern, ``@policy``, alias, ``PGJOBS``; option by option."""
    with override_settings(PGJOBS={"DEFAULT_MAX_ATTEMPTS": 7, "DEFAULT_TIMEOUT_SECONDS": 70}):
        assert _facts("send_welcome") == (3, 300, Backoff(0))
        assert _facts("noop")[:2] == (7, 70)
        with with_options(MAX_ATTEMPTS=6, TIMEOUT_SECONDS=60, BACKOFF=Backoff(6)):
            assert _facts("send_welcome") == (3, 300, Backoff(0))
            assert _facts("noop") == (6, 60, Backoff(6))
        tasks: dict[str, Any] = {f"{PATH}*": {"max_attempts": 5, "backoff": Backoff(5)}, "*": {"timeout": 50}}
        with with_options(MAX_ATTEMPTS=6, TASKS=tasks):
            assert _facts("send_welcome") == (5, 50, Backoff(5))
            assert _facts("noop") == (5, 50, Backoff(5))
        tasks[f"{PATH}send_*"] = {"backoff": Backoff(4)}
        tasks[f"{PATH}send_welcome"] = {"max_attempts": 4}
        with with_options(MAX_ATTEMPTS=6, TASKS=tasks):
            assert _facts("send_welcome") == (4, 50, Backoff(4))
            assert _facts("noop") == (5, 50, Backoff(5))


def _facts(name: str) -> tuple[Any, ...]:
    definition = job_of(getattr(cast, name))
    return definition.max_attempts, definition.timeout, definition.backoff


def test_settings_give_rules_and_schedules_as_texts(with_options: Any) -> None:
    """§3.2: settings load before what they name."""
    options = {
        "give_up_on": ["django.core.exceptions.ObjectDoesNotExist", "builtins.ValueError"],
        "retry_on": "builtins.OSError",
        "backoff": f"{__name__}.no_delay",
        "cron": "0 4 * * *",
        "limits": {"concurrency": 2},
        "unique": {"key": "echo:{value}", "until": "started"},
    }
    with with_options(TASKS={f"{PATH}echo": options}, GIVE_UP_ON=["builtins.KeyError"]):
        definition = job_of(cast.echo)
        assert definition._retry_delay(ValueError(), 1) is None
        assert definition._retry_delay(OSError(), 1) == 0
        assert definition._retry_delay(KeyError(), 1) is None
        [entry] = [entry for entry in registry.crons() if entry.decorates == f"{PATH}echo"]
        assert (entry.name, entry.expression) == (f"{PATH}echo", "0 4 * * *")
        result = cast.echo.enqueue(7)
        job = Job.objects.get(pk=result.id)
        assert (job.key, job.key_scope, job.hold) == ("echo:7", "until_started", "limited")
        assert job_of(cast.noop)._retry_delay(KeyError(), 1) is None


def no_delay(error: BaseException, attempt: int) -> float:
    return 0


def test_a_cron_entry_of_a_task_goes_where_its_alias_says(with_options: Any) -> None:
    """§3.4."""
    job_of(cast.nightly)
    [entry] = [entry for entry in registry.crons() if entry.name == f"{PATH}nightly"]
    assert (entry.expression, entry.database) == ("0 3 * * *", None)
    with with_options(DATABASE="default"):
        job_of(cast.nightly)
        [entry] = [entry for entry in registry.crons() if entry.name == f"{PATH}nightly"]
        assert entry.database == "default"
        assert job_of(cast.noop).bind().register()._state.db == "default"
        assert job_of(cast.noop)._plan.database == "default"


def test_new_settings_make_new_definitions(with_options: Any) -> None:
    """T4."""
    before = job_of(cast.noop)
    assert job_of(cast.noop) is before
    with with_options(MAX_ATTEMPTS=2):
        assert (job_of(cast.noop).max_attempts, before.max_attempts) == (2, 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"MAX_ATTEMPT": 1}, "OPTIONS has no key 'MAX_ATTEMPT'.*did you mean 'MAX_ATTEMPTS'"),
        ({"MAX_ATTEMPTS": 0}, r"OPTIONS\['MAX_ATTEMPTS'\]: max_attempts must be an integer ≥ 1"),
        ({"BACKOFF": "nowhere.at.all"}, r"OPTIONS\['BACKOFF'\]: No module named 'nowhere'"),
        ({"TASKS": ["a"]}, r"OPTIONS\['TASKS'\] must be a dict"),
        ({"TASKS": {"a.b": 1}}, r"OPTIONS\['TASKS'\]\['a.b'\] must be a dict"),
        ({"TASKS": {"a.b": {"queue": "x"}}}, r"a policy takes no 'queue': write @task\(queue_name=…\)"),
        (
            {"TASKS": {"a.b": {"retries": 1}}},
            r"unknown option 'retries': max_attempts counts the first start: max_attempts=2",
        ),
        ({"TASKS": {"a.b": {"cron": "every blue moon"}}}, "every blue moon"),
        ({"ALIASES": {"a.b": 1}}, r"OPTIONS\['ALIASES'\]: the path of a task must be text"),
        ({"DATABASE": 1}, r"OPTIONS\['DATABASE'\] must be an alias, not 1"),
    ],
)
def test_wrong_options_are_named(with_options: Any, options: Any, words: str) -> None:
    with with_options(**options), pytest.raises(ImproperlyConfigured, match=words):
        options_of("default")


def test_a_policy_that_does_not_go_with_the_function_is_refused_at_its_first_use(with_options: Any) -> None:
    with with_options(TASKS={f"{PATH}noop": {"sensitive": ["x"]}, f"{PATH}index": {"unique": "{nothing}"}}):
        words = rf"tasks_cast\.py:\d+: task '{PATH}index': key .*\. OPTIONS\['TASKS'\]\['{PATH}index'\] is about it\.$"
        with pytest.raises(InvalidJob, match=words):
            define(cast.index)
        with pytest.raises(InvalidTask, match="key"):
            cast.index.enqueue(1)


# The bridge


def test_a_task_can_do_what_a_job_can() -> None:
    """§3.3: what ``using`` of a task cannot say."""
    definition = job_of(cast.send_welcome)
    job = definition.using(unique="welcome:7", delay=timedelta(minutes=1), tags=["vip"]).register(7)
    assert (job.key, job.tags, job.priority, job.queue) == ("welcome:7", ("welcome", "vip"), 10, "mail")
    result = result_of(job)
    assert (result.status, result.args, result.task) == ("READY", [7], cast.send_welcome)
    assert definition(7, name="Ada") == "welcome Ada"
    ids = definition.register_many([{"user_id": 8}, (9,)])
    assert len(ids) == 2
    assert repr(definition) == f"<task {PATH}send_welcome>"


def test_definitions_of_tasks_are_pickled_and_copied_by_path() -> None:
    definition = job_of(cast.noop)
    assert pickle.loads(pickle.dumps(definition)) is definition
    assert copy.copy(definition) is definition
    call = pickle.loads(pickle.dumps(definition.bind(1)))
    assert call.register().name == f"{PATH}noop"


def test_a_result_of_a_job_that_is_not_stored_does_not_exist() -> None:
    job = job_of(cast.noop).register()
    Job._base_manager.filter(pk=job.pk)._raw_delete("default")
    with pytest.raises(TaskResultDoesNotExist):
        result_of(job)


def test_many_calls_are_stored_at_once_in_their_order() -> None:
    """§3.3, §8.11: a hundred thousand of them, too."""
    count = 100_000
    calls = (((number,), {"name": "x"}) if number % 2 else ([number], {}) for number in range(count))
    ids = enqueue_many(cast.send_welcome, calls)
    found = dict(Job.objects.values_list("pk", "payload__args__0"))
    assert [found[int(id_)] for id_ in ids] == list(range(count))
    assert cast.send_welcome.get_result(ids[1]).kwargs == {"name": "x"}
    assert enqueue_many(cast.moved, [((1,), {})]) == [str(Job.objects.latest("pk").pk)]
    assert (Job.objects.latest("pk").queue, Job.objects.latest("pk").priority) == ("other", -100)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (((), {}), TypeError, "row 2: .*missing 1 required positional argument"),
        (((object(),), {}), TypeError, "row 2: Unsupported type"),
        (((float("nan"),), {}), InvalidTask, "row 2: .*user_id cannot be stored"),
        ((1, 2, 3), InvalidTask, "row 2: must be a pair"),
        (7, InvalidTask, "row 2: must be a pair"),
        (("7", {}), InvalidTask, "row 2: must be a pair"),
        (((7,), ["name"]), InvalidTask, "row 2: must be a pair"),
    ],
)
def test_one_bad_call_of_many_stores_nothing_and_names_its_row(call: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        enqueue_many(cast.send_welcome, [((1,), {}), ((2,), {}), call])
    assert Job.objects.count() == 0


# A job as a task


def test_a_job_can_be_handed_over_as_a_task() -> None:
    """§3.5: rows enqueued either way are one kind of job."""
    with registry.isolated():
        registry.add(cast.native)
        task = cast.native.as_task()
        result = task.enqueue([1])
        job = cast.native.register([1])
        assert [row.name for row in Job.objects.all()] == [f"{PATH}native"] * 2
        run_jobs()
        result.refresh()
        assert (result.return_value, result.task) == ([1], task)
        assert result_of(job).return_value == [1]


def test_a_job_of_another_name_gets_its_own_context() -> None:
    """§3.5: the first parameter is called ``context``, and is what the job is used to."""
    with registry.isolated():
        registry.add(cast.native_in_context)
        task = cast.native_in_context.as_task()
        assert (task.queue_name, task.priority, task.takes_context) == ("mail", -5, True)
        result = task.enqueue(3)
        assert Job.objects.get().name == "tasks.renamed"
        run_jobs()
        result.refresh()
        assert result.return_value == 3
        assert cast.calls[0].max_attempts == 5


def test_arguments_of_a_job_that_no_json_has_are_shown_as_they_are_stored() -> None:
    """§3.5."""
    with registry.isolated():
        registry.add(cast.native)
        result = result_of(cast.native.register(timedelta(seconds=1)))
        assert result.args == [{"$timedelta": [0, 1, 0]}]
        assert result_of(cast.native.register((1, 2))).args == [[1, 2]]


def test_the_alias_of_a_job_as_a_task_is_known_to_its_result() -> None:
    with override_settings(TASKS={**TASKS, "two": {"BACKEND": BACKEND, "QUEUES": []}}), registry.isolated():
        registry.add(cast.native)
        result = cast.native.as_task("two").enqueue()
        assert (result.backend, result_of(Job.objects.get()).backend) == ("two", "two")
        result.refresh()
        assert result.status == "READY"
