"""Jobs that failed within a day, by name and error: how often, when last, in which release, and what to do about it."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.diagnosis.health import paused_names
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.search_words import NO_ERROR
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import BUILT_IN
from django_pgjobs.store import noticing
from django_pgjobs.store.noticing import AbandonedGroup

WITHIN_SECONDS = 86_400.0
MOST = 20
MOST_READ = 10_000


def failures(seen: Seen) -> dict[str, object]:
    """Return a row for each group of abandoned jobs, the largest first."""
    groups, read = noticing.list_failures(seen.db, seconds=WITHIN_SECONDS, groups=MOST, most=MOST_READ)
    paused = paused_names(seen.using, "job")
    bound = ngettext("Of the last %(count)s abandoned job.", "Of the last %(count)s abandoned jobs.", read)
    return {
        "groups": [_row(seen, group, group.name in paused) for group in groups],
        "bound": bound % {"count": grouped(read)} if read >= MOST_READ else "",
        "more": len(groups) == MOST,
        "may_retry": seen.may("retry_job"),
        "any_row": seen.pages.shown(0),
    }


def _row(seen: Seen, group: AbandonedGroup, paused: bool) -> dict[str, object]:
    error = f'"{group.error_class}"' if group.error_class else NO_ERROR
    url = seen.pages.jobs(state="abandoned", name=group.name, q=f"error:{error} since:24h")
    words = {"time": seconds(group.last_seconds)}
    may_pause = seen.may("pause_queue") and not group.name.startswith(BUILT_IN)
    return {
        "name": visible(group.name),
        "name_url": seen.pages.jobs(name=group.name),
        "error": visible(group.error_class) or _("abandoned by an operator"),
        "jobs": grouped(group.jobs),
        "url": url if '"' not in group.error_class else "",
        "last": _("%(time)s ago") % words,
        "last_url": seen.pages.job(group.last_id),
        "release": visible(group.release) or "–",
        "paused": paused,
        "pause_url": seen.pages.page("queuestate_add", kind="job", name=group.name) if may_pause and not paused else "",
        "pauses_url": seen.pages.page("queuestate_changelist", q=group.name) if paused and seen.may_resume else "",
    }
