"""Read a project's source for what will differ when its Celery tasks run here, or cannot be. Imports no Celery.

The words for an option or a call here are in ``values.cures``, which the refusals of ``@job`` use, too. This module has
those that keep their meaning only in part, or not at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from django_pgjobs.doctor.finding import Finding, Severity
from django_pgjobs.values.cures import CURES

ERROR, WARNING, NOTE = Severity

SKIPPED = {".git", ".tox", ".venv", "__pycache__", "migrations", "node_modules", "site-packages", "venv"}


class Difference(NamedTuple):
    """A difference: how much it matters, what it is, why it matters, and what to write."""

    severity: Severity
    what: str
    why: str
    cure: str


DIFFERENCES = {
    "pickle": Difference(
        ERROR, "Arguments travel as pickle.", "Here they are JSON, with tags for dates, decimals and the like: others "
        "are refused.", "accept primary keys and plain values: shop.charge.register(order.pk)"),
    "routing": Difference(
        ERROR, "Messages go by exchange or routing key.", "There are no exchanges here: such options are refused.",
        '@job(queue="mail"), or using(queue="mail").register(…)'),
    "solar": Difference(
        ERROR, "A schedule goes by the sun.", "Schedules here are cron expressions and intervals.",
        "a job that registers the next one: using(run_at=next_sunset()).register()"),
    "naive_eta": Difference(
        ERROR, "eta is computed from a time without a zone.", "Celery takes it in its timezone; here it is InvalidJob.",
        "using(run_at=timezone.now() + …).register(…), or using(delay=…).register(…)"),
    "retry_args": Difference(
        ERROR, "self.retry() changes the arguments.", "A retry here runs with the arguments that are stored.",
        "task.using(delay=…).register(other, arguments), and return"),
    "rate_limit": Difference(
        WARNING, "rate_limit is of one worker process.", "Limits here are of all workers together, so four processes "
        "would start a quarter of what they start now.", "@job(limits=Limit(rate=200, per=60))"),
    "lost_at_crash": Difference(
        WARNING, "A task is lost when its worker dies (no acks_late).", "Here it runs again: what it had done before "
        "happens twice.", '@job(on_crash="abandon"), or make it safe to run twice'),
    "no_retry": Difference(
        WARNING, "A task that fails is not tried again.", "Here a failed job has five attempts within 21 minutes.",
        "@job(max_attempts=1)"),
    "no_time_limit": Difference(
        WARNING, "A task has no time limit.", "Here a job is stopped after 30 minutes.",
        '@job(timeout=None), or PGJOBS = {"DEFAULT_TIMEOUT_SECONDS": None}'),
    "time_limit": Difference(
        WARNING, "A setting limits the time of all tasks.", "It is not read here: a job is stopped after 30 minutes.",
        'PGJOBS = {"DEFAULT_TIMEOUT_SECONDS": …}'),
    "endless_retries": Difference(
        WARNING, "A task is tried again without end (max_retries=None).", "Attempts are bounded here.",
        "@job(max_attempts=1000)"),
    "priority": Difference(
        WARNING, "Tasks have priorities.", "On Redis 0 comes first, on RabbitMQ and here the largest.",
        "on Redis write priority=9 - p"),
    "base": Difference(
        WARNING, "Tasks have a class of their own.", "Functions here have none: its hooks would not be called.",
        'PGJOBS = {"MIDDLEWARE": ["shop.middleware.around"]}, and @your_job.on_abandon'),
    "soft_limit": Difference(
        WARNING, "SoftTimeLimitExceeded is caught.", "Here the soft limit raises another exception.",
        "except SoftDeadlinePassed, of django_pgjobs.exceptions"),
    "result": Difference(
        WARNING, "Results are read by task id.", "Ids here are whole numbers, and an unknown one raises.",
        "Job.objects.get(pk=…).wait(timeout=30)"),
    "task_id": Difference(
        WARNING, "A task id is chosen by the caller.", "Ids are the database's here; Celery's never kept a task from "
        "running twice.", "using(idempotency_key=…).register(…)"),
    "signals": Difference(
        WARNING, "Receivers of Celery's signals.", "These signals are not sent here.",
        "django_pgjobs.signals: job_registered, job_started, attempt_ended, job_finished, executor_started"),
    "control": Difference(
        WARNING, "Workers are steered by app.control.", "There is no broadcast here.",
        "manage.py pgjobs cancel | pause | limit | workers"),
    "eager": Difference(
        WARNING, "Tests run tasks at once (always eager).", "Jobs here wait for their commit, as in production.",
        "django_pgjobs.testing.run_jobs()"),
    "zone": Difference(
        WARNING, "Celery has a time zone of its own.", "Schedules here go by TIME_ZONE, unless they name another.",
        'Cron("0 3 * * *", tz="UTC")'),
    "needless": Difference(
        NOTE, "Settings of prefetching, acknowledging and visibility.", "Nothing is prefetched here, and leases are "
        "renewed: a long eta is not delivered twice.", "delete them"),
}  # fmt: skip
"""Code → a difference that no single option shows."""

OPTIONS = {
    "rate_limit": "rate_limit", "base": "base", "priority": "priority", "exchange": "routing", "routing_key": "routing",
    "task_id": "task_id",
}  # fmt: skip
"""Option of a task or a call → the code of its difference."""

SYMBOLS = {"AsyncResult": "result", "SoftTimeLimitExceeded": "soft_limit", "solar": "solar"}
"""A name that is called or caught → the code of its difference."""

SETTINGS = {
    "TASK_ALWAYS_EAGER": "eager", "TIMEZONE": "zone", "VISIBILITY_TIMEOUT": "needless",
    "WORKER_PREFETCH_MULTIPLIER": "needless", "WORKER_MAX_TASKS_PER_CHILD": "needless",
    "TASK_TIME_LIMIT": "time_limit", "TASK_SOFT_TIME_LIMIT": "time_limit",
}  # fmt: skip
"""A setting, in upper case without CELERY_ → the code of its difference."""

FOR_ALL = {
    "ACKS_LATE": "lost_at_crash", "TASK_ACKS_LATE": "lost_at_crash", "TASK_TIME_LIMIT": "no_time_limit",
    "TASK_SOFT_TIME_LIMIT": "no_time_limit",
}  # fmt: skip
"""A setting → the code of what is no difference where it is set, of tasks that do not say otherwise."""

CALLS = ("apply_async", "delay", "delay_on_commit", "apply_async_on_commit", "si", "signature", "starmap", "chunks")
NOT_OPTIONS = ("args", "kwargs")


def read(paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield the differences in the Python files beneath these paths, each with where it is."""
    found: dict[str, list[str]] = {}
    for root in paths:
        for file in [root] if root.is_file() else sorted(root.rglob("*.py")):
            if SKIPPED.intersection(file.relative_to(root).parts):
                continue
            try:
                for code, line in list(_of_file(file)):
                    found.setdefault(code, []).append(f"{file}:{line}")
            except Exception as error:  # a file may also be nested too deeply, or be too large
                what = f"A file cannot be read: {str(error) or type(error).__name__}"
                difference = Difference(NOTE, what, "It may have tasks, too.", f"python -m compileall {file}")
                yield _finding("unread", difference, [f"{file}:1"])
    for code in dict.fromkeys(FOR_ALL.values()):
        unsaid = found.pop(f"unsaid {code}", [])
        if not found.pop(f"settled {code}", []) and unsaid:
            found.setdefault(code, []).extend(unsaid)
    for code, places in found.items():
        where, _, word = code.rpartition(" ")
        difference = DIFFERENCES.get(code) or _option(where, word)
        yield _finding(code.replace(" ", "_").lstrip("@"), difference, places)


