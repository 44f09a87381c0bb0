"""Jobs in other databases that a search by id or key may mean: links above the list of one database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_pgjobs.admin.databases import ask
from django_pgjobs.admin.display import Pages, format_html
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.presentation import job_list
from django_pgjobs.presentation.flow import listed
from django_pgjobs.presentation.job_conditions import search_condition
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store import claiming
from django_pgjobs.store.database import on

MOST = 5
"""Number of jobs that are named of each database."""


def named_job(term: str, aliases: Sequence[str]) -> tuple[str, str] | None:
    """Return alias and id if a search term is *eu1:17*, with or without #."""
    alias, _colon, digits = term.strip().removeprefix("#").rpartition(":")
    return (alias, digits) if alias in aliases and digits.isdecimal() else None


def is_wanted(search: JobSearch) -> bool:
    """Tell whether a search means a job by its id or its key, which is quick to find."""
    return not search.problem and not search.complaint and (search.job_id is not None or "key" in search.others)


def found_elsewhere(search: JobSearch, site: str, aliases: Sequence[str]) -> list[object]:
    """Return links to the first such jobs of these databases, and which of them give no answer."""
    found: list[object] = []
    for reply in ask(aliases, lambda alias: _first_of(search, alias)) if aliases else ():
        if reply.trouble is not None:
            found.append(format_html("{}: {}", reply.alias, visible(reply.trouble.text[:500])))
        elif reply.answer:
            found.append(Pages(site, reply.alias).links(reply.answer))
    return found


def _first_of(search: JobSearch, using: str) -> list[Any]:
    search = job_list.settled(search, using)
    jobs = JobQuerySet(Job, using=using)
    ranges = job_list.ranges_of(search, claiming.list_pairs(on(using)))
    cut = job_list.bounded(search, jobs, ranges) if search.bounded else []
    matching = jobs.filter(search.listed()).filter(search_condition(search.text, search.job_id))
    return job_list.in_order(listed(using), job_list.find_ids(matching, cut or ranges, MOST))
