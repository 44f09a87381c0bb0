"""Old code registers, new code checks, a worker of the new code then does what was told."""

from __future__ import annotations

import json

from django_pgjobs import job
from django_pgjobs.testing import isolated_registry
from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, read
from tests.plugins.shell import pgjobs


def test_a_worker_parks_exactly_what_the_check_told(worker: Workers) -> None:
    with isolated_registry():

        def old(*args: object, **kwargs: object) -> None: ...

        gone = job(name="zyxwvuts.gone")(old).register(1)  # no other name is like it
        effect = job(name=jobs.effect.name)(old)
        renamed = effect.register(token="k")
        surplus = job(name=jobs.no_op.name)(old).register(1)
        fits = [effect.register("k"), job(name="e2e.other")(old).using(delay=3600).register()]
    good = jobs.effect.register("good")
    status, out, _ = pgjobs("check", "--in-flight", "--allow", "e2e.other", "--format", "json")
    told = {each["ids"][0]: each["text"] for each in json.loads(out)["problems"]}
    assert (status, sorted(told)) == (1, sorted([gone.pk, renamed.pk, surplus.pk]))
    worker()
    assert {row.outcome for row in ended(good, fits[0])} == {"succeeded"}
    for row in (gone, renamed, surplus):
        wait_until(lambda row=row: read(row).state == "parked", 15, "it is parked")  # type: ignore[misc]
        assert read(row).hold_reason.startswith(told[row.pk])
