"""The registry: one name, one job; what is unknown is said with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs import job
from django_pgjobs.definition.registry import Registry, registry
from django_pgjobs.exceptions import InvalidJob, UnknownJob


def first() -> None: ...


def second() -> None: ...


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def test_a_job_is_found_by_its_name_and_its_aliases() -> None:
    definition = job(name="shop.pay", aliases=["shop.old_pay", "pay"])(first)
    assert [registry.get(name) for name in ("shop.pay", "shop.old_pay", "pay")] == [definition] * 3
    assert registry.names() == ["pay", "shop.old_pay", "shop.pay"]
    assert registry.definitions() == [definition]


def test_several_jobs_live_in_one_module() -> None:
    """Row A12."""
    one, other = job(first), job(second)
    assert registry.definitions() == [one, other]


def test_a_taken_name_is_refused_naming_both_places() -> None:
    job(name="pay")(first)
    with pytest.raises(InvalidJob) as caught:
        job(name="pay")(second)
    assert str(caught.value).count("test_registry.py:") == 2
    assert registry.get("pay").func is first


@pytest.mark.parametrize("options", [{"name": "old"}, {"name": "new", "aliases": ["old"]}])
def test_an_alias_is_taken_like_a_name(options: dict[str, object]) -> None:
    job(name="pay", aliases=["old"])(first)
    with pytest.raises(InvalidJob, match="'old' is taken"):
        job(**options)(second)  # type: ignore[call-overload]
    assert registry.find("new") is None, "nothing of a refused job is added"


def test_the_same_function_again_replaces_its_definition_and_its_aliases() -> None:
    """A module that is imported again must not stop the process."""
    job(name="pay", aliases=["old"])(first)
    again = job(name="pay", aliases=["older"])(first)
    assert registry.get("pay") is again
    assert registry.names() == ["older", "pay"]


def test_one_function_may_be_two_jobs() -> None:
    job(name="a")(first)
    job(name="b")(first)
    assert registry.names() == ["a", "b"]


def test_an_unknown_name_raises_with_a_suggestion() -> None:
    job(name="shop.pay")(first)
    with pytest.raises(UnknownJob, match=r"No job named 'shop\.pya'.*did you mean 'shop\.pay'"):
        registry.get("shop.pya")
    with pytest.raises(UnknownJob, match=r"known to this process\.$"):
        registry.get("quite different")
    assert registry.find("shop.pya") is None


def test_isolation_ends_also_after_an_error() -> None:
    job(name="outer")(first)

    def declare_and_fail() -> None:
        with registry.isolated():
            assert registry.names() == []
            job(name="inner")(second)
            raise LookupError

    with pytest.raises(LookupError):
        declare_and_fail()
    assert registry.names() == ["outer"]


def test_only_within_the_block_no_worker_has_to_find_the_jobs() -> None:
    own = Registry()
    with own.isolated():
        assert own.is_isolated
    assert not own.is_isolated


def test_registries_share_nothing() -> None:
    job(name="pay")(first)
    assert Registry().names() == []
