"""A payload survives a real jsonb column, both as text (the worker's way) and parsed (the ORM's way)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import DataError, connection
from hypothesis import HealthCheck, example, given, settings

from django_pgjobs.serialization.encoder import MAX_DEPTH
from django_pgjobs.serialization.payload import decode_payload, decode_result, encode_payload, encode_result, revive
from tests.unit.payload_values import exactly_equal, values

MIB = 1024 * 1024

pytestmark = pytest.mark.django_db

on_the_database = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
    deadline=None,
)


def as_jsonb(text: str) -> str:
    """The text of ``text`` after jsonb has taken it apart."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT (%s::jsonb)::text", [text])
        return str(cursor.fetchone()[0])


@on_the_database
@given(values)
@example(1e16)
@example(-0.0)
@example(5e-324)
@example(1.7976931348623157e308)
@example(1.0)
@example({"b": 1, "aa": 2, "": 3})
@example("\u2028 😀 \\u0000 \x7f")
def test_every_value_survives_jsonb(value: Any) -> None:
    """Row A46."""
    stored = as_jsonb(encode_payload((value,), {"named": value}, 10 * MIB))
    args, kwargs = decode_payload(stored)
    assert exactly_equal(args, [value])
    assert exactly_equal(kwargs, {"named": value})
    assert exactly_equal(revive(json.loads(stored)), {"args": args, "kwargs": kwargs})


@on_the_database
@given(values)
def test_every_result_survives_jsonb(value: Any) -> None:
    stored = as_jsonb(encode_result(value, 10 * MIB))
    assert exactly_equal(decode_result(stored), value)


def test_the_deepest_payload_is_not_too_deep_for_the_server() -> None:
    value: Any = ()
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    assert decode_payload(as_jsonb(encode_payload((value,), {}, MIB))) == ([value], {})


def test_the_longest_integer_is_not_too_long_for_the_server() -> None:
    longest = -(2**14_284 - 1)
    assert decode_result(as_jsonb(encode_result(longest, MIB))) == longest


@pytest.mark.parametrize("text", [r'"\u0000"', r'"\ud800"'])
def test_the_server_refuses_what_the_codec_refuses(text: str) -> None:
    """Should it begin to take them, the codec may as well."""
    with pytest.raises(DataError):
        as_jsonb(text)


@pytest.mark.parametrize(("text", "kept"), [("1e16", "10000000000000000"), ("-0.0", "0.0"), ("1.10", "1.10")])
def test_what_jsonb_does_to_numbers(text: str, kept: str) -> None:
    """Why ``$float`` exists: these would come back as an int, and without their sign."""
    assert as_jsonb(text) == kept


def test_a_job_keeps_its_arguments() -> None:
    """Row A45: a megabyte comes back equal, and is stored in less."""
    from django_pgjobs.models import Job
    from django_pgjobs.store import registering
    from django_pgjobs.store.new_jobs import NewJob

    value = {"lines": ["the same line again and again"] * 30_000, "when": (1, 2.0)}
    text = encode_payload((value,), {}, MIB)
    stored = registering.register_plain(connection, NewJob(name="tests.none", payload=text))
    job = Job.objects.get(pk=stored.id)
    assert revive(job.payload) == {"args": [value], "kwargs": {}}
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_column_size(payload) FROM pgjobs_job WHERE id = %s", [stored.id])
        assert cursor.fetchone()[0] < len(text) / 10