def _finding(code: str, difference: Difference, places: Iterable[str]) -> Finding:
    return Finding(f"celery_{code}", *difference, where=tuple(dict.fromkeys(places)))


def _of_file(path: Path) -> Iterator[tuple[str, int]]:
    source = path.read_bytes()
    knows = b"celery" in source.lower()
    if knows or any(call.encode() in source for call in CALLS):
        for node in ast.walk(ast.parse(source)):
            yield from _codes(node, knows=knows)


def _option(where: str, word: str) -> Difference:
    what = {"@job": f"A task is declared with {word}.", "using": f"A task is called with {word}."}
    return Difference(
        NOTE, what.get(where, f"Tasks are called by {word}()."), "It has another name here.", _cure(where, word)
    )


def _cure(where: str, word: str) -> str:
    return CURES[where][word] % {"option": word, "value": "…", "next": "one more"}


def _codes(node: ast.AST, *, knows: bool) -> Iterator[tuple[str, int]]:
    """Yield the codes of what a node says, or the place and the word in ``CURES``, with its line."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and knows:
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if _last(call.func if call else decorator) in ("shared_task", "task"):
                options = {each.arg: each.value for each in call.keywords if each.arg} if call else {}
                yield from ((code, decorator.lineno) for code in _of_task(options, ast.unparse(node)))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        options = {each.arg: each.value for each in node.keywords if each.arg}
        whose, call_name = ast.unparse(node.func.value), node.func.attr
        if call_name in ("apply_async", "signature", "apply_async_on_commit"):
            yield from ((code, node.lineno) for code in _of_call(options))
        if knows and call_name == "retry" and whose == "self" and options.keys() & set(NOT_OPTIONS):
            yield "retry_args", node.lineno
        if knows and (whose.endswith("control") or call_name == "broadcast"):
            yield "control", node.lineno
        if call_name in CALLS and (knows or call_name not in ("starmap", "chunks", "signature")):
            yield f"definition {call_name}", node.lineno
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        if any(f"{module}{each.name}.".startswith("celery.signals.") for each in node.names):
            yield "signals", node.lineno
    if knows:
        used = node.func if isinstance(node, ast.Call) else node.type if isinstance(node, ast.ExceptHandler) else None
        for each in ast.walk(used) if used is not None else ():
            if isinstance(each, ast.Name | ast.Attribute) and (code := SYMBOLS.get(_last(each))):
                yield code, each.lineno
        for name, value, line in _set(node):
            setting = name.upper().removeprefix("CELERY_")
            if code := SETTINGS.get(setting):
                yield code, line
            if (code := FOR_ALL.get(setting)) and ast.unparse(value) not in ("False", "None"):
                yield f"settled {code}", line
            elif ("SERIALIZER" in setting or setting == "ACCEPT_CONTENT") and "pickle" in ast.unparse(value):
                yield "pickle", line


def _set(node: ast.AST) -> Iterator[tuple[str, ast.AST, int]]:
    """Yield the settings of Celery that a node sets, and the serializers that a task or a call names."""
    if isinstance(node, ast.Assign):
        for target in map(ast.unparse, node.targets):
            if target.startswith("CELERY_") or ".conf." in target:
                yield target.rpartition(".")[2], node.value, node.lineno
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and str(key.value).startswith(("CELERY_", "visibility_timeout")):
                yield str(key.value), value, key.lineno
    elif isinstance(node, ast.Call):
        of_conf = ast.unparse(node.func).endswith("conf.update")
        for each in node.keywords:
            if each.arg and (of_conf or each.arg == "serializer"):
                yield each.arg, each.value, node.lineno


def _of_task(options: dict[str, ast.expr], text: str) -> Iterator[str]:
    retries = "autoretry_for" in options or ".retry(" in text
    if not retries:
        yield "no_retry"
    if ast.unparse(options.get("max_retries", ast.Constant(0))) == "None":
        yield "endless_retries"
    if "acks_late" not in options:
        yield "unsaid lost_at_crash"
    elif ast.unparse(options["acks_late"]) == "False":
        yield "lost_at_crash"
    if not options.keys() & {"time_limit", "soft_time_limit"}:
        yield "unsaid no_time_limit"
    for option in options:
        if code := OPTIONS.get(option) or (f"@job {option}" if option in CURES["@job"] else ""):
            yield code


def _of_call(options: dict[str, ast.expr]) -> Iterator[str]:
    eta = ast.unparse(options["eta"]) if "eta" in options else ""
    if "datetime.now()" in eta or "utcnow()" in eta:
        yield "naive_eta"
    for option in options:
        if option in NOT_OPTIONS:
            continue
        if code := OPTIONS.get(option) or (f"using {option}" if option in CURES["using"] else ""):
            yield code


def _last(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]
