"""Names that no import has declared: resolvers find them, once, and what they do not find is remembered (O1, O10)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import override_settings
from django.utils.module_loading import import_string

from django_pgjobs import Cron, job
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import LONGEST_PATH, MOST_MISSES, Registry, registry
from django_pgjobs.ends import kinds
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.states import Outcome

Write = Callable[[str, str], None]


def first() -> None: ...


def second() -> None: ...


class Task(JobDefinition[..., None]):
    """A definition of another front."""

    _front = "@task"


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules that can be imported; they are gone from the process afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written: list[str] = []

    def write(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        written.append(module)

    yield write
    for module in written:
        sys.modules.pop(module, None)


class Asked:
    """A resolver that makes definitions of functions, and remembers what it was asked for."""

    def __init__(self, **options: object) -> None:
        self.names: list[str] = []
        self.options = options

    def __call__(self, name: str) -> JobPolicy | None:
        self.names.append(name)
        return Task(import_string(name), {"name": name, **self.options})


def nothing(name: str) -> None:
    """A resolver to whom nothing belongs."""


FUNCTION = "def pay(amount): ..."


def test_a_name_that_is_found_is_known_from_then_on(write: Write) -> None:
    write("shop_found", FUNCTION)
    registry.add_resolver(asked := Asked())
    assert registry.find("shop_found.pay") is None, "find asks nobody"
    with pytest.raises(UnknownJob):
        registry.get("shop_found.pay")
    assert "shop_found" not in sys.modules
    found = registry.resolve("shop_found.pay")
    assert (found.name, found._front) == ("shop_found.pay", "@task")
    assert registry.find("shop_found.pay") is registry.resolve("shop_found.pay") is found
    assert registry.definitions() == [found]
    assert asked.names == ["shop_found.pay"]


def test_what_is_known_is_never_asked_for() -> None:
    definition = job(name="shop.pay")(first)
    registry.add_resolver(asked := Asked())
    assert registry.resolve("shop.pay") is definition
    assert asked.names == []


def test_a_definition_is_also_known_by_the_name_that_led_to_it() -> None:
    """A resolver may know where a task has moved."""
    found = Task(first, {"name": "shop.pay", "aliases": ("shop.settle",)})
    registry.add_resolver(lambda _: found)
    assert registry.resolve("store.pay") is found
    assert registry.names() == ["shop.pay", "shop.settle", "store.pay"]
    assert registry.definitions() == [found]
    assert [registry.fingerprints()[name] for name in registry.names()] == [found._fingerprint] * 3


def test_resolvers_are_asked_in_the_order_they_were_added() -> None:
    one, other = (Task(func, {"name": "shop.pay"}) for func in (first, second))
    registry.add_resolver(nothing)
    registry.add_resolver(ours := lambda _: one)
    registry.add_resolver(lambda _: other)
    assert registry.resolve("shop.pay") is one
    registry.forget_found()
    registry.add_resolver(ours)
    assert registry.resolve("shop.pay") is other, "added again, a resolver is the last"


def test_nothing_replaces_what_a_module_has_declared() -> None:
    """O10: two objects may wrap one function; what is known is the declaration."""
    declared = job(name="shop.pay")(first)
    registry.add_resolver(lambda _: Task(first, {"name": "shop.pay"}))
    assert registry.resolve("store.pay") is declared
    assert registry.names() == ["shop.pay", "store.pay"]


def test_a_name_taken_by_another_function_is_the_reason_that_another_stays_unknown() -> None:
    declared = job(name="shop.pay")(first)
    options: list[dict[str, object]] = [{"name": "shop.pay"}, {"name": "store.pay", "aliases": ("shop.pay",)}]
    registry.add_resolver(lambda _: Task(second, options[0]))
    for _ in range(2):
        with pytest.raises(UnknownJob, match=r"InvalidJob: .*'shop\.pay' is taken by .*test_resolving\.py"):
            registry.resolve("store.pay")
        registry.forget_misses()
        options.reverse()
    assert registry.definitions() == [declared]
    with pytest.raises(InvalidJob):
        job(name="shop.pay")(second)


def test_an_import_that_declares_the_job_itself_is_enough(write: Write) -> None:
    write("shop_declares", "from django_pgjobs import job\n\n@job\ndef pay(): ...\n\nraise LookupError('too late')\n")
    registry.add_resolver(Asked())
    assert registry.resolve("shop_declares.pay") is registry.find("shop_declares.pay") is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("pay = ", "SyntaxError: invalid syntax"),
        ("raise SystemExit('no settings')", "SystemExit: no settings"),
        ("", 'ImportError: Module "shop_broken" does not define a "pay" attribute'),
    ],
)
def test_an_import_that_fails_is_told_and_not_tried_again(
    write: Write, text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_pgjobs")
    write("shop_broken", text)
    registry.add_resolver(asked := Asked())
    registry.add_resolver(nothing)
    for _ in range(3):
        with pytest.raises(UnknownJob) as caught:
            registry.resolve("shop_broken.pay")
        assert f"No job named 'shop_broken.pay' is known to this process: {why}" in str(caught.value)
    assert registry.resolved("shop_broken.pay") is None
    assert asked.names == ["shop_broken.pay"]
    [record] = caplog.records
    assert "name=shop_broken.pay" in record.getMessage()
    assert record.exc_info is not None, "the traceback shows which module failed"
    assert record.levelno == (logging.INFO if "Error: " in why and "Syntax" not in why else logging.WARNING)


def test_an_interrupt_of_the_keyboard_is_no_miss() -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    registry.add_resolver(interrupted)
    with pytest.raises(KeyboardInterrupt):
        registry.resolve("shop.pay")
    registry.add_resolver(lambda _: Task(first, {"name": "shop.pay"}))
    with pytest.raises(KeyboardInterrupt):
        registry.resolve("shop.pay")


def test_without_a_reason_the_name_that_was_meant_is_suggested() -> None:
    job(name="shop.pay")(first)
    registry.add_resolver(nothing)
    with pytest.raises(UnknownJob, match=r"'shop\.pya' is known to this process \(did you mean 'shop\.pay'"):
        registry.resolve("shop.pya")


@pytest.mark.parametrize(
    "name",
    ["pay", "", ".", "shop.", ".pay", "shop..pay", "shop.pay;drop", "../shop.pay", "shop.pay()", "1shop.pay",
     "pgjobs.gone", f"shop.{'x' * LONGEST_PATH}"],
)  # fmt: skip
def test_only_paths_of_code_reach_a_resolver(name: str) -> None:
    """Names are texts of rows: whoever may write rows chooses them."""
    registry.add_resolver(asked := Asked())
    with pytest.raises(UnknownJob):
        registry.resolve(name)
    assert registry.resolved(name) is None
    assert asked.names == []


def change(**settings: object) -> None:
    with override_settings(**settings):
        pass


@pytest.mark.parametrize(
    "forget",
    [
        registry.forget_misses,
        registry.forget_found,
        lambda: change(TASKS={}),
        lambda: change(PGJOBS={}),
        lambda: registry.add_resolver(nothing),
    ],
    ids=["misses", "found", "TASKS", "PGJOBS", "resolver"],
)
def test_misses_are_asked_for_again_once_they_are_forgotten(forget: Callable[[], None]) -> None:
    registry.add_resolver(asked := Asked())
    assert registry.resolved("no_such.pay") is registry.resolved("no_such.pay") is None
    forget()
    assert registry.resolved("no_such.pay") is None
    assert asked.names == ["no_such.pay"] * 2


def test_other_tasks_settings_forget_what_was_found_by_the_former_ones() -> None:
    """T4: definitions keep options of their alias. What ``@job`` declares has none, and stays."""
    declared = job(name="shop.ship", cron=Cron("@daily"))(first)
    registry.add_resolver(lambda name: Task(second, {"name": name}) if name == "shop.pay" else declared)
    found = registry.resolve("shop.pay")
    assert registry.resolve("store.ship") is declared
    Cron("@daily", name="nightly").declare(found)  # type: ignore[arg-type]
    assert registry.names() == ["shop.pay", "shop.ship", "store.ship"]
    with override_settings(PGJOBS={}):
        assert registry.names() == ["shop.pay", "shop.ship", "store.ship"]
    with override_settings(TASKS={}):
        assert registry.names() == ["shop.ship"]
        assert [entry.decorates for entry in registry.crons()] == ["shop.ship"]
        assert registry.resolve("shop.pay") is not found


def test_a_job_declared_after_it_was_found_is_no_longer_forgotten() -> None:
    registry.add_resolver(lambda name: JobDefinition(first, {"name": name}))
    registry.resolve("shop.pay")
    declared = job(name="shop.pay")(first)
    registry.forget_found()
    assert registry.find("shop.pay") is declared


def test_a_process_that_must_not_import_asks_nobody(write: Write) -> None:
    """As a supervisor's, once its threads run: what it knows it still knows."""
    write("shop_late", FUNCTION)
    registry.add_resolver(asked := Asked())
    with registry.without_resolvers():
        assert not registry.may_find_more
        with pytest.raises(UnknownJob, match=r"^No job named 'shop_late\.pay' is known to this process\.$"):
            registry.resolve("shop_late.pay")
        assert asked.names == []
    found = registry.resolve("shop_late.pay")
    with registry.without_resolvers():
        assert registry.resolve("shop_late.pay") is found


