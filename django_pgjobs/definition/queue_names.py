"""A queue's name that is probably a slip of the pen, where no setting says which queues there are.

``PGJOBS["QUEUES"]`` refuses a slip; without it any name will do, and a job in a queue that no worker serves waits for
ever. So a process checks a name at its first use, and warns if it is almost that of a queue the code knows.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from django.apps import apps

from django_pgjobs.conf import Conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import safe_logger

logger = safe_logger("django_pgjobs")

ALIKE = 0.75
"""How alike a slip and what was meant are, by ``difflib``: two letters that changed places in a word of four."""

MOST = 1000
"""Names that a process remembers: a project with a queue for each customer has no slips to learn of."""

_checked: set[str] = set()


def notice(queue: str, where: str, conf: Conf) -> None:
    """Warn once per name and process of a queue that ``using`` or ``reschedule`` was given and nobody else names so.

    ``where`` says which call it was, as *key=value*.

    Silent where ``QUEUES`` is set, and until Django is ready: by then every module of jobs has been imported.
    """
    if queue in _checked or conf.queues is not None or not apps.ready or len(_checked) == MOST:
        return
    _checked.add(queue)
    known = _known(conf)
    if queue in known:
        return
    # Names that differ in their digits only are a family, as shard-1 and shard-2 are.
    others = [name for name in known if _without_digits(name) != _without_digits(queue)]
    if close := get_close_matches(queue, others, n=1, cutoff=ALIKE):
        logger.warning(
            "no job is declared with this queue queue=%s %s close=%s: if it is misspelt, mend it; the setting "
            "PGJOBS['QUEUES'] refuses queues that it does not list",
            queue,
            where,
            close[0],
        )


def _known(conf: Conf) -> set[str]:
    """Queues that the code of this process names: jobs, and settings by queue."""
    return {
        *(definition.queue for definition in registry.definitions()),
        *(queue for queue, _retention in conf.retention_hours.queues),
        *conf.capacity.names(),
        *conf.registration_rate.names(),
        *conf.queue_limits.names(),
    }


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)
