"""``pgjobs doctor`` on rights: those that a role lacks, and those that too many have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_pgjobs.doctor.finding import NOT_READ
from tests.db.doctor_ground import altered, apart, finding, findings, mends, seen, typed
from tests.plugins.fix_db import RawDatabase
from tests.plugins.fix_roles import Role

__all__ = ["altered", "apart"]

pytestmark = pytest.mark.usefixtures("committed")


def test_a_role_without_rights(raw: RawDatabase, role: Callable[..., Role]) -> None:
    """As the role that asks, and as another that is to work."""
    made = role()
    for options in (["--database", made.alias], ["--role", made.name]):
        assert finding("grants", *options)["severity"] == "error"
    found = finding("grants", "--role", made.name)
    assert found["what"].startswith(f"Role {made.name} lacks rights on ")
    typed(found["cure"], raw)
    assert findings("grants", "--role", made.name) == []
    assert findings("grants", "--database", made.alias) == []
    raw.query(f"REVOKE DELETE ON pgjobs_memo FROM {made.name}")
    found = finding("grants", "--database", made.alias)
    assert found["cure"] == f"GRANT DELETE ON TABLE public.pgjobs_memo TO {made.name};"


def test_a_role_that_may_not_ask_which_server_it_is(raw: RawDatabase, role: Callable[..., Role]) -> None:
    """Hardened servers revoke it: no worker could start."""
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    raw.query("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        found = finding("grants", "--database", made.alias)
        assert found["cure"] == f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {made.name};"
        typed(found["cure"], raw)
        assert findings("grants", "--database", made.alias) == []
    finally:
        raw.query("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


def test_a_role_that_may_not_vacuum(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    if raw.raw.info.server_version >= 170000:
        mends("vacuum_right", raw, "note", "--database", made.alias)


def test_nobody_becomes_an_owner_to_vacuum(
    raw: RawDatabase, role: Callable[..., Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PostgreSQL 17 the right is the owner's, who may drop the tables, too."""
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    seen(monkeypatch, version=16)
    assert not finding("vacuum_right", "--database", made.alias)["cure"].startswith("GRANT ")


def test_a_role_that_does_not_exist_is_one_line() -> None:
    assert finding(NOT_READ, "--role", "nobody_here")["what"] == (
        'The probe grants could not look: role "nobody_here" does not exist'
    )


def test_a_role_that_cannot_see_others_is_told_so(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    assert mends(NOT_READ, raw, "note", "--database", made.alias)["cure"] == f"GRANT pg_read_all_stats TO {made.name};"


def test_tables_that_the_search_path_does_not_have_need_no_rights(
    raw: RawDatabase, altered: Callable[..., None], role: Callable[..., Role]
) -> None:
    made, odd = role(), '"Odd, ""one"""'
    raw.query(f"ALTER ROLE {made.name} SET search_path = {odd}")
    altered(f"CREATE SCHEMA {odd}", f"DROP SCHEMA {odd} CASCADE")
    assert findings("grants", "--database", made.alias) == []
    raw.query(f"CREATE TABLE {odd}.pgjobs_job (id int)")
    found = finding("grants", "--database", made.alias)
    assert f"ON TABLE {odd}.pgjobs_job TO {made.name};" in found["cure"]
    typed(found["cure"], raw)
    assert findings("grants", "--database", made.alias) == []


def test_a_schema_where_every_role_may_create(raw: RawDatabase, altered: Callable[..., None]) -> None:
    altered("GRANT CREATE ON SCHEMA public TO PUBLIC", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert mends("open_schema", raw, "warning")["cure"] == "REVOKE CREATE ON SCHEMA public FROM PUBLIC;"
