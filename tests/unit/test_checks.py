"""System checks: each id fires on what it is for, says what to do, and is silent on a healthy project."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.apps import apps
from django.core import checks as django_checks
from django.core.checks import CheckMessage
from django.db import connections, models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.test import override_settings
from django.test.utils import isolate_apps

from django_pgjobs import Cron, checks, job
from django_pgjobs.checks.models import CHANGED_COLUMNS, CHANGED_PREFIXES
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.values.backoff import Backoff


def work(user: int = 0) -> None: ...


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def ids(messages: Iterable[CheckMessage]) -> list[str]:
    """The ids; every message must have a hint."""
    found = list(messages)
    assert all(message.hint for message in found)
    return [str(message.id).removeprefix("pgjobs.") for message in found]


def test_a_healthy_project_has_no_message() -> None:
    assert [message for check in checks.CHECKS for message in check(app_configs=None)] == []


def test_they_are_registered_once_under_their_tag() -> None:
    registered = django_checks.registry.registry.registered_checks
    ours = [check for check in registered if check.__module__ == "django_pgjobs.apps"]
    assert sorted(tuple(check.tags) for check in ours) == [("database",), ("pgjobs",)]
    apps.get_app_config("pgjobs").ready()
    assert [known for known in registered if known.__module__ == "django_pgjobs.apps"] == ours


def test_django_calls_all_of_them_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, Any]] = []

    def noting(number: int) -> Callable[..., Iterable[CheckMessage]]:
        def check(**given: Any) -> Iterator[CheckMessage]:
            called.append((number, given["app_configs"]))
            yield CheckMessage(number, str(number))

        return check

    monkeypatch.setattr(checks, "CHECKS", tuple(map(noting, range(3))))
    chosen = [apps.get_app_config("pgjobs")]
    found = django_checks.run_checks(app_configs=chosen, tags=["pgjobs"])
    assert [message.level for message in found] == [0, 1, 2]
    assert called == [(0, chosen), (1, chosen), (2, chosen)]


def test_the_table_lists_exactly_the_ids_there_are() -> None:
    table = re.findall(r"^pgjobs\.([EW]\d{3})", checks.__doc__ or "", re.MULTILINE)
    room = Path(checks.__file__).parent
    paths = [*room.glob("[!_]*.py"), *(room.parent / front / "checks.py" for front in ("celery_bridge", "tasks"))]
    source = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert table == sorted(set(re.findall(r'"pgjobs\.([EW]\d{3})"', source)))


def test_no_check_asks_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "connect", lambda self: pytest.fail("a check connected"))
    assert django_checks.run_checks(tags=["pgjobs"]) == []


# Settings


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], ["E001"]),
        ({"LEASE": 1}, ["E002"]),
        ({"THREADS": "4"}, ["E003"]),
        ({"THREADS": 0}, ["E004"]),
        ({"THREADS": 0, "LEASE": 1}, ["E004", "E002"]),
    ],
)
def test_each_wrong_key_is_an_error(settings: Any, given: Any, found: list[str]) -> None:
    settings.PGJOBS = given
    assert ids(checks.check_settings()) == found
    for check in checks.CHECKS[1:]:
        assert list(check(app_configs=None)) == [], "said once is enough"


@pytest.mark.parametrize(("implementation", "found"), [("binary", []), ("c", []), ("python", ["pgjobs.W015"])])
def test_a_deployment_is_warned_of_a_psycopg_without_its_extension(
    monkeypatch: pytest.MonkeyPatch, implementation: str, found: list[str]
) -> None:
    monkeypatch.setattr("psycopg.pq.__impl__", implementation)
    assert django_checks.run_checks(tags=["pgjobs"]) == []
    messages = django_checks.run_checks(tags=["pgjobs"], include_deployment_checks=True)
    assert [message.id for message in messages] == found
    assert all('"django-pgjobs[binary]"' in str(message.hint) for message in messages)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"LEASE_SECONDS": 29.9}, ["E005"]),
        ({"LEASE_SECONDS": 30}, []),
        ({"STALE_SECONDS": 20}, ["E006"]),
        ({"STALE_SECONDS": 20.1}, []),
        ({"RESCUE_GRACE_SECONDS": 15}, ["E007"]),
        ({"RESCUE_GRACE_SECONDS": 15.1}, []),
        ({"CALLBACK_SECONDS": 25}, ["E007"]),
        ({"EXECUTOR_KILL_MEGABYTES": 400, "EXECUTOR_MAX_MEGABYTES": 400}, ["E025"]),
        ({"EXECUTOR_KILL_MEGABYTES": 401, "EXECUTOR_MAX_MEGABYTES": 400}, []),
    ],
)
def test_settings_bound_each_other(settings: Any, given: Any, found: list[str]) -> None:
    """Row D4."""
    settings.PGJOBS = given
    assert ids(checks.check_relations()) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"DEFAULT_MAX_ATTEMPTS": 1001}, ["E008"]),
        ({"DEFAULT_TIMEOUT_SECONDS": 60, "BOUNDS": {"timeout_seconds": 59}}, ["E008"]),
        ({"DEFAULT_TIMEOUT_SECONDS": None}, []),
        ({"DEFAULT_BACKOFF": Backoff(61), "BOUNDS": {"backoff_base_seconds": 60}}, ["E008"]),
        ({"DEFAULT_BACKOFF": Backoff(1, factor=6), "BOUNDS": {"backoff_factor": (1, 5)}}, ["E008"]),
        ({"DEFAULT_BACKOFF": Backoff(60, factor=5), "BOUNDS": {"backoff_base_seconds": 60}}, []),
        ({"BOUNDS": {"backoff_factor": (5, 10)}}, ["E008"]),
        ({"BOUNDS": {"backoff_factor": (4, 10)}}, []),
    ],
)
def test_defaults_stay_within_their_bounds(settings: Any, given: Any, found: list[str]) -> None:
    settings.PGJOBS = given
    assert ids(checks.check_defaults()) == found


@pytest.mark.parametrize(
    ("queues", "found"), [(None, []), (["mail"], []), (["default"], ["E016"]), (["mail", "default"], [])]
)
def test_a_retention_is_of_queues_that_there_are(settings: Any, queues: list[str] | None, found: list[str]) -> None:
    settings.PGJOBS = {"QUEUES": queues, "RETENTION": {"queues": {"mail": {"succeeded": 0}}}}
    assert ids(checks.check_named_queues()) == found


def test_every_setting_by_queue_names_queues_that_there_are(settings: Any) -> None:
    rate = {"tokens": 3}
    settings.PGJOBS = {"QUEUES": ["mail"], "CAPACITY": {"mial": 10, "*": 5}, "REGISTRATION_RATE": {"mial": rate}}
    found = list(checks.check_named_queues())
    assert [message.id for message in found] == ["pgjobs.E016"] * 2
    assert [message.msg.split()[1] for message in found] == ["CAPACITY", "REGISTRATION_RATE"]


def test_a_middleware_path_must_lead_somewhere(settings: Any) -> None:
    settings.PGJOBS = {"MIDDLEWARE": ["nowhere.at.all", "contextlib.suppress", "tests.settings.STATIC_URL"]}
    assert ids(checks.check_middleware()) == ["E011", "E011"]


def _literal() -> dict[str, Any]:
    if time.time():
        return {"tenant": 1, "task": 2}
    return {}


def _called() -> dict[str, Any]:
    return dict(tenant=1, task=2)  # noqa: C408


def _other() -> dict[str, Any]:
    def task() -> dict[str, str]:
        return {"task": "not what it returns"}

    return {"tenant": task(), "tasks": {"task": 1}}


@pytest.mark.parametrize(
    ("capture", "found"),
    [
        (_literal, ["E019"]),
        (_called, ["E019"]),
        (staticmethod(_literal), ["E019"]),
        (lambda: {"task": 1}, ["E019"]),
        (_other, []),
        (lambda: {}, []),
        (dict, []),
        (None, []),
    ],
)
def test_middleware_leaves_the_header_of_tasks_alone(settings: Any, capture: Any, found: list[str]) -> None:
    """As far as the source of its capture shows (paper O3); a check must not call it."""
    _factory.capture = capture  # type: ignore[attr-defined]
    settings.PGJOBS = {"MIDDLEWARE": [f"{__name__}._factory"]}
    assert ids(checks.check_middleware()) == found


def _factory(run: Any) -> Any:
    return run


# The database


class JobsElsewhere:
    def db_for_write(self, model: type, **hints: object) -> str:
        return "other" if model is Job else "default"


def test_jobs_on_another_database_than_postgresql(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [JobsElsewhere()]
    (message,) = checks.check_database()
    assert message.id == "pgjobs.E009"
    assert "'other', which is not PostgreSQL (sqlite)" in message.msg
    assert "database(BASE_DIR / '.pg')" in str(message.hint), "whatever directory manage.py is started in"


def test_psycopg2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.backends.postgresql import psycopg_any

    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)
    assert ids(checks.check_database()) == ["E010"]


def shards() -> list[str]:
    return ["default"]


@pytest.mark.parametrize(
    ("databases", "found"),
    [
        (None, []),
        (["default"], []),
        (["default", "twin"], ["E024"]),
        (["default", "elsewhere"], []),
        (["default", "nowhere"], ["E023"]),
        (["default", "other"], ["E023"]),
        (["elsewhere"], ["W016"]),
        (shards, []),
        (f"{__name__}.shards", []),
        (f"{__name__}.nothing", ["E023"]),
        (lambda: "default", ["E023"]),
    ],
)
def test_each_database_of_the_setting_is_one_of_its_own(
    settings: Any, databases: Any, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for alias, changes in (("twin", {}), ("elsewhere", {"NAME": "elsewhere"})):
        own = connections["default"].copy(alias)
        own.settings_dict = {**connections.settings["default"], **changes}
        monkeypatch.setitem(connections.settings, alias, own.settings_dict)
        monkeypatch.setattr(cast(Any, connections)._connections, alias, own, raising=False)
    settings.PGJOBS = {"DATABASES": databases}
    assert ids(checks.check_databases()) == found


def test_a_cron_entry_where_no_worker_looks(settings: Any) -> None:
    settings.PGJOBS = {"DATABASES": ["default"]}
    Cron("@daily", job(name="shop.report")(shards).using(database="other").bind(), name="there")
    Cron("@daily", job(name="shop.each")(shards).bind(), name="each", each_database=True)
    (message,) = checks.check_databases()
    assert message.id == "pgjobs.W016"
    assert "Cron entry there is in the database 'other'" in message.msg


# Models


def foreign_key_messages() -> list[str]:
    """Labels of the fields of app ``tests`` that are complained of."""
    return [f"{m.obj.model.__name__}.{m.obj.name}" for m in checks.check_foreign_keys()]


@pytest.fixture
def isolated_apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with isolate_apps("tests") as isolated:
        monkeypatch.setattr("django_pgjobs.checks.models.apps", isolated)
        yield isolated


def declare(name: str, **members: Any) -> type[models.Model]:
    meta = type("Meta", (), {"app_label": "tests", **members.pop("meta", {})})
    return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **members})


def test_a_constraint_on_job_would_stop_pruning(isolated_apps: Any) -> None:
    for name, on_delete in (("Cascade", models.CASCADE), ("Null", models.SET_NULL), ("Nothing", models.DO_NOTHING)):
        declare(name, job=models.ForeignKey(Job, on_delete, null=True, related_name="+"))
    declare("One", job=models.OneToOneField(Job, models.CASCADE, related_name="+"))
    assert foreign_key_messages() == ["Cascade.job", "Null.job", "Nothing.job", "One.job"]
    assert set(ids(checks.check_foreign_keys())) == {"E012"}


def test_a_many_to_many_field_says_how(isolated_apps: Any) -> None:
    declare("Report", jobs=models.ManyToManyField(Job, related_name="+"))
    assert foreign_key_messages() == ["Report_jobs.job"]
    (message,) = checks.check_foreign_keys()
    assert str(message.hint).startswith("Give the ManyToManyField db_constraint=False.")


def test_what_does_not_stop_pruning_is_allowed(isolated_apps: Any) -> None:
    declare("Loose", job=models.ForeignKey(Job, models.DO_NOTHING, db_constraint=False, related_name="+"))
    declare("Many", jobs=models.ManyToManyField(Job, db_constraint=False, related_name="+"))
    declare("View", meta={"managed": False}, job=models.ForeignKey(Job, models.CASCADE, related_name="+"))
    declare("Self", other=models.ForeignKey("self", models.CASCADE), plain=models.BigIntegerField())
    assert foreign_key_messages() == []


@pytest.mark.skipif(not hasattr(models, "DB_CASCADE"), reason="Django 6.1 brings on_delete in the database")
def test_on_delete_in_the_database_is_allowed(isolated_apps: Any) -> None:
    declare("Cascade", job=models.ForeignKey(Job, models.DB_CASCADE, related_name="+"))
    declare("Null", job=models.ForeignKey(Job, models.DB_SET_NULL, null=True, related_name="+"))
    assert foreign_key_messages() == []


def test_a_check_of_one_app_looks_at_that_app_only(isolated_apps: Any) -> None:
    declare("Cascade", job=models.ForeignKey(Job, models.CASCADE, related_name="+"))
    assert ids(checks.check_foreign_keys(app_configs=[apps.get_app_config("pgjobs")])) == []


@pytest.mark.parametrize(
    ("index", "named"),
    [
        (models.Index(name="i", fields=["queue", "-attempt"]), "attempt"),
        (models.Index(name="i", fields=["state"]), "state"),
        (models.Index(name="i", fields=["queue"], include=["worker"]), "worker"),
        (models.Index(name="i", fields=["queue"], condition=Q(claim_id__isnull=True)), "claim_id"),
        (models.Index(name="i", fields=["queue"], condition=Q(queue="a") & ~(Q(name="b") | Q(ending="x"))), "ending"),
        (models.Index(name="i", fields=["queue"], condition=Q(run_at__lt=F("overdue_at"))), "overdue_at"),
        (models.Index(Lower("cancel_by"), name="i"), "cancel_by"),
        (models.Index(F("waited").desc(), name="i"), "waited"),
        (models.Index(F("progress__done"), name="i"), "progress"),
        (models.UniqueConstraint(name="i", fields=["name", "ending_attempt"]), "ending_attempt"),
        (models.UniqueConstraint(name="i", fields=["name"], include=["claimed_at"]), "claimed_at"),
    ],
)
def test_an_index_on_what_the_claim_changes_is_an_error(
    monkeypatch: pytest.MonkeyPatch, index: Any, named: str
) -> None:
    where = "constraints" if isinstance(index, models.UniqueConstraint) else "indexes"
    monkeypatch.setattr(Job._meta, where, [*getattr(Job._meta, where), index])
    (message,) = checks.check_indexes()
    assert message.id == "pgjobs.E013"
    assert message.msg.startswith(f"The index i of Job holds or names {named}, ")


def test_an_indexed_field_is_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job._meta.get_field("worker"), "db_index", True)
    assert ids(checks.check_indexes()) == ["E013"]


def test_other_indexes_and_constraints_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job._meta, "indexes", [models.Index(name="i", fields=["name"], condition=Q(hold=None))])
    monkeypatch.setattr(Job._meta, "constraints", [models.CheckConstraint(name="c", condition=Q(attempt__gte=0))])
    assert ids(checks.check_indexes()) == []


def test_every_column_named_here_exists() -> None:
    columns = {field.name for field in Job._meta.concrete_fields}
    assert columns >= CHANGED_COLUMNS
    for prefix in CHANGED_PREFIXES:
        assert any(column.startswith(prefix) for column in columns)


# Commands


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        ("django_pgjobs", []),
        ("django_extensions", ["W001"]),
        (None, []),
        (SimpleNamespace(), ["W001"]),
    ],
)
def test_a_shadowed_worker_command_is_a_warning(monkeypatch: pytest.MonkeyPatch, owner: Any, found: list[str]) -> None:
    monkeypatch.setattr(
        "django_pgjobs.checks.settings.get_commands", lambda: {} if owner is None else {"runjobs": owner}
    )
    assert ids(checks.check_commands()) == found


# Jobs


def test_a_queue_that_is_not_allowed(settings: Any) -> None:
    job(name="a", queue="mail")(work)
    job(name="b", queue="bulk")(work)
    settings.PGJOBS = {"QUEUES": ["mail"]}
    (message,) = checks.check_definitions()
    assert (message.id, message.obj) == ("pgjobs.E014", registry.get("b"))
    settings.PGJOBS = {}
    assert ids(checks.check_definitions()) == []


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"max_attempts": 11}, {"BOUNDS": {"max_attempts": 10}}),
        ({"timeout": 61}, {"BOUNDS": {"timeout_seconds": 60}, "DEFAULT_TIMEOUT_SECONDS": 60}),
        ({"backoff": Backoff(301)}, {"BOUNDS": {"backoff_base_seconds": 300}}),
        ({"backoff": Backoff(1, factor=2)}, {"BOUNDS": {"backoff_factor": (3, 5)}}),
        ({"unique": "a b"}, {"BOUNDS": {"key_pattern": "[a-z]+"}}),
    ],
)
def test_options_that_the_settings_do_not_allow(settings: Any, options: Any, given: Any) -> None:
    """The hint names the setting, whichever it is."""
    job(name="a", **options)(work)
    settings.PGJOBS = given
    [found] = checks.check_definitions()
    assert found.id == "pgjobs.E015"
    assert next(iter(given)) in (found.hint or "")


def test_a_cron_entry_may_be_fine_where_it_is_written_and_not_with_these_settings() -> None:
    definition = job(name="checked.cron")(cronned)
    Cron("@daily", definition.bind(), name="daily")
    assert ids(checks.check_definitions()) == []
    with override_settings(PGJOBS={"QUEUES": ["mail"]}):
        assert sorted(ids(checks.check_definitions())) == ["E014", "E017"]


def cronned() -> None: ...


def rule(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"max_attempts": 1, "retry_on": (OSError,)}, ["W002"]),
        ({"max_attempts": 1, "give_up_on": (OSError,)}, ["W002"]),
        ({"max_attempts": 1}, []),
        ({"retry_on": (TimeoutError, ConnectionError), "give_up_on": (OSError,)}, ["W003"]),
        ({"retry_on": (OSError,), "give_up_on": (TimeoutError,)}, []),
        ({"retry_on": rule, "give_up_on": (Exception,)}, []),
        ({"retry_on": OSError, "give_up_on": OSError}, ["W003"]),
    ],
)
def test_retry_rules_that_contradict_each_other(options: Any, found: list[str]) -> None:
    job(name="a", **options)(work)
    assert ids(checks.check_definitions()) == found


def test_a_check_takes_what_django_passes() -> None:
    called: list[Callable[..., Any]] = []
    for check in checks.CHECKS:
        list(check(app_configs=None, databases=["default"]))
        called.append(check)
    assert len(called) == 14
