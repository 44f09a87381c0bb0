"""A page of the fleet's metrics, for projects whose own page does not show them. Needs no package."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_pgjobs.metrics.families import CONTENT_TYPE, render
from django_pgjobs.metrics.reader import FleetReader

_reader = FleetReader()


@never_cache
@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """Show the metrics of the whole fleet, which are the same in every process.

    Every client that reaches the page reads the names of your jobs and queues: let only Prometheus reach it.
    """
    return HttpResponse(render(_reader.families()), content_type=CONTENT_TYPE)
