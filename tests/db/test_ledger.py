"""A ledger row that somebody holds: it stops neither the renewal of the others nor the ends of jobs."""

from __future__ import annotations

from uuid import uuid4

from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import finalising, keeping
from tests.plugins.fix_db import AUTHOR, WORKER, RawDatabase, claim, patience, register


def hold(other: RawDatabase, claim_id: object) -> None:
    other.query("SELECT claim_id FROM pgjobs_claim WHERE claim_id = %s FOR UPDATE", [claim_id])


def test_a_held_ledger_row_is_left_out_of_a_renewal(raw: RawDatabase, other: RawDatabase) -> None:
    """Trap 11: waiting for it, the renewal of all leases would be cancelled, again and again, until all were lost."""
    register(2)
    held, free = claim(raw), claim(raw)
    hold(other, held.claim_id)
    raw.query(f"SET statement_timeout = '{patience(2)}s'")
    check_ins = {str(held.claim_id): 60.0, str(free.claim_id): 60.0}
    assert keeping.renew_claims(raw, check_ins, lease_seconds=500.0) == {str(free.claim_id)}
    left = "SELECT lease_expires_at > statement_timestamp() + interval '100 s' FROM pgjobs_claim WHERE claim_id = %s"
    assert [raw.value(left, [one.claim_id]) for one in (held, free)] == [False, True]
    other.rollback()
    assert keeping.renew_claims(raw, check_ins, lease_seconds=500.0) == set(check_ins)


def test_a_workers_claims_that_are_left_are_found_and_only_ended_ones_go(raw: RawDatabase) -> None:
    """What rescue would find by itself much later; others' claims are not touched."""
    register(203)
    ended, running = claim(raw, 201), claim(raw, 1)
    claim(raw, 1, worker=uuid4())
    finalising.finalise_success(raw, ended.ends(result="1"), AUTHOR)
    left = finalising.list_claims(raw, WORKER)
    assert sorted(left) == sorted([str(ended.claim_id), str(running.claim_id)])
    assert finalising.delete_claims(raw, left) == 2, "both parts of the one that has ended"
    assert finalising.list_claims(raw, WORKER) == [str(running.claim_id)]
    assert Claim.objects.count() == 2


def test_a_claim_is_renewed_only_with_all_its_parts(raw: RawDatabase, other: RawDatabase) -> None:
    """C4 C9: if one part vouched for both, the jobs of the other would run past the end of their lease."""
    register(201)
    claimed = claim(raw, 201)
    other.query("SELECT 1 FROM pgjobs_claim WHERE claim_id = %s AND part = 1 FOR UPDATE", [claimed.claim_id])
    check_ins = {str(claimed.claim_id): 60.0}
    assert keeping.renew_claims(raw, check_ins, lease_seconds=500.0) == set()
    other.rollback()
    assert keeping.renew_claims(raw, check_ins, lease_seconds=500.0) == set(check_ins)


def test_every_part_of_a_claim_is_renewed(raw: RawDatabase) -> None:
    register(450)
    claimed = claim(raw, 450)
    assert Claim.objects.count() == 3
    assert keeping.renew_claims(raw, {str(claimed.claim_id): 60.0}, lease_seconds=500.0) == {str(claimed.claim_id)}
    late = "SELECT count(*) FROM pgjobs_claim WHERE lease_expires_at < statement_timestamp() + interval '100 s'"
    assert raw.value(late) == 0


def test_a_held_ledger_row_is_left_to_rescue_when_its_jobs_have_ended(raw: RawDatabase, other: RawDatabase) -> None:
    register(2)
    held, free = claim(raw), claim(raw)
    finalising.finalise_success(raw, [*held.ends(), *free.ends()], AUTHOR)
    hold(other, held.claim_id)
    raw.query(f"SET statement_timeout = '{patience(2)}s'")
    assert finalising.delete_claims(raw, [str(held.claim_id), str(free.claim_id)]) == 1
    other.rollback()
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    rescued = keeping.rescue_jobs(
        raw, limit=5, quiet_seconds=0, grace_seconds=0, stale_seconds=60, without_on_cancel=[], without_on_abandon=[]
    )
    assert (rescued, Claim.objects.count()) == ([], 0)
