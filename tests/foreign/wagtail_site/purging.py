"""A frontend cache whose purges leave traces, and wait while the scenario keeps them at a gate."""

from __future__ import annotations

from urllib.parse import urlsplit

from wagtail.contrib.frontend_cache.backends.base import BaseBackend

from tests.e2e.stage import here


class Traced(BaseBackend):
    """Notes the path of each purged URL; what has ``held`` in it waits at the gate of that name before."""

    def purge(self, url: str) -> None:
        path = urlsplit(url).path
        if "held" in path:
            here().note("at", path)
            here().wait("held")
        here().note("purged", path)
