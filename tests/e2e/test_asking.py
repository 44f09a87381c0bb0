"""Several databases are asked side by side, and none that is down, frozen, empty or a twin holds the others."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone, translation

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Job
from django_pgjobs.store.asking import MOST_ASKING, Reply, ask_each
from django_pgjobs.store.database import on
from django_pgjobs.store.keeping import read_identity
from tests.e2e.elsewhere import aliased, ask, frozen, put
from tests.plugins.fix_db import patience, register, wait_until

BOTH = ("default", "second")


@pytest.fixture
def second(server: EmbeddedServer, committed: object) -> Iterator[EmbeddedServer]:
    """What the alias *second* leads to."""
    with aliased("second", server.url):
        yield server


def names(alias: str) -> list[str]:
    return sorted(Job.objects.using(alias).values_list("name", flat=True))


def backend(alias: str) -> int:
    return read_identity(on(alias)).backend_pid


def asks() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("pgjobs-ask")]


def code(reply: Reply[Any]) -> str:
    assert reply.trouble is not None, reply
    assert reply.answer is None
    return reply.trouble.code


def test_each_answers_for_itself(second: EmbeddedServer) -> None:
    register()
    put(second.url, "notes_its_home")
    assert ask_each(BOTH, names) == [Reply("default", ["test.job"]), Reply("second", ["tests.e2e.jobs.notes_its_home"])]
    assert ask_each(BOTH[::-1], names)[0].alias == "second"


def test_the_connections_are_its_own_and_closed(second: EmbeddedServer) -> None:
    ours = backend("default")
    pids = [reply.answer for reply in ask_each(BOTH, backend)]
    assert pids[0] != ours
    assert backend("default") == ours
    assert "second" not in {each.alias for each in connections.all(initialized_only=True)}
    left = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: ask(second.url, left, pids[1]) == [(0,)], 10, "the connection has ended")


def test_one_alone_is_asked_as_if_this_were_not_there(committed: None) -> None:
    ours, threads = backend("default"), threading.get_ident()
    assert ask_each(["default"], lambda alias: (backend(alias), threading.get_ident())) == [
        Reply("default", (ours, threads))
    ]
    with pytest.raises(ZeroDivisionError):
        ask_each(["default"], lambda _: 1 / 0)


def test_the_callers_language_and_zone_are_the_questions(second: EmbeddedServer) -> None:
    zone: Any = timezone.get_fixed_timezone(90)
    with translation.override("de"), timezone.override(zone):
        replies = ask_each(BOTH, lambda _: (translation.get_language(), timezone.get_current_timezone()))
    assert [reply.answer for reply in replies] == [("de", zone)] * 2


def test_an_error_of_the_question_is_the_callers(second: EmbeddedServer) -> None:
    with pytest.raises(ValueError, match="int"):
        ask_each(BOTH, lambda _: int("x"))


def test_one_that_is_down_says_so_at_once(second: EmbeddedServer) -> None:
    second.halt()
    here, there = ask_each(BOTH, names)
    assert here == Reply("default", [])
    assert code(there) == "unreachable"
    assert "refused" in str(there.trouble)


def test_one_that_takes_no_connection_holds_nobody_and_leaves_nothing(second: EmbeddedServer) -> None:
    with frozen(second.pid):
        began = time.monotonic()
        here, there = ask_each(BOTH, names)
        assert time.monotonic() < began + patience(4)
        assert (here, code(there)) == (Reply("default", []), "silent")
        wait_until(lambda: not asks(), 15, "the thread has ended, though the server is still frozen")
    assert ask_each(BOTH, names)[1] == Reply("second", [])


def sockets() -> int:
    """How many this process has open."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{each}").startswith("socket:")
    return found


def test_no_socket_waits_for_the_garbage_collector(second: EmbeddedServer) -> None:
    ask_each(BOTH, names)
    gc.collect()
    gc.disable()
    try:
        before = sockets()
        with frozen(second.pid):
            for _ in range(2):
                assert code(ask_each(BOTH, names)[1]) == "silent"
            wait_until(lambda: not asks(), 15, "the threads have ended")
            assert sockets() == before
    finally:
        gc.enable()


