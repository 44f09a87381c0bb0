"""``manage.py shell`` of a page's project: reads blocks of ``>>>`` lines from stdin and says what differs from them.

A program, started in the project's folder. A request is a line of JSON: ``{"text", "where", "line"}``. Its answer is
one, too: what differs, empty if nothing does. Before each block it waits, as a reader does, until the worker has done
what is due.
"""

from __future__ import annotations

import doctest
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

DUE_SOON = timedelta(seconds=2.5)
"""A job that is due so soon is waited for: pages show a retry after a second."""


class Checker(doctest.OutputChecker):
    """Compares by the rule of ``printed``."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        from tests.docs.printed import matches

        return matches(got, want)


def settle(seconds: float) -> None:
    """Wait until no job runs or is due, for so many seconds at most: a page may show one that runs for long."""
    from django.db.models import Q
    from django.utils import timezone

    from django_pgjobs.models import Job

    until = time.monotonic() + seconds
    busy = Q(state="running") | Q(state="ready", run_at__lt=timezone.now() + DUE_SOON)
    while time.monotonic() < until and Job.objects.filter(busy).exists():
        time.sleep(0.02)


def converse(text: str, where: str, line: int, names: dict[str, Any]) -> str:
    """Run a block; return what differs."""
    test = doctest.DocTestParser().get_doctest(text, names, where, where, line)
    test.globs = names  # a copy would forget what the block defines
    said: list[str] = []
    doctest.DocTestRunner(Checker()).run(test, out=said.append, clear_globs=False)
    return "".join(said)


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.path[0] = os.getcwd()
    os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
    import django

    django.setup()
    names: dict[str, Any] = {"__name__": "__console__"}
    for request in map(json.loads, sys.stdin):
        settle(request.pop("patience"))
        said = converse(names=names, **request) if request else ""
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
