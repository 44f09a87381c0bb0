"""What people write who come from other job queues: each word that the table of cures has, and the sentence printed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from django_pgjobs import Cron, JobContext, Limit, Unique
from django_pgjobs import job as declare
from django_pgjobs.canvas import chain
from django_pgjobs.definition.options import JOB_CHECKS, REGISTER_CHECKS
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.jobs.methods import GUESSED
from django_pgjobs.schedules import ScheduleOptions
from django_pgjobs.tasks import policy as task_policy
from django_pgjobs.testing import context as running
from django_pgjobs.values.call_options import OPTIONS
from django_pgjobs.values.cures import CURES

pytestmark = pytest.mark.usefixtures("own_registry")

job: Any = declare
policy: Any = task_policy
context: Any = running
"""As for people without a type checker, who sees most of these guesses itself."""


def order(number: int, note: str = "") -> int:
    return number


COMMON = {
    "max_attempts counts the first start: max_attempts=4": "max_retries retries retry",
    "write backoff=Backoff(…)": "retry_backoff retry_delay default_retry_delay",
    "write retry_on=…": "autoretry_for",
    "write give_up_on=…": "dont_autoretry_for",
    'write cron=Cron("0 3 * * *")': "schedule crontab periodic",
    "write cron=Cron(every=…)": "every interval",
    "write limits=Limit(3)": "concurrency max_concurrency concurrency_limit",
    "write limits=Limit(rate=…, per=…)": "rate_limit",
    'write unique="report:{user_id}", a template of the arguments': "key",
    'write unique=Unique("report:{user_id}", until="started")': "queueing_lock key_scope",
    'write unique=Unique("report:{user_id}", on_conflict="replace")': "on_conflict",
    "to run one at a time write limits=Limit(1, key=…), in order sequence=…, to register just one unique=…": "lock",
    "write timeout=…": "time_limit",
    "write timeout=(soft, hard)": "soft_time_limit soft_timeout",
    "write expires=…": "ttl max_age",
    "write queue=…": "queue_name",
    "write store_result=False": "ignore_result",
    "write description=…": "describe",
    'a job always runs again if its worker dies; on_crash="abandon" prevents that': "acks_late reject_on_worker_lost",
}
CALLBACKS = {
    "decorate the callback, @your_job.on_abandon": "on_failure on_error on_abandon",
    "decorate the callback, @your_job.on_success": "on_success",
    "decorate the callback, @your_job.on_cancel": "on_cancel",
    "annotate the first parameter, context: JobContext": "bind pass_context",
}
SAID = {
    "@job": {
        **COMMON,
        **CALLBACKS,
        "say it when you register: using(after=…).register(…)": "depends_on dependencies after",
        "say it when you register: using(run_at=…).register(…)": "scheduled_at schedule_at eta run_at",
        "say it when you register: using(delay=…).register(…)": "countdown schedule_in delay",
        "say it when you register: using(when=…).register(…)": "when",
        "say it when you register: using(deadline=…).register(…)": "deadline",
        "say it when you register: using(database=…).register(…)": "database",
        "say it when you register: using(bypass=…).register(…)": "bypass",
    },
    "using": {
        **COMMON,
        **CALLBACKS,
        "write after=…": "depends_on dependencies",
        "write run_at=…": "scheduled_at schedule_at eta",
        "write delay=…": "countdown schedule_in",
        "write database=…": "using",
        "pass the arguments to register(…)": "args kwargs",
        "the code that runs a job decides it: @job(backoff=…); a registration gives max_attempts alone": "backoff",
        **{
            f"the code that runs a job decides it: @job({option}=…)": option
            for option in (
                "atomic", "cron", "give_up_on", "limits", "logs", "retry_on", "schedulable", "sensitive",
                "store_result", "strict_results", "takes_context", "undo_on_failure",
            )
        },
    },
    "policy": {
        **{sentence: words for sentence, words in COMMON.items() if words != "queue_name"},
        "write using(run_after=…) when you enqueue": "scheduled_at schedule_at eta run_at",
        "write @task(takes_context=True)": "bind pass_context",
    },
    "schedule": {
        "a schedule runs again and again; to run once later: using(run_at=…)": "run_at",
        "a schedule runs again and again; to run once later: using(delay=…)": "delay",
        'the expression comes first: schedule("0 3 * * *", name=…)': "cron",
        "write tz=…": "timezone",
    },
    "step": {
        "attempts counts the first call: attempts=4": "max_retries retries retry",
        "write attempts=3": "max_attempts",
        "a step takes it from its job: @job(timeout=…)": "timeout",
        "a step takes it from its job: @job(retry_on=…)": "retry_on",
        "a step takes it from its job: @job(give_up_on=…)": "give_up_on",
    },
    "definition": {
        "write register(…)": "enqueue defer send",
        "write register(…), or using(delay=…).register(…) for later": "delay",
        "write aregister(…)": "aenqueue",
        "write using(…).register(…)": "apply_async send_with_options configure",
        "write register(…), which joins the transaction": "delay_on_commit apply_async_on_commit",
        "write bind(…)": "s si signature",
        "write register_many(…)": "map starmap chunks",
        "decorate the callback by on_abandon": "on_failure on_error",
        "write @job(description=…)": "describe",
    },
    "canvas": {
        "write register()": "apply_async delay apply enqueue defer send",
        "options are its calls': task.using(…).bind(…)": "using set",
        'use Flow, and add(call, after=…, when="failed")': "link link_error on_error",
    },
}  # fmt: skip
"""Where it is written → the sentence that is printed → the words that it answers, each with the value 3."""

ROWS = [
    (where, word, sentence)
    for where, said in SAID.items()
    for sentence, words in said.items()
    for word in words.split()
]

WRITTEN: dict[str, Callable[[str], object]] = {
    "@job": lambda word: job(**{word: 3})(order),
    "using": lambda word: job(order).using(**{word: 3}),
    "policy": lambda word: policy(**{word: 3}),
    "schedule": lambda word: job(order).schedule("@daily", name="x", **{word: 3}),
    "step": lambda word: context().step.using(**{word: 3}),
}


def test_every_row_of_the_table_has_a_test() -> None:
    assert {(where, word) for where, rows in CURES.items() for word in rows} == {row[:2] for row in ROWS}
    assert len(ROWS) == len({row[:2] for row in ROWS})
    assert {*GUESSED} == {*CURES["definition"]}


def test_an_option_of_the_other_place_is_answered_by_that_place() -> None:
    assert JOB_CHECKS.keys() - REGISTER_CHECKS.keys() - {"name", "aliases"} <= CURES["using"].keys()
    assert REGISTER_CHECKS.keys() - JOB_CHECKS.keys() <= CURES["@job"].keys()


@pytest.mark.parametrize(("where", "word", "sentence"), ROWS)
def test_a_guess_is_answered_by_what_to_write(where: str, word: str, sentence: str) -> None:
    if where == "definition":
        with pytest.raises(AttributeError) as wrong:
            getattr(job(order), word)
        assert str(wrong.value) == f"job '{__name__}.order' has no {word}(): {sentence}"
        return
    if where == "canvas":
        with pytest.raises(AttributeError) as wrong:
            getattr(chain(job(order).bind(1)), word)
        assert str(wrong.value) == f"a canvas has no {word}(): {sentence}"
        return
    with pytest.raises(InvalidJob) as raised:
        WRITTEN[where](word)
    assert str(raised.value).endswith(f": unknown option {word!r}: {sentence}")


OWN = {
    *JOB_CHECKS,
    *REGISTER_CHECKS,
    *OPTIONS,
    *ScheduleOptions.__annotations__,
    *get_type_hints(Limit),
    *Unique.__annotations__,
    "run_after",
}


@pytest.mark.parametrize("sentence", sorted({row[2] for row in ROWS}))
def test_an_answer_names_only_what_there_is(sentence: str) -> None:
    assert {*re.findall(r"(\w+)=", sentence)} <= OWN
    named = {*re.findall(r"(?:@your_job\.|by |write )(\w+)(?:\(|$)", sentence)}
    assert all(hasattr(JobDefinition, name) or name in OWN for name in named), named
    assert Cron(every=60).name is not None if "Cron(every" in sentence else True


@pytest.mark.parametrize(
    ("value", "sentence"), [("3", "max_attempts=…"), (True, "max_attempts=…"), (0, "max_attempts=1")]
)
def test_only_a_number_is_counted_on(value: object, sentence: str) -> None:
    with pytest.raises(InvalidJob, match=f"unknown option 'max_retries': .*first start: {sentence}$"):
        job(order).using(max_retries=value)


def test_a_word_that_nobody_guesses_is_only_unknown() -> None:
    with pytest.raises(InvalidJob, match=r"unknown option 'colour'$"):
        job(colour="red")(order)
    with pytest.raises(AttributeError, match=r"^a canvas has no colour$"):
        _ = chain().colour  # type: ignore[attr-defined]
    with pytest.raises(
        InvalidJob, match="unknown option 'colour': a step has atomic, attempts, backoff, key, name, un"
    ):
        context().step.using(colour="red")


def test_options_without_names_are_refused_by_the_name_that_they_need() -> None:
    declared = job(order)
    for call in (declared.using, declared.using(delay=1).using, declared.bind(1).using):
        with pytest.raises(TypeError, match=r"^using\(\) takes options by name, such as using\(database='default'\)$"):
            call("default")
    for step in (context().step, context().astep):
        with pytest.raises(TypeError, match=r"^context\.step\.using\(\) takes options by name.*\(name='x'\)$"):
            step.using("x")


def test_undo_without_brackets_says_so() -> None:
    declared = job(order)

    def undo_order(context: JobContext, number: int, note: str = "") -> None: ...

    with pytest.raises(InvalidJob, match=r"test_cures\.py:\d+: write @order\.undo\(\), with brackets$"):
        declared.undo(undo_order)
    assert declared.undo()(undo_order).name.endswith(".undo")


def test_a_schedule_without_a_name_names_the_way_to_run_once_later() -> None:
    with pytest.raises(
        InvalidJob, match=r"needs a name.*to run it once later, write using\(run_at=…\)\.register\(…\)$"
    ):
        job(order).schedule("x")


def test_a_context_that_the_declaration_forgot_is_named() -> None:
    def greets(context: object, number: int) -> None: ...

    wrong = r"greets\(\) missing 1 required positional argument: 'number'; if its first parameter is the JobContext, "
    declared = job(greets)
    for call in (declared.register, declared.bind):
        with pytest.raises(TypeError, match=f"{wrong}annotate it as that, or declare takes_context=True$"):
            call(7)
    with pytest.raises(TypeError, match=r"'number'$"):
        job(takes_context=True, name="declared")(greets).bind()


def test_the_value_of_a_call_is_no_step() -> None:
    async def acharge(number: int) -> int:
        return number

    wrong = r"context\.step\(\) takes a function and its arguments, such as context\.step\(charge, order_id\): this is "
    with pytest.raises(InvalidJob, match=f"{wrong}a value, of type int$"):
        context().step(order(1))

    async def calls() -> None:
        with pytest.raises(InvalidJob, match=r"context\.astep\(\) takes.*of type coroutine$"):
            await context().astep(acharge(1))

    asyncio.run(calls())


def test_the_options_of_a_step_stand_before_its_arguments() -> None:
    def passes(number: int, **more: Any) -> tuple[int, Any]:
        return number, more

    wrong = (
        r"unexpected keyword argument 'undo'; for the option of the step write context\.step\.using\(undo=…\)\(order"
    )
    wrong = f"step: got an {wrong}"
    with pytest.raises(InvalidJob, match=wrong):
        context().step(order, 1, undo=order)
    declared = job(takes_context=True, name="declared")(named)
    with pytest.raises(InvalidJob, match=r"'attempts'; .*context\.astep\.using\(attempts=…\)\(named, …\)"):
        context().astep(declared, 1, "b", attempts=3)
    assert context().step(passes, 1, key="a", name="b") == (1, {"key": "a", "name": "b"})
    assert context().step(declared, number=1, name="b") == (1, "b")


def named(context: JobContext, number: int, name: str) -> tuple[int, str]:
    return number, name
