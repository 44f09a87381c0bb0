"""The filters of lists of jobs, one object each: the admin's list, its search and the shell read the same table.

To add a filter, add an object to ``FILTERS``. One that no index answers needs its ``condition`` only; where an order of
``job_list`` depends on the value, ``JobSearch`` has a field of the filter's name, and words the condition itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django.db.models import Q
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.presentation.fronts import FRONTS, aliases, has_alias, has_front
from django_pgjobs.presentation.wording import STATE_LABELS, exactly
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import LABELS, JobState, MemoKind
from django_pgjobs.values.built_in import OWN_QUEUE

STATES: tuple[str, ...] = (
    JobState.READY.value, *LABELS, *(state.value for state in JobState if state != JobState.READY),
)  # fmt: skip
"""The states to choose from; *ready* here means due."""

SUSPENDED: dict[str, MemoKind] = {"sleeping": MemoKind.SLEEP, "waiting_for_event": MemoKind.EVENT}
"""The code of ``why`` for a suspended job → the kind of its memo."""

OPEN_BATCHES = "open"
"""The value that lists the batches that are open for members, in place of a batch's id."""

ENDED_WORDS = {"yes": "ended", "no": "not ended"}

Choices = Iterable[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter: ``name`` is the parameter of a URL, the word before a colon in a search, and the shell's option.

    ``choices``: the values that it takes, empty for any. ``condition``: the jobs of a value; without it ``JobSearch``
    has a field of that name. ``has_index``: while no state is chosen, an index leads to its jobs; other lists search
    their first jobs only. ``worded``: a value in words, if not *name value*. ``is_word``: the search takes it.
    ``title``: it stands beside the admin's list, which offers choices with labels, with what was chosen; none hide it.
    ``help``: the shell takes it, as ``option`` if that is not *--name*; ``flags``: value → help of its own flag.
    """

    name: str
    kind: Literal["text", "age", "id", "argument"] = "text"
    choices: Collection[str] = ()
    condition: Callable[[str], Q] | None = None
    has_index: bool = False
    worded: Callable[[Any], str] | None = None
    is_word: bool = True
    title: object = ""
    offered: Callable[[str], Choices] = lambda chosen: ()
    help: str = ""
    metavar: str | None = None
    option: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)


def _names(known: Iterable[str], chosen: str) -> Choices:
    return [(name, visible(name)) for name in sorted({*known, chosen} - {""})]


def _batches(chosen: str) -> Choices:
    yield OPEN_BATCHES, _("Open batches")
    if chosen and chosen != OPEN_BATCHES:
        yield chosen, _("Members of %(id)s") % {"id": visible(chosen[:40])}


def _queues(chosen: str) -> Choices:
    """Return the queues that a job definition or a setting names; the list adds those that have unfinished jobs."""
    declared = {definition.queue for definition in registry.definitions()}
    return _names({*declared, *(get_conf().queues or ()), OWN_QUEUE}, chosen)


def _aliases(chosen: str) -> Choices:
    """Return the aliases of ``TASKS`` that the tasks of this process have; none if there is only one."""
    known = aliases()
    return _names(known, chosen) if len(known) > 1 or chosen else ()


def _argument(named: tuple[str, str]) -> str:
    """*argument tenant: globex*; only the name of an argument that is sensitive in some job."""
    name, value = named
    hidden = any(name in (definition.sensitive or ()) for definition in registry.definitions())
    return f"argument {name}" if hidden else f"argument {name}: {value[:100]}"


def _since(bound: float | datetime) -> str:
    return f"since {bound:%Y-%m-%d %H:%M}" if isinstance(bound, datetime) else f"since {exactly(bound)} ago"


def _older(bound: float | datetime) -> str:
    return f"until {bound:%Y-%m-%d %H:%M}" if isinstance(bound, datetime) else f"older than {exactly(bound)}"


_AGES = "of an ended --state, that ended; of others, that were registered"

FILTERS: tuple[Filter, ...] = (
    Filter(
        name="state", choices=STATES, is_word=False, title=_("state"), metavar="STATE",
        offered=lambda chosen: [(state, capfirst(STATE_LABELS[state])) for state in STATES],
        help=f"Jobs that are {', '.join(STATES[:-1])} or {STATES[-1]}; ready ones are due, the others scheduled or "
        "retrying.",
    ),
    Filter(
        name="suspended", choices=SUSPENDED, is_word=False, title=_("suspended"),
        offered=lambda chosen: [("sleeping", _("Sleeping")), ("waiting_for_event", _("Waiting for an event"))],
        worded=lambda code: code.replace("_", " "),
        flags={"sleeping": "Durable functions that sleep.",
               "waiting_for_event": "Durable functions that wait for an event."},
    ),
    Filter(
        name="batch", kind="id", is_word=False, title=_("batch"), offered=_batches,
        worded=lambda batch: "open batches" if batch == OPEN_BATCHES else f"members of {batch}",
        help="Members of this batch or flow.", metavar="ID",
    ),
    Filter(name="queue", title=_("queue"), offered=_queues, help="Jobs of this queue.", metavar="NAME"),
    Filter(
        name="name", title=_("name"), offered=lambda chosen: _names(registry.names(), chosen),
        help="Jobs of this definition.", metavar="NAME",
    ),
    Filter(
        name="front", choices=FRONTS, condition=has_front, title=_("front"),
        offered=lambda chosen: FRONTS.items() if aliases() or chosen else (),
        help="Jobs declared by @task, or by @job.",
    ),
    Filter(
        name="alias", condition=has_alias, title=_("alias of TASKS"), offered=_aliases,
        help="Tasks of this alias of TASKS.", metavar="ALIAS",
    ),
    Filter(
        name="tag", title=_("tag"), help="Jobs with this tag.", metavar="TAG",
        offered=lambda chosen: _names((tag for each in registry.definitions() for tag in each._plan.tags), chosen),
    ),
    Filter(
        name="description", condition=lambda text: Q(description__icontains=text), is_word=False,
        help="Jobs with this text in their description.", metavar="TEXT",
    ),
    Filter(name="key", condition=lambda key: Q(key=key), help="Jobs registered with this key.", metavar="KEY"),
    Filter(
        name="sequence", condition=lambda name: Q(sequence=name), help="Jobs of this sequence.", metavar="SEQUENCE",
    ),
    Filter(
        name="error", help="Jobs abandoned with an error of this class, with or without its path.", metavar="CLASS"
    ),
    Filter(name="worker"),
    Filter(name="cron", condition=lambda name: Q(cron_entry=name), has_index=True),
    Filter(
        name="since", kind="age", worded=_since, metavar="AGE",
        help=f"Jobs, {_AGES}, within this time: 90s, 30m, 36h, 7d.",
    ),
    Filter(
        name="older", kind="age", worded=_older, metavar="AGE", option="--older-than",
        help=f"Jobs, {_AGES}, longer ago than this.",
    ),
    Filter(
        name="arg", kind="argument", worded=_argument, metavar="NAME=VALUE",
        help="Jobs with this argument: a number, a text, true, false or null.",
    ),
    Filter(
        name="action", kind="id", worded=lambda number: f"action {number}", metavar="ID",
        help="Jobs that this action of an operator changed.",
    ),
    Filter(
        name="ended", choices=ENDED_WORDS, condition=lambda word: Q(finished_at__isnull=word == "no"),
        worded=lambda word: ENDED_WORDS[word],
    ),
)  # fmt: skip


def parameters() -> list[str]:
    """Return the parameters of a list's URL that choose its jobs, but for the search."""
    return [each.name for each in FILTERS if each.title] + ["reach"]
