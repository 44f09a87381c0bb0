"""What an operator may do with cron entries: pause, resume, stop, run now, and put other values over the declared ones.

None of it is undone by a deploy: what code declares has columns of its own. Each may be repeated, and joins the
caller's transaction. The leader sees it within half a second; the statement that makes a fire looks itself, so that
none is made once a pause is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError, DataError, IntegrityError
from django.utils.translation import gettext_lazy as _

from django_pgjobs import store, waking
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob, InvalidJob, JobDoesNotExist, UnreadablePayload
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization import codec
from django_pgjobs.steering.jobs import who
from django_pgjobs.steering.trail import Trail
from django_pgjobs.store.transactions import at_read_committed
from django_pgjobs.values import schedule as cron

if TYPE_CHECKING:
    pass

log = safe_logger("django_pgjobs")

MOST_PREVIEWED = 1000

MOST_NAMED = 5
"""How many entries the trace of an action names."""

OVERRIDES = ("expression", "zone", "payload")

JSON_COLUMNS = ("declared_payload", "declared_options", "payload")
"""What a list leaves unread: one forged number of 5000 digits would keep every row from being shown."""


def run_now(name: str, alias: str, by: object) -> int:
    """Register the job of an entry at once; return its id. Raises as ``CronEntry.run_now``."""
    try:
        with at_read_committed(alias):
            found = store.run_cron(store.on(alias), name)
            made = [found.job_id] if found is not None and found.job_id is not None else []
            Trail("run now", who(by), kind="cron", subject=name).add(store.on(alias), len(made), made)
            if found is not None and found.wakes is not None:
                waking.tell(alias, [found.wakes])
    except (DataError, IntegrityError) as error:
        raise InvalidJob(f"cron entry {name!r}: its job cannot be inserted: {_refusal(error)}") from error
    if found is None:
        raise JobDoesNotExist(f"There is no cron entry {name!r}.")
    if found.busy:
        raise InvalidJob(f"cron entry {name!r}: a job of it is not finished, and its overlap policy forbids two")
    if found.job_id is None:
        raise DuplicateJob(message=f"cron entry {name!r}: an unfinished job has the key of its job")
    log.info("operator's run now cron=%s job=%d by=%s", name, found.job_id, " ".join(who(by).split()))
    return found.job_id


def listed(names: Iterable[str]) -> str:
    """The first of some names in words."""
    first = list(names)
    return ", ".join(first[:MOST_NAMED]) + (", …" if len(first) > MOST_NAMED else "")


def _refusal(error: DatabaseError) -> str:
    """Return why the database refuses a row, without its details, which hold the arguments."""
    diag = getattr(error.__cause__, "diag", None)
    return " ".join((getattr(diag, "message_primary", None) or str(error)).split())


def check_overrides(job_name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides, checked against what this process knows of the job. Raises ``ValidationError``."""
    wrong: dict[str, Any] = {}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        try:
            checked[name] = None if value is None else _CHECKS[name](job_name, value)
        except (cron.InvalidCron, UnreadablePayload) as error:
            wrong[name] = str(error)
        except ValidationError as error:
            wrong[name] = error.messages
    if wrong:
        raise ValidationError(wrong)
    return checked


def _check_payload(job_name: str, value: object) -> object:
    definition = registry.find(job_name)
    if definition is None:
        raise ValidationError(
            _("This process knows no job %(name)s, so its arguments cannot be checked."), params={"name": job_name}
        )
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = codec.size_of(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadablePayload(f"The arguments are no JSON: {error}") from None
    except codec.Refused as refusal:
        raise UnreadablePayload(f"The arguments cannot be stored: in them is {refusal}.") from None
    limit = get_conf().payload_limit_bytes
    if size > limit:
        raise UnreadablePayload(f"The arguments have more than {limit} bytes.")
    definition.load(text)
    return value


_CHECKS: dict[str, Any] = {
    "expression": lambda job_name, value: cron.check_expression(value),
    "zone": lambda job_name, value: cron.check_zone(value).key,
    "payload": _check_payload,
}
