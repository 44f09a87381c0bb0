"""Jobs that fail, or that something holds: names whose attempts fail, parked, limited, paused and unapproved jobs.

The sums of the workers show what fails, so retries count from the first one on. All else is counted along an
index, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_pgjobs.definition.declared_limits import declared, numbers, subject
from django_pgjobs.diagnosis.problem import MANY, NAMED, HealthProblem, Limits
from django_pgjobs.inspection.words import grouped, span
from django_pgjobs.models import QueueState
from django_pgjobs.states import Hold, Outcome
from django_pgjobs.store import claiming, counting, limiting, troubles
from django_pgjobs.store.database import Database

RECENT_SECONDS = 300.0
"""Time span of attempts that show whether a name fails now."""

LEAST_FAILED = 3
"""With fewer failures nothing fails; with fewer attempts lately, older ones of the last hour are asked, too."""

HOUR = 3600.0
MOST_MINUTES = 50_000


def problems(db: Database, using: str, limits: Limits) -> Iterator[HealthProblem]:
    """Yield problems and notes. ``db`` and the alias ``using`` are one connection."""
    yield from _failing(db, limits)
    pairs = [pair for pair in troubles.list_held_pairs(db) if limits.count(pair[0])]
    held = troubles.count_held(db, pairs, most=limits.most)
    yield from _parked(db, held, limits)
    yield from _limited(held, limits)
    yield from _overridden(db, limits)
    yield from _paused(db, using, held, limits)
    yield from _moving(held)
    if any(each.hold == Hold.BLOCKED for each in held):
        yield from _held_up(db, limits)
    yield from _retrying(db, held, limits)
    yield from _abandoned(db, limits)
    if limits.queues is None:
        yield from _unapproved(db, limits)


def _failing(db: Database, limits: Limits) -> Iterator[HealthProblem]:
    """Yield the names of which most of the latest attempts failed, whether they are tried again or not."""
    found = troubles.list_failing(
        db, share=limits.max_failing / 100, least=LEAST_FAILED, recent_seconds=RECENT_SECONDS, seconds=HOUR,
        most=MOST_MINUTES, limit=NAMED * 2,
    )  # fmt: skip
    for each in [one for one in found if limits.count(one.queue)][:NAMED]:
        many = f"{grouped(each.failed)} of {grouped(each.attempts)} attempts"
        words = f"{each.name} fails in queue {each.queue}: {many} failed within the last {span(each.seconds)}."
        # A job that gave up stays abandoned, while its earlier attempts count as tried again forever.
        state = Outcome.ABANDONED.value if each.failed > each.retried else "retrying"
        yield HealthProblem("failing", words, each.queue, f"{each.queue}:{each.name}", each.name, list=state)


def _parked(db: Database, held: list[troubles.HeldName], limits: Limits) -> Iterator[HealthProblem]:
    """Yield the queues with parked jobs, and which worker parked one of them."""
    parked = [each for each in held if each.hold == Hold.PARKED]
    if not parked:
        return
    is_note = sum(each.jobs for each in parked) <= limits.max_parked
    shown = sorted(parked, key=lambda each: -each.jobs)[:NAMED]
    said = troubles.list_parked(db, [each.queue for each in shown])
    for each in shown:
        job_id, why = said.get(each.queue, (0, ""))
        words = f"In queue {each.queue} {_jobs(each.jobs, more=each.more)} parked, as the code of a worker cannot run "
        words += "them" if each.jobs > 1 else "it"
        words += f"; of #{job_id}: {why}" if why else "."
        yield _held("parked", words, each.queue, is_note=is_note)


def _limited(held: list[troubles.HeldName], limits: Limits) -> Iterator[HealthProblem]:
    limited = sorted((each for each in held if each.hold == Hold.LIMITED), key=lambda each: -each.jobs)
    for each in limited[:NAMED]:
        since = "" if each.seconds is None else f"; the first could have run {span(each.seconds)} ago"
        words = f"In queue {each.queue} {_jobs(each.jobs, more=each.more)} held by limits{since}."
        yield _held("limited", words, each.queue, is_note=(each.seconds or 0.0) <= limits.max_limited)


def _overridden(db: Database, limits: Limits) -> Iterator[HealthProblem]:
    """Yield a note for each limit that an operator has set in place of the code's."""
    for each in limiting.read_limits(db)[:NAMED]:
        queue = each.name if each.kind == "queue" else None
        if queue is not None and not limits.count(queue):
            continue
        said, code = numbers(each.concurrency, each.rate, each.per), declared(each.kind, each.name)
        by = each.set_by[:100] or "an operator"
        until = "" if each.until is None else f" until {each.until.isoformat(' ', 'seconds')}"
        idle = "" if code.applies else ", which has no job that it could count"
        words = f"The limit of {subject(each.kind, each.name)} is {said}, set by {by}{until}; {code.words}{idle}."
        yield HealthProblem("limit_set", words, queue, f"{each.kind}:{each.name}", is_note=True)


