"""``dumpdata`` and ``loaddata``: fixtures of our tables load again."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command

from django_pgjobs.fields import BigIntArrayField
from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import finalising
from tests.plugins.fix_db import AUTHOR, FAILURE, TABLES, RawDatabase, claim, register


def test_what_is_dumped_can_be_loaded(raw: RawDatabase, tmp_path: Path) -> None:
    """With jobs in every stage, a claim of several among them: its ids are a list, and come back as one."""
    register(4)
    failed = claim(raw)
    finalising.finalise_end(raw, failed.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR)
    held = claim(raw, 2)
    rows = {table: rows_of(raw, table) for table in TABLES}
    for form in ("json", "xml"):
        told = StringIO()
        call_command("dumpdata", "pgjobs", format=form, stdout=told)
        dump = tmp_path / f"jobs.{form}"
        dump.write_text(told.getvalue())
        raw.query(f"TRUNCATE {', '.join(TABLES)}")
        call_command("loaddata", str(dump), verbosity=0)
        assert {table: rows_of(raw, table) for table in TABLES} == rows
    assert sorted(Claim.objects.get(claim_id=held.claim_id).job_ids) == held.ids
    assert (Job.objects.count(), Attempt.objects.count()) == (4, 1)


def rows_of(raw: RawDatabase, table: str) -> list[str]:
    """Rows as text, their instants to the millisecond, which is what Django writes into JSON."""
    whole = (row[0] for row in raw.query(f"SELECT to_jsonb(t)::text FROM {table} AS t"))
    # The server leaves zeros at the end of a fraction out, and a fraction that is zero.
    return sorted(
        re.sub(r"(T\d\d:\d\d:\d\d)(?:\.(\d+))?", lambda at: f"{at[1]}.{(at[2] or '').ljust(3, '0')[:3]}", row)
        for row in whole
    )


@pytest.mark.parametrize("value", ["7, 8", '"seven"', '["seven"]', "{", 7])
def test_what_is_no_list_of_integers_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(ValidationError, match="is not a list of integers"):
        BigIntArrayField().to_python(value)
    assert BigIntArrayField().to_python("[7, 8]") == [7, 8]
    assert BigIntArrayField().to_python(None) is None
