"""Hypothesis strategies for everything a payload may hold, and what "the same value" means for it."""

from __future__ import annotations

import math
from datetime import datetime, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
zones = st.none() | st.timezones() | st.timezones(no_cache=True)
integers = st.integers() | st.integers(-(2**14_284) + 1, 2**14_284 - 1)

scalars = (
    st.none()
    | st.booleans()
    | integers
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=st.none() | st.timezones())
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary()
)
keys = texts | st.sampled_from(["$", "$dict", "$tuple", "$date", "args", "kwargs", "$$"])

values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(keys, inner, min_size=1, max_size=1)
    ),
    max_leaves=20,
)


def exactly_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types all through, with what ``==`` overlooks."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(exactly_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(exactly_equal, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, (datetime, time)):
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and _same_zone(one, other)
    return bool(one == other)


def _same_zone(one: Any, other: Any) -> bool:
    return one.utcoffset() == other.utcoffset() and str(one.tzinfo) == str(other.tzinfo)
