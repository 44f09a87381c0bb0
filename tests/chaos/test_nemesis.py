"""The random nemesis for a short while; a longer one is started by hand: ``make chaos SECONDS=600 SEED=7``."""

from __future__ import annotations

import os
import random
import sys
from itertools import islice
from typing import Any

import pytest

from tests.chaos.faults import LANES, steps
from tests.chaos.ground import Ground
from tests.chaos.nemesis import say
from tests.chaos.storm import Plan, Storm
from tests.plugins.fix_db import patience

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("lane", LANES)
def test_a_seed_gives_the_same_faults_again(lane: str) -> None:
    first = list(islice(steps(7, lane), 400))
    assert first == list(islice(steps(7, lane), 400))
    assert first != list(islice(steps(8, lane), 400))
    assert {step.kind for step in first} == set(LANES[lane])


@pytest.mark.timeout(patience(600))
def test_whatever_is_done_to_it_every_job_ends_once(ground: Ground) -> None:
    """C39 C44: jobs of all roles, faults in three lanes at once; the checker finds nothing, by id."""
    seed = int(os.environ.get("PGJOBS_NEMESIS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    sys.stderr.write(f"nemesis seed={seed}\n")
    plan = Plan(seconds=float(os.environ.get("PGJOBS_NEMESIS_SECONDS", "45")), seed=seed, jobs=2000)
    report = Storm(ground, plan, say).run()
    assert not report.violations, f"seed={seed} {report}"


def test_a_nemesis_reports_what_it_finds(ground: Ground) -> None:
    """Sabotage: a job that is deleted behind everybody's back is named as lost."""
    plan = Plan(seconds=0, seed=1, jobs=20, workers=1)
    storm = Storm(ground, plan, say)
    judge: Any = storm._drain

    def spoil() -> None:
        judge()
        ground.server.ask("DELETE FROM pgjobs_job WHERE id = (SELECT min(id) FROM pgjobs_job)")

    storm._drain = spoil  # type: ignore[method-assign]
    assert storm.run().kinds == {"lost": 1}
