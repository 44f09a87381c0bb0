"""What a worker says with ``-v 3``: one name finds its claim, its end and its duties, and nobody forges a line."""

from __future__ import annotations

import re

from django.db import connection

from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, read

ARGUMENTS = ("-v3", "--exclude-queues=inline")
WORKER: dict[str, object] = {}


def test_a_claim_and_each_stored_end_are_told_with_the_facts_of_the_attempt(shared_worker: WorkerProcess) -> None:
    """A70: the claim by the id that the ends have, with its queues and the time of its statement."""
    one, failing = jobs.effect.using(queue="mail").register("k"), jobs.doomed.register()
    ended(one, failing)
    about = rf"name=tests\.e2e\.jobs\.effect job={one.pk} attempt=1/\d+ claim={read(one).claim_id} queue=mail"
    shared_worker.wait_for_log(
        rf"DEBUG jobs claimed claim={read(one).claim_id} jobs=\d+ queue=\S*mail seconds=0\.\d+\n"
    )
    shared_worker.wait_for_log(rf"DEBUG job ended {about} outcome=succeeded seconds=\d+\.\d+\n")
    doomed = rf"name=tests\.e2e\.jobs\.doomed job={failing.pk}"
    shared_worker.wait_for_log(
        rf"DEBUG attempt ended, the job has not {doomed} attempt=1/2 .* outcome=retried cause=failed .*: ValueError"
    )
    shared_worker.wait_for_log(
        rf"DEBUG attempt ended, a callback follows {doomed} attempt=2/2 .* outcome=abandoned cause=failed .*outer"
    )
    shared_worker.wait_for_log(rf"DEBUG job ended {doomed} attempt=2/2 .* outcome=abandoned")


def test_each_duty_is_told_by_its_name(shared_worker: WorkerProcess) -> None:
    """W54."""
    for duty in ("lead", "rescue", "unpause", "gates", "cron_eval", "audit", "prune"):
        shared_worker.wait_for_log(rf"DEBUG duty took its turn duty={duty} done=0 seconds=\d+\.\d+\n")


def test_a_row_with_a_forged_name_forges_no_line(shared_worker: WorkerProcess) -> None:
    """P15: whoever may write rows may choose any name: it is parked, and told in one line, quoted."""
    forged = 'x job=7 outcome=succeeded\n2026-01-01 00:00:00,000 CRITICAL "forged"\u202e'
    job = jobs.no_op.using(delay=3600).register()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET name = %s, queue = %s, run_at = now() WHERE id = %s", [
            forged, "a b\njob=8", job.pk
        ])  # fmt: skip
    wait_until(lambda: read(job).state == "parked", 15, "the job is parked")
    name = r'name="x job=7 outcome=succeeded\n2026-01-01 00:00:00,000 CRITICAL \"forged\"\u202e"'
    queue = r'queue="a b\njob=8"'
    shared_worker.wait_for_log(re.escape(f"WARNING job parked {name} job={job.pk} attempt=1/"))
    shared_worker.wait_for_log(re.escape(f"DEBUG attempt ended, the job has not {name} job={job.pk} "))
    shared_worker.wait_for_log(re.escape(queue))
    assert "\u202e" not in shared_worker.log
    assert not re.search(r"^2026-01-01 00:00:00,000 CRITICAL", shared_worker.log, re.MULTILINE)
    Job.objects.filter(pk=job.pk).cancel()


def test_the_inline_worker_tells_the_same(worker: Workers) -> None:
    process = worker("--inline", "-v3", ready=False)
    one = jobs.no_op.using(queue="inline").register()
    ended(one)
    process.wait_for_log(rf"DEBUG jobs claimed claim={read(one).claim_id} jobs=1 queue=inline seconds=\d\.\d+\n")
    process.wait_for_log(rf"DEBUG job ended name=\S+ job={one.pk} .* outcome=succeeded seconds=")
