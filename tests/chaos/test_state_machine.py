"""Whatever is done to jobs, in whatever order, the tables say what a small model says.

Hypothesis makes up what two workers, a rescuer and operators do, late writes of former owners included, and shrinks
what goes wrong to the shortest such story. One thing happens at a time here; ``test_interleavings`` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.finalising import End, FenceReading
from tests.chaos.model import ABANDONED, CANCELLED, SUCCEEDED, Model, ModelJob
from tests.plugins.fix_db import AUTHOR, FAILURE, TABLES, RawDatabase, claim, patience, register
from tests.plugins.sabotage import fence_lines, line_id, sabotage

PLAIN, WITH_CALLBACKS = "test.job", "tests.jobs.calls_back"
STEP = f'{{"name": "{PLAIN}", "queue": "default", "max_attempts": 2, "payload": {{}}}}'
WORKERS = tuple(UUID(int=number) for number in (1, 2))


@dataclass
class Holding:
    """What a worker believes to have: it is not told when it loses it."""

    id: int
    claim: str
    attempt: int
    max_attempts: int
    ending: str | None

    def ends(self, **facts: Any) -> list[End]:
        return [End(self.id, self.claim, **facts)]


class JobsMachine(RuleBasedStateMachine):
    """Does everything to the tables and to the model."""

    ids = Bundle("ids")
    holdings = Bundle("holdings")

    def __init__(self, db: RawDatabase) -> None:
        super().__init__()
        self.db = db
        self.model = Model()
        self.never: set[int] = set()

    def teardown(self) -> None:
        for table in TABLES:
            self.db.query(f"DELETE FROM {table}")

    # Registering

    @initialize(target=ids)
    def registers_one(self) -> int:
        return self._register(callbacks=False, max_attempts=2, delay=0)

    @rule(target=ids, callbacks=st.booleans(), max_attempts=st.integers(1, 3), delay=st.sampled_from((0, 0, 3600)))
    def registers(self, callbacks: bool, max_attempts: int, delay: int) -> int:
        return self._register(callbacks, max_attempts, delay)

    def _register(self, callbacks: bool, max_attempts: int, delay: int) -> int:
        name = WITH_CALLBACKS if callbacks else PLAIN
        definition = registry.find(name)
        again = definition.max_attempts if definition else get_conf().default_max_attempts
        [number] = register(name=name, max_attempts=max_attempts, delay_seconds=float(delay))
        self.model.jobs[number] = ModelJob(callbacks, max_attempts, again, due=not delay)
        return number

    @rule()
    def registers_in_a_transaction_that_is_rolled_back(self) -> None:
        with transaction.atomic():
            self.never.update(register())
            transaction.set_rollback(True)

    @rule(number=ids)
    def its_time_comes(self, number: int) -> None:
        self.db.query(
            "UPDATE pgjobs_job SET run_at = now() - interval '1 s' WHERE id = %s AND run_at > now()", [number]
        )
        if number in self.model.jobs:
            self.model.jobs[number].due = True

    # Workers

    @rule(target=holdings, worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def claims_some(self, worker: UUID, limit: int) -> Any:
        claimable = self.model.claimable()
        claimed = claim(self.db, limit, worker=worker)
        assert set(claimed.ids) <= claimable
        assert len(claimed.ids) == min(limit, len(claimable))
        if claimed.ids:
            self.model.claim(str(claimed.claim_id), claimed.ids)
        assert all(job.ending == self.model.jobs[job.id].ending for job in claimed.jobs)
        return multiple(
            *(Holding(j.id, str(claimed.claim_id), j.attempt, j.max_attempts, j.ending) for j in claimed.jobs)
        )

    def _write(
        self, held: Holding, written: list[Any], allowed: Callable[[ModelJob], bool], then: Callable[[ModelJob], object]
    ) -> None:
        """Whether a write counted must be as the model says; so must what a reading says of one that did not."""
        job = self.model.jobs.get(held.id)
        assert bool(written) == (job is not None and allowed(job))
        if job is None:
            assert finalising.read_fences(self.db, [(held.id, held.claim)]) == {}
            return
        if written:
            then(job)
            return
        reading = finalising.read_fences(self.db, [(held.id, held.claim)])[held.id]
        _, kept = self.model.history.get((held.id, held.claim), (0, ""))
        if kept == "timeout":  # only a rescue writes it here, and no worker takes that for an end of its own
            kept = "lost"
        assert reading == FenceReading(
            held.id,
            ours=job.claim == held.claim,
            ended=job.outcome is not None,
            recorded=kept or ("next" if (held.id, held.claim) in self.model.steps else None),
            ending=job.ending is not None,
            cancelled=job.cancel,
            claimed=job.claim is not None,
            counted=False,
        )

    @rule(held=holdings)
    def succeeds(self, held: Holding) -> None:
        """Or its callback does."""
        if held.ending is None:
            written = finalising.finalise_success(self.db, held.ends(result="1"), AUTHOR)
            self._write(held, written, lambda job: job.held_by(held.claim), lambda job: job.end(SUCCEEDED))
        else:
            self._end(held, held.ending, cause=None)

    @rule(held=holdings)
    def fails(self, held: Holding) -> None:
        """What is written depends on what the worker believes to have left."""
        if held.attempt < held.max_attempts or held.ending is not None:
            written = finalising.finalise_retry(self.db, held.ends(cause="failed", failure=FAILURE), AUTHOR)
            self._write(held, written, lambda job: job.may_go_back(held.claim), lambda job: self._retried(held, job))
        elif self._has_callbacks(held):
            self._mark(held, ABANDONED)
        else:
            self._end(held, ABANDONED, cause="failed")

    def _retried(self, held: Holding, job: ModelJob) -> None:
        self.model.record(held.id, held.claim, "failed")
        job.let_go()

    @rule(held=holdings)
    def ends_as_cancelled(self, held: Holding) -> None:
        if held.ending is not None:
            self._end(held, held.ending, cause=None)
        elif self._has_callbacks(held):
            self._mark(held, CANCELLED)
        else:
            self._end(held, CANCELLED, cause=None)

    def _has_callbacks(self, held: Holding) -> bool:
        return held.id in self.model.jobs and self.model.jobs[held.id].callbacks

    def _mark(self, held: Holding, outcome: str) -> None:
        ends = held.ends(outcome=outcome, cause="failed", failure=FAILURE)
        written = finalising.mark_ending(self.db, ends, AUTHOR, allowance_seconds=5)

        def marked(job: ModelJob) -> None:
            job.ending, job.ending_attempt, job.overdue = outcome, 1, False
            held.ending = outcome
            self.model.record(held.id, held.claim, "failed")

        self._write(held, written, lambda job: job.held_by(held.claim), marked)

    def _end(self, held: Holding, outcome: str, cause: str | None) -> None:
        failure = FAILURE if cause else None
        written = finalising.finalise_end(self.db, held.ends(outcome=outcome, cause=cause, failure=failure), AUTHOR)

        def ended(job: ModelJob) -> None:
            job.end(outcome)
            if cause:
                self.model.record(held.id, held.claim, cause)

        self._write(held, written, lambda job: job.held_by(held.claim), ended)

    @rule(held=holdings)
    def snoozes(self, held: Holding) -> None:
        if held.ending is None:
            written = finalising.finalise_snooze(self.db, held.ends(delay=0.0))
            self._write(held, written, lambda job: job.may_go_back(held.claim), lambda job: job.give_back())

    @rule(held=holdings)
    def goes_on(self, held: Holding) -> None:
        """Its row becomes its next step, which has no callbacks."""
        if held.ending is None:
            written = finalising.next_step(self.db, held.ends(columns=STEP), AUTHOR)

            def stepped(job: ModelJob) -> None:
                job.go_on(max_attempts=2, retried_attempts=get_conf().default_max_attempts)
                self.model.steps.add((held.id, held.claim))

            self._write(held, written, lambda job: job.may_go_back(held.claim), stepped)

    @rule(held=holdings)
    def releases(self, held: Holding) -> None:
        written = finalising.release_jobs(self.db, held.ends(), AUTHOR)
        self._write(held, written, lambda job: job.may_go_back(held.claim), lambda job: job.give_back())

    @rule(held=holdings)
    def parks(self, held: Holding) -> None:
        def parked(job: ModelJob) -> None:
            job.give_back()
            job.parked = True

        written = finalising.park_jobs(self.db, held.ends(reason="not known", fingerprint="old"))
        self._write(held, written, lambda job: job.may_go_back(held.claim), parked)

    @rule(held=holdings)
    def writes_progress(self, held: Holding) -> None:
        written = finalising.write_progress(self.db, [(held.id, held.claim, {"progress": '{"n": 1}'})])
        self._write(held, written, lambda job: job.held_by(held.claim), lambda job: None)

    @rule(held=holdings)
    def reads_its_payload(self, held: Holding) -> None:
        job = self.model.jobs.get(held.id)
        ours = job is not None and job.held_by(held.claim)
        assert (finalising.read_payload(self.db, held.id, held.claim) is not None) == ours

    @rule(held=holdings)
    def renews(self, held: Holding) -> None:
        renewed = keeping.renew_claims(self.db, {held.claim: 30.0}, lease_seconds=30)
        assert renewed == {held.claim} & self.model.ledger.keys()
        self.model.expired -= renewed

    @rule(held=holdings)
    def strikes_the_claim(self, held: Holding) -> None:
        assert bool(finalising.delete_claims(self.db, [held.claim])) == self.model.forget(held.claim)

    @rule(held=consumes(holdings))
    def forgets(self, held: Holding) -> None:
        """The worker dies, or is done with it."""

    # Time, and who looks after the dead

    @rule(held=holdings)
    def the_lease_runs_out(self, held: Holding) -> None:
        self.db.query(
            "UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01' WHERE claim_id = %s",
            [held.claim],
        )
        self.model.expired.add(held.claim)

    @rule(held=holdings)
    def the_deadline_passes(self, held: Holding) -> None:
        job = self.model.jobs.get(held.id)
        if job is not None and job.held_by(held.claim) and held.claim in self.model.ledger:
            self.db.query("UPDATE pgjobs_job SET overdue_at = '2001-01-01' WHERE id = %s", [held.id])
            self.db.query("UPDATE pgjobs_claim SET check_at = '2001-01-01' WHERE claim_id = %s", [held.claim])
            job.overdue = True

    @rule()
    def rescues(self) -> None:
        self.db.query("UPDATE pgjobs_claim SET check_at = '2001-01-01'")  # it looks at all, and leaves alone what lives
        overdue = [  # their worker could not stop them
            (number, str(job.claim))
            for number, job in self.model.jobs.items()
            if job.overdue and job.outcome is None and job.claim not in self.model.expired
        ]
        rescued = keeping.rescue_jobs(
            self.db,
            limit=100,
            quiet_seconds=0,
            grace_seconds=1,
            stale_seconds=60,
            without_on_cancel=[PLAIN],
            without_on_abandon=[PLAIN],
            overdue=overdue,
        )
        assert {job.id for job in rescued} == self.model.rescue()
        assert all((self.model.jobs[job.id].outcome or "") == job.outcome for job in rescued)

    @rule()
    def unparks(self) -> None:
        parked = {number for number, job in self.model.jobs.items() if job.parked}
        free = keeping.unpark_jobs(self.db, {PLAIN: "new", WITH_CALLBACKS: "new"}, limit=100)
        assert {job.id for job in free} == parked
        for number in parked:
            self.model.jobs[number].parked = False

    # Operators

    def _steer(self, number: int, act: Callable[[Any], Any], model: Callable[[], bool]) -> None:
        steered = act(Job.objects.filter(pk=number))
        assert bool(steered.changed) == (number in self.model.jobs and model())

    @rule(number=ids)
    def cancels(self, number: int) -> None:
        self._steer(number, lambda jobs: jobs.cancel(mode="ask"), lambda: self.model.cancel(number))

    @rule(number=ids)
    def abandons(self, number: int) -> None:
        self._steer(number, lambda jobs: jobs.abandon(), lambda: self.model.abandon(number))

    @rule(number=ids)
    def retries(self, number: int) -> None:
        self._steer(number, lambda jobs: jobs.retry(), lambda: self.model.retry(number))

    @rule(number=ids, delay=st.sampled_from((0, 3600)))
    def reschedules(self, number: int, delay: int) -> None:
        self._steer(
            number, lambda jobs: jobs.reschedule(delay=delay), lambda: self.model.reschedule(number, due=not delay)
        )

    @rule(number=ids)
    def wants_back(self, number: int) -> None:
        self._steer(number, lambda jobs: jobs.release(), lambda: self.model.want_back(number))

    @precondition(lambda self: any(job.outcome for job in self.model.jobs.values()))
    @rule()
    def deletes_what_has_ended(self) -> None:
        self.db.query("DELETE FROM pgjobs_job WHERE finished_at IS NOT NULL")
        self.model.jobs = {number: job for number, job in self.model.jobs.items() if job.outcome is None}

    # What must hold after each

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        self._compare_rows()
        self._compare_history()
        self._compare_ledger()

    def _compare_rows(self) -> None:
        found = self.db.query(
            "SELECT id, j.state, attempt, max_attempts, outcome, ending, ending_attempt, claim_id::text, "
            "hold = 'parked', cancel_requested_at IS NOT NULL, "
            "release_requested_at IS NOT NULL AND outcome IS NULL, run_at <= now(), "
            "(outcome IS NULL) = (finished_at IS NULL) FROM pgjobs_job AS j ORDER BY id"
        )
        assert found == [
            (
                number, job.state, job.attempt, job.max_attempts, job.outcome, job.ending, job.ending_attempt,
                job.claim, job.parked or None, job.cancel, job.release and job.outcome is None, job.due, True,
            )
            for number, job in sorted(self.model.jobs.items())
        ]  # fmt: skip
        assert not self.never & {row[0] for row in found}

    def _compare_history(self) -> None:
        found = self.db.query("SELECT job_id, claim_id::text, number, cause FROM pgjobs_attempt")
        assert {(job, claim): (number, cause) for job, claim, number, cause in found} == self.model.history
        assert set(self.db.query("SELECT job_id, claim_id::text FROM pgjobs_step")) == self.model.steps

    def _compare_ledger(self) -> None:
        found = self.db.query("SELECT claim_id::text, job_ids, lease_expires_at <= now() FROM pgjobs_claim")
        assert {claim: set(ids) for claim, ids, _ in found} == self.model.ledger
        assert {claim for claim, _, expired in found if expired} == self.model.expired & self.model.ledger.keys()
        running = {n for n, job in self.model.jobs.items() if job.outcome is None and job.claim is not None}
        assert running == {number for claim in self.model.ledger for number in self.model.live(claim)}


LATE_WRITES: dict[str, Callable[[JobsMachine, Holding], object]] = {
    "finalise_success": JobsMachine.succeeds,
    "finalise_retry": JobsMachine.fails,
    "finalise_snooze": JobsMachine.snoozes,
    "next_step": JobsMachine.goes_on,
    "finalise_end": JobsMachine.ends_as_cancelled,
    "hold_jobs": JobsMachine.parks,
    "release_jobs": JobsMachine.releases,
    "write_progress": JobsMachine.writes_progress,
    "read_payload": JobsMachine.reads_its_payload,
}


def tell(raw: RawDatabase, examples: int, steps: int, **more: Any) -> None:
    """Make up this many stories of this many steps. A story is a whole one: its length is no reason to complain."""
    told = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck), **more)
    machine: Any = partial(JobsMachine, raw)
    run_state_machine_as_test(machine, settings=told)


def test_the_tables_say_what_the_model_says(raw: RawDatabase) -> None:
    """X1, X8, C44, C45, C46, C47, C53, W20, P37: state, attempts, outcome, history and ledger after every step."""
    tell(raw, 30, 30)


@pytest.mark.chaos
@pytest.mark.timeout(patience(900))
def test_the_tables_say_what_the_model_says_at_length(raw: RawDatabase) -> None:
    """The same, for longer stories and more of them."""
    tell(raw, 200, 60)


@pytest.mark.parametrize(
    ("name", "line"),
    [(name, line) for name, line in fence_lines() if ".claim_id = " in line and name in LATE_WRITES],
    ids=line_id,
)
def test_a_missing_fence_is_noticed(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    """The machine can fail: a job is rescued, and without the line its former owner's late write counts."""
    sabotage(monkeypatch, name, line)
    machine = JobsMachine(raw)
    machine.registers_one()
    [claimed] = claim(raw).jobs
    [claim_id] = raw.query("SELECT claim_id::text FROM pgjobs_claim")[0]
    machine.model.claim(claim_id, [claimed.id])
    held = Holding(claimed.id, claim_id, claimed.attempt, claimed.max_attempts, None)
    machine.the_lease_runs_out(held)
    machine.rescues()
    machine.the_tables_say_what_the_model_says()
    with pytest.raises(AssertionError):
        LATE_WRITES[name](machine, held)


@pytest.mark.chaos
@pytest.mark.timeout(patience(600))
def test_a_missing_fence_is_found(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same by Hypothesis alone."""
    [(name, line)] = [fence for fence in fence_lines() if fence[0] == "release_jobs" and ".claim_id = " in fence[1]]
    sabotage(monkeypatch, name, line)
    with pytest.raises(AssertionError):
        tell(raw, 1000, 30, phases=[Phase.generate], database=None)
