"""Bind all that waits in a database against the code of this process, and tell what would become of it there.

Jobs are judged by groups: all jobs of a name with the same number and names of arguments fit or do not fit together.
Values matter only where they were written with a tag, such as a date; of those a hundred of each slice are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.diagnosis.health import known_workers
from django_pgjobs.diagnosis.step_names import Spoken, spoken_by
from django_pgjobs.durable import known_events
from django_pgjobs.ends.kinds import has_callback
from django_pgjobs.exceptions import InvalidJob, UnknownJob, UnreadablePayload
from django_pgjobs.models import CronEntry, EventState
from django_pgjobs.serialization.payload import decode_result
from django_pgjobs.serialization.references import TAG
from django_pgjobs.states import BUILT_IN, CALLBACK_OF, Hold, MemoKind
from django_pgjobs.steering.events import problem_of_payload
from django_pgjobs.store import limiting, surveying
from django_pgjobs.store.database import Database
from django_pgjobs.store.surveying import JobSample, WaitingJobs, WaitingMemos
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.schedule import schedule_of
from django_pgjobs.values.zones import InvalidCron

MOST_FINDINGS = 1000
MOST_IDS = 5
SLICE = 1000

FATES = {
    "arguments": "would park",
    "callback": "would end without it",
    "cron": "would not fire",
    "cron_missing": "would not fire",
    "event": "would wait in vain",
    "event_payload": "would be read as it is",
    "limit": "would lose its limit",
    "limit_key": "would count under another key than new jobs",
    "limit_new": "would not count",
    "memo": "would replay wrongly",
    "memo_open": "may replay wrongly",
    "payload": "would park",
    "queue": "would never be claimed",
    "undo": "could not be undone",
    "unknown": "would park",
}
"""The code of a finding → the fate of its rows."""

_EITHER = Parameter.POSITIONAL_OR_KEYWORD

UNDO_ALONE = "undo"
"""The kind of a memo of a job that has ended: it is only undone."""

KEEP = "run them with the code that wrote them"


@dataclass(slots=True)
class Misfit:
    """Rows of one ``name`` that do not fit, for one reason. ``fate``: what becomes of them; ``cure``: what to write.

    ``jobs``: how many rows; ``seconds``: the age of the oldest; ``ids``: of some of the first.
    """

    code: str
    name: str
    text: str
    cure: str = ""
    is_note: bool = False
    jobs: int = 0
    seconds: float = 0.0
    ids: list[int] = field(default_factory=list)
    fate: str = ""


@dataclass(slots=True)
class InFlight:
    """All that was found. ``jobs``, ``crons`` and ``events``: how many rows were looked at; ``cut``: there are more."""

    findings: list[Misfit]
    jobs: int = 0
    crons: int = 0
    events: int = 0
    cut: bool = False


class Survey:
    """Looks at one database. Calls none of its jobs."""

    def __init__(self, db: Database, using: str, queues: Collection[str] | None = None) -> None:
        self.db, self.using, self.queues = db, using, queues
        self.seen = InFlight([])
        self.found: dict[tuple[str, str, str, bool], Misfit] = {}
        self.known: dict[str, JobPolicy | str] = {}
        self.spoken: dict[str, Spoken] = {}
        self.limits = limiting.read_limits(db)
        self.workers = [each for each in known_workers(db) if each.live]

    def run(self, most: int | None = None) -> InFlight:
        """Look at all that waits, but at ``most`` jobs."""
        for groups in surveying.survey_jobs(self.db, most=most):
            self.seen.jobs += sum(group.jobs for group in groups)
            wanted = [group for group in groups if self.queues is None or group.queue in self.queues]
            for group in wanted:
                ids = _samples(group)
                self._judge(group, surveying.read_samples(self.db, ids) if ids else [])
            remembering = [each for group in wanted for each in group.remembering]
            for memo in surveying.survey_memos(self.db, remembering) if remembering else ():
                self._judge_memo(memo)
        self.seen.cut = most is not None and self.seen.jobs >= most
        self._judge_crons()
        self._judge_events()
        self.seen.findings = sorted(self.found.values(), key=lambda each: (each.is_note, each.code, each.name))
        return self.seen

    def _add(self, rows: Any, code: str, text: str, cure: str = "", *, note: bool = False, only: int = 0) -> None:
        """Note a finding about ``rows``, or about the job ``only`` of them."""
        name, note = rows.name, note or getattr(rows, "hold", "") == Hold.PARKED  # parked already: no deploy does that
        if len(self.found) >= MOST_FINDINGS and (code, name, text, note) not in self.found:
            name, text, cure = "…", "More of this kind were found than are told.", ""
        found = self.found.setdefault((code, name, text, note), Misfit(code, name, text, cure, note, fate=FATES[code]))
        found.jobs += 1 if only else rows.jobs
        found.seconds = max(found.seconds, rows.seconds or 0.0)
        new = [each for each in ([only] if only else rows.ids) if each not in found.ids]
        found.ids += new[: MOST_IDS - len(found.ids)]

    # Jobs

    def _definition(self, name: str) -> JobPolicy | str:
        """Return the definition, or why there is none."""
        if name not in self.known:
            try:
                self.known[name] = registry.resolve(name)
            except UnknownJob as error:
                self.known[name] = str(error)
        return self.known[name]

    def _judge(self, group: WaitingJobs, samples: list[JobSample]) -> None:
        definition, queue = self._definition(group.name), group.queue
        if self.workers and not any(each.serves(queue) for each in self.workers):
            cure = "start a worker that does, or move the jobs: manage.py pgjobs reschedule --to-queue"
            self._add(group, "queue", f"No worker that was heard from lately serves queue {queue}.", cure)
        elif not self.workers and queue not in (OWN_QUEUE, *(get_conf().queues or (queue,))):
            text = f"QUEUES lacks queue {queue}, and no worker was heard from lately."
            self._add(group, "queue", text, "keep the queue in QUEUES until its jobs have ended")
        if isinstance(definition, str):
            self._add(group, "unknown", definition, _cure_of_name(group.name))
            return
        if group.ending in CALLBACK_OF and not has_callback(group.name, group.ending):
            callback = CALLBACK_OF[group.ending]
            self._add(group, "callback", f"This code defines no {callback}.", f"keep {callback} until they have ended")
            return
        self._bind(group, definition, "arguments", samples)
        if not group.ending and not definition._is_built_in:
            self._judge_limit(group, definition, samples)

    def _bind(
        self, rows: WaitingJobs | WaitingMemos, definition: JobPolicy, code: str, samples: Iterable[JobSample] = ()
    ) -> None:
        """Load arguments as a worker does: of all rows by their names, of samples with their values."""
        if rows.args is not None and rows.kwargs is not None:
            shape = {"args": [None] * rows.args, "kwargs": dict.fromkeys(rows.kwargs)}
            if problem := misfit(definition, json.dumps(shape)):
                self._add(rows, code, problem, _cure_of_arguments(definition, rows.args, rows.kwargs))
                return
        for sample in samples:
            if problem := misfit(definition, _without_results(sample.payload), sample.headers):
                self._add(rows, "payload", problem, KEEP, only=sample.id)

    def _judge_limit(self, group: WaitingJobs, definition: JobPolicy, samples: list[JobSample]) -> None:
        names, code = (definition.name, *definition.aliases), definition.limits
        of_queue = get_conf().queue_limits.of(group.queue) or limiting.found_for(self.limits, "queue", [group.queue])
        own = code.own or of_queue or limiting.found_for(self.limits, "job", names)
        keyed = code.keyed or limiting.found_for(self.limits, "key", names)
        cure = "keep the Limit, or set one: manage.py pgjobs limit"
        if group.limited == "keyed" and not keyed:
            self._add(group, "limit", "They wait under a key, and this code has no limit of keys.", cure)
        elif group.limited == "own" and not own:
            more = " but one with a key, and they have none" if keyed else ""
            self._add(group, "limit", f"They wait under a limit, and this code has none for them{more}.", cure)
        elif not group.limited and code:
            self._add(group, "limit_new", "They were registered without a limit.", note=True)
        elif group.limited == "keyed" and isinstance(code.key, str):
            text, cure = f"Now the key is made by {code.key!r}.", "expect both keys to have their room at once"
            for sample in samples:
                if _other_key(definition, sample):
                    self._add(group, "limit_key", text, cure, only=sample.id)

    # Memos

    def _judge_memo(self, memo: WaitingMemos) -> None:
        definition = self._definition(memo.name)
        if memo.undo is not None:
            undo = self._definition(memo.undo)
            if isinstance(undo, str):
                self._add(memo, "undo", undo, _cure_of_name(memo.undo))
            else:
                self._bind(memo, undo, "undo")
        if memo.kind == UNDO_ALONE or isinstance(definition, str) or definition._is_built_in:
            return
        waits = memo.kind == MemoKind.EVENT and not memo.ended and not memo.memo.startswith("job:")
        if waits and not known_events.get(memo.memo):
            cure = f'keep Event("{memo.memo}"), and send it, until they have ended'
            self._add(memo, "event", f"This code declares no event {memo.memo!r}.", cure)
            return
        if memo.name not in self.spoken:
            self.spoken[memo.name] = spoken_by(definition.func)
        spoken, text = self.spoken[memo.name], f"Its function does not name the {memo.kind} {memo.memo!r}"
        if spoken.has(memo.kind, memo.memo):
            return
        if spoken.open:
            text = f"{text}, but makes names as it runs, so this cannot be known."
            self._add(memo, "memo_open", text, "replay() such a job to be sure", note=True)
            return
        cure = f"keep the name, {_naming(memo)}; if it was removed on purpose: --allow memo:{memo.name}"
        self._add(memo, "memo", f"{text}, which they remember.", cure)

    # Schedules and events

    def _judge_crons(self) -> None:
        declared = {entry.name: entry for entry in registry.crons()}
        for entry in _walk(CronEntry.objects.using(self.using)):
            self.seen.crons += 1
            if entry.enabled and not entry.has_ended:
                self._judge_cron(entry, declared.get(entry.name))

    def _judge_cron(self, entry: CronEntry, code: Any) -> None:
        row = _Row(entry.name)
        if code is None and entry.origin == CronEntry.Origin.CODE:
            known = entry.missing_since is not None
            self._add(row, "cron_missing", "No code declares it.", "declare it, or remove it in the admin", note=known)
            return
        job_name = entry.job_name if code is None else code.call.definition.name
        definition, payload = self._definition(job_name), entry.payload if code else entry.effective_payload
        if isinstance(definition, str):
            self._add(row, "cron", definition, _cure_of_name(job_name))
            return
        if payload is not None and (problem := misfit(definition, json.dumps(payload))):
            cure = "correct it in the admin"
            match payload:
                case {"args": list(args), "kwargs": dict(kwargs)}:
                    cure = _cure_of_arguments(definition, len(args), list(kwargs))
            self._add(row, "cron", problem, cure)
        try:
            expression = entry.expression or (code.expression if code else entry.declared_expression)
            schedule_of(expression, entry.zone or (code.zone if code and code.zone else entry.declared_zone))
        except InvalidCron as error:
            self._add(row, "cron", str(error), "correct it in the admin")

    def _judge_events(self) -> None:
        unread = EventState.objects.using(self.using).filter(sent_at__isnull=False, read_at=None)
        texts = unread.exclude(name__startswith=BUILT_IN).defer("payload").annotate(text=Cast("payload", TextField()))
        for row in _walk(texts):
            self.seen.events += 1
            try:
                problem = problem_of_payload(row.name, decode_result(row.text or "null"))
            except UnreadablePayload as error:
                problem = str(error)
            if problem:
                cure = "withdraw it and send another, or accept both"
                self._add(_Row(row.name.partition(":")[0], row.name), "event_payload", problem, cure)


class _Row:
    """One row that is no job."""

    jobs, seconds = 1, 0.0

    def __init__(self, name: str, key: str = "") -> None:
        self.name, self.ids = name, [key or name]


def _walk(rows: Any) -> Iterator[Any]:
    """Yield rows whose key is their name, some at a time."""
    last: str | None = None
    while some := list((rows if last is None else rows.filter(name__gt=last)).order_by("name")[:SLICE]):
        yield from some
        last = some[-1].name


def misfit(definition: JobPolicy, payload: str, headers: str | None = None) -> str:
    """Return why a worker with this code would park a job with these arguments; empty if it would run it."""
    try:
        definition._load(payload)
        if headers:
            decode_result(headers)
    except UnreadablePayload as error:
        return str(error)
    return ""


def _samples(group: WaitingJobs) -> list[int]:
    """Return the ids of jobs whose values matter: all of ``ids`` where they are tagged, else one or none."""
    if group.tagged:
        return group.ids
    return group.ids[:1] if group.headed or group.limited == "keyed" else []


def _without_results(payload: str) -> str:
    """Return the payload with null for results of others, which a flow passes on before the job runs."""
    if TAG not in payload:
        return payload
    try:
        return json.dumps(json.loads(payload, object_hook=lambda found: None if found.keys() == {TAG} else found))
    except (ValueError, RecursionError):  # SQL wrote it: as it is, ``misfit`` says why it cannot be read
        return payload


def _other_key(definition: JobPolicy, sample: JobSample) -> bool:
    try:
        args, kwargs = definition._load(sample.payload)
        return definition._limit_key(definition._plan, tuple(args), kwargs) != sample.limit_key
    except (InvalidJob, UnreadablePayload):
        return False


def _cure_of_name(name: str) -> str:
    last, names = name.rpartition(".")[2], registry.names()
    close = [each for each in names if each.rpartition(".")[2] == last] or get_close_matches(name, names, n=1)
    on = f"on {close[0]}" if close else "on the job that takes over"
    return f'write aliases=["{name}"] {on}, or keep name="{name}"'


def _naming(memo: WaitingMemos) -> str:
    if memo.kind in ("event", "version"):
        return f'context.{"wait_for" if memo.kind == "event" else memo.kind}("{memo.memo}", …)'
    call, end = ("step.using", ")(…)") if memo.kind == MemoKind.STEP else (memo.kind, ", …)")
    return f'context.{call}(name="{memo.memo}"{end}'


def _cure_of_arguments(definition: JobPolicy, args: int, kwargs: list[str]) -> str:
    """Return how the function would take these arguments."""
    parameters = definition._signature.parameters.values()
    kinds, positional = {p.kind for p in parameters}, [p for p in parameters if p.kind <= _EITHER]
    given = {*(p.name for p in positional[:args]), *kwargs}
    taken = {p.name for p in parameters if p.kind in (_EITHER, Parameter.KEYWORD_ONLY)}
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    missing = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic and p.name not in given]
    surplus = [] if Parameter.VAR_KEYWORD in kinds else sorted({*kwargs} - taken)
    parts = [*(f"give parameter {n} a default" for n in missing), *(f"take parameter {n} again" for n in surplus)]
    if args > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        parts.append(f"take {args} positional arguments again, or *args")
    return "; ".join(parts)
