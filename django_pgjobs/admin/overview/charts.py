"""Charts of an hour, a day or 30 days: what ended how, how long jobs waited and ran, and how much was due.

The figures are sums that workers send with their heartbeats, so they count jobs that have been deleted since. What a
worker counted since its last heartbeat is lost if it is killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgjobs.admin.overview.drawing import BarPart, ChartMark, bars, lines
from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.inspection.words import grouped
from django_pgjobs.presentation.wording import STATE_LABELS, seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Ended, Outcome
from django_pgjobs.store import numbers
from django_pgjobs.store.numbers import Bucket
from django_pgjobs.values.histogram import quantile

MOST_MINUTES = 20_000
MOST_DEPTHS = 150_000
MOST_MARKS = 10
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
TICKS = (
    (gettext_lazy("1 ms"), 0.001), (gettext_lazy("10 ms"), 0.01), (gettext_lazy("100 ms"), 0.1),
    (gettext_lazy("1 s"), 1.0), (gettext_lazy("10 s"), 10.0), (gettext_lazy("1 min"), 60.0),
    (gettext_lazy("10 min"), 600.0), (gettext_lazy("1 h"), 3600.0), (gettext_lazy("4 h"), 14_400.0),
)  # fmt: skip
"""Ticks with labels on the axis of a chart of times, short enough to stand beside it."""


class Span(NamedTuple):
    """A time span of the charts: its label, the seconds of a bucket, how many buckets, and how times are written."""

    label: object
    step: int
    buckets: int
    format: str


SPANS = {
    "hour": Span(gettext_lazy("hour"), 60, 60, "H:i"),
    "day": Span(gettext_lazy("day"), 900, 96, "H:i"),
    "month": Span(gettext_lazy("30 days"), 21_600, 120, "j M"),
}

WORDS: dict[str, object] = {
    **{outcome.value: STATE_LABELS[outcome.value] for outcome in Outcome},
    Ended.RETRIED.value: gettext_lazy("failed, tried again"),
    Ended.RELEASED.value: gettext_lazy("released"),
}
"""Labels of the bars; steps, sleeps and snoozes end an attempt too, but the job continues."""


def charts(seen: Seen) -> dict[str, object]:
    """Return the drawings and the table for readers."""
    span = SPANS[seen.span]
    trend = numbers.read_trend(seen.db, step=span.step, buckets=span.buckets, most=MOST_MINUTES)
    depths = numbers.read_depths(seen.db, step=span.step, buckets=span.buckets, most=MOST_DEPTHS)
    last = int(seen.latest.now.timestamp()) // span.step * span.step
    starts = [last - (span.buckets - 1 - at) * span.step for at in range(span.buckets)]
    found = {bucket.at: bucket for bucket in trend}
    due: dict[int, int] = defaultdict(int)
    for depth in depths:
        due[depth.at] += depth.ready
    shown = _Shown(seen, span, starts, found, due)
    own = {"database": seen.database} if seen.database else {}
    return {
        "spans": [
            {"label": each.label, "url": f"?{urlencode({**own, 'span': key})}", "chosen": key == seen.span}
            for key, each in SPANS.items()
        ],
        "charts": [
            {"heading": _("Ended"), "drawing": shown.ended(), "legend": shown.kinds()},
            {"heading": _("Waited"), "drawing": shown.times("waits", _("How long jobs waited")), "legend": _QUANTILES},
            {"heading": _("Ran"), "drawing": shown.times("runs", _("How long attempts ran")), "legend": _QUANTILES},
            {"heading": _("Due"), "drawing": shown.due_jobs(), "legend": []},
        ],
        "rows": shown.rows(),
        "words": list(WORDS.values()),
        "releases": [mark.text for mark in shown.marks],
    }


_QUANTILES = [(name, name) for name, _share in QUANTILES]


class _Shown:
    """The buckets of one page, with and without figures."""

    def __init__(
        self, seen: Seen, span: Span, starts: list[int], found: dict[int, Bucket], due: dict[int, int]
    ) -> None:
        self.seen, self.span, self.starts, self.found, self.due = seen, span, starts, found, due
        edges = (starts[0], starts[len(starts) // 2], starts[-1] + span.step)
        self.frame: dict[str, Any] = {"times": [self._time(at) for at in edges], "marks": self._marks()}

    @property
    def marks(self) -> Sequence[ChartMark]:
        """Positions at which a release was first seen."""
        marks: list[ChartMark] = self.frame["marks"]
        return marks

    def kinds(self) -> list[tuple[str, object]]:
        """The ends that there are, for the legend."""
        there = {kind for bucket in self.found.values() for kind in bucket.ended}
        return [(kind, word) for kind, word in WORDS.items() if kind in there]

    def ended(self) -> object:
        """Bars of what ended how."""
        return bars([self._parts(at) for at in self.starts], title=_("Ended by outcome"), **self.frame)

    def times(self, name: str, title: str) -> object:
        """Lines of quantiles, on a logarithmic axis."""
        counts = [getattr(self.found[at], name) if at in self.found else () for at in self.starts]
        series = [(kind, [quantile(each, share) for each in counts]) for kind, share in QUANTILES]
        known = [value for _kind, line in series for value in line if value is not None]
        labels = [(str(word), tick) for word, tick in TICKS if known and min(known) / 2 <= tick <= max(known)]
        labels = labels or [(seconds(max(known)), max(known))] if known else []
        return lines(series, title=title, labels=labels, logarithmic=True, **self.frame)

    def due_jobs(self) -> object:
        """A line of the jobs that were due at most."""
        line = [float(self.due[at]) if at in self.due else None for at in self.starts]
        most = max((value for value in line if value is not None), default=0.0)
        return lines([("due", line)], title=_("Due jobs at most"), labels=[(grouped(int(most)), most)], **self.frame)

    def rows(self) -> list[dict[str, object]]:
        """The buckets with figures, the latest first, for the table."""
        return [
            {
                "time": self._time(at),
                "ended": [grouped(self._ended(at).get(kind, 0)) for kind in WORDS],
                "waits": [_quantile(self.found.get(at), "waits", share) for _name, share in QUANTILES],
                "runs": [_quantile(self.found.get(at), "runs", share) for _name, share in QUANTILES],
                "due": grouped(self.due[at]) if at in self.due else "–",
            }
            for at in reversed(self.starts)
            if at in self.found or at in self.due
        ]

    def _ended(self, at: int) -> dict[str, int]:
        return dict(self.found[at].ended) if at in self.found else {}

    def _parts(self, at: int) -> list[BarPart]:
        ended = self._ended(at)
        return [
            BarPart(kind, ended[kind], f"{self._time(at)}: {grouped(ended[kind])} {word}", self._url(kind, at))
            for kind, word in WORDS.items()
            if ended.get(kind)
        ]

    def _url(self, kind: str, at: int) -> str:
        if kind == Ended.RETRIED:
            return self.seen.pages.jobs(state="retrying")  # those that are tried again still
        if kind not in set(Outcome):
            return ""
        begins, ends = (_iso(instant) for instant in (at, at + self.span.step))
        return self.seen.pages.jobs(state=kind, q=f"since:{begins} older:{ends}")

    def _time(self, at: int) -> str:
        instant = timezone.localtime(datetime.fromtimestamp(at, UTC))
        words = formats.date_format(instant, self.span.format)
        return f"{words} {instant:%H:%M}" if self.span.step > 3600 and instant.hour else words

    def _marks(self) -> list[ChartMark]:
        known: set[str] = set()
        marks = []
        for index, at in enumerate(self.starts):
            releases = set(self.found[at].releases) - {""} if at in self.found else set()
            if (new := sorted(releases - known)) and known:
                words = {"release": visible(", ".join(new))[:200], "time": self._time(at)}
                marks.append(ChartMark(index, _("Release %(release)s since %(time)s") % words))
            known |= releases
        return marks[-MOST_MARKS:]


def _iso(at: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%MZ")


def _quantile(bucket: Bucket | None, name: str, share: float) -> str:
    value = None if bucket is None else quantile(getattr(bucket, name), share)
    return "–" if value is None else seconds(value)
