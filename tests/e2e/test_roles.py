"""A role that owns nothing: with the grants that the documentation names workers, shell and admin do all they do."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, connections
from django.test import Client
from django.urls import reverse

from django_pgjobs.models import Job, QueueState
from django_pgjobs.store import registering
from tests.docs.pages import DOCS, blocks
from tests.e2e import jobs, limited
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_roles import Role
from tests.plugins.fix_worker import WorkerProcess, Workers, ended
from tests.plugins.shell import pgjobs

CODE = {"PGJOBS_TEST_CRON": "1", "PGJOBS_TEST_LIMITED": "1"}
TROUBLE = (
    "permission denied",
    "must be owner",
    "duty failed",
    "worker loop failed",
    "database trouble",
    "of a dead executor are left",
)


def statements(words: str) -> list[str]:
    """The statements of the security page's snippets of SQL that have ``words``."""
    texts = [block.text for block in blocks(DOCS / "how-to" / "security.md") if block.language == "sql"]
    found = [each.strip() for text in texts for each in re.sub("--.*", "", text).split(";")]
    return [each for each in found if words in each]


GRANTS = [each for each in statements("GRANT") if "MAINTAIN" not in each]


@pytest.fixture
def grant(raw: RawDatabase) -> Callable[..., None]:
    """Make the documented grants to a role."""

    def made(role: Role, grants: list[str]) -> None:
        for each in grants:
            text = each.replace("DATABASE shop", f"DATABASE {connection.settings_dict['NAME']}")
            raw.query(text.replace("shop_worker", role.name))

    return made


