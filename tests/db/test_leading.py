"""The leader's term, and the audit that only the leader does: no running job without a row of the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg
import pytest

from django_pgjobs.maintenance import audit as audit_room
from django_pgjobs.maintenance import leader as leader_room
from django_pgjobs.maintenance.audit import Audit
from django_pgjobs.maintenance.duties import KEPT_SECONDS, OTHERS_SECONDS, DutyProgress, TimedDuty, duties, upkeep
from django_pgjobs.maintenance.leader import ASK_SECONDS, TERM_SECONDS, Leader
from django_pgjobs.models import Heartbeat, LeaderTerm
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import finalising, keeping, leading
from django_pgjobs.store.claiming import Pair
from django_pgjobs.store.database import statement
from django_pgjobs.store.finalising import Author
from django_pgjobs.worker.threads.maintainer import REST_SECONDS, TICK_SECONDS
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, job, patience, register

RIVAL = Author(UUID(int=2), "rival")
NOBODY = UUID(int=0)


def expire(raw: RawDatabase) -> None:
    raw.query("UPDATE pgjobs_leader_term SET expires_at = statement_timestamp() - interval '1 ms'")


# The term


def test_one_of_many_leads(raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background) -> None:
    """W1 W2 W11: eight ask at once."""
    leaders = [Leader(Author(uuid4(), f"w{n}")) for n in range(8)]
    for asked in [background(leader.tick, db_connection()) for leader in leaders]:
        asked.result(patience(10))
    [chosen] = [leader for leader in leaders if leader.leads]
    assert LeaderTerm.objects.get().worker == chosen.author.worker


def test_a_leader_renews_its_term_and_the_others_stand_by(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W1 W3 W4: the term is renewed long before it runs out."""
    leader, rival = Leader(AUTHOR), Leader(RIVAL)
    for _ in range(3):
        leader.tick(raw)
        rival.tick(raw)
        time(ASK_SECONDS)
    assert (leader.leads, rival.leads, leader.term) == (True, False, 1)
    left = raw.value("SELECT extract(epoch FROM expires_at - statement_timestamp())::float8 FROM pgjobs_leader_term")
    assert TERM_SECONDS - 5 < left <= TERM_SECONDS


