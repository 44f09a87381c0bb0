"""Sequences and needs: what happens when their locks meet those of rows and gates that others hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_pgjobs import Unique
from django_pgjobs.jobs import job
from django_pgjobs.models import Job
from django_pgjobs.store import gates, turns
from tests.plugins.fix_db import Background, RawDatabase, claim, wait_until

pytestmark = pytest.mark.usefixtures("committed")

MEET = """
CREATE SEQUENCE met;
CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The first insert goes on when another session waits for the sequence that it has locked.
    IF nextval('met') = 1 THEN
        WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER meet BEFORE INSERT ON pgjobs_job FOR EACH STATEMENT EXECUTE FUNCTION meet();
"""
PART = "DROP FUNCTION IF EXISTS meet() CASCADE; DROP SEQUENCE IF EXISTS met"


@job(name="sequences.locks", sequence="all")
def step(number: int) -> None: ...


@pytest.fixture
def met(committed: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(PART + ";" + MEET)
    yield
    with connection.cursor() as cursor:
        cursor.execute(PART)


def one(policy: str) -> list[int]:
    return [step.using(unique=Unique("k", on_conflict=policy)).register(2).pk]  # type: ignore[arg-type]


def many(policy: str) -> list[int]:
    return step.using(unique=Unique("k", on_conflict=policy)).register_many([(2,)])  # type: ignore[arg-type]


@pytest.mark.parametrize("register", [one, many])
@pytest.mark.parametrize("policy", ["replace", "postpone"])
def test_a_registration_that_deadlocks_lets_go_of_its_sequence(
    met: None, other: RawDatabase, background: Background, policy: str, register: Callable[[str], list[int]]
) -> None:
    """An operator has the row that it needs, and waits for its sequence, as a retry or an unblock does."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgjobs_job DISABLE TRIGGER meet")
        first, old = step.register(1), step.using(unique="k").register(2)
        cursor.execute("ALTER TABLE pgjobs_job ENABLE TRIGGER meet")
    other.query("SET deadlock_timeout = '10min'")  # the registration is always the one that the server ends
    other.commit()
    other.lock(old.pk)

    def registers() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        return register(policy)

    registered = background(registers)
    wait_until(lambda: registered.done() or bool(other.value("SELECT is_called FROM met")), 10, "it has the sequence")
    assert turns.lock_turns(other, [first.pk, old.pk])
    other.commit()
    (new,) = registered.result(10)
    assert (new == old.pk) is (policy == "postpone")
    assert Job.objects.get(pk=new).state == "blocked"


@job(name="needs.locks")
def behind(number: int) -> None: ...


@pytest.mark.parametrize("register", ["one", "many"])
@pytest.mark.parametrize("policy", ["replace", "postpone"])
def test_a_registration_that_deadlocks_lets_go_of_what_it_needs(
    other: RawDatabase, background: Background, policy: Any, register: str
) -> None:
    """An operator who has the job with its key waits for the one that it has locked before."""
    old, needed = behind.using(unique="k").register(1), behind.register(2)
    new = behind.using(unique=Unique("k", on_conflict=policy), after=[needed])
    other.query("SET deadlock_timeout = '10min'")  # the registration is always the one that the server ends
    other.commit()
    other.lock(old.pk)

    def registers() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
        return [new.register(3).pk] if register == "one" else new.register_many([(3,)])

    registered = background(registers)
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    wait_until(lambda: registered.done() or bool(other.value(waits)), 10, "it waits for the job that has its key")
    other.lock(needed.pk)
    other.commit()
    (found,) = registered.result(10)
    assert (found == old.pk) is (policy == "postpone")
    assert Job.objects.get(pk=found).state == ("ready" if policy == "postpone" else "blocked")


def test_a_worker_learns_that_the_gate_of_the_next_one_is_locked(raw: RawDatabase, other: RawDatabase) -> None:
    """So it sets that end aside, and need not write all others by halves to find it."""
    step.register(1)
    second = step.register(2)
    free = step.using(sequence="free").register(3)
    taken: Any = claim(raw, 2)
    other.query("SELECT 1 FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [second.pk])
    with raw.transaction():
        found = gates.list_locked_gates(raw, taken.ids)
    assert (list(found.values()), free.pk in found) == ([{second.pk}], False)
    other.rollback()
    with raw.transaction():
        assert gates.list_locked_gates(raw, taken.ids) == {}
