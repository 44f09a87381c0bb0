"""Warn of probable typos in queue names, if no setting lists the queues.

``PGJOBS["QUEUES"]`` refuses a typo. Without it any name is valid, and a job in a queue that no worker serves waits for
ever. A process therefore checks each name at its first use, and warns if it is almost the name of a queue that the code
knows.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from django.apps import apps

from django_pgjobs.conf import Conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import Facts
from django_pgjobs.logs import log as logger

ALIKE = 0.75
"""Similarity of a typo and the right name, by ``difflib``: two letters of a four-letter word change places."""

MOST = 1000
"""Names that a process remembers. In a project with a queue for each customer, similar names are no typos."""

_checked: set[str] = set()


def notice(queue: str, where: Facts, conf: Conf) -> None:
    """Warn once per name and process if ``using`` or ``reschedule`` names a queue that looks misspelt.

    ``where``: the call. Silent if ``QUEUES`` is set, and until Django is ready: only then has every
    module of jobs been imported.
    """
    if queue in _checked or conf.queues is not None or not apps.ready or len(_checked) == MOST:
        return
    _checked.add(queue)
    known = _known(conf)
    if queue in known:
        return
    # Names that differ only in digits are a family, such as shard-1 and shard-2.
    others = [name for name in known if _without_digits(name) != _without_digits(queue)]
    if close := get_close_matches(queue, others, n=1, cutoff=ALIKE):
        logger.warning(
            "no job is declared with this queue queue=%s %s close=%s: correct the name if it is misspelt; the setting "
            "PGJOBS['QUEUES'] refuses queues that it does not list",
            queue,
            where,
            close[0],
        )


def _known(conf: Conf) -> set[str]:
    """Return the queues that this process's code names, in jobs and in settings."""
    return {
        *(definition.queue for definition in registry.definitions()),
        *(queue for queue, _retention in conf.retention.queues),
        *conf.capacity.names(),
        *conf.registration_rate.names(),
        *conf.queue_limits.names(),
    }


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)
