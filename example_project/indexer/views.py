"""The one page: a search over what the jobs have read, how far they are, and the files they gave up."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.postgres.search import SearchQuery, SearchRank
from django.db.models import Case, IntegerField, Q, QuerySet, Value, When
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from example_project.indexer.indexing import jobs_ended, report_of, start_edition, waits_for_approval
from example_project.indexer.jobs import index_file
from example_project.indexer.models import Edition, Module, Symbol
from example_project.indexer.sources import source_files
from example_project.indexer.words import clean, terms

LONGEST_QUESTION = 200
SYMBOLS_SHOWN = 50
MODULES_SHOWN = 10


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """Show the page."""
    question = clean(request.GET.get("q", "")).strip()[:LONGEST_QUESTION]
    context = {"question": question, **_progress(), **_answers(question)}
    return render(request, "library/search.html", context)


@require_POST
@staff_member_required
def index_again(request: HttpRequest) -> HttpResponse:
    """Register a new edition."""
    start_edition(source_files())
    return redirect("search")


def _progress() -> dict[str, Any]:
    edition = Edition.objects.first()
    if edition is None:
        return {"edition": None}
    problems = edition.read().exclude(problem="").only("path", "problem", "job")
    filters = urlencode({"state": "abandoned", "name": index_file.name})
    return {
        "edition": edition,
        "read": edition.read().count(),
        "jobs": jobs_ended(edition),
        "is_over": bool(edition.approved_at or edition.problem),
        "report": Edition.on_page(),
        "waiting": report_of(edition) if waits_for_approval(edition) else None,
        "problems": problems,
        "packages": edition.summed()[:8],
        "abandoned_url": f"{reverse('admin:pgjobs_job_changelist')}?{filters}",
    }


def _answers(question: str) -> dict[str, Any]:
    """The best matches and how many there are; nothing for a question without words."""
    asked = terms(question)
    if not asked:
        return {"asked": False}
    query = SearchQuery(asked, config="simple", search_type="raw")
    symbols = Symbol.objects.filter(search=query)
    modules = Module.objects.filter(search=query)
    best_symbols = _best(symbols, question, query).select_related("module").defer("search", "module__search")
    return {
        "asked": True,
        "symbols": best_symbols[:SYMBOLS_SHOWN],
        "symbol_count": symbols.count(),
        "modules": _best(modules, question, query).defer("search")[:MODULES_SHOWN],
        "module_count": modules.count(),
    }


def _best(found: QuerySet[Any], question: str, query: SearchQuery) -> QuerySet[Any]:
    """Exact names first, then those that begin so, then words of the name before words of the summary."""
    joined = "".join(question.split())  # who asks for "temporary file" may mean TemporaryFile
    rank = Case(
        When(Q(name__iexact=question) | Q(name__iexact=joined), then=0),
        When(Q(name__istartswith=question) | Q(name__istartswith=joined), then=1),
        default=Value(2),
        output_field=IntegerField(),
    )
    return found.order_by(rank, SearchRank("search", query).desc(), Length("name"), "name", "pk")
