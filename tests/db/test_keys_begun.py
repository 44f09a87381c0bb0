"""Keys of jobs that have begun and sleep, and keys that another kind of job has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import JobContext, Next, Unique, job, register_many
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.store import keys
from django_pgjobs.store.database import on
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import run_job
from tests.db.keys_ground import latest, plain
from tests.plugins.sabotage import lines_of, sabotage

pytestmark = pytest.mark.usefixtures("committed")


@job(name="keys.sleeps", takes_context=True, max_attempts=1)
def sleeps(context: JobContext, how: str) -> Any:
    if how == "step machine":
        return Next(plain.bind(), delay=3600)
    if how == "gather":
        return context.gather([plain.using(queue="elsewhere").bind()])
    if how == "window":
        context.step.using(name="did")(str)
    context.sleep(3600)


@pytest.mark.parametrize("policy", ["replace", "postpone"])
@pytest.mark.parametrize("how", ["sleep", "gather", "step machine", "window"])
def test_a_job_that_sleeps_after_it_has_begun_is_not_replaced_nor_moved(how: str, policy: Any) -> None:
    """What it has done is done: another one would do it again, and a later start would be a longer sleep."""
    year = 86_400 * 365
    given = sleeps.using(unique=Unique("k", window=year) if how == "window" else Unique("k", until="finished"))
    begun = given.register(how)
    run_job(begun)
    before = Job.objects.filter(pk=begun.pk).values("run_at", "expires_at", "deadline", "outcome", "unique_key").get()
    assert before["outcome"] is None
    if (how, policy) == ("window", "postpone"):
        with pytest.raises(InvalidJob, match="exclude each other"):
            given.using(unique=Unique(on_conflict=policy))
        return
    for again in (
        given.using(unique=Unique(on_conflict=policy), delay=7200),
        given.using(unique=Unique(on_conflict=policy), expires=60),
    ):
        with pytest.raises(DuplicateJob, match=f"Job {begun.pk} has the key 'k' .* and has started"):
            again.register(how)
        with pytest.raises(DuplicateJob, match="has started"):
            again.register_many([(how,)])
    assert Job.objects.filter(pk=begun.pk).values(*before).get() == before
    assert given.register(how).pk == begun.pk


@pytest.mark.parametrize("policy", ["existing", "replace", "postpone", "raise"])
def test_the_key_of_another_kind_of_job_is_refused(policy: Any) -> None:
    holder = plain.using(unique="k", delay=60).register()
    other = latest.using(unique=Unique("k", until="finished", on_conflict=policy), delay=9)
    words = (
        f"Job {holder.pk} " if policy == "raise" else rf"Job {holder.pk} \(.*plain\) has the key 'k' .*and this is .*"
    )
    with pytest.raises(DuplicateJob, match=words):
        other.register(1)
    with pytest.raises(DuplicateJob, match=words):
        other.register_many([(1,)])
    with pytest.raises(DuplicateJob, match="rows 0 and 1 have the same key 'n' in queue 'default' and are different"):
        register_many([plain.using(unique="n").bind(), other.using(unique="n").bind(1)])
    run_at = holder.run_at
    holder.refresh_from_db()
    assert (holder.outcome, holder.unique_key, holder.run_at) == (None, "k", run_at)
    assert Job.objects.count() == 1


def test_a_job_has_the_key_that_it_took_under_its_former_name() -> None:
    with registry.isolated():
        before = job(name="keys.before", unique="k")(plain.func).register()
    with registry.isolated():
        renamed = job(name="keys.after", aliases=["keys.before"], unique="k")(plain.func)
        assert renamed.register().pk == before.pk


def test_a_step_machine_keeps_its_key_for_its_first_step() -> None:
    given = sleeps.using(unique="k")
    begun = given.register("step machine")
    run_job(begun)
    assert Job.objects.get().name == plain.name
    assert given.register("step machine").pk == begun.pk
    with pytest.raises(DuplicateJob, match="and this is"):
        plain.using(unique="k").register()


@pytest.mark.parametrize(
    ("name", "line"), [*lines_of("flow & 40", ["free_keys", "postpone_jobs"]), *lines_of("j.flow", ["find_keys"])]
)
def test_without_its_line_a_job_that_has_begun_would_be_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twins."""
    window = line.strip().startswith(("j.finished_at", "(SELECT j.flow"))
    begun = sleeps.using(unique=Unique("k", window=86_400 * 365) if window else "k").register("sleep")
    run_job(begun)
    seconds = 86_400.0 * 365 if window else None
    wanted = NewJob("keys.sleeps", "{}", key="k", window_seconds=seconds, delay_seconds=1.0)
    db = on("default")
    keeps: dict[str, Callable[[], Any]] = {
        "find_keys": lambda: [holder and holder.started for holder in keys.find_keys(db, [wanted])] == [True],
        "free_keys": lambda: not keys.free_keys(db, [wanted]),
        "postpone_jobs": lambda: not keys.postpone_jobs(db, [wanted]).ids,
    }
    assert keeps[name]()
    sabotage(monkeypatch, name, line, line.replace("j.flow & 40", "0").replace("j.flow", "0 AS flow"))
    assert not keeps[name]()