def test_what_executors_say_of_a_job_stands_for_its_definition() -> None:
    """A supervisor writes its ends without its code; where the code is known, that decides."""
    assert registry.learned("shop.pay") is None
    assert not kinds.has_callback("shop.pay", Outcome.ABANDONED)
    registry.learn("shop.pay", ["on_abandon", "atomic"])
    assert registry.learned("shop.pay") == frozenset(["on_abandon", "atomic"])
    assert kinds.has_callback("shop.pay", Outcome.ABANDONED)
    assert not kinds.has_callback("shop.pay", Outcome.SUCCEEDED)
    assert registry.find("shop.pay") is None
    declared = job(name="shop.pay")(first)
    assert not kinds.has_callback("shop.pay", Outcome.ABANDONED)
    declared.on_success(lambda context: None)
    assert declared._traits() == {"on_success"}
    assert job(name="shop.ship", atomic=True)(second)._traits() == {"atomic"}


def test_a_front_of_this_package_that_a_test_is_the_first_to_import_outlives_its_isolation() -> None:
    """Nothing would import its module, and so add its resolver, a second time."""

    def resolver(name: str) -> Task | None:
        return Task(first, {"name": name})

    resolver.__module__ = "django_pgjobs.tasks.definitions"
    ours = Registry()
    with ours.isolated():
        ours.add_resolver(resolver)
        assert ours.resolve("shop.pay").func is first
    assert ours.find("shop.pay") is None
    assert ours.resolve("shop.pay").func is first


