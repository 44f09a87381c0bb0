"""Check that every setting is valid, that settings which bound each other agree, and that ``runjobs`` is ours.

A check must not call a project's ``capture``: that may ask a database, or need a request. Its source tells which keys
it returns; what that does not show, registering refuses.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands

from django_pgjobs import middleware
from django_pgjobs.conf import LADDER_SECONDS, Conf, get_conf, problems
from django_pgjobs.notifying.delivery import load, mail_admins, webhook
from django_pgjobs.states import TASK_HEADER


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that each key of ``PGJOBS`` is a setting with a valid value."""
    ids = {"dict": "pgjobs.E001", "unknown": "pgjobs.E002", "type": "pgjobs.E003", "range": "pgjobs.E004"}
    for problem in problems(getattr(settings, "PGJOBS", {})):
        yield Error(problem.message, hint=problem.hint, id=ids[problem.kind])


def check_relations(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check settings that bound each other."""
    if (conf := valid_conf()) is None:
        return
    if conf.lease_seconds < 3 * conf.renew_seconds:
        yield Error(
            f"PGJOBS: LEASE_SECONDS ({conf.lease_seconds:g}) is less than three times RENEW_SECONDS "
            f"({conf.renew_seconds:g}): one slow renewal would lose running jobs.",
            hint=f'Set "LEASE_SECONDS" to {3 * conf.renew_seconds:g} or more, or renew more often.',
            id="pgjobs.E005",
        )
    if conf.stale_seconds <= 2 * conf.beat_seconds:
        yield Error(
            f"PGJOBS: STALE_SECONDS ({conf.stale_seconds:g}) is not more than twice BEAT_SECONDS "
            f"({conf.beat_seconds:g}): one late heartbeat would show a living worker as gone.",
            hint=f'Set "STALE_SECONDS" to more than {2 * conf.beat_seconds:g}, or beat more often.',
            id="pgjobs.E006",
        )
    most, gentle = conf.executor_kill_megabytes, conf.executor_max_megabytes
    if most is not None and gentle is not None and most <= gentle:
        yield Error(
            f"PGJOBS: EXECUTOR_KILL_MEGABYTES ({most}) is not above EXECUTOR_MAX_MEGABYTES ({gentle}): "
            "executors would be stopped with their jobs before they could be replaced.",
            hint=f'Set "EXECUTOR_KILL_MEGABYTES" to more than {gentle}.',
            id="pgjobs.E025",
        )
    needed = LADDER_SECONDS + conf.callback_seconds
    if conf.rescue_grace_seconds <= needed:
        yield Error(
            f"PGJOBS: RESCUE_GRACE_SECONDS ({conf.rescue_grace_seconds:g}) is not more than the {LADDER_SECONDS:g} s "
            f"that stopping a job takes and CALLBACK_SECONDS ({conf.callback_seconds:g}) together: "
            "the worker would give up a job that it is just ending.",
            hint=f'Set "RESCUE_GRACE_SECONDS" to more than {needed:g}.',
            id="pgjobs.E007",
        )


def check_defaults(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that the defaults lie within the bounds for declarations."""
    if (conf := valid_conf()) is None:
        return
    pairs = (
        ("DEFAULT_MAX_ATTEMPTS", conf.default_max_attempts, "BOUNDS['max_attempts']", conf.bounds.max_attempts),
        (
            "DEFAULT_TIMEOUT_SECONDS",
            conf.default_timeout_seconds,
            "BOUNDS['timeout_seconds']",
            conf.bounds.timeout_seconds,
        ),
        (
            "DEFAULT_BACKOFF's base",
            conf.default_backoff.base,
            "BOUNDS['backoff_base_seconds']",
            conf.bounds.backoff_base_seconds,
        ),
        (
            "DEFAULT_BACKOFF's factor",
            conf.default_backoff.factor,
            "the largest of BOUNDS['backoff_factor']",
            conf.bounds.backoff_factor[1],
        ),
    )
    for name, value, ceiling_name, ceiling in pairs:
        if value is not None and value > ceiling:
            yield Error(
                f"PGJOBS: {name} ({value:g}) is above {ceiling_name} ({ceiling:g}).",
                hint=f"Lower {name} or raise {ceiling_name}.",
                id="pgjobs.E008",
            )
    factor, least = conf.default_backoff.factor, conf.bounds.backoff_factor[0]
    if factor < least:
        yield Error(
            f"PGJOBS: DEFAULT_BACKOFF's factor ({factor:g}) is below the least of BOUNDS['backoff_factor'], {least}.",
            hint="Raise DEFAULT_BACKOFF's factor or lower the least of BOUNDS['backoff_factor'].",
            id="pgjobs.E008",
        )


def check_named_queues(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that settings name only allowed queues: a typo would keep, delete or bound the wrong jobs."""
    conf = valid_conf()
    if conf is None or conf.queues is None:
        return
    named = {
        "RETENTION": [queue for queue, _retention in conf.retention.queues],
        "PLACES": conf.places.names(),
        "CAPACITY": conf.capacity.names(),
        "REGISTRATION_RATE": conf.registration_rate.names(),
        "QUEUE_LIMITS": conf.queue_limits.names(),
        "NOTIFY_FAILURES": list((conf.notify_failures and conf.notify_failures.queues) or ()),
    }
    for setting, queues in named.items():
        for queue in queues:
            if queue not in conf.queues:
                yield Error(
                    f"PGJOBS: {setting} names the queue {queue!r}, which QUEUES does not allow.",
                    hint=f"Add it to QUEUES, or name one of: {', '.join(conf.queues)}.",
                    id="pgjobs.E016",
                )


def check_middleware(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that each path in ``MIDDLEWARE`` names a factory, and that none captures a header that is not its own."""
    conf = valid_conf()
    for path in conf.middleware if conf else ():
        try:
            capture = getattr(middleware.load(path), "capture", None)
            if capture is not None and TASK_HEADER in returned_keys(capture):
                yield Error(
                    f'PGJOBS["MIDDLEWARE"]: {path}.capture() returns the header {TASK_HEADER!r}, which belongs to '
                    "django.tasks: registering would raise ImproperlyConfigured.",
                    hint="Choose another name for it.",
                    id="pgjobs.E019",
                )
        except ImproperlyConfigured as error:
            yield Error(
                str(error),
                hint="Write the dotted path of a function or class that takes run and returns its replacement.",
                id="pgjobs.E011",
            )


def check_notices(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that notices of failures can be delivered."""
    conf = valid_conf()
    if conf is None or conf.notify_failures is None:
        return
    hint = 'Write "to": "mail_admins", or the dotted path of a function that takes a FailureNotice.'
    try:
        deliver = load(conf.notify_failures.to)
        if deliver is webhook and not conf.notify_failures.url:
            hint = 'Write "url": "https://…".'
            raise ImproperlyConfigured('PGJOBS["NOTIFY_FAILURES"]: the webhook needs "url".')
    except ImproperlyConfigured as error:
        yield Error(str(error), hint=hint, id="pgjobs.E018")
        return
    if deliver is mail_admins and not settings.ADMINS:
        yield Warning(
            'PGJOBS["NOTIFY_FAILURES"] mails the admins, but ADMINS is empty: the notices reach no one.',
            hint="Set ADMINS.",
            id="pgjobs.W008",
        )


def valid_conf() -> Conf | None:
    """Return the settings; None if they are invalid, which E001 to E004 report."""
    try:
        return get_conf()
    except ImproperlyConfigured:
        return None


def check_commands(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that ``manage.py runjobs`` is ours; django-extensions has a command of the same name."""
    ours = apps.get_app_config("pgjobs").name
    command: Any = get_commands().get("runjobs", ours)
    owner = command if isinstance(command, str) else type(command).__module__
    if owner != ours and not owner.startswith(f"{ours}."):
        yield Warning(
            f"The command runjobs of {owner} shadows the worker's.",
            hint=f'List "{ours}" before "{owner}" in INSTALLED_APPS, or start workers by "manage.py pgjobs run".',
            id="pgjobs.W001",
        )


def returned_keys(function: Callable[..., object]) -> frozenset[str]:
    """Return the keys of the dicts that ``function`` returns as literals; none if its source cannot be read."""
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    returned = [value for node in tree.body for value in _returned(node)]
    return frozenset(key for value in returned for key in _keys(value))


def _returned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what the function of this statement returns; what functions inside of it return is another matter."""
    if isinstance(node, ast.FunctionDef):
        yield from _of_body(node)
    else:
        # ``factory.capture = lambda: {…}``
        yield from (found.body for found in ast.walk(node) if isinstance(found, ast.Lambda))


def _of_body(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) and child.value is not None:
            yield child.value
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_body(child)


def _keys(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Dict):
        yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        yield from (keyword.arg for keyword in value.keywords if keyword.arg is not None)
