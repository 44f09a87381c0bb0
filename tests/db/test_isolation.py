"""Operators whose connection has a stricter isolation level by default than the product needs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgjobs import Unique, register_many
from django_pgjobs import job as define
from django_pgjobs.definition.keys import ConflictOption
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.steering.batching import Steered
from tests.plugins.fix_db import RawDatabase, blocked_by, claim, job, register, wait_until


@pytest.fixture(params=["repeatable read", "serializable"])
def level(committed: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """The default level of Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{request.param}'")
    yield request.param
    connection.close()


ARGUMENTS: dict[str, dict[str, Any]] = {
    "cancel": {},
    "abandon": {},
    "retry": {},
    "release": {},
    "reschedule": {"delay": 5},
}


@pytest.mark.parametrize("action", ARGUMENTS)
def test_a_stricter_default_refuses_no_operator(raw: RawDatabase, other: RawDatabase, level: str, action: str) -> None:
    """I16: the row that an operator waits for is changed by somebody else, and is steered all the same."""
    (one,) = register()
    if action == "retry":
        job(one).abandon()
    if action == "release":
        assert claim(raw).ids == [one]
    other.lock(one)
    other.query("UPDATE pgjobs_job SET description = 'seen' WHERE id = %s", [one])
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(_commit_when_waited_for, raw, other)
        assert getattr(Job.objects.filter(pk=one), action)(**ARGUMENTS[action]) == Steered(1)
        committing.result()
    assert job(one).description == "seen"


def numbered(number: int) -> None: ...


ANOTHER = """
    INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, run_at, key, key_scope, unique_key)
    VALUES ('test.job', 'default', 0, 5, '{}', statement_timestamp(), 'k', 'until_finished', 'k')
    RETURNING id
"""


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("policy", ["existing", "replace", "postpone"])
def test_a_stricter_default_refuses_no_key(
    raw: RawDatabase, other: RawDatabase, level: str, policy: ConflictOption, *, many: bool
) -> None:
    """The job that has the key is committed while one waits for it: later than a snapshot of that level."""
    holder = other.value(ANOTHER)
    with registry.isolated(), ThreadPoolExecutor(1) as pool:
        call = define(name="test.job")(numbered).using(unique=Unique("k", on_conflict=policy)).bind(1)
        committing = pool.submit(_commit_when_waited_for, raw, other)
        found = register_many([call])[0] if many else call.register().pk
        committing.result()
    assert (found == holder) == (policy != "replace")
    assert job(holder).state == ("cancelled" if policy == "replace" else "ready")
    assert Job.objects.filter(unique_key="k", finished_at=None).count() == 1


def _commit_when_waited_for(raw: RawDatabase, other: RawDatabase) -> None:
    try:
        wait_until(lambda: blocked_by(raw, other.pid), 1, "an operator waits for the row")
    finally:
        other.commit()


def _level() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


def test_the_level_of_the_callers_transaction_is_the_callers(level: str) -> None:
    """Steering joins it, whether it was opened by atomic() or there is no autocommit."""
    (one,) = register()
    with transaction.atomic():
        assert job(one).cancel() == Steered(1)
        assert _level() == level
    transaction.set_autocommit(False)
    try:
        assert job(one).retry() == Steered(1)
        assert _level() == level
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert job(one).state == "cancelled"
    assert job(one).retry() == Steered(1)
