"""Step machines of the end-to-end tests: each step notes that it ran, and waits for its gate."""

from __future__ import annotations

from django_pgjobs import Backoff, JobContext, Next, job
from tests.e2e import stage


@job(name="machines.first", max_attempts=2, backoff=Backoff(0))
def first(key: str, delay: float = 0, gate: str = "", then: str = "second", queue: str = "other") -> Next:
    stage.here().note("first", key)
    if gate:
        stage.here().wait(gate)
    if then == "unstorable":
        return Next(second.bind(key, object()))  # type: ignore[arg-type]
    if then == "newer":
        from tests.e2e.newer import newer

        return Next(newer.using(queue=queue).bind(key))
    return Next(second.using(queue=queue).bind(key, queue), delay=delay)


@job(name="machines.second", takes_context=True, max_attempts=3, backoff=Backoff(0))
async def second(context: JobContext, key: str, queue: str) -> Next:
    stage.here().note("second", key)
    if key == "flaky" and context.attempt < 3:
        raise ValueError("not yet")
    return Next(third.using(queue=queue).bind(key))


@job(name="machines.third", max_attempts=4, backoff=Backoff(0))
def third(key: str) -> str:
    stage.here().note("third", key)
    if key.startswith("waits"):
        stage.here().wait(key)
    return key