def _paused(db: Database, using: str, held: list[troubles.HeldName], limits: Limits) -> Iterator[HealthProblem]:
    """Yield each pause, and paused jobs that no pause explains any more."""
    now = counting.read_statistic(db).now
    pauses = QueueState.objects.using(using).current().order_by("paused_at", "name")
    for each in pauses[:NAMED]:
        if each.kind == QueueState.Kind.QUEUE and not limits.count(each.name):
            continue
        seconds = max((now - each.paused_at).total_seconds(), 0.0)
        what = f"Queue {each.name} is" if each.kind == QueueState.Kind.QUEUE else f"Jobs named {each.name} are"
        by = f" by {each.paused_by[:100]}" if each.paused_by else ""
        why = f": {each.reason[:200]}" if each.reason else "."
        words = f"{what} paused{by} for {span(seconds)}{why}"
        yield HealthProblem(
            "paused", words, each.name if each.kind == QueueState.Kind.QUEUE else None, f"{each.kind}:{each.name}",
            is_note=each.until is not None or seconds <= limits.max_paused,
        )  # fmt: skip
    for part in [each for each in held if each.hold == Hold.PAUSED][:NAMED]:
        words = f"In queue {part.queue} {_jobs(part.jobs, more=part.more)} held by a pause of their name."
        yield _held("paused", words, part.queue, is_note=True)


def _moving(held: list[troubles.HeldName]) -> Iterator[HealthProblem]:
    for part in [each for each in held if each.hold == Hold.MOVING][:NAMED]:
        words = f"In queue {part.queue} {_jobs(part.jobs, more=part.more)} in the middle of a move to another database."
        yield _held("moving", words, part.queue, is_note=True)


def _held_up(db: Database, limits: Limits) -> Iterator[HealthProblem]:
    """Yield the queues with abandoned jobs that hold up the sequences in which they are."""
    found = dict[str, list[troubles.HeldUp]]()
    for each in troubles.list_held_up(db, most=MANY):
        if limits.count(each.queue):
            found.setdefault(each.queue, []).append(each)
    for queue, ups in sorted(found.items(), key=lambda each: -len(each[1]))[:NAMED]:
        names = ", ".join(f"#{each.job_id} of {each.sequence[:50]}" for each in ups[:NAMED])
        what = "sequences are held up, each" if ups[1:] else "sequence is held up"
        words = f"In queue {queue} {grouped(len(ups))} {what} by an abandoned job, the first for {span(ups[0].seconds)}"
        yield HealthProblem(
            "held_up", f"{words}: {names}. Retry that job, or unblock the one behind it.", queue, queue, list="blocked"
        )


def _retrying(db: Database, held: list[troubles.HeldName], limits: Limits) -> Iterator[HealthProblem]:
    pairs = claiming.list_pairs(db)
    jobs = dict[str, int]()
    more = set[str]()
    for each in counting.count_retrying(db, pairs, most=max(limits.most // max(len(pairs), 1), 10)):
        jobs[each.queue] = jobs.get(each.queue, 0) + each.jobs
        more |= {each.queue} if each.more else set()
    for part in held:
        jobs[part.queue] = jobs.get(part.queue, 0) + part.retrying
        more |= {part.queue} if part.more and part.retrying else set()
    counted = sorted(((queue, n) for queue, n in jobs.items() if n and limits.count(queue)), key=lambda each: -each[1])
    for queue, number in counted[:NAMED]:
        words = f"In queue {queue} {_jobs(number, more=queue in more)} to be tried again after a failure."
        yield _held("retrying", words, queue, is_note=True)


def _abandoned(db: Database, limits: Limits) -> Iterator[HealthProblem]:
    most = limits.max_abandoned
    found = counting.count_ended(db, [Outcome.ABANDONED], seconds=limits.since, most=most + 1)
    counted = [part for part in found if limits.count(part.queue)]
    number = sum(part.jobs for part in counted)
    if not number:
        return
    within = f"within {span(limits.since)}"
    if number > most:
        yield HealthProblem("abandoned", f"More than {grouped(most)} jobs were abandoned {within}.", list="abandoned")
    else:
        were = "job was" if number == 1 else "jobs were"
        words = f"{grouped(number)} {were} abandoned {within}."
        yield HealthProblem("abandoned", words, is_note=True, list="abandoned")


def _unapproved(db: Database, limits: Limits) -> Iterator[HealthProblem]:
    found = troubles.count_events(db, most=limits.most)
    if not found.jobs:
        return
    since = "" if found.seconds is None else f", the first for {span(found.seconds)}"
    waits = "job waits" if found.jobs == 1 else "jobs wait"
    words = (
        f"{'At least ' if found.more else ''}{grouped(found.jobs)} {waits} for an event, such as an approval{since}."
    )
    yield HealthProblem("waiting_for_event", words, is_note=(found.seconds or 0.0) <= limits.max_event)


def _held(code: str, words: str, queue: str, *, is_note: bool) -> HealthProblem:
    return HealthProblem(code, words, queue, queue, is_note=is_note, list=code)


def _jobs(number: int, *, more: bool) -> str:
    many = f"{grouped(number)} jobs are" if number > 1 else "1 job is"
    return f"at least {many}" if more else many
