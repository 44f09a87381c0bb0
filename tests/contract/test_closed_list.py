"""What the closed list of Django's tests notices."""

from __future__ import annotations

from tests.contract.closed_list import DATA, differences, excluded

OUTCOMES = {"one": None, "two": "AssertionError: 2 != 3"}


def test_the_list_is_kept_if_exactly_its_tests_do_not_pass() -> None:
    assert differences(OUTCOMES, {"two"}) == []


def test_another_test_that_does_not_pass_is_a_difference() -> None:
    (said,) = differences({**OUTCOMES, "three": "KeyError: 7"}, {"two"})
    assert said == "three does not pass, and is not on the list:\nKeyError: 7"


def test_a_test_of_the_list_that_passes_is_a_difference() -> None:
    assert differences(OUTCOMES, {"one", "two"}) == ["one is on the list, and passes"]


def test_a_test_of_the_list_that_is_gone_is_a_difference() -> None:
    assert differences(OUTCOMES, {"two", "four"}) == ["four is on the list, and does not exist"]


def test_an_entry_applies_to_its_versions_only() -> None:
    by_words_of_python = "test_custom_backend.CustomBackendTestCase.test_no_enqueue"
    assert by_words_of_python in excluded("5.2", "3.11")
    assert by_words_of_python not in excluded("5.2", "3.12") | excluded("6.1", "3.13")
    assert excluded("6.0", "3.13") == excluded("6.1", "3.13") < excluded("5.2", "3.12")


def test_every_entry_says_why() -> None:
    assert [name for name, entry in DATA["tests"].items() if not entry["reason"].endswith(".")] == []
