"""Finds the workers that are alive, as far as the database knows.

A killed worker cannot report its death. Two missing heartbeats make it *silent*. It is *lost* once another worker has
rescued its jobs, or after ``STALE_SECONDS`` of silence. The database's clock decides. ``list_workers.sql`` and
``read_why.sql`` say the same in SQL; a test compares them.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Case, F, Q, TextField, Value, When
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf

QUIET = "quiet"
SILENT = "silent"
LOST = "lost"
LIVE = ("running", "quiet", "draining")

STATUS_LABELS: dict[str, object] = {
    "running": _("running"),
    "quiet": _("quiet"),
    "draining": _("draining"),
    SILENT: _("silent"),
    LOST: _("lost"),
    "stopped": _("stopped"),
}
"""Status of a worker → the word that people see."""


def sleeps() -> bool:
    """Return whether workers come to a schema only when it has something to do, as ``PGJOBS["SCHEMAS"]`` names many."""
    return get_conf().schemas is not None


def is_awaited(oldest_seconds: float) -> bool:
    """Return whether due jobs have waited for so long that a worker must have come for them."""
    return not sleeps() or oldest_seconds > get_conf().silent_seconds


def beat_within(seconds: float) -> Q:
    """Return the condition that a worker's last heartbeat is at most ``seconds`` old, by the database's clock."""
    return Q(last_beat_at__gt=Now() - timedelta(seconds=seconds))


def status() -> Case:
    """Return the expression of a worker's status, a key of ``STATUS_LABELS``."""
    conf = get_conf()
    return Case(
        When(state__in=["stopped", LOST], then=F("state")),
        When(~beat_within(conf.stale_seconds), then=Value(LOST)),
        When(~beat_within(conf.silent_seconds), then=Value(SILENT)),
        default=F("state"),
        output_field=TextField(),
    )
