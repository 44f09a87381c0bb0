"""Whether a database is the one that was declared: the rule alone."""

from __future__ import annotations

import pytest

from django_pgjobs.store.installation import Compared, KnownDatabase, Verdict, judge

HERE = KnownDatabase("7710", 16_388, "shop", 16_500, 17, "")
NAMED = HERE._replace(environment="production")


@pytest.mark.parametrize(
    ("declared", "now", "verdict"),
    [
        pytest.param(HERE, HERE, Verdict.SAME, id="nothing changed, or a standby was promoted"),
        pytest.param(HERE, HERE._replace(table=17_000), Verdict.MOVED, id="restored in place"),
        pytest.param(HERE, HERE._replace(database=17_000, table=17_001), Verdict.MOVED, id="made anew by its name"),
        pytest.param(HERE, HERE._replace(name="shop_old"), Verdict.MOVED, id="renamed"),
        pytest.param(HERE, HERE._replace(version=18), Verdict.MOVED, id="the same server, newer"),
        pytest.param(HERE, HERE._replace(database=17_000, name="shop_copy"), Verdict.COPY, id="copied on its server"),
        pytest.param(HERE, HERE._replace(system="7711"), Verdict.COPY, id="the same oids without an upgrade"),
        pytest.param(HERE, HERE._replace(system="7711", version=16), Verdict.COPY, id="an older server"),
        pytest.param(HERE, KnownDatabase("7711", 5, "shop", 6, 18, ""), Verdict.COPY, id="dumped to another server"),
        pytest.param(NAMED, NAMED._replace(system="7711", database=5), Verdict.MOVED, id="production has moved"),
        pytest.param(NAMED, NAMED._replace(environment="staging"), Verdict.COPY, id="a snapshot for staging"),
        pytest.param(NAMED, HERE, Verdict.COPY, id="a snapshot on a machine that names nothing"),
        pytest.param(HERE, NAMED, Verdict.MOVED, id="named for the first time"),
        pytest.param(HERE, NAMED._replace(system="7711"), Verdict.COPY, id="an unnamed copy is no production"),
    ],
)
def test_what_a_database_is_to_the_declared_one(declared: KnownDatabase, now: KnownDatabase, verdict: Verdict) -> None:
    assert judge(declared, now, untouched=True) is verdict


def test_pg_upgrade_keeps_the_row_and_a_dump_with_the_same_oids_does_not() -> None:
    upgraded = HERE._replace(system="7711", version=18)
    assert judge(HERE, upgraded, untouched=True) is Verdict.MOVED
    assert judge(HERE, upgraded, untouched=False) is Verdict.COPY


def test_the_first_declares_it() -> None:
    seen = Compared(HERE, None)
    assert (seen.verdict, seen.refusal()) == (Verdict.MOVED, "")


@pytest.mark.parametrize(
    ("declared", "now", "words"),
    [
        (HERE, HERE._replace(system="1"), "This database is a copy of shop on server 7710: "),
        (NAMED, HERE, "This database is of environment 'production', and ENVIRONMENT names none: "),
        (NAMED, NAMED._replace(environment="dev"), "of environment 'production', and ENVIRONMENT names 'dev': "),
        (HERE, NAMED._replace(system="1"), "of an environment without a name, and ENVIRONMENT names 'production': "),
    ],
)
def test_a_refusal_says_what_it_is_and_what_to_type(declared: KnownDatabase, now: KnownDatabase, words: str) -> None:
    refusal = Compared(now, declared).refusal()
    assert words in refusal
    assert refusal.endswith("none of its jobs is run. Decide what becomes of them: manage.py pgjobs adopt")