def test_a_term_that_has_run_out_is_taken_and_its_leader_stops(
    raw: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """W7 W11: a frozen leader that wakes up does not believe in its term, and renews none that is another's."""
    leader, rival = Leader(AUTHOR), Leader(RIVAL)
    leader.tick(raw)
    time(TERM_SECONDS)
    assert not leader.leads, "by its own clock, before it has asked anybody"
    expire(raw)
    rival.tick(raw)
    assert (rival.leads, rival.term) == (True, 2)
    with caplog.at_level(logging.WARNING):
        leader.tick(raw)
    assert (leader.leads, LeaderTerm.objects.get().worker) == (False, RIVAL.worker)
    assert "another has taken over" in caplog.text


def test_a_leader_that_was_late_and_not_replaced_goes_on(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """The term is its own until somebody takes it."""
    leader = Leader(AUTHOR)
    leader.tick(raw)
    expire(raw)
    time(TERM_SECONDS * 2)
    leader.tick(raw)
    assert (leader.leads, leader.term) == (True, 1)


def test_a_leader_that_leaves_is_replaced_at_once(raw: RawDatabase) -> None:
    """W8: it resigns; one that never led has nothing to resign."""
    leader, rival, third = Leader(AUTHOR), Leader(RIVAL), Leader(Author(UUID(int=3)))
    leader.tick(raw)
    third.leave(raw)
    leader.leave(raw)
    assert not leader.leads
    rival.tick(raw)
    assert rival.leads
    leader.leave(raw)
    assert LeaderTerm.objects.get().worker == RIVAL.worker


@pytest.mark.parametrize("column", ["worker", "term"])
def test_each_half_of_the_comparison_of_a_renewal_is_needed(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """The sabotaged twins: without it somebody prolongs a term that is not his."""
    assert leading.take_term(raw, AUTHOR, seconds=9) == (1, None)
    stranger = RIVAL if column == "worker" else AUTHOR
    number = 1 if column == "worker" else 7
    assert not leading.renew_term(raw, stranger, number, seconds=9)
    whole = statement("renew_term")
    lines = whole.replace(f"{column} = %(", f"{column} IS NOT NULL OR {column} = %(")
    assert lines != whole
    monkeypatch.setattr("django_pgjobs.sql.statement", lambda name: lines)
    assert leading.renew_term(raw, stranger, number, seconds=9)


def test_a_duty_of_the_leader_rests_while_another_leads(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W1 W9: and its first turn may be put off."""
    leader = Leader(AUTHOR)
    done: list[object] = []
    duty = TimedDuty("count", done.append, 10.0, leader=leader, first=30.0)
    time(31.0)
    duty.tick(raw)
    assert done == []
    leader.tick(raw)
    duty.tick(raw)
    duty.tick(raw)
    assert len(done) == 1
    assert leader_room.ASK_SECONDS < leader_room.TERM_SECONDS / 2, "one renewal may be missed"


# The audit


def strand(raw: RawDatabase, *ids: int) -> None:
    """Take away the ledger rows of whole claims."""
    raw.query(
        "DELETE FROM pgjobs_claim WHERE claim_id IN (SELECT claim_id FROM pgjobs_job WHERE id = ANY (%s))", [list(ids)]
    )


def rescue(raw: RawDatabase) -> list[int]:
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    rescued = keeping.rescue_jobs(
        raw, limit=50, quiet_seconds=0, grace_seconds=10, stale_seconds=60, without_on_cancel=[], without_on_abandon=[]
    )
    return sorted(job.id for job in rescued)


def test_a_running_job_that_is_in_no_claim_is_found_and_rescued(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """C42 D13 D15: no lost ledger row strands a job; it gets one with a full lease, and rescue does the rest."""
    ids = register(450)
    claimed = claim(raw, 450)
    strand(raw, *ids)
    with caplog.at_level(logging.ERROR):
        assert Audit()(raw) == 450
    assert "running jobs without a claim got one jobs=450" in caplog.text
    rows = list(Claim.objects.order_by("part"))
    assert [(row.claim_id, row.part, row.worker, len(row.job_ids)) for row in rows] == [
        (claimed.claim_id, part, NOBODY, count) for part, count in enumerate((200, 200, 50))
    ]
    late = "SELECT count(*) FROM pgjobs_claim WHERE check_at < statement_timestamp() + interval '20 s'"
    assert raw.value(late) == 0, "its owner, if it lives, has a whole lease to renew it"
    assert rescue(raw) == ids
    assert (job(ids[0]).state, job(ids[0]).attempts.get().message) == (
        "ready", "The lease ran out; the worker is not known.",
    )  # fmt: skip


def test_a_living_owner_renews_what_the_audit_gave_it(raw: RawDatabase) -> None:
    """The job continues, and its owner ends it."""
    register(300)
    claimed = claim(raw, 300)
    raw.query("DELETE FROM pgjobs_claim WHERE part = 1")
    assert Audit()(raw) == 100
    assert sorted(Claim.objects.values_list("part", flat=True)) == [0, 1]
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    renewed = keeping.renew_claims(raw, {str(claimed.claim_id): 60.0}, lease_seconds=30)
    assert renewed == {str(claimed.claim_id)}
    assert raw.value("SELECT count(*) FROM pgjobs_claim WHERE lease_expires_at > statement_timestamp()") == 2
    assert len(finalising.finalise_success(raw, claimed.ends(), AUTHOR)) == 300
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 2


def test_a_job_that_its_claims_rows_do_not_name_gets_a_part_of_its_own(raw: RawDatabase) -> None:
    """Forged or damaged: the parts that are there stay as they are."""
    ids = register(3)
    claim(raw, 3)
    raw.query("UPDATE pgjobs_claim SET job_ids = job_ids[1:2]")
    assert Audit()(raw) == 1
    assert sorted(Claim.objects.values_list("part", flat=True)) == [0, 1]
    assert rescue(raw) == ids


def test_the_audit_leaves_alone_what_is_in_order(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """D14 D32: ready, waiting for its time, running under a claim, held, ended; and says nothing of it."""
    register(2)
    register(delay_seconds=60)
    ended = register(queue="b")
    finalising.finalise_success(raw, claim(raw, 1, [Pair("b", 0, "-infinity", 0)]).ends(), AUTHOR)  # type: ignore[arg-type]
    held = register(queue="c")
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id = ANY (%s)", [held])
    claim(raw, 1)
    before = list(Claim.objects.values_list("claim_id", "part").order_by("claim_id"))
    assert Audit()(raw) == 0
    assert list(Claim.objects.values_list("claim_id", "part").order_by("claim_id")) == before
    assert job(ended[0]).state == "succeeded"
    assert caplog.records == []


def test_several_audits_at_once_give_one_row(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """W11: two that take themselves for the leader do no harm."""
    ids = register(100)
    claim(raw, 100)
    strand(raw, *ids)
    for asked in [background(Audit(), db_connection()) for _ in range(6)]:
        asked.result(patience(10))
    assert Claim.objects.count() == 1
    assert rescue(raw) == ids


def test_the_audit_walks_in_slices_over_every_queue_and_rests(
    raw: RawDatabase, time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_room, "SLICES", (4, 2))
    ids = [register(1, queue=f"q{n % 3}", priority=n % 2, delay_seconds=0)[0] for n in range(10)]
    for queue in range(3):
        for priority in range(2):
            claim(raw, 10, [Pair(f"q{queue}", priority, "-infinity", 0)])  # type: ignore[arg-type]
    strand(raw, *ids)
    audit = Audit()
    assert [audit(raw) for _ in range(3)] == [4, 4, 2]
    strand(raw, *ids)
    assert audit(raw) == 0
    time(audit_room.REST_SECONDS)
    assert [audit(raw) for _ in range(3)] == [4, 4, 2]


def test_the_walks_of_one_of_many_schemas_go_on_at_the_next_visit(
    raw: RawDatabase, time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each visit has duties of its own, and time for one slice: begun anew, a walk would never see the second."""
    monkeypatch.setattr(audit_room, "SLICES", (4, 2))
    ids = register(10)
    claim(raw, 10)
    strand(raw, *ids)
    leader = Leader(AUTHOR)
    progress, found = DutyProgress(leader, {}), []
    for _ in range(3):
        leader.tick(raw)
        visited = [*duties(progress, lambda rescued: None), *upkeep(progress, lambda: pytest.fail("connected"))]
        [audit] = [duty for duty in visited if duty.name == "audit"]
        before = Claim.objects.count()
        audit.tick(raw)
        found.append(Claim.objects.count() - before)
        leader.leave(raw)
    assert found == [1, 1, 1]


def test_a_worker_that_resigned_can_lead_at_once(raw: RawDatabase) -> None:
    """It comes back to the same schema a moment later."""
    leader = Leader(AUTHOR)
    leader.tick(raw)
    leader.leave(raw)
    leader.tick(raw)
    assert (leader.leads, leader.term) == (True, 2)


def test_a_worker_that_cannot_resign_leads_no_more(raw: RawDatabase) -> None:
    leader = Leader(AUTHOR)
    leader.tick(raw)
    raw.raw.close()
    with pytest.raises(psycopg.OperationalError):
        leader.leave(raw)
    assert not leader.leads


def test_on_a_slow_server_a_slice_is_smaller(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that cannot look at even a few is trouble, told by the loop."""
    tried: list[int] = []

    def canceled(db: object, after: object, *, limit: int, lease_seconds: float) -> None:
        tried.append(limit)
        raise psycopg.errors.QueryCanceled("statement timeout")

    monkeypatch.setattr(leading, "audit_claims", canceled)
    with pytest.raises(psycopg.errors.QueryCanceled):
        Audit()(raw)
    assert tried == list(audit_room.SLICES)


def test_a_claim_in_flight_is_not_taken_for_stranded(raw: RawDatabase, other: RawDatabase) -> None:
    """Claim and ledger row are one statement: not committed yet, neither is seen."""
    register(5)
    claimed = claim(other, 5)
    assert Audit()(raw) == 0
    other.commit()
    assert Audit()(raw) == 0
    assert Claim.objects.get().claim_id == claimed.claim_id


# Workers of long ago


def test_heartbeats_of_old_workers_expire(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """At the first turn: a visit to one of many schemas has no other. A worker that wakes up writes its row again."""
    raw.query(
        "INSERT INTO pgjobs_heartbeat (id, name, host, pid, processes, threads, async_slots, version, last_beat_at) "
        "SELECT gen_random_uuid(), 'w' || age, 'h', 1, 1, 1, 1, '1', "
        "statement_timestamp() - make_interval(secs => age) "
        "FROM unnest(%s::float8[]) AS age",
        [[1.0, KEPT_SECONDS - 60, KEPT_SECONDS + 60]],
    )
    leader = Leader(AUTHOR)
    leader.tick(raw)
    found = duties(DutyProgress(leader, {}), lambda rescued: None)
    [expiries] = [duty for duty in found if duty.name == "heartbeats"]
    assert isinstance(expiries, TimedDuty)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            expiries.tick(raw)
            expiries.due = 0.0
    assert Heartbeat.objects.count() == 2
    assert [record.getMessage() for record in caplog.records] == ["heartbeats of old workers expired workers=1"]


def test_a_worker_that_stands_by_neither_locks_nor_writes_the_term(raw: RawDatabase, other: RawDatabase) -> None:
    """Every worker asks every other second: a hundred of them must not queue up at one row."""
    assert leading.take_term(raw, AUTHOR, seconds=60) == (1, None)
    before = raw.value("SELECT xmin::text || ' ' || xmax::text FROM pgjobs_leader_term")
    other.query("SELECT id FROM pgjobs_leader_term FOR UPDATE")
    assert leading.take_term(raw, RIVAL, seconds=60) is None, "it does not wait for the lock"
    other.rollback()
    assert leading.take_term(raw, RIVAL, seconds=60) is None
    after = raw.value("SELECT xmin::text FROM pgjobs_leader_term")
    assert after == before.split()[0]


def test_a_leader_is_replaced_within_ten_seconds_by_its_numbers() -> None:
    """W4: a term, the next question and a tick of the loop; two renewals may be missed."""
    assert TERM_SECONDS + max(ASK_SECONDS, OTHERS_SECONDS) + max(TICK_SECONDS, REST_SECONDS) < 10
    assert TERM_SECONDS >= 3 * ASK_SECONDS


def test_each_duty_has_a_name_of_its_own_for_the_log() -> None:
    """W54."""
    leader = Leader(AUTHOR)
    progress = DutyProgress(leader, {})
    names = [duty.name for duty in duties(progress, lambda rescued: None) if duty is not leader]
    names += [duty.name for duty in upkeep(progress, lambda: pytest.fail("connected"))]
    assert sorted(names) == [
        "audit", "check", "cron_eval", "cron_missing", "cron_rows", "cron_sync", "expire", "expire_jobs", "gates",
        "heartbeats", "mend", "notices", "numbers", "pauses", "prune", "recount", "rescue", "statistics", "unpark",
        "unpause", "vacuum",
    ]  # fmt: skip


def test_the_term_is_renewed_between_any_two_duties() -> None:
    """W10: one that waits for a lock as long as a statement may costs no term."""
    leader = Leader(AUTHOR)
    found = duties(DutyProgress(leader, {}), lambda rescued: None)
    assert [duty is leader for duty in found] == [True, False] * (len(found) // 2)
    assert {duty.name for duty in found} >= {"lead", "rescue", "unpark", "unpause", "audit", "heartbeats", "pauses"}
