"""What every test of tasks begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.test import override_settings

from tests.plugins.fix_db import wait_until


def finished(*results: Any) -> list[Any]:
    """Poll these results, as users do, until all are finished."""

    def are_finished() -> bool:
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    wait_until(are_finished, 20, f"{len(results)} results are finished")
    return list(results)


@pytest.fixture
def our_tasks() -> Iterator[None]:
    """``TASKS`` names our backend, and the tasks of the tests have done nothing yet."""
    from tests.db.tasks_ground import TASKS, cast  # here, since it declares tasks: only where they are tested

    cast.calls.clear()
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def with_options(our_tasks: None) -> Callable[..., AbstractContextManager[None]]:
    """Return a block in which the alias ``default`` has these ``OPTIONS``."""
    from tests.db.tasks_ground import BACKEND  # here: see above

    def options(**given: Any) -> Any:
        return override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": given}})

    return options
