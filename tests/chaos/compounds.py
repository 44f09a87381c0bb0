"""Jobs of the nemesis that consist of others: durable functions, sagas, batches, flows.

Each *owner* is known by its key, and its parts by ``key/…``. What a step does is a row of ``chaos_effect``, written in
the transaction of its memo; what a compensation does is another, written in that of its end. The bodies compare what
they are given with what they asked for, and note in the journal what is ``wrong``. ``register`` registers one owner of
a random kind; ``compound_judging`` compares what is left in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from django.db import connection

from django_pgjobs import Abandon, Batch, Flow, JobContext, current_context, job
from django_pgjobs.durable import Settled
from django_pgjobs.exceptions import WaitTimedOut
from django_pgjobs.jobs import BoundJob
from tests.chaos import journal
from tests.chaos.jobs import ROLES, SOON, Told, noted
from tests.e2e import stage

SETTLED = "settled"
"""The gate on the stage that is open once faults are over: compensations do not fail any more."""

GO = "go"
"""The event of one job for which durable functions wait, with or without avail."""

ROLES_OF_PARTS: tuple[tuple[float, str, dict[str, Any]], ...] = (
    (60, "succeed", {}),
    (6, "sleep", {"seconds": 0.2}),
    (6, "fail", {"times": 1}),
    (2, "snooze", {"seconds": 0.2}),
    (2, "raise", {}),
    (1, "abandon", {}),
    (1, "cancel", {}),
    (0.5, "die", {"times": 1}),
    (0.5, "obey", {"seconds": 1.0}),
)


# Parts


@job(name="compound.part", max_attempts=4, backoff=SOON, timeout=60)
def part(key: str, role: str = "succeed", given: Sequence[Any] = (), expects: Sequence[Any] = (), **facts: Any) -> str:
    """Play a role, and return the key. ``given``: results of others, which are to be what it ``expects``."""
    with noted("body", key):
        if list(given) != list(expects):
            wrong(key, f"was given {given!r} instead of {expects!r}")
        ROLES[role](key, **facts)
        return key


@part.undo(atomic=True, max_attempts=2, backoff=SOON, timeout=60)
def part_undo(context: JobContext, /, key: str, *_: Any, **__: Any) -> None:
    take_back(context, key)


@job(name="compound.take_back", takes_context=True, atomic=True, max_attempts=2, backoff=SOON, timeout=60)
def step_undo(context: JobContext, key: str, note: str) -> None:
    take_back(context, key)


def take_back(context: JobContext, key: str) -> None:
    with noted("body", f"{key}/undo/{context.id}"):
        if random.random() < 0.15 and not stage.here().is_open(SETTLED):
            raise Told("it cannot be taken back now")
        effect(key, "undo")


def effect(key: str, note: str) -> str:
    """Have an effect in the database, which is kept each time."""
    with connection.cursor() as cursor:
        words = (current_context().id, key, note)
        cursor.execute("INSERT INTO chaos_effect (job_id, key, note) VALUES (%s, %s, %s)", words)
    return note


def token(key: str) -> str:
    """A step with an effect that no transaction holds: a text that no other call returns."""
    context, made = current_context(), str(uuid4())
    journal.here().note("called", key=key, job=context.id, claim=context.claim_id, token=made)
    return made


def wrong(key: str, words: str) -> None:
    """Note that something is not as it has to be."""
    journal.here().note("wrong", key=key, job=current_context().id, words=words)


# Durable functions


@job(name="compound.durable", takes_context=True, max_attempts=8, backoff=SOON, timeout=60)
def durable(context: JobContext, key: str) -> dict[str, Any]:
    """Steps, sleeps, an event, two gathers; of the second all have to succeed."""
    chance = random.Random(key)
    with noted("body", key):
        made = context.step(token, key)
        context.step.using(name="do-first", atomic=True)(effect, key, "do-first")
        context.sleep(chance.choice((0.0, 0.2, 1.0)))
        judged(key, "a", context.gather(calls := calls_of(key, "a", chance), name="a", settled=True), calls)
        if chance.random() < 0.3:
            try:
                context.wait_for(GO, timeout=chance.uniform(0.2, 3.0))
            except WaitTimedOut:
                context.step.using(name="do-instead", atomic=True)(effect, key, "do-instead")
        judged(key, "b", context.gather(calls := calls_of(key, "b", chance), name="b"), calls)
        context.step.using(name="do-last", atomic=True)(effect, key, "do-last")
        return {"token": made}


@job(name="compound.adurable", takes_context=True, max_attempts=8, backoff=SOON, timeout=60)
async def adurable(context: JobContext, key: str) -> dict[str, Any]:
    """Two gathers at once, on the event loop."""
    chance = random.Random(key)
    with noted("body", key):
        made = await context.astep(token, key)
        await context.asleep(chance.choice((0.0, 0.2)))
        calls = {name: calls_of(key, name, chance) for name in ("a", "b")}
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(context.agather(some, name=name, settled=True)) for name, some in calls.items()
            }
        for name, some in calls.items():
            judged(key, name, tasks[name].result(), some)
        await context.astep.using(name="do-last", atomic=True)(effect, key, "do-last")
        return {"token": made}


@job(name="compound.saga", takes_context=True, max_attempts=3, backoff=SOON, timeout=60)
def saga(context: JobContext, key: str) -> str:
    """Steps with an undo, a gather between them; two of three fail in the end."""
    chance = random.Random(key)
    with noted("body", key):
        for number in range(chance.randint(1, 4)):
            step = context.step.using(name=f"do-{number}", atomic=True, undo=step_undo)
            step(effect, key, f"do-{number}")
            if chance.random() < 0.3:
                context.sleep(0.1)
        if chance.random() < 0.3:
            judged(key, "a", context.gather(calls := calls_of(key, "a", chance), name="a", settled=True), calls)
        if chance.random() < 0.66:
            raise Abandon("refused")
        return key


def calls_of(key: str, name: str, chance: random.Random) -> list[BoundJob]:
    return [part_of(f"{key}/{name}{number}", chance) for number in range(chance.randint(1, 5))]


def part_of(key: str, chance: random.Random, **more: Any) -> BoundJob:
    """Return the call of a part that plays a random role."""
    _, role, facts = chance.choices(ROLES_OF_PARTS, [each[0] for each in ROLES_OF_PARTS])[0]
    return part.bind(key=key, role=role, **facts, **more)


def judged(key: str, name: str, found: Sequence[Any], calls: Sequence[BoundJob]) -> None:
    """Compare the results of a gather with its calls: each returns its own key."""
    wanted = [call.kwargs["key"] for call in calls]
    if len(found) != len(wanted):
        wrong(key, f"gather {name} of {len(wanted)} gave {len(found)} results")
    for result, own in zip(found, wanted, strict=False):
        value = result.result if isinstance(result, Settled) else result
        if value != own and not (isinstance(result, Settled) and result.outcome != "succeeded" and value is None):
            wrong(key, f"gather {name} gave {result!r} for {own}")


# Owners


def a_durable(key: str, chance: random.Random) -> list[str]:
    durable.register(key=key)
    return [key]


def an_async_durable(key: str, chance: random.Random) -> list[str]:
    adurable.register(key=key)
    return [key]


def a_saga(key: str, chance: random.Random) -> list[str]:
    saga.register(key=key)
    return [key]


def a_batch(key: str, chance: random.Random) -> list[str]:
    """Members and what comes after them; some fail fast, some are undone."""
    rules = [rule for rule in ("succeeded", "failed", "settled") if chance.random() < 0.5]
    after: dict[str, Any] = {rule: part.bind(key=f"{key}/{rule}") for rule in rules}
    keys = [f"{key}/m{number}" for number in range(chance.randint(1, 8))]
    with Batch(key, fail_fast=chance.random() < 0.2, undo=chance.random() < 0.4, **after) as batch:
        batch.add_many(part_of(each, chance) for each in keys)
    return [*keys, *(f"{key}/{rule}" for rule in rules)]


def a_flow(key: str, chance: random.Random) -> list[str]:
    """Nodes that take the results of up to two others."""
    flow = Flow(key, undo=chance.random() < 0.4)
    nodes: list[Any] = []
    keys: list[str] = []
    for number in range(chance.randint(1, 6)):
        some = chance.sample(range(number), min(number, chance.randint(0, 2)))
        given, expects = [nodes[each].result for each in some], [keys[each] for each in some]
        keys.append(f"{key}/n{number}")
        nodes.append(flow.add(part_of(keys[-1], chance, given=given, expects=expects)))
    if chance.random() < 0.3:
        keys.append(f"{key}/failed")
        flow.add(part.bind(key=keys[-1]), after=nodes[-1], when="failed")
    flow.register()
    return keys


KINDS: dict[Callable[[str, random.Random], list[str]], float] = {
    a_durable: 4,
    an_async_durable: 2,
    a_saga: 4,
    a_batch: 4,
    a_flow: 3,
}


def register(key: str, chance: random.Random) -> tuple[str, list[str]]:
    """Register an owner of a random kind in the open transaction; return its kind and the keys of the rows."""
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    return kind.__name__, kind(key, chance)


OWNERS = (durable.name, adurable.name, saga.name)
"""The durable functions, whose effects and memos must agree."""
