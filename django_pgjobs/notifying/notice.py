"""A notice as its recipients get it: facts that are safe to show, and the same as text.

The code that registers a job chooses its name, and a worker's environment its release. Every text here therefore has
one line, a bounded length and only printable characters. It may still hold markup: a recipient that renders HTML or the
like escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse

from django_pgjobs.serialization.escapes import one_line, plain

MOST_CHARS = 200
MOST_SUBJECT_CHARS = 150
MOST_PROBLEM_CHARS = 500
MOST_PROBLEMS = 50

BY_HAND = "abandoned by hand"
"""The words for jobs without an error class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Abandoned jobs of one name and error class.

    ``error_class``: the class of the exception as a dotted path, or ``timeout``, ``crashed`` or ``lost``; empty for
    jobs that an operator abandoned. ``job_ids``: up to three of them, with their pages in the admin as ``links``, and
    ``releases``, which ran them. ``link``: the list of abandoned jobs of this name. Links are paths if the setting has
    no ``site``, and empty if this process has no admin.
    """

    name: str
    error_class: str
    jobs: int
    first_at: datetime
    last_at: datetime
    releases: tuple[str, ...]
    job_ids: tuple[int, ...]
    links: tuple[str, ...]
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that has appeared: a ``code`` for programs, as of ``pgjobs check``, and ``text`` for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureNotice:
    """Jobs that were abandoned from ``since`` to ``until`` (None without jobs), and problems that have appeared.

    ``groups`` are the largest; ``other_groups`` more were left out, and count in ``jobs``. With ``at_least`` there
    were more jobs than were counted. ``database`` is Django's alias for it; with ``several``, others are served beside
    it, and ids repeat.
    """

    since: datetime | None
    until: datetime | None
    database: str
    jobs: int
    at_least: bool
    groups: tuple[FailureGroup, ...]
    other_groups: int
    problems: tuple[Problem, ...]
    several: bool = False

    @property
    def subject(self) -> str:
        """One line for a subject; it begins with the database where several are served."""
        where = f"{self.database}: " if self.several else ""
        return _short(where + ", ".join(_subject_parts(self)), MOST_SUBJECT_CHARS)

    @property
    def text(self) -> str:
        """The whole notice as plain text."""
        return "\n".join(_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, instants as text, with ``subject`` and ``text``."""
        found = asdict(self)
        for part in (found, *found["groups"]):
            for key, value in part.items():
                if isinstance(value, datetime):
                    part[key] = value.isoformat()
        return {"subject": self.subject, "text": self.text, **found}


def notice_of(
    digest: Mapping[str, Any], *, site: str = "", database: str = "default", several: bool = False
) -> FailureNotice:
    """Return the notice of a digest, as ``maintenance.notices`` makes it; links begin with ``site``."""
    return FailureNotice(
        since=_instant(digest["since"]) if digest["since"] else None,
        until=_instant(digest["until"]) if digest["until"] else None,
        database=_short(database),
        jobs=digest["jobs"],
        at_least=digest["at_least"],
        groups=tuple(_group(each, site.rstrip("/"), database if several else "") for each in digest["groups"]),
        other_groups=digest["other_groups"],
        problems=tuple(
            Problem(code=_short(code), text=_short(text, MOST_PROBLEM_CHARS))
            for code, text in digest["problems"][:MOST_PROBLEMS]
        ),
        several=several,
    )


def _group(given: Mapping[str, Any], site: str, database: str) -> FailureGroup:
    """Return a group; its links name the database, if given: in the id as the admin quotes it, and as a parameter."""
    prefix = f"{quote(database)}:" if database else ""
    beside = {"database": database} if database else {}
    return FailureGroup(
        name=_short(given["name"]),
        error_class=_short(given["error_class"]),
        jobs=given["jobs"],
        first_at=_instant(given["first_at"]),
        last_at=_instant(given["last_at"]),
        releases=tuple(map(_short, given["releases"])),
        job_ids=tuple(given["ids"]),
        links=tuple(_link(site, "change", f"{prefix}{pk}") for pk in given["ids"]),
        link=_link(site, "changelist", state="abandoned", name=given["name"][:MOST_CHARS], **beside),
    )


def _link(site: str, page: str, *args: object, **filters: str) -> str:
    try:
        path = reverse(f"admin:pgjobs_job_{page}", args=args)
    except NoReverseMatch:
        return ""
    return f"{site}{path}?{urlencode(filters, errors='replace')}" if filters else f"{site}{path}"


def _short(text: object, most: int = MOST_CHARS) -> str:
    # Cut it before: a text of 10 MB would be escaped in vain.
    shown = plain(one_line(str(text)[: 2 * most]))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _subject_parts(notice: FailureNotice) -> Iterator[str]:
    if notice.jobs:
        words = _jobs(notice.jobs, at_least=notice.at_least) + " abandoned"
        if len(notice.groups) == 1 and not notice.other_groups:
            words += f": {_what(notice.groups[0])}"
        yield words
    if len(notice.problems) == 1:
        yield notice.problems[0].text
    elif notice.problems:
        yield f"{len(notice.problems)} problems"


def _lines(notice: FailureNotice) -> Iterator[str]:
    where = f" in the database {notice.database}" if notice.database != "default" or notice.several else ""
    if notice.since is not None and notice.until is not None:
        many = _jobs(notice.jobs, at_least=notice.at_least)
        yield f"{many} abandoned{where} from {_clock(notice.since)} to {_clock(notice.until)}:"
        for group in notice.groups:
            yield ""
            yield from _group_lines(group, f"{notice.database}:" if notice.several else "")
        if notice.other_groups:
            yield ""
            yield f"Other jobs are of {notice.other_groups} more names and error classes."
    if notice.problems:
        if notice.jobs:
            yield ""
        yield f"Problems that have appeared{where if notice.several else ''}:"
        yield from (f"- {problem.code}: {problem.text}" for problem in notice.problems)
    yield ""


def _group_lines(group: FailureGroup, prefix: str) -> Iterator[str]:
    yield f"{group.jobs} × {_what(group)}"
    span = f"at {_clock(group.first_at)}" if group.jobs == 1 else f"{_clock(group.first_at)} to {_clock(group.last_at)}"
    releases = f", release {', '.join(group.releases)}" if group.releases else ""
    yield f"  {span}{releases}"
    for pk, link in zip(group.job_ids, group.links, strict=True):
        yield f"  job {prefix}{pk} {link}".rstrip()
    if group.jobs > len(group.job_ids) and group.link:
        yield f"  all: {group.link}"


def _what(group: FailureGroup) -> str:
    return f"{group.name} ({group.error_class or BY_HAND})"


def _jobs(number: int, *, at_least: bool) -> str:
    return f"{'at least ' if at_least else ''}{number} job{'' if number == 1 else 's'}"


def _clock(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