def test_isolation_also_ends_what_resolvers_did() -> None:
    registry.add_resolver(outer := Asked())
    assert registry.resolved("no_such.pay") is None
    with registry.isolated():
        registry.add_resolver(lambda name: Task(first, {"name": name}))
        assert registry.resolve("no_such.pay").func is first, "known and missed names are the block's own"
        assert outer.names == ["no_such.pay"] * 2
    assert registry.names() == []
    assert registry.resolved("no_such.pay") is None
    assert registry.resolved("no_such.ship") is None, "nor is the block's resolver asked"
    assert outer.names == ["no_such.pay"] * 2 + ["no_such.ship"]


def test_few_misses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a hostile writer cost no memory without bound."""
    registry.add_resolver(nothing)
    for number in range(MOST_MISSES + 10):
        assert registry.resolved(f"no_such.pay{number}") is None
    assert len(registry._misses) <= MOST_MISSES


def test_two_threads_import_a_module_once_and_get_one_definition(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, asking = SimpleNamespace(imports=[], both=threading.Event()), threading.Barrier(3)
    monkeypatch.setitem(sys.modules, "shop_meeting", meeting)
    write(
        "shop_slow", "import shop_meeting\nshop_meeting.imports.append(1)\nshop_meeting.both.wait(10)\ndef pay(): ..."
    )
    asked = Asked()

    def resolver(name: str) -> JobPolicy | None:
        asking.wait(10)
        return asked(name)

    registry.add_resolver(resolver)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(registry.resolve, "shop_slow.pay") for _ in range(2)]
        asking.wait(10)  # both ask before one has imported anything
        meeting.both.set()
        one, other = (each.result(10) for each in both)
    assert one is other is registry.find("shop_slow.pay")
    assert meeting.imports == [1]


def test_a_module_that_asks_for_its_own_name_while_it_is_imported_hides_nothing(write: Write) -> None:
    """A miss in the middle of an import is not remembered: the end of the module may define the name."""
    write(
        "shop_early",
        "from django_pgjobs.definition.registry import registry\n"
        "early = registry.resolved('shop_early.ship')\ndef pay(): ...\ndef ship(): ...\n",
    )
    registry.add_resolver(Asked())
    assert registry.resolve("shop_early.pay").name == "shop_early.pay"
    assert sys.modules["shop_early"].early is None
    assert registry.resolve("shop_early.ship").name == "shop_early.ship"


def test_an_unknown_name_is_compared_with_all_others_only_for_the_text_of_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparing takes 65 ms among 500 names, and a list may show a thousand jobs of an unknown name."""
    compared: list[str] = []

    def compare(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr("django_pgjobs.definition.registry.get_close_matches", compare)
    registry.add_resolver(nothing)
    for name in ("shop.pay", "no path", "shop.pay"):
        assert registry.resolved(name) is None
    assert not compared
    with pytest.raises(UnknownJob):
        registry.resolve("shop.pay")
    assert compared == ["shop.pay"]
