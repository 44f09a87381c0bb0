"""The kills that ``assert_idempotent`` plays leave what a SIGKILL of a real worker's executor leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group, User

from django_pgjobs.testing.dying import Kill
from django_pgjobs.testing.idempotent import _Trials
from django_pgjobs.testing.snapshots import Tables
from tests.e2e.killing import KILL, ships
from tests.plugins.fix_worker import Workers, ended

PLACES = [("default", "auth_group"), ("default", "auth_user")]


@pytest.fixture(autouse=True)
def _empty(committed: None) -> Iterator[None]:
    yield
    Group.objects.all().delete()
    User.objects.all().delete()


@pytest.mark.parametrize(
    ("real", "played", "groups", "users"),
    [
        ("after 2", Kill(1, before=False), 3, 1),
        ("after 4", Kill(3, before=False), 3, 1),  # in an open transaction
        ("before 5", Kill(4, before=False), 3, 2),  # after its COMMIT, the moment of index 4
    ],
)
def test_a_played_kill_leaves_what_a_real_one_leaves(
    worker: Workers, real: str, played: Kill, groups: int, users: int
) -> None:
    seen = _Trials(ships.bind(), (), None)._run(played, PLACES)
    assert not Group.objects.exists()

    registered = ships.register()
    worker(env={KILL: real}, conf={"MODULES": ["tests.e2e.killing"]})
    (job,) = ended(registered, timeout=40)

    tables = Tables("default", ())
    assert {place: listed(tables.rows(place[1], job)) for place in PLACES} == {
        place: listed(rows) for place, rows in seen.rows.items()
    }
    assert (job.outcome, job.attempt) == ("succeeded", seen.job.attempt) == ("succeeded", 2)
    assert (Group.objects.count(), User.objects.count()) == (groups, users)


def listed(rows: Counter[str]) -> list[str]:
    return sorted(rows.elements())
