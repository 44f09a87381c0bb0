"""The payload: what goes in comes back equal, or is refused where it was written, with its path."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.presentation.wording import arguments, json_text, parsed
from django_pgjobs.serialization import decoder
from django_pgjobs.serialization.encoder import FIRST_INTEGRAL_FLOAT
from django_pgjobs.serialization.payload import (
    decode_payload,
    decode_result,
    encode_flat,
    encode_payload,
    encode_result,
    is_flat,
    revive,
)
from django_pgjobs.serialization.references import filled, named
from tests.unit.payload_values import exactly_equal, values

MIB = 1024 * 1024
TAGS = sorted(decoder._RAISE)
BERLIN = ZoneInfo("Europe/Berlin")


def through(value: Any) -> Any:
    """The value after encoding and decoding."""
    text = encode_payload((value,), {}, MIB)
    (text_value,), _ = decode_payload(text)
    (parsed_value,) = revive(json.loads(text))["args"]
    assert exactly_equal(text_value, parsed_value), "both ways of reading agree"
    return text_value


@given(values)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    """Row A46."""
    assert exactly_equal(through(value), value)


@given(
    st.lists(values, max_size=3),
    st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), values, max_size=3),
)
def test_every_payload_comes_back_as_it_was(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert exactly_equal(decode_payload(encode_payload(tuple(args), kwargs, 10 * MIB)), (args, kwargs))


@given(st.lists(values, max_size=3))
def test_positional_arguments_are_read_alike_by_the_short_way(args: list[Any]) -> None:
    """jsonb writes the same payload with spaces; without keyword arguments only the array is read."""
    stored = json.dumps(json.loads(encode_payload(tuple(args), {}, 10 * MIB)), ensure_ascii=False)
    assert stored.endswith(', "kwargs": {}}')
    assert exactly_equal(decode_payload(stored), (args, {}))


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ('{"args": [], "kwargs": {}}', [], {}),
        ('{"args": ["], \\"kwargs\\": {}}"], "kwargs": {}}', ['], "kwargs": {}}'], {}),
        ('{"args": [1], "kwargs": {"args": [2], "kwargs": {}}}', [1], {"args": [2], "kwargs": {}}),
        ('{"args": [{"kwargs": [1], "kwargs": {}}], "kwargs": {}}', [{"kwargs": {}}], {}),
    ],
)
def test_what_looks_like_the_end_of_a_payload_is_not_taken_for_it(
    text: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert decode_payload(text) == (args, kwargs)


@pytest.mark.parametrize(
    "text", ['{"args": [1], "more": 2, "kwargs": {}}', '{"args": [1, "kwargs": {}}', '{"args": [NaN], "kwargs": {}}']
)
def test_the_short_way_takes_no_more_than_the_long(text: str) -> None:
    with pytest.raises(UnreadablePayload):
        decode_payload(text)


@given(st.text())
def test_every_text_comes_back_or_is_refused(text: str) -> None:
    if "\0" not in text and text.encode(errors="ignore").decode() == text:
        assert through(text) == text
    else:
        with pytest.raises(InvalidJob, match=r"^args\[0\] cannot be stored: it is a text with a"):
            encode_payload((text,), {}, MIB)


flat = st.none() | st.booleans() | st.integers() | st.text(st.characters(max_codepoint=127))
SEAMS = ("}]\n[[", "]\n{", "\r", "\\n", "],[", '"', "")


@given(st.lists(st.tuples(st.lists(flat).map(tuple), st.dictionaries(st.text(), flat, max_size=3)), min_size=1))
def test_payloads_that_are_encoded_together_are_those_of_each(calls: list[tuple[Any, Any]]) -> None:
    assert all(is_flat(args, kwargs) for args, kwargs in calls)
    together = encode_flat(calls, MIB)
    assert together is None or together == [encode_payload(args, kwargs, MIB) for args, kwargs in calls]


def test_plain_payloads_are_encoded_together() -> None:
    calls: list[tuple[Any, Any]] = [
        ((), {}),
        (SEAMS, {}),
        ((), dict.fromkeys(SEAMS, 7)),
        ((*SEAMS, None), {seam: seam for seam in SEAMS}),
    ]
    texts = [encode_payload(args, kwargs, MIB) for args, kwargs in calls]
    assert encode_flat(calls, MIB) == texts
    assert encode_flat(calls, max(map(len, texts)) - 1) is None


@pytest.mark.parametrize(
    "value", [1.5, [1], "é", "$", "\0", "\ud800", pytest.param(10**5000, id="long"), "x" * 5000, HTTPStatus.OK]
)
def test_what_must_be_looked_at_is_not_encoded_together(value: Any) -> None:
    for call in [((value,), {}), ((), {"value": value})]:
        assert not is_flat(*call) or encode_flat([((1,), {}), call], MIB) is None
        assert not is_flat(*call) or encode_flat([call, ((1,), {})], MIB) is None


def test_plain_arguments_are_plain_json() -> None:
    assert (
        encode_payload((7, "é"), {"force": True, "ids": [1, 2]}, MIB)
        == '{"args":[7,"é"],"kwargs":{"force":true,"ids":[1,2]}}'
    )


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2026, 3, 29, 2, 30, tzinfo=UTC), {"$datetime": "2026-03-29T02:30:00+00:00"}),
        (datetime(2026, 3, 29, 12, tzinfo=BERLIN), {"$datetime": "2026-03-29T12:00:00+02:00[Europe/Berlin]"}),
        (datetime(2026, 3, 29, 12), {"$datetime": "2026-03-29T12:00:00"}),
        (date(2026, 3, 29), {"$date": "2026-03-29"}),
        (time(2, 30, 0, 5), {"$time": "02:30:00.000005"}),
        (timedelta(-1, 2, 3), {"$timedelta": [-1, 2, 3]}),
        (Decimal("1.10"), {"$decimal": "1.10"}),
        (UUID(int=1), {"$uuid": "00000000-0000-0000-0000-000000000001"}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
        (1e16, {"$float": "1e+16"}),
        (-0.0, {"$float": "-0.0"}),
        ({"$date": "x"}, {"$dict": [["$date", "x"]]}),
        ({"$a": 1, "$b": 2}, {"$a": 1, "$b": 2}),
    ],
)
def test_the_stored_form_is_stable(value: Any, stored: Any) -> None:
    """Rows of older code are read by newer: a change here needs a new CODEC_VERSION and a reader of both."""
    assert json.loads(encode_payload((value,), {}, MIB))["args"] == [stored]
    assert exactly_equal(through(value), value)


def test_a_keyword_that_looks_like_a_tag_is_a_keyword() -> None:
    assert decode_payload(encode_payload((), {"$date": "x"}, MIB)) == ([], {"$date": "x"})


@pytest.mark.parametrize("fold", [0, 1])
def test_the_second_of_two_equal_times_stays_the_second(fold: int) -> None:
    twice = datetime(2026, 10, 25, 2, 30, fold=fold)
    for value in (twice, twice.replace(tzinfo=BERLIN)):
        back = through(value)
        assert (back, back.fold, back.tzinfo) == (value, fold, value.tzinfo)
    assert through(time(2, 30, fold=fold)).fold == fold


def test_a_zone_whose_rules_have_changed_keeps_the_instant() -> None:
    ((back,), _) = decode_payload('{"args":[{"$datetime":"2026-07-01T12:00:00+05:00[Europe/Berlin]"}],"kwargs":{}}')
    assert back == datetime(2026, 7, 1, 7, tzinfo=UTC)
    assert back.tzinfo == BERLIN


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "/etc/passwd"])
def test_a_zone_this_host_does_not_know_keeps_the_offset(zone: str) -> None:
    ((back,), _) = decode_payload('{"args":[{"$datetime":"2026-07-01T12:00:00+05:00[ZONE]"}]}'.replace("ZONE", zone))
    assert back.isoformat() == "2026-07-01T12:00:00+05:00"


def test_a_zone_without_a_name_keeps_its_offset() -> None:
    back = through(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "MEZ")))
    assert back.utcoffset() == timedelta(hours=1)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Pair(Enum):
    ONE = (1, 2)


@dataclass
class Address:
    street: str
    since: date


@dataclass
class Customer:
    name: str
    addresses: list[Address] = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Pair.ONE, (1, 2)),
        ({Colour.RED: 1}, {"red": 1}),
        (mark_safe("<b>"), "<b>"),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("a"), {"a": 1}),
        (
            Customer("Ada", [Address("High", date(2020, 1, 2))]),
            {"name": "Ada", "addresses": [{"street": "High", "since": date(2020, 1, 2)}]},
        ),
    ],
)
def test_harmless_kin_arrive_as_the_plain_value(value: Any, back: Any) -> None:
    """Rows A14, A46: a dataclass is a dict of its fields, an Enum its value."""
    assert exactly_equal(through(value), back)


class Subdate(date):
    pass


class Submoment(datetime):
    pass


class Subint(int):
    pass


class Subfloat(float):
    pass


class Sublist(list):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("value", [Subdate(2026, 1, 1), Submoment(2026, 1, 1), Subint(3), Subfloat(0.5), Sublist([1])])
def test_subclasses_arrive_as_their_base(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value).__mro__[1]


def test_an_integer_is_as_long_as_it_can_be_read_again() -> None:
    longest = 2**14_284 - 1
    assert through(longest) == longest
    assert through([longest, 1, -longest]) == [longest, 1, -longest]


def test_a_backslash_before_u0000_is_no_nul() -> None:
    for text in ("\\u0000", "\\\\u0000", "\\\\\\u0000"):
        assert through(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"args": {}}',
        '{"args": [], "kwargs": []}',
        '{"args": [], "kwargs": {}, "more": 1}',
        '{"args": [NaN]}',
        '{"args": [{"$future": 1}]}',
        '{"args": [{"$date": "2026-02-30"}]}',
        '{"args": [{"$date": 5}]}',
        '{"args": [{"$datetime": "noon"}]}',
        '{"args": [{"$datetime": "2026-01-01[[x]"}]}',
        '{"args": [{"$time": "12:00[Mars/Olympus]"}]}',
        '{"args": [{"$decimal": "one"}]}',
        '{"args": [{"$uuid": "1"}]}',
        '{"args": [{"$bytes": "%"}]}',
        '{"args": [{"$timedelta": [1e99]}]}',
        '{"args": [{"$tuple": 1}]}',
        '{"args": [{"$dict": [[[], 1]]}]}',
        '{"args": [%s]}' % ("9" * 4301),
        "[" * 100_000,
    ],
)
def test_what_this_code_did_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadablePayload):
        decode_payload(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(sorted(decoder._RAISE)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(TAGS), inner, max_size=2),
    max_leaves=10,
)

NEAR = st.sampled_from(
    [
        5, "", "NaN", "Infinity", "-Infinity", "sNaN", "1E+999999", "America", "2026-01-01T00:00[America]",
        "12:00[America]", "12:00[" + "x" * 5000 + "]", "2026-01-01T00:00[" + "x" * 5000 + "]", "12:00[/etc/passwd]",
        "12:00[../../etc]", "12:00[a\0b]", "0001-01-01T00:00+14:00[Europe/Berlin]",
        "9999-12-31T23:59-12:00[Asia/Tokyo]",
        [10**400], [1e999, 1], [999999999, 1, 1], 10**23, 2**63, 0, -1, True, [["a", 1], ["a", 2]], [[1, 2]], ["ab"],
    ]
)  # fmt: skip


@given(st.sampled_from(TAGS), JSON | NEAR, st.booleans())
def test_no_tagged_value_raises_anything_but_unreadable_payload(tag: str, value: Any, inside: bool) -> None:
    """A row may hold anything: on a page that would be an error 500, in a worker an executor that is replaced."""
    stored = {"args": [{tag: [value] if inside else value}], "kwargs": {}}
    text = json.dumps(stored)
    ways: list[Callable[[], object]] = [
        lambda: decode_payload(text),
        lambda: decode_result(text),
        lambda: revive(stored),
        lambda: filled(text, dict.fromkeys(named(text), '{"$uuid": 5}')),
        lambda: json_text(stored, len(text)),
        lambda: arguments("no.such", text, reveal=True),
    ]
    for way in ways:
        with suppress(UnreadablePayload):
            way()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"$tuple": [' * 50_000 + "]}" * 50_000, "9" * 5000]
)
def test_what_is_too_deep_or_too_long_is_unreadable_everywhere(text: str) -> None:
    for way in (decode_payload, decode_result, named, parsed, lambda each: filled(each, {})):
        with pytest.raises(UnreadablePayload):
            way(text)


def test_what_is_unreadable_does_not_say_what_it_holds() -> None:
    """The reason stands on pages for all who may see jobs, also of arguments that are secret."""
    for tag in TAGS:
        for value in ("4111-secret", ["4111-secret"], 4111):
            with suppress(UnreadablePayload):
                decode_result(json.dumps({tag: value}))
                continue
            with pytest.raises(UnreadablePayload) as caught:
                decode_result(json.dumps({tag: value}))
            assert "4111" not in str(caught.value)


def test_parsed_json_is_unreadable_alike() -> None:
    with pytest.raises(UnreadablePayload, match="newer code may have written it"):
        revive({"args": [{"$future": 1}]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnreadablePayload):
        revive(endless)


def test_arguments_that_are_left_out_are_none_at_all() -> None:
    """A row may be inserted by other languages than ours."""
    assert decode_payload("{}") == ([], {})
    assert decode_payload('{"kwargs": {"id": 1}}') == ([], {"id": 1})


@given(values)
def test_results_come_back_as_they_were(value: Any) -> None:
    text = encode_result(value, 10 * MIB)
    assert exactly_equal(decode_result(text), value)
    assert exactly_equal(revive(json.loads(text)), value)


def test_floats_are_tagged_from_where_jsonb_would_drop_the_point() -> None:
    below = math.nextafter(FIRST_INTEGRAL_FLOAT, 0)
    assert encode_result(below, MIB) == repr(below) == "9999999999999998.0"
    assert encode_result(-FIRST_INTEGRAL_FLOAT, MIB) == '{"$float":"-1e+16"}'


def test_a_uuid_is_one_again() -> None:
    key = uuid4()
    assert through(key) == key
