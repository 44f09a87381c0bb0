"""``Cron``: how an entry is declared, and what is refused where it was written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings

from django_pgjobs import Cron, Unique, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob

pytestmark = pytest.mark.usefixtures("no_other_entries")


def clean() -> None: ...


def report(kind: str, days: int = 1) -> None: ...


def test_a_job_has_an_entry_of_its_own_name() -> None:
    """W36 W51: five options and the arguments are what the row keeps."""
    declared = job(name="shop.clean", queue="night", priority=3, max_attempts=2, timeout=60, description="Sweep",
                   cron=Cron("@daily"))(clean)  # fmt: skip
    [entry] = registry.crons()
    row = entry.declared()
    assert (row.name, row.job_name, row.expression, row.zone) == ("shop.clean", "shop.clean", "@daily", "UTC")
    assert (row.misfire, row.overlap) == ("once", "allow")
    assert json.loads(row.payload) == {"args": [], "kwargs": {}}
    options = json.loads(row.options)
    assert (options["queue"], options["priority"], options["max_attempts"], options["timeout_seconds"]) == (
        "night", 3, 2, 60.0,
    )  # fmt: skip
    assert options["description"] == "Sweep"
    assert declared.func is clean


def test_an_entry_stands_by_itself_with_arguments() -> None:
    definition = job(name="shop.report", description="the {kind} report")(report)
    Cron("0 3 * * *", definition.using(queue="slow").bind("daily", days=2), name="daily report", tz="Europe/Paris")
    Cron("0 4 * * 1", definition.bind("weekly"), name="weekly report", tz=ZoneInfo("Asia/Tokyo"), misfire="all",
         misfire_limit=7)  # fmt: skip
    daily, weekly = (entry.declared() for entry in registry.crons())
    assert json.loads(daily.payload) == {"args": ["daily"], "kwargs": {"days": 2}}
    assert (daily.name, daily.zone, json.loads(daily.options)["queue"]) == ("daily report", "Europe/Paris", "slow")
    assert json.loads(daily.options)["description"] == "the daily report"
    assert (weekly.zone, weekly.misfire) == ("Asia/Tokyo", "all(7)")


@override_settings(TIME_ZONE="America/New_York")
def test_the_projects_zone_is_the_default() -> None:
    job(name="shop.clean", cron=Cron("@daily"))(clean)
    assert registry.crons()[0].declared().zone == "America/New_York"


def test_a_job_may_have_several_entries_with_names() -> None:
    crons = [Cron("@daily", name="by night"), Cron("0 12 * * *", name="at noon", overlap="skip")]
    job(name="shop.clean", cron=crons)(clean)
    assert [entry.name for entry in registry.crons()] == ["at noon", "by night"]


def test_two_entries_of_one_name_are_refused_and_both_places_named() -> None:
    with pytest.raises(InvalidJob, match=r"test_cron_declared\.py:\d+: the name 'shop\.clean' is taken") as caught:
        job(
            name="shop.clean",
            cron=[
                Cron("@daily"),
                Cron("@hourly"),
            ],
        )(clean)
    assert str(caught.value).count("test_cron_declared.py:") == 2


def test_a_function_that_is_declared_again_replaces_its_entries() -> None:
    """Its module was reloaded: an entry that is not there any more is forgotten, one that stands alone is kept."""
    definition = job(name="shop.clean", cron=[Cron("@daily", name="one"), Cron("@hourly", name="two")])(clean)
    Cron("@monthly", definition.bind(), name="alone")
    job(name="shop.clean", cron=[Cron("@yearly", name="one")])(clean)
    assert [(entry.name, entry.expression) for entry in registry.crons()] == [("alone", "@monthly"), ("one", "@yearly")]


def test_isolation_forgets_entries_and_gives_them_back() -> None:
    job(name="shop.clean", cron=Cron("@daily"))(clean)
    with registry.isolated():
        assert registry.crons() == []
    assert [entry.name for entry in registry.crons()] == ["shop.clean"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"expression": "0 0 31 4 *"}, "never fires"),
        ({"expression": "61 * * * *"}, "not valid"),
        ({"tz": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ({"misfire": "always"}, "misfire must be one of"),
        ({"misfire": "all"}, "needs a misfire_limit"),
        ({"misfire_limit": 3}, "goes with misfire='all' only"),
        ({"overlap": "wait"}, "overlap must be one of"),
        ({"misfire": "all", "misfire_limit": 3, "overlap": "skip"}, "contradict each other"),
        ({"name": ""}, "name must be text"),
        ({"name": "x" * 201}, "name must be text"),
    ],
)
def test_a_bad_entry_is_refused_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as caught:
        Cron(**{"expression": "@daily", **options})
    assert "test_cron_declared.py:" in str(caught.value)


def test_a_job_that_needs_arguments_is_refused() -> None:
    with pytest.raises(InvalidJob, match="cannot be called without arguments") as caught:
        job(name="shop.report", cron=Cron("@daily"))(report)
    assert "bind(" in str(caught.value)


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises(
        InvalidJob, match=r"cron must be a Cron or a list of them, such as Cron\('0 3 \* \* \*'\), not '0 3 \* \* \*'"
    ):
        job(name="shop.clean", cron=cast(Any, "0 3 * * *"))(clean)
    definition = job(name="shop.clean")(clean)
    with pytest.raises(InvalidJob, match="has a call of its own"):
        job(name="shop.report", cron=Cron("@daily", definition.bind(), name="x"))(report)
    with pytest.raises(InvalidJob, match="needs a call such as"):
        Cron("@daily", cast(Any, definition))
    with pytest.raises(InvalidJob, match="needs a call such as"):
        Cron("@daily", cast(Any, clean))


def test_an_entry_belongs_to_one_job() -> None:
    entry = Cron("@daily", name="shared")
    job(name="shop.clean", cron=entry)(clean)
    with pytest.raises(InvalidJob, match="has a call of its own"):
        job(name="shop.report", cron=entry)(report)


def test_a_start_of_its_own_contradicts_a_schedule() -> None:
    definition = job(name="shop.report")(report)
    for delayed in (definition.using(delay=5), definition.using(run_at=datetime(2030, 1, 1, tzinfo=UTC))):
        with pytest.raises(InvalidJob, match="the expression decides when the job runs"):
            Cron("@daily", delayed.bind("daily"))
    assert registry.crons() == []


def test_a_schedule_has_jobs_that_are_stored() -> None:
    definition = job(name="shop.report")(report)
    with pytest.raises(InvalidJob, match="bypass makes no sense: a schedule puts its jobs into the queue"):
        Cron("@daily", definition.using(bypass=True).bind("daily"))
    assert registry.crons() == []


def test_a_window_of_a_key_contradicts_a_schedule() -> None:
    definition = job(name="shop.report", unique=Unique("report", window=timedelta(hours=1)))(report)
    with pytest.raises(InvalidJob, match="its key has a window"):
        Cron("@daily", definition.bind("daily"))


def test_a_key_of_the_job_is_kept_with_the_entry() -> None:
    definition = job(name="shop.report", unique=Unique("report:{kind}", until="started"))(report)
    Cron("@daily", definition.bind("daily"))
    options = json.loads(registry.crons()[0].declared().options)
    assert (options["key"], options["key_scope"]) == ("report:daily", "until_started")


def test_arguments_that_cannot_be_stored_are_refused_at_once() -> None:
    definition = job(name="shop.report")(report)
    with pytest.raises(InvalidJob, match=r"cron entry 'daily': job 'shop\.report': ") as caught:
        Cron("@daily", definition.bind(cast(Any, object())), name="daily")
    assert "test_cron_declared.py:" in str(caught.value)


def test_an_entry_shows_what_it_is() -> None:
    job(name="shop.clean", cron=Cron("*/5 * * * *"))(clean)
    assert repr(registry.crons()[0]) == "<Cron shop.clean */5 * * * *>"
    with pytest.raises(InvalidJob, match="it has no job"):
        Cron("@daily").declared()


def test_a_declaration_tells_its_next_fires_without_a_database() -> None:
    """In its own zone, across the change of the clocks, and by default from now on."""
    entry = Cron("30 2 * * *", tz="Europe/Paris")
    after = datetime(2026, 3, 28, 0, 0, tzinfo=UTC)
    assert [fire.isoformat() for fire in entry.next_fires(3, after=after)] == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",  # 02:30 is skipped that day: just after the change
        "2026-03-30T00:30:00+00:00",
    ]
    assert len(entry.next_fires()) == 5
    assert entry.next_fires(1)[0] > datetime.now(UTC) - timedelta(days=1)
    with pytest.raises(ValueError, match="aware datetime"):
        entry.next_fires(after=datetime(2026, 1, 1))


def test_an_entry_of_each_database_contradicts_one_that_names_its_own() -> None:
    definition = job(name="shop.report")(report)
    with pytest.raises(InvalidJob, match="each_database=True makes no sense for a call with a database"):
        Cron("@daily", definition.using(database="other").bind("x"), each_database=True)
    with pytest.raises(InvalidJob, match="each_database must be True or False, not 'yes'"):
        Cron("@daily", definition.bind("x"), each_database=cast(Any, "yes"))
    with pytest.raises(InvalidJob, match="each_database=True makes no sense: a schedule is one row"):
        definition.schedule(Cron("@daily", each_database=True), name="nightly")
    assert registry.crons() == []
