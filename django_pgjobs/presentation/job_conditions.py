"""Conditions of jobs, worded so that PostgreSQL reads along an index regardless of its statistics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from inspect import Parameter
from math import isfinite
from operator import or_
from uuid import UUID

from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    F,
    Func,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.fields import BigIntArrayField
from django_pgjobs.models import Heartbeat, Job, Memo
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation.reach import HELD
from django_pgjobs.presentation.sight import BY_NAME, BY_POSITION, findable, hidden_names
from django_pgjobs.states import LABELS, Hold, JobState, MemoKind

BIGGEST_ID = 2**63 - 1

ARRAY = "ARRAY(%(subquery)s)"
"""The template of a subquery that PostgreSQL runs once; it may run one of IN again for each job that it reads."""

LATER = Q(state=JobState.READY.value, run_at__gt=Now())
RETRYING = Q(finished_at=None, claim_id=None, run_at__gt=Now(), attempt__gt=0) & (
    Q(hold=None) | Q(hold__in=[Hold.LIMITED.value, Hold.PAUSED.value])
)
ASLEEP = Q(finished_at=None, claim_id=None, ending=None, run_at__gt=Now())

ANY_ID = Q(pk__gte=0, pk__lte=BIGGEST_ID)
"""For members: without statistics PostgreSQL expects more of them than within bounds, and reads all to sort them."""


def search_condition(text: str, job_id: int | None) -> Q:
    """Return the condition of a search: exactly this id, or a part of name or description."""
    if job_id is not None:
        return Q(pk=job_id) if job_id <= BIGGEST_ID else Q(pk__in=[])
    return Q(name__icontains=text) | Q(description__icontains=text) if text else Q()


def argument_condition(name: str, value: str, *, reveal: bool) -> Q:
    """Return the condition of jobs with this argument: a number, true, false or null, or a text, as typed.

    Positional arguments are found in jobs that this process knows. Without ``reveal`` it finds no job by an argument
    that is hidden; see ``sight``.
    """
    values = _values(value)
    named: set[str] = set()
    at_position: dict[int, set[str]] = {}
    fitting = Q(pk__in=[])
    for definition in registry.definitions():
        by_name, position = findable(definition, name, reveal=reveal)
        if by_name:
            named.add(definition.name)
        if position is None:
            continue
        if hidden_names(definition, reveal=reveal):
            here = reduce(or_, (Q(**{f"payload__args__{position}": each}) for each in values))
            fitting |= Q(name=definition.name) & here & fits_the_function(definition)
        else:
            at_position.setdefault(position, set()).add(definition.name)
    found = fitting
    for each in values:
        of_keyword = Q(payload__contains={"kwargs": {name: each}})
        found |= of_keyword if reveal else of_keyword & Q(name__in=sorted(named))
        for position, names in at_position.items():
            found |= Q(**{f"payload__args__{position}": each}, name__in=sorted(names))
    return found


def fits_the_function(definition: JobPolicy) -> Q:
    """Return the condition of jobs whose stored arguments the function takes: then each position has its name."""
    parameters = list(definition._signature.parameters.values())
    kinds = {each.kind for each in parameters}
    positions = [each for each in parameters if each.kind in BY_POSITION]
    found = ~_has_path('$ ? (exists(@.args) && @.args.type() != "array")')
    found &= ~_has_path('$ ? (exists(@.kwargs) && @.kwargs.type() != "object")')
    found &= ~_has_path('$.keyvalue() ? (@.key != "args" && @.key != "kwargs")')
    if Parameter.VAR_POSITIONAL not in kinds:
        found &= Q(**{f"payload__args__{len(positions)}__isnull": True})
    if Parameter.VAR_KEYWORD not in kinds:
        others = " && ".join(f"@.key != {json.dumps(each.name)}" for each in parameters if each.kind in BY_NAME)
        found &= ~_has_path(f"$.kwargs.keyvalue() ? ({others or '@.key == @.key'})")
    for position, each in enumerate(
        [*positions, *(each for each in parameters if each.kind is Parameter.KEYWORD_ONLY)]
    ):
        by_position = Q(**{f"payload__args__{position}__isnull": False}) if each in positions else Q(pk__in=[])
        by_name = Q(payload__kwargs__has_key=each.name) if each.kind in BY_NAME else Q(pk__in=[])
        if each.default is each.empty:
            found &= by_position | by_name
        if each.kind is Parameter.POSITIONAL_OR_KEYWORD:
            found &= ~(by_position & by_name)
    return found


def _has_path(path: str) -> Q:
    words = {"template": "%(function)s(%(expressions)s::jsonpath, '{}', true)"}
    return Q(Func(F("payload"), Value(path), function="jsonb_path_exists", output_field=BooleanField(), **words))


def _values(typed: str) -> list[object]:
    """Return what a typed value may mean; in quotes it is a text."""
    found: list[object] = [typed.strip('"')]
    try:
        read = None if typed.startswith('"') else json.loads(typed)
    except (ValueError, RecursionError):
        return found
    plain = isinstance(read, bool | int) or (isinstance(read, float) and isfinite(read))
    return [*found, read] if plain or typed == "null" else found


def state_condition(state: str) -> Q:
    """Return the condition of a state or label; an empty one sets no condition."""
    if state == JobState.READY:
        return Q(state=JobState.READY.value, run_at__lte=Now())
    if state in LABELS:
        return RETRYING if state == "retrying" else LATER & Q(attempt=0)
    if state in HELD:
        # Not Q(state=…): beside "hold = 'parked'" its "hold IS NOT NULL" makes PostgreSQL expect a tenth of the rows,
        # and read them all to sort them.
        return Q(hold=state, claim_id__isnull=True, finished_at__isnull=True)
    return Q(state=state) if state else Q()


def remembers(kind: MemoKind) -> Q:
    """Return the condition of jobs with an open memo of this kind."""
    # In CASE: else PostgreSQL may look for the few memos of a job among all open ones of the kind. And not EXISTS,
    # which it may answer with a hash of all memos.
    kinds = Case(When(finished_at=None, then=F("kind")), output_field=TextField())
    memos = Memo.objects.filter(job_id=OuterRef("pk")).annotate(open_kind=kinds).filter(open_kind=kind)
    return Q(GreaterThan(Subquery(memos.values("pk")[:1]), 0))


def tagged(tag: str) -> QuerySet[Model, object]:
    """The ids of the jobs with this tag, by the index of tags."""
    return Job.objects.filter(tags__contains=[tag]).values("pk")


def has_tag(tag: str) -> Q:
    """Return the condition of jobs with this tag, for which PostgreSQL does not take the index of tags."""
    wanted = Value(json.dumps([tag]), TextField())
    # With a strict expression instead of COALESCE, it would take the whole of that index, which is of tagged jobs only.
    words = {"template": "(COALESCE(%(expressions)s::jsonb)", "arg_joiner": ", '[]'::jsonb) @> "}
    return Q(Func(F("tags"), wanted, output_field=BooleanField(), **words))


def workers_named(worker: str) -> QuerySet[Model, object]:
    """The workers of this name, or the one of this id."""
    try:
        named: dict[str, object] = {"pk": UUID(worker)}
    except ValueError:
        named = {"name": worker}
    return Heartbeat.objects.filter(**named)


def claimed_by(worker: str) -> Q:
    """Return the condition of unfinished jobs that this worker (name or id) has claimed."""
    claims = Claim.objects.filter(worker__in=workers_named(worker).values("pk"))
    return is_one_of(each_of(claims)) & Q(claim_id__in=claims.values("claim_id"), outcome=None)


def each_of(rows: QuerySet[Model, object]) -> Subquery:
    """Return an array of the elements of ``job_ids`` of these rows."""
    each = Func(F("job_ids"), function="unnest", output_field=BigIntegerField())
    return Subquery(rows.annotate(each=each).values("each"), template=ARRAY)


def is_one_of(array: object) -> Q:
    """Return the condition of jobs whose ids are in this array."""
    words = {"template": "%(expressions)s)", "arg_joiner": " = ANY ("}
    return Q(Func(F("pk"), array, output_field=BooleanField(), **words))


def array_of(ids: Sequence[int]) -> Value:
    """Pass the ids as one parameter: a statement cannot have 100,000."""
    return Value(list(ids), BigIntArrayField())
