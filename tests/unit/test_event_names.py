"""Events of different names or keys are never the same event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs import Event
from django_pgjobs.durable import job_event
from django_pgjobs.exceptions import InvalidJob

texts = st.text(st.sampled_from("ajob:%3A25.\\7"), min_size=0, max_size=6)
parts = st.lists(st.one_of(texts, st.integers(-20, 20)), max_size=3).map(tuple)
names = st.text(st.sampled_from("ajob%3A."), min_size=1, max_size=6).filter(lambda name: name != "job")


@given(names, parts, names, parts)
def test_events_of_different_names_or_keys_are_stored_under_different_names(
    name: str, key: Any, other_name: str, other_key: Any
) -> None:
    one, other = Event[Any](name).name_of(*key), Event[Any](other_name).name_of(*other_key)
    assert (one == other) == ((name, [*map(str, key)]) == (other_name, [*map(str, other_key)]))


@given(names, parts, st.integers(1, 100), texts.filter(bool))
def test_no_event_is_that_of_a_single_job(name: str, key: Any, job_id: int, own: str) -> None:
    assert Event[Any](name).name_of(*key) != job_event(job_id, own)


@given(st.integers(1, 30), texts.filter(bool), st.integers(1, 30), texts.filter(bool))
def test_events_of_single_jobs_are_apart(job_id: int, name: str, other_id: int, other_name: str) -> None:
    same = (job_id, name) == (other_id, other_name)
    assert (job_event(job_id, name) == job_event(other_id, other_name)) == same


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job", "events of that name are for single jobs or this package: choose another"),
        ("pgjobs.gathered", "events of that name are for single jobs or this package: choose another"),
        ("job:7", "a colon divides the name from its key: write a dot"),
    ],
)
def test_names_that_belong_to_others_are_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        Event[Any](name)