@pytest.fixture
def nothing_for_all(raw: RawDatabase) -> Iterator[None]:
    """What every role may by default is taken away: only what was granted counts."""
    name = connection.settings_dict["NAME"]
    raw.query(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
    raw.query("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield
    raw.query(f"GRANT CONNECT, TEMPORARY ON DATABASE {name} TO PUBLIC")
    raw.query("GRANT USAGE ON SCHEMA public TO PUBLIC")


@pytest.fixture
def limited_role(role: Callable[..., Role], nothing_for_all: None, grant: Callable[..., None]) -> Role:
    """A role with the documented grants, and no others."""
    made = role()
    grant(made, GRANTS)
    return made


@pytest.fixture
def start(limited_role: Role, worker: Workers) -> Callable[..., WorkerProcess]:
    """Start workers that log in as the role."""
    return partial(worker, env={"DATABASE_URL": limited_role.url, **CODE})


def no_trouble(*processes: WorkerProcess) -> None:
    for each in processes:
        assert [words for words in TROUBLE if words in each.log] == [], each.log


def test_the_documented_grants_name_every_table() -> None:
    [text] = statements("SELECT, INSERT")
    tables = {model._meta.db_table for model in apps.get_app_config("pgjobs").get_models()}
    assert set(re.findall(r"pgjobs_\w+", text)) == tables


def test_such_a_role_runs_jobs_until_idle(start: Callable[..., WorkerProcess], stage: Stage) -> None:
    """Success, failure, callbacks, limits, keys, deletes at the end."""
    good = [jobs.effect.register(key) for key in range(20)] + [jobs.aeffect.register("a")]
    keyed = jobs.effect.using(idempotency_key="k").register("k")
    doomed = jobs.doomed.register()
    counted = [limited.per_key.register("k", number) for number in range(3)]
    rated = [limited.rated.register("r", number) for number in range(3)]
    process = start("--until-idle", ready=False)
    assert process.wait(60) == 0, process.log
    no_trouble(process)
    all_of_them = ended(*good, keyed, doomed, *counted, *rated)
    assert {job.outcome for job in all_of_them if job.pk != doomed.pk} == {"succeeded"}
    assert stage.count("on_abandon", doomed.pk) == 1
    again = jobs.effect.using(idempotency_key="k").register("k")
    nothing = start("--until-idle", conf={"RETENTION": {"succeeded": 0}}, ready=False)
    assert nothing.wait(60) == 0, nothing.log
    no_trouble(nothing)
    assert not Job.objects.filter(pk=again.pk).exists()
    assert stage.count("effect", "k") == 1


def test_a_worker_of_such_a_role_leads_fires_prunes_and_ends_what_its_executors_leave(
    start: Callable[..., WorkerProcess], limited_role: Role, stage: Stage, raw: RawDatabase
) -> None:
    """A job that kills its process runs again; what the leader alone does, is done."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, outcome, finished_at)"
        " SELECT 'gone', '{}', 'succeeded', statement_timestamp() - interval '25 h' FROM generate_series(1, 20)"
    )
    process = start()
    users = "SELECT DISTINCT usename FROM pg_stat_activity WHERE position(%s IN application_name) > 0"
    assert raw.query(users, [process.name]) == [(limited_role.name,)]
    [dead] = ended(jobs.dies.register("kill"), timeout=40)
    assert dead.outcome == "abandoned"
    running = jobs.waits.register("c")
    wait_until(lambda: stage.count("start", "c"), 20, "it runs")
    running.cancel(mode="interrupt")
    assert ended(running)[0].outcome == "cancelled"
    process.wait_for_log("ended jobs were pruned jobs=20")
    wait_until(lambda: stage.count("tick"), 40, "a cron entry was fired")
    assert process.stop() == 0
    no_trouble(process)


@pytest.fixture
def dead_claims(raw: RawDatabase) -> Iterator[None]:
    """So many that a VACUUM by the leader is due; autovacuum is switched off."""
    raw.query("ALTER TABLE pgjobs_claim SET (autovacuum_enabled = off)")
    raw.query(
        "INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)"
        " SELECT gen_random_uuid(), 0, gen_random_uuid(), 'infinity', 'infinity', '{}' FROM generate_series(1, 20000)"
    )
    raw.query("DELETE FROM pgjobs_claim WHERE job_ids = '{}'")
    raw.query("SELECT pg_stat_force_next_flush()")
    dead = "SELECT pg_stat_get_dead_tuples('pgjobs_claim'::regclass)"
    wait_until(lambda: raw.value(dead) >= 20_000, 20, "the statistics know")
    yield
    raw.query("ALTER TABLE pgjobs_claim RESET (autovacuum_enabled)")


def test_a_worker_of_such_a_role_says_that_it_may_not_vacuum_and_does_when_it_may(
    start: Callable[..., WorkerProcess],
    limited_role: Role,
    grant: Callable[..., None],
    raw: RawDatabase,
    dead_claims: None,
) -> None:
    """The warning names what to grant; the grant takes effect while the worker runs."""
    counted = "SELECT pg_stat_get_vacuum_count('pgjobs_claim'::regclass)"
    before = raw.value(counted)
    process = start()
    process.wait_for_log("worker cannot vacuum its tables, autovacuum alone does it: pgjobs_claim is owned by")
    assert raw.value(counted) == before
    if raw.raw.info.server_version >= 170000:
        grant(limited_role, statements("MAINTAIN"))
        process.wait_for_log("table was vacuumed table=pgjobs_claim")
        assert raw.value(counted) == before + 1
    assert process.stop() == 0
    assert not process.said("cannot vacuum its tables", times=2)
    no_trouble(process)


@contextmanager
def acting_as(role: Role) -> Iterator[None]:
    """What Django's connection does here, it does as this role."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION AUTHORIZATION {role.name}")
        try:
            yield
        finally:
            cursor.execute("RESET SESSION AUTHORIZATION")


SHELL = {
    "list --all": "ready",
    "show {}": "ready",
    "why {}": "ready",
    "tree {}": "ready",
    "stats": "ready",
    "workers": "ready",
    "names": "ready",
    "reschedule {} --delay 1h": "ready",
    "cancel {}": "cancelled",
    "abandon {}": "abandoned",
    "pause default": "ready",
    "crons list": "ready",
    "prune": "ready",
}
"""Subcommand → the state of a job afterwards."""


@pytest.mark.parametrize("line", SHELL)
def test_such_a_role_steers_from_the_shell(limited_role: Role, line: str) -> None:
    with acting_as(limited_role):
        job = jobs.effect.register("s")
        assert pgjobs(*line.format(job.pk).split())[0] == 0
        after = {"pause": "resume default", "cancel": "retry {}"}.get(line.split()[0])
    assert Job.objects.get(pk=job.pk).state == SHELL[line]
    with acting_as(limited_role):
        assert after is None or pgjobs(*after.format(job.pk).split())[0] == 0


@pytest.fixture
def web(limited_role: Role, raw: RawDatabase) -> Iterator[Client]:
    """The admin's client, its tables granted to the role as well."""
    tables = raw.value("SELECT string_agg(tablename, ', ') FROM pg_tables WHERE tablename ~ '^(auth|django)_'")
    raw.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {limited_role.name}")
    user = User.objects.create_superuser(limited_role.name)
    client = Client()
    client.force_login(user)
    yield client
    client.logout()
    user.delete()


def test_such_a_role_serves_the_admin(web: Client, limited_role: Role) -> None:
    with acting_as(limited_role):
        job, other = jobs.effect.register("a"), jobs.effect.register("b")
        for path in ("job/", f"job/{job.pk}/change/", "heartbeat/", "queuestate/", "cronentry/"):
            assert web.get(f"/admin/pgjobs/{path}").status_code == 200, path
        steer = reverse("admin:pgjobs_job_steer", args=[job.pk, "cancel"])
        assert web.post(steer, {"mode": "ask", "reason": ""}).status_code == 302
        asked = {"kind": "queue", "name": "mail", "anyway": "on", "reason": "", "until_0": "", "until_1": ""}
        assert web.post("/admin/pgjobs/queuestate/add/", asked).status_code == 302
    assert Job.objects.get(pk=job.pk).outcome == "cancelled"
    assert Job.objects.get(pk=other.pk).outcome is None
    assert QueueState.objects.filter(paused_by__endswith=limited_role.name).exists()


def test_such_a_role_asks_whether_all_is_well_and_is_not_refused(limited_role: Role, raw: RawDatabase) -> None:
    def problems() -> str:
        with acting_as(limited_role):
            return pgjobs("check")[1]

    assert "permission denied" not in problems()
    raw.query(f"REVOKE SELECT ON django_migrations FROM {limited_role.name}")
    assert "permission denied for table django_migrations" in problems(), "the grant is not one too many"


@pytest.mark.parametrize("missing", range(len(GRANTS) - 1))
def test_no_documented_grant_is_one_too_many(
    role: Callable[..., Role], nothing_for_all: None, grant: Callable[..., None], missing: int
) -> None:
    """Without any one of them many jobs cannot be registered; the last one is for ``check``."""
    limited_role = role()

    def register() -> int:
        try:
            rows = [(key,) for key in range(registering.COPY_FROM_JOBS)]
            return len(jobs.effect.using(database=limited_role.alias).register_many(rows))
        finally:
            connections[limited_role.alias].close()

    grant(limited_role, [each for number, each in enumerate(GRANTS) if number != missing])
    with pytest.raises(DatabaseError, match=r"permission denied|does not exist"):
        register()
    grant(limited_role, [GRANTS[missing]])
    assert register() == registering.COPY_FROM_JOBS


@pytest.mark.parametrize("how", ["ALTER ROLE", "assume_role"])
def test_a_worker_that_takes_on_a_role_ends_what_its_executors_leave(
    role: Callable[..., Role], grant: Callable[..., None], worker: Workers, stage: Stage, raw: RawDatabase, how: str
) -> None:
    """The server knows connections by who has logged in; who that one has become may not end them."""
    owner, login = role(), role()
    grant(owner, GRANTS)
    raw.query(f"GRANT {owner.name} TO {login.name}")
    raw.query(f"ALTER ROLE {login.name} NOINHERIT")
    taken = {"PGJOBS_TEST_ROLE": owner.name} if how == "assume_role" else {}
    if not taken:
        raw.query(f"ALTER ROLE {login.name} SET role = {owner.name}")
    process = worker(env={"DATABASE_URL": login.url, **taken})
    job = jobs.sleeps_in_the_database.using(max_attempts=1).register()
    left = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%pg_sleep%%' AND state = 'active'"
    wait_until(lambda: raw.value(left, [login.name]), 30, "it sleeps in the database")
    for pid in process.executors():
        os.kill(pid, signal.SIGKILL)
    [after] = ended(job, timeout=40)
    assert after.outcome == "abandoned"
    assert raw.value(left, [login.name]) == 0, "before its end was written"
    assert process.stop() == 0
    no_trouble(process)
