"""Runs Wagtail's own tests on one task backend: ``python -m tests.foreign.wagtail_site.own_tests MODULE…``.

Prints one line of JSON: the ids of the tests that passed, of those that did not, and how many tasks each backend was
given. The tests run in the database that
DATABASE_URL names, whose migrations have run: those take longer than the tests. They empty its tables.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from collections import Counter
from typing import Any

import django


class Counting(unittest.TextTestResult):
    """Remembers the id of each test that passed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test.id())


def main(modules: list[str]) -> None:
    """Run the tests of these modules and print which passed."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.foreign.wagtail_site.own_settings"
    django.setup()
    from django.tasks.signals import task_enqueued
    from django.test.runner import DiscoverRunner

    enqueued: Counter[str] = Counter()

    def count(sender: type, **_: Any) -> None:
        enqueued[f"{sender.__module__}.{sender.__qualname__}"] += 1

    task_enqueued.connect(count)

    class Runner(DiscoverRunner):
        found: Counting

        def get_resultclass(self) -> type[Counting]:
            return Counting

        def suite_result(self, suite: unittest.TestSuite, result: Any, **options: Any) -> int:
            self.found = result
            return int(super().suite_result(suite, result, **options))

    runner = Runner(keepdb=True, interactive=False, verbosity=1)
    runner.run_tests(modules)
    failed = [str(test) for test, _ in (*runner.found.failures, *runner.found.errors)]
    found = {"passed": sorted(runner.found.passed), "failed": sorted(failed), "enqueued": enqueued}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