def test_one_that_falls_silent_with_the_question_is_cut(second: EmbeddedServer) -> None:
    pids: list[int] = []

    def question(alias: str) -> list[str]:
        if alias == "second":
            pids.append(backend(alias))
            os.kill(pids[0], signal.SIGSTOP)
        return names(alias)

    try:
        began = time.monotonic()
        here, there = ask_each(BOTH, question)
        assert time.monotonic() < began + patience(4)
        assert (here, code(there)) == (Reply("default", []), "silent")
        wait_until(lambda: not asks(), 15, "the thread has ended, though its server process is frozen")
    finally:
        os.kill(pids[0], signal.SIGCONT)


def test_the_server_gives_a_slow_statement_up(second: EmbeddedServer) -> None:
    def question(alias: str) -> None:
        if alias == "second":
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT pg_sleep(600)")

    here, there = ask_each(BOTH, question)
    assert (here, code(there)) == (Reply("default"), "silent")
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"
    wait_until(lambda: ask(second.url, sleeping) == [(0,)], 10, "the server works for nobody")


def test_a_page_that_is_loaded_again_and_again_has_few_threads_at_a_frozen_server(second: EmbeddedServer) -> None:
    going, most = threading.Event(), 2 * MOST_ASKING

    def question(alias: str) -> None:
        if alias == "second":
            going.wait(60)  # as a name server may, which nothing can interrupt

    loads = [threading.Thread(target=ask_each, args=(BOTH, question)) for _ in range(most)]
    for each in loads:
        each.start()
    for each in loads:
        each.join(patience(20))
        assert not each.is_alive()
    wait_until(lambda: len(asks()) <= MOST_ASKING, 5, "those without a turn have ended")
    assert [code(reply) for reply in ask_each(BOTH, names)[1:]] == ["silent"]
    going.set()
    wait_until(lambda: not asks(), 10, "all have ended")
    assert ask_each(BOTH, names)[1] == Reply("second", [])


def test_a_database_without_our_tables_says_how_to_make_them(second: EmbeddedServer) -> None:
    ask(second.url, "CREATE DATABASE empty")
    with aliased("empty", second.url.rpartition("/")[0] + "/empty"):
        reply = ask_each(["default", "empty"], names)[1]
    ask(second.url, "DROP DATABASE empty WITH (FORCE)")
    assert code(reply) == "unmigrated"
    assert str(reply.trouble).count("manage.py migrate --database empty") == 1


def test_two_aliases_of_one_database_are_asked_once(second: EmbeddedServer) -> None:
    with aliased("third", second.url):
        here, there, twin = ask_each(["default", "second", "third"], names)
    assert (here.trouble, there.trouble) == (None, None)
    assert code(twin) == "same"
    assert "same database as 'second'" in str(twin.trouble)


def test_what_is_no_database_of_jobs_is_said_to_be_none(second: EmbeddedServer) -> None:
    assert [code(each) for each in ask_each(["default", "other", "nowhere"], names)[1:]] == ["unknown"] * 2


def test_what_the_database_refuses_is_said(second: EmbeddedServer) -> None:
    ask(second.url, "CREATE ROLE nobody_much LOGIN PASSWORD 'x'")
    settings = connections.settings["second"]
    connections.settings["second"] = {**settings, "USER": "nobody_much", "PASSWORD": "x"}
    assert code(ask_each(BOTH, names)[1]) == "refused"
    connections.settings["second"] = settings
    ask(second.url, "DROP ROLE nobody_much")


def test_a_test_case_sees_its_own_rows(second: EmbeddedServer) -> None:
    outer = transaction.atomic()
    outer._from_testcase = True  # type: ignore[attr-defined]  # as TestCase does
    with outer:
        register()
        assert ask_each(BOTH, names) == [Reply("default", ["test.job"]), Reply("second", [])]
        transaction.set_rollback(True)
    assert ask_each(BOTH, names)[0] == Reply("default", [])
