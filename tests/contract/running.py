"""``python -m tests.contract.running TESTS REPORT``: run Django's tests in this process, and write what became of each.

TESTS is the directory that ``fetching.fetched_tests`` returns, REPORT the file to write, JSON: Django's version, the
families of tasks that are installed, and for each test None if it has passed, else why it has not. Exits with 0
whatever the tests have come to. With PGJOBS_CONTRACT_ALONE set, the backport counts as not installed.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def main(tests: Path, report: Path) -> None:
    """Run all tests and write the report."""
    # Three of the tests call the synchronous API from ``async def``.
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.contract.settings", "DJANGO_ALLOW_ASYNC_UNSAFE": "1"}
    if os.environ.get("PGJOBS_CONTRACT_ALONE"):
        sys.modules["django_tasks"] = None  # type: ignore[assignment]
    import django

    django.setup()
    from django_pgjobs.tasks import families

    if families.FAMILY != families.CORE:
        from tests.contract import borrowed

        borrowed.lend()
    from tests.contract import loading

    found = Outcomes()
    with _database(), loading.without_djangos():
        loading.load(tests).run(found)
    about = {"django": django.__version__, "families": families.FAMILIES, "outcomes": found.outcomes}
    report.write_text(json.dumps(about), encoding="utf-8")


@contextmanager
def _database() -> Iterator[None]:
    from django.db import connection
    from django.test.utils import setup_databases, setup_test_environment, teardown_test_environment

    setup_test_environment()
    ((_, name, _),) = setup_databases(verbosity=0, interactive=False)
    try:
        yield
    finally:
        test_database = connection.settings_dict["NAME"]
        connection.close()
        connection.settings_dict["NAME"] = name
        # The threads of event loops have left their connections open.
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {connection.ops.quote_name(test_database)} WITH (FORCE)")
        teardown_test_environment()


class Outcomes(unittest.TestResult):
    """Test, as ``module.class.method``, to None or why it has not passed."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str | None] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcomes[_name(test)] = None

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._failed(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._failed(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._failed(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.outcomes[_name(test)] = f"skipped: {reason}"

    def _failed(self, test: unittest.TestCase, err: Any) -> None:
        self.outcomes[_name(test)] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]


def _name(test: unittest.TestCase) -> str:
    return test.id().removeprefix("tasks.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
