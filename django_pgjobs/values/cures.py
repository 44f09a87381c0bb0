"""The words of other job queues, and what to write here instead: one table, by the place where people write them.

Layer 0. Loaded when something is refused, so a process that only registers does not pay for it.
"""

from __future__ import annotations

_COUNTS = "max_attempts counts the first start: max_attempts=%(next)s"
_CALLBACK = "decorate the callback, @your_job.%(callback)s"
_OF_A_CALL = "say it when you register: using(%(option)s=…).register(…)"
_OF_THE_CODE = "the code that runs a job decides it: @job(%(option)s=…)"

ANYWHERE = {
    **dict.fromkeys(("max_retries", "retries", "retry"), _COUNTS),
    **dict.fromkeys(("retry_backoff", "retry_delay", "default_retry_delay"), "write backoff=Backoff(…)"),
    "autoretry_for": "write retry_on=…",
    "dont_autoretry_for": "write give_up_on=…",
    **dict.fromkeys(("on_failure", "on_error", "on_abandon"), _CALLBACK % {"callback": "on_abandon"}),
    **{name: _CALLBACK % {"callback": name} for name in ("on_success", "on_cancel")},
    **dict.fromkeys(("schedule", "crontab", "periodic"), 'write cron=Cron("0 3 * * *")'),
    **dict.fromkeys(("every", "interval"), "write cron=Cron(every=…)"),
    **dict.fromkeys(("concurrency", "max_concurrency", "concurrency_limit"), "write limits=Limit(%(value)s)"),
    "rate_limit": "write limits=Limit(rate=…, per=…)",
    "key": 'write unique="report:{user_id}", a template of the arguments',
    **dict.fromkeys(("queueing_lock", "key_scope"), 'write unique=Unique("report:{user_id}", until="started")'),
    "on_conflict": 'write unique=Unique("report:{user_id}", on_conflict="replace")',
    "lock": "to run one at a time write limits=Limit(1, key=…), in order sequence=…, to register just one unique=…",
    "time_limit": "write timeout=…",
    **dict.fromkeys(("soft_time_limit", "soft_timeout"), "write timeout=(soft, hard)"),
    **dict.fromkeys(("ttl", "max_age"), "write expires=…"),
    "queue_name": "write queue=…",
    "ignore_result": "write store_result=False",
    **dict.fromkeys(
        ("acks_late", "reject_on_worker_lost"),
        'a job always runs again if its worker dies; on_crash="abandon" prevents that',
    ),
    **dict.fromkeys(("bind", "pass_context"), "annotate the first parameter, context: JobContext"),
    "describe": "write description=…",
}
"""An option that exists neither in ``@job`` nor in ``using``."""

OF_THE_TASK = ("on_failure", "on_error", "on_abandon", "on_success", "on_cancel", "queue_name")
"""Words for which ``@task`` has no option, or one of its own."""

CURES: dict[str, dict[str, str]] = {
    "@job": {
        **ANYWHERE,
        **dict.fromkeys(("depends_on", "dependencies"), _OF_A_CALL % {"option": "after"}),
        **dict.fromkeys(("scheduled_at", "schedule_at", "eta"), _OF_A_CALL % {"option": "run_at"}),
        **dict.fromkeys(("countdown", "schedule_in"), _OF_A_CALL % {"option": "delay"}),
        **{
            option: _OF_A_CALL % {"option": option}
            for option in ("after", "when", "run_at", "delay", "deadline", "database", "bypass")
        },
    },
    "using": {
        **ANYWHERE,
        **dict.fromkeys(("depends_on", "dependencies"), "write after=…"),
        **dict.fromkeys(("scheduled_at", "schedule_at", "eta"), "write run_at=…"),
        **dict.fromkeys(("countdown", "schedule_in"), "write delay=…"),
        **dict.fromkeys(("args", "kwargs"), "pass the arguments to register(…)"),
        "using": "write database=…",
        **{
            option: _OF_THE_CODE % {"option": option}
            for option in (
                "atomic", "cron", "give_up_on", "limits", "logs", "retry_on", "schedulable", "sensitive",
                "store_result", "strict_results", "takes_context", "undo_on_failure",
            )
        },
        "backoff": f"{_OF_THE_CODE % {'option': 'backoff'}}; a registration gives max_attempts alone",
    },
    "schedule": {
        **dict.fromkeys(("run_at", "delay"), "a schedule runs again and again; to run once later: using(%(option)s=…)"),
        "cron": 'the expression comes first: schedule("0 3 * * *", name=…)',
        "timezone": "write tz=…",
    },
    "step": {
        **dict.fromkeys(("max_retries", "retries", "retry"), "attempts counts the first call: attempts=%(next)s"),
        "max_attempts": "write attempts=%(value)s",
        **dict.fromkeys(("timeout", "retry_on", "give_up_on"), "a step takes it from its job: @job(%(option)s=…)"),
    },
    "policy": {
        **{option: words for option, words in ANYWHERE.items() if option not in OF_THE_TASK},
        **dict.fromkeys(("scheduled_at", "schedule_at", "eta", "run_at"), "write using(run_after=…) when you enqueue"),
        **dict.fromkeys(("bind", "pass_context"), "write @task(takes_context=True)"),
    },
    "definition": {
        **dict.fromkeys(("enqueue", "defer", "send"), "write register(…)"),
        "delay": "write register(…), or using(delay=…).register(…) for later",
        "aenqueue": "write aregister(…)",
        **dict.fromkeys(("apply_async", "send_with_options", "configure"), "write using(…).register(…)"),
        **dict.fromkeys(("delay_on_commit", "apply_async_on_commit"), "write register(…), which joins the transaction"),
        **dict.fromkeys(("s", "si", "signature"), "write bind(…)"),
        **dict.fromkeys(("map", "starmap", "chunks"), "write register_many(…)"),
        **dict.fromkeys(("on_failure", "on_error"), "decorate the callback by on_abandon"),
        "describe": "write @job(description=…)",
    },
    "canvas": {
        **dict.fromkeys(("apply_async", "delay", "apply", "enqueue", "defer", "send"), "write register()"),
        **dict.fromkeys(("using", "set"), "options are its calls': task.using(…).bind(…)"),
        **dict.fromkeys(("link", "link_error", "on_error"), 'use Flow, and add(call, after=…, when="failed")'),
    },
}  # fmt: skip
"""Place → the word that people write there → what to write instead. *%(value)s* is the value that was given, *%(next)s*
the number after it, *%(option)s* the word itself."""


def cure(where: str, option: str, value: object = None) -> str:
    """Return what to write instead of ``option`` with this ``value``; empty if the table does not have it."""
    found = CURES[where].get(option, "")
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    words = {"value": "…", "next": "…"} if number is None else {"value": number, "next": number + 1}
    return found % {**words, "option": option}


def unnamed(call: str, option: str, values: tuple[object, ...]) -> TypeError:
    """Return the error of options without names; most people mean ``option``."""
    return TypeError(f"{call}() takes options by name, such as {call}({option}={values[0]!r})")
