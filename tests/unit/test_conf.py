"""``settings.PGJOBS``: defaults, rules, and what is said of a wrong one."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs import conf
from django_pgjobs.conf import RULES, Conf, JobBounds, get_conf, problems, usable_cores
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.by_queue import ByQueue, Rate
from django_pgjobs.values.notify_failures import NotifyFailures
from django_pgjobs.values.retention import DAY, OutcomeRetention, Retention
from django_pgjobs.values.setting_rules import part_rules

DEFAULTS: dict[str, Any] = {
    "queues": None,
    "databases": None,
    "schemas": None,
    "modules": (),
    "middleware": (),
    "release": "",
    "environment": "",
    "notify": True,
    "lease_seconds": 30.0,
    "renew_seconds": 10.0,
    "beat_seconds": 10.0,
    "stale_seconds": 60.0,
    "drain_seconds": 25.0,
    "poll_seconds": 5.0,
    "rescue_grace_seconds": 30.0,
    "retention": {
        "succeeded": 86_400.0,
        "cancelled": 259_200.0,
        "abandoned": 2_592_000.0,
        "queues": (),
        "stored_results": 2_592_000.0,
        "actions": 7_776_000.0,
        "events": 2_592_000.0,
        "numbers_by_minute": 86_400.0,
        "numbers": 2_592_000.0,
    },
    "bounds": {
        "members": 1_000_000,
        "nodes": 50_000,
        "needs": 10_000,
        "steps": 10_000,
        "steps_bytes": 16777216,
        "gather": 10_000,
        "event_bytes": 1048576,
        "payload_bytes": 1048576,
        "result_bytes": 1048576,
        "traceback_chars": 20000,
        "log_lines": 1000,
        "log_bytes": 262144,
        "max_attempts": 1000,
        "timeout_seconds": 86400.0,
        "ahead_seconds": 315360000.0,
        "past_seconds": None,
        "backoff_base_seconds": 315360000.0,
        "backoff_factor": (0.0, 1000.0),
        "key_pattern": ".{1,200}",
    },
    "vacuum": True,
    "metrics": None,
    "metrics_port": None,
    "metrics_host": "127.0.0.1",
    "callback_seconds": 10.0,
    "ready_seconds": 120.0,
    "executor_conn_max_age_seconds": 60.0,
    "executor_max_jobs": None,
    "executor_template": True,
    "executor_max_megabytes": None,
    "executor_kill_megabytes": None,
    "job_logs": None,
    "threads": 4,
    "async_slots": 50,
    "places": {"values": {}},
    "capacity": {"values": {}},
    "queue_limits": {"values": {}},
    "registration_rate": {"values": {}},
    "bypass_workers": 4,
    "bypass_exit_seconds": 10.0,
    "default_max_attempts": 5,
    "default_timeout_seconds": 1800.0,
    "notify_failures": None,
    "default_backoff": Backoff(15, factor=4, limit=3600, jitter=0.1),
}


def test_the_defaults(settings: Any) -> None:
    """Rows C4, C5, D1, D2, D3, W12, W33, X4, X7: a lease of 30 s, renewed each 10 s; 5 attempts; kept a day or more."""
    settings.PGJOBS = {}
    found = dataclasses.asdict(get_conf())
    assert found.pop("processes") == min(4, usable_cores())
    assert {**found, "default_backoff": get_conf().default_backoff} == DEFAULTS


def test_a_project_without_the_setting_has_the_defaults(settings: Any) -> None:
    del settings.PGJOBS
    assert get_conf().threads == 4


def test_usable_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert usable_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("LEASE_SECONDS", 3, 3.0),
        ("LEASE_SECONDS", timedelta(minutes=1), 60.0),
        ("QUEUES", ["mail", "bulk"], ("mail", "bulk")),
        ("QUEUES", {"mail", "bulk"}, ("bulk", "mail")),
        ("MIDDLEWARE", ["a.b"], ("a.b",)),
        ("MODULES", ["shop.*_jobs", "a.b.*", "_c"], ("shop.*_jobs", "a.b.*", "_c")),
        ("DATABASES", ["default", "eu1"], ("default", "eu1")),
        ("DATABASES", "shop.shards.aliases", "shop.shards.aliases"),
        ("DATABASES", len, len),
        ("DEFAULT_TIMEOUT_SECONDS", None, None),
        ("PROCESSES", 7, 7),
        ("DRAIN_SECONDS", 0, 0.0),
        ("DEFAULT_BACKOFF", Backoff(1), Backoff(1)),
        ("CAPACITY", {"mail": 10, "*": None}, ByQueue({"mail": 10, "*": None})),
        ("CAPACITY", None, ByQueue()),
        ("PLACES", {"mail": 2, "report": None, "*": 5}, ByQueue({"mail": 2, "report": None, "*": 5})),
        (
            "REGISTRATION_RATE",
            {"*": {"tokens": 5, "seconds_per_token": timedelta(seconds=2)}},
            ByQueue({"*": Rate(5, 2.0)}),
        ),
        ("BOUNDS", {"backoff_factor": [1, 5]}, JobBounds(backoff_factor=(1.0, 5.0))),
        ("BOUNDS", {"ahead_seconds": timedelta(days=1)}, JobBounds(ahead_seconds=86_400.0)),
        ("BOUNDS", {"key_pattern": "[a-z]+", "past_seconds": 0}, JobBounds(key_pattern="[a-z]+", past_seconds=0.0)),
        ("NOTIFY_FAILURES", None, None),
        ("NOTIFY_FAILURES", {"to": "mail_admins"}, NotifyFailures(to="mail_admins")),
        (
            "NOTIFY_FAILURES",
            {"to": "a.b", "every_seconds": timedelta(minutes=1), "at_most": 5, "queues": {"b", "a"}, "names": ["n"]},
            NotifyFailures(to="a.b", every_seconds=60.0, at_most=5, queues=("a", "b"), names=("n",)),
        ),
        (
            "NOTIFY_FAILURES",
            {"to": "a.b", "site": "https://shop.example", "url": "http://[::1]:80/x?y"},
            NotifyFailures(to="a.b", site="https://shop.example", url="http://[::1]:80/x?y"),
        ),
        ("RETENTION", None, Retention(None, None, None)),
        ("RETENTION", {"succeeded": 0}, Retention(0.0)),
        ("RETENTION", {"cancelled": timedelta(days=1), "abandoned": None}, Retention(86_400.0, 86_400.0, None)),
        (
            "RETENTION",
            {"stored_results": timedelta(days=1), "actions": None},
            Retention(stored_results=DAY, actions=None),
        ),
        (
            "RETENTION",
            {"succeeded": 1, "queues": {"mail": {"abandoned": 2}, "law": None}},
            Retention(
                1.0,
                queues=(
                    ("law", OutcomeRetention(None, None, None)),
                    ("mail", OutcomeRetention(1.0, 3 * DAY, 2.0)),
                ),
            ),
        ),
    ],
)
def test_a_value_is_kept_in_one_form(settings: Any, key: str, given: Any, kept: Any) -> None:
    settings.PGJOBS = {key: given}
    value = getattr(get_conf(), key.lower())
    assert (value, type(value)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"LEASE_SECOND": 1}, "unknown", 'Did you mean "LEASE_SECONDS"?'),
        ({"threads": 1}, "unknown", 'Did you mean "THREADS"?'),
        ({"NOTIFY_FAILURES": "mail_admins"}, "type", "a dict with any of the keys to, every_seconds, "),
        ({"NOTIFY_FAILURES": {}}, "range", 'a dict with the key "to"'),
        ({"NOTIFY_FAILURES": {"to": "a.b", "every": 1}}, "range", "the key 'every' ("),
        ({"NOTIFY_FAILURES": {"to": ""}}, "range", '["to"] must be "mail_admins" or the dotted path'),
        ({"NOTIFY_FAILURES": {"to": "a" * 2001}}, "range", '"mail_admins" or the dotted path'),
        ({"NOTIFY_FAILURES": {"to": "a.b", "every_seconds": 0.9}}, "range", "from 1 to 604800 seconds"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "every_seconds": True}}, "range", "a number of seconds or a timedelta"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "at_most": 0}}, "range", '["at_most"] must be from 1 to 100'),
        ({"NOTIFY_FAILURES": {"to": "a.b", "at_most": 101}}, "range", "from 1 to 100"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "queues": "mail"}}, "range", "a list of texts, or None"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "queues": []}}, "range", "found none"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "queues": ["a b"]}}, "range", "names made of 1 to 100 letters"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "names": ["a\0"]}}, "range", "names of 1 to 200 characters"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "names": []}}, "range", "names of 1 to 200 characters"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "url": "file:///etc/passwd"}}, "range", "begins with https:// or http://"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "url": "https://shop.example:x/"}}, "range", "begins with https://"),
        ({"NOTIFY_FAILURES": {"to": "a.b", "site": "shop.example"}}, "range", "begins with https:// or http://"),
        ({"XYZZY": 1}, "unknown", "The settings are: ASYNC_SLOTS, BEAT_SECONDS, BOUNDS, "),
        ({3: 1}, "unknown", "PGJOBS[3] is not a setting"),
        (["THREADS"], "dict", "must be a dict, not list"),
        (None, "dict", "must be a dict, not NoneType"),
        ({"THREADS": "4"}, "type", "must be a whole number, not '4'."),
        ({"THREADS": True}, "type", "must be a whole number, not True."),
        ({"THREADS": 4.0}, "type", "must be a whole number, not 4.0."),
        ({"ASYNC_SLOTS": 0}, "range", "must be from 1 to 100000, not 0. The default is 50."),
        ({"THREADS": 0}, "range", "must be from 1 to 1000, not 0. The default is 4."),
        ({"PROCESSES": 0}, "range", "from 1 to 1000"),
        ({"LEASE_SECONDS": "30s"}, "type", "must be a number of seconds or a timedelta"),
        ({"LEASE_SECONDS": True}, "type", "must be a number of seconds or a timedelta"),
        ({"LEASE_SECONDS": None}, "type", "must be a number of seconds or a timedelta"),
        ({"LEASE_SECONDS": 0}, "range", "must be from 0.05 to "),
        ({"LEASE_SECONDS": float("nan")}, "range", "must be from 0.05"),
        ({"LEASE_SECONDS": float("inf")}, "range", "must be from 0.05"),
        ({"LEASE_SECONDS": 10**400}, "range", "must be from 0.05"),
        ({"DRAIN_SECONDS": -1}, "range", "must be from 0 to"),
        ({"DEFAULT_TIMEOUT_SECONDS": "x"}, "type", "a timedelta, or None, not 'x'"),
        ({"NOTIFY": 1}, "type", "must be True or False"),
        ({"RELEASE": 3}, "type", "must be a text"),
        ({"RELEASE": "x" * 201}, "range", "at most 200 characters"),
        ({"QUEUES": "mail"}, "type", "must be a list of texts, or None"),
        ({"QUEUES": [1]}, "type", "must be a list of texts"),
        ({"QUEUES": []}, "range", "found none"),
        ({"QUEUES": ["a b", "ok", "x" * 101]}, "range", "found 'a b', 'xxx"),
        ({"METRICS": 1}, "type", "must be True or False, or None, not 1"),
        ({"METRICS_PORT": 0}, "range", "must be from 1 to 65535, not 0"),
        ({"METRICS_PORT": "9187"}, "type", "must be a whole number, or None, not '9187'"),
        ({"METRICS_HOST": "a b"}, "range", "must be a host name or an address, not 'a b'"),
        ({"METRICS_HOST": ""}, "range", "must be a host name or an address"),
        ({"METRICS_HOST": None}, "type", "must be a text"),
        ({"MIDDLEWARE": "a.b"}, "type", "must be a list of texts"),
        ({"MODULES": "a.b"}, "type", "must be a list of texts"),
        ({"DATABASES": "eu1"}, "type", "must be a list of aliases, a callable that returns one, or its dotted path"),
        ({"DATABASES": ["eu1", "eu1"]}, "range", "none of them twice"),
        ({"DATABASES": []}, "range", "at least one"),
        ({"MODULES": ["a", "*.jobs", "a..b", "a/b.py", ""]}, "range", "the first part without a * (found '*.jobs'"),
        ({"DEFAULT_BACKOFF": 15}, "type", "must be a Backoff(…)"),
        ({"CAPACITY": 1000}, "type", 'must be a dict by queue, such as {"mail": 1000, "*": 100000}, or None, not 1000'),
        ({"PLACES": {"mail": 0}}, "range", 'PGJOBS["PLACES"]["mail"] must be from 1 to 1000000, not 0'),
        ({"PLACES": [2]}, "type", 'must be a dict by queue, such as {"mail": 2, "*": 5}, or None, not [2]'),
        ({"CAPACITY": {"mail": 0}}, "range", 'PGJOBS["CAPACITY"]["mail"] must be from 1 to 1000000, not 0'),
        ({"CAPACITY": {"mail": True}}, "range", "must be a whole number, not True"),
        ({"CAPACITY": {"mail": "10"}}, "range", "not '10'"),
        ({"CAPACITY": {"mail": 1_000_001}}, "range", "from 1 to 1000000"),
        ({"CAPACITY": {"a b": 5}}, "range", "names made of 1 to 100 letters"),
        ({"CAPACITY": {7: 5}}, "range", "whose keys are names of queues (found 7)"),
        ({"QUEUE_LIMITS": {"mail": 5}}, "range", '["QUEUE_LIMITS"]["mail"] must be a dict such as {"concurrency": 5}'),
        ({"QUEUE_LIMITS": {"mail": {"per": 5}}}, "range", 'a dict whose "per" has a "rate"'),
        ({"REGISTRATION_RATE": 3}, "type", "must be a dict by queue"),
        ({"REGISTRATION_RATE": {"mail": 3}}, "range", "any of the keys tokens, seconds_per_token"),
        ({"REGISTRATION_RATE": {"mail": {"token": 3}}}, "range", "did you mean 'tokens'?"),
        (
            {"REGISTRATION_RATE": {"mail": {"tokens": 0}}},
            "range",
            '["mail"]["tokens"] must be from 1 to 1000000, not 0',
        ),
        ({"REGISTRATION_RATE": {"mail": {"register": -1}}}, "range", '["register"] must be from 0'),
        ({"REGISTRATION_RATE": {"mail": {"register": 1.5}}}, "range", "not 1.5"),
        ({"REGISTRATION_RATE": {"mail": {"seconds_per_token": 0}}}, "range", "from 0.001 to 86400 seconds"),
        ({"REGISTRATION_RATE": {"mail": {"seconds_per_token": "1"}}}, "range", "a number of seconds or a timedelta"),
        ({"BOUNDS": 5}, "type", "must be a dict with any of the keys members, nodes, "),
        ({"BOUNDS": {"payload": 5}}, "range", "a dict without the key 'payload' (did you mean 'payload_bytes'?)"),
        ({"BOUNDS": {"xyzzy": 5}}, "range", "a dict without the key 'xyzzy' (the keys are members, "),
        (
            {"BOUNDS": {"nodes": 0}},
            "range",
            'PGJOBS["BOUNDS"]["nodes"] must be from 1 to 1000000, not 0. The default is 50000.',
        ),
        ({"BOUNDS": {"past_seconds": -1}}, "range", 'PGJOBS["BOUNDS"]["past_seconds"] must be from 0'),
        ({"BOUNDS": {"backoff_factor": 5}}, "range", "must be a pair of numbers"),
        ({"BOUNDS": {"backoff_factor": ("1", 5)}}, "range", "must be a pair of numbers"),
        ({"BOUNDS": {"backoff_factor": (5, 1)}}, "range", "the least first"),
        ({"BOUNDS": {"key_pattern": "("}}, "range", "a regular expression that can be compiled (missing )"),
        ({"BOUNDS": {"key_pattern": "a{99999999999999999}"}}, "range", "that can be compiled (the repetition number"),
        ({"BOUNDS": {"key_pattern": "(" * 5000 + ")" * 5000}}, "range", "can be compiled (maximum recursion depth"),
        ({"BOUNDS": {"key_pattern": None}}, "range", "a regular expression as text, not None"),
        ({"RETENTION": 24}, "type", "must be a dict with any of the keys succeeded, cancelled, abandoned, queues, "),
        ({"RETENTION": {"suceeded": 24}}, "range", "a dict without the key 'suceeded' (did you mean 'succeeded'?)"),
        ({"RETENTION": {"succeeded": -1}}, "range", '["RETENTION"]["succeeded"] must be from 0 to 315360000 seconds'),
        ({"RETENTION": {"succeeded": True}}, "range", "must be a number of seconds or a timedelta, or None, not True"),
        ({"RETENTION": {"succeeded": float("nan")}}, "range", "not nan"),
        ({"RETENTION": {"succeeded": "1d"}}, "range", "not '1d'"),
        ({"RETENTION": {"stored_results": 0}}, "range", '["stored_results"] must be from 3600 to 315360000 seconds'),
        ({"RETENTION": {"events": None}}, "range", "must be a number of seconds or a timedelta, not None"),
        ({"RETENTION": {"queues": ("mail",)}}, "range", '["RETENTION"]["queues"] must be a dict by queue of dicts'),
        ({"RETENTION": {"queues": {5: {}}}}, "range", '["RETENTION"]["queues"] must be a dict by queue of dicts'),
        ({"RETENTION": {"queues": ["mail"]}}, "range", '["RETENTION"]["queues"] must be a dict by queue of dicts'),
        ({"RETENTION": {"queues": {"a b": {}}}}, "range", "found 'a b'"),
        ({"RETENTION": {"queues": {"mail": 0}}}, "range", '["queues"]["mail"] must be a dict with any of the keys'),
        ({"RETENTION": {"queues": {"mail": {"queues": {}}}}}, "range", "a dict without the key 'queues'"),
        (
            {"RETENTION": {"queues": {"mail": {"succeeded": -1}}}},
            "range",
            'PGJOBS["RETENTION"]["queues"]["mail"]["succeeded"] must be from 0',
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_must_be(settings: Any, given: Any, kind: str, words: str) -> None:
    (problem,) = problems(given)
    assert problem.kind == kind
    assert problem.hint
    said = f"{problem.message} {problem.hint}"
    assert words in said
    settings.PGJOBS = given
    with pytest.raises(ImproperlyConfigured) as caught:
        get_conf()
    assert str(caught.value) == said


def test_all_wrong_settings_are_said_at_once(settings: Any) -> None:
    settings.PGJOBS = {"THREADS": 0, "NOTIFY": 1}
    with pytest.raises(ImproperlyConfigured, match=r"THREADS.*NOTIFY"):
        get_conf()


def test_it_is_read_once_and_again_after_a_change(settings: Any) -> None:
    settings.PGJOBS = {"THREADS": 2}
    assert get_conf() is get_conf()
    settings.DEBUG = True
    before = get_conf()
    settings.PGJOBS = {"THREADS": 3}
    assert (before.threads, get_conf().threads) == (2, 3)


@pytest.mark.parametrize("kind", [Conf, JobBounds, OutcomeRetention, Retention])
def test_every_setting_and_every_part_of_one_is_documented_below_its_default(kind: type) -> None:
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    statements = dict(zip(body.body, body.body[1:], strict=False))
    for field in (node for node in body.body if isinstance(node, ast.AnnAssign)):
        below = statements.get(field)
        assert isinstance(below, ast.Expr), f"{ast.unparse(field.target)} is not documented"
        assert isinstance(below.value, ast.Constant)


def test_every_setting_has_a_rule() -> None:
    assert len(RULES) == len(dataclasses.fields(Conf)) == len(DEFAULTS) + 1


def test_every_default_obeys_its_own_rule() -> None:
    for field in dataclasses.fields(Conf):
        assert field.metadata["rule"](field.default) in (field.default, get_conf().processes)


def test_units_are_in_the_names() -> None:
    """Every duration says its unit."""
    for field in dataclasses.fields(Conf):
        if field.type in ("float", "float | None"):
            assert field.name.endswith("_seconds"), field.name


def test_the_module_imports_no_database() -> None:
    assert "django.db" not in inspect.getsource(conf)


def test_a_retention_says_what_holds_for_a_queue_and_is_shown_as_it_is_written() -> None:
    """W34 X7: by outcome and queue."""
    retention = RULES["RETENTION"]({"succeeded": 1, "queues": {"mail": {"succeeded": 0}}})
    assert [retention.of(queue).seconds("succeeded") for queue in ("mail", "bulk")] == [0, 1]
    assert (retention.keeps_all(), Retention().keeps_all(), Retention(abandoned=0.0).keeps_all()) == (
        False,
        True,
        False,
    )
    assert RULES["RETENTION"](ast.literal_eval(repr(retention))) == retention
    assert repr(Retention().of("mail")).startswith(
        "{'succeeded': 86400.0, 'cancelled': 259200.0, 'abandoned': 2592000.0"
    )


def test_a_setting_by_queue_holds_for_the_queue_named_and_for_every_other() -> None:
    said: ByQueue[int] = ByQueue({"mail": 10, "bulk": None, "*": 5})
    assert [said.of(queue) for queue in ("mail", "bulk", "default")] == [10, None, 5]
    assert said.names() == ["mail", "bulk"]
    assert said
    nothing: ByQueue[int] = ByQueue()
    assert (nothing.of("mail"), bool(nothing)) == (None, False)


def test_what_is_said_by_queue_is_shown_as_it_is_written(settings: Any) -> None:
    settings.PGJOBS = {"CAPACITY": {"mail": 10}, "REGISTRATION_RATE": {"mail": Rate()}}
    assert repr(get_conf().capacity) == "{'mail': 10}"
    assert repr(get_conf().registration_rate) == (
        "{'mail': {'tokens': 30, 'seconds_per_token': 0.5, 'register': 3, 'cancel': 3, 'status': 1, 'list': 1}}"
    )


def test_the_address_of_a_webhook_is_not_shown(settings: Any) -> None:
    """It may hold a secret."""
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "a.b", "url": "https://shop.example/s3cret"}}
    shown = repr(get_conf())
    assert "'url': '…'" in shown
    assert "s3cret" not in shown


def test_there_are_few_settings() -> None:
    """Every bound is in ``BOUNDS``, and how long rows are kept in ``RETENTION``."""
    assert len(RULES) <= 42


@pytest.mark.parametrize("kind", [JobBounds, OutcomeRetention, Retention])
def test_every_default_of_a_part_obeys_its_own_rule(kind: type) -> None:
    for name, rule in part_rules(kind).items():
        assert rule(getattr(kind(), name)) == getattr(kind(), name)


@pytest.mark.parametrize("name", [name for name in part_rules(Retention) if name != "queues"])
def test_every_retention_takes_seconds_or_a_timedelta(name: str) -> None:
    assert getattr(RULES["RETENTION"]({name: timedelta(days=7)}), name) == 604_800.0
    assert getattr(RULES["RETENTION"]({name: 7200}), name) == 7200.0
