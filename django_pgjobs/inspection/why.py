"""Why a job does not run, or what happens to it: one sentence, and another with advice.

``of`` reads the facts at one instant, by the database's clock; ``reason`` is pure and turns them into sentences.
Text from the row is untrusted; callers escape it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from django.utils.translation import gettext as _

from django_pgjobs.conf import get_conf
from django_pgjobs.inspection.blockers import Blocker, blockers_of
from django_pgjobs.inspection.ended import ENDED, words_of
from django_pgjobs.inspection.liveness import LIVE, sleeps
from django_pgjobs.inspection.ready import not_due, of_ready, paused
from django_pgjobs.inspection.words import Reason, by_whom, clock_time, quoted, since, span, tries
from django_pgjobs.states import EXPIRED, JobState
from django_pgjobs.store import explaining, memos, turns
from django_pgjobs.store.database import on
from django_pgjobs.store.explaining import Needs, WhyFacts
from django_pgjobs.store.installation import HELD_IN_A_COPY
from django_pgjobs.store.turns import OutOfTurn

_NOT_DECLARED = re.compile(r"No job named .* is known to this process(?!:)", re.DOTALL)
"""Why a job is parked whose name nothing declares; after a colon it says which import failed."""


def of(job_id: int, using: str) -> Reason:
    """Return the reason for the job ``job_id`` in the database ``using``. Takes no lock; repeatable."""
    conf = get_conf()
    facts = explaining.read_why(on(using), job_id, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds)
    if facts is None:
        return unknown(job_id)
    if facts.state == JobState.BLOCKED and not facts.ending:
        turn = turns.read_turn(on(using), job_id)
        if turn is not None:
            return _unstarted(facts, _out_of_turn(facts, turn))
        return _unstarted(facts, _waiting(facts, explaining.read_needs(on(using), job_id)))
    if facts.run_at > facts.now and not facts.ending and facts.state in (JobState.READY, JobState.LIMITED):
        suspension = memos.read_suspension(on(using), job_id)
        if suspension is not None:
            return words_of(job_id, facts.now, suspension)
    limited = facts.state == JobState.LIMITED and facts.run_at <= facts.now and not facts.pauses
    return reason(facts, blockers_of(job_id, facts.name, facts.queue, using) if limited else ())


def unknown(job_id: int) -> Reason:
    """Return the reason for a job that does not exist."""
    return Reason(
        "unknown",
        _("There is no job %(id)s: it was pruned, its registration is not committed, or it is in another database.")
        % {"id": job_id},
    )


_CALLBACKS = {"cancelled": "on_cancel", "succeeded": "on_success"}


def reason(facts: WhyFacts, blockers: Sequence[Blocker] = ()) -> Reason:
    """Turn the facts into a reason; ``blockers`` are the limits without room that hold the job."""
    if facts.state in ENDED:
        return ENDED[facts.state](facts)
    return _unstarted(facts, _unexpired(facts, blockers))


def _unstarted(facts: WhyFacts, found: Reason) -> Reason:
    if facts.expires_at is not None and facts.attempt == 0 and facts.state != JobState.RUNNING and not facts.ending:
        return _expiring(facts, found)
    return found


def _expiring(facts: WhyFacts, found: Reason) -> Reason:
    at = facts.expires_at or facts.now
    if at > facts.now:
        words = {"at": clock_time(at), "time": span((at - facts.now).total_seconds())}
        text = _("If it has not started by %(at)s, in %(time)s, it expires and is cancelled.")
        return Reason(found.code, f"{found.text} {text % words}", found.advice)
    text = _("It expired %(ago)s ago, before it started.") % {"ago": since(facts, at)}
    if not (facts.live or sleeps()):
        advice = _("No worker that could end it was heard from lately: manage.py runjobs")
        return Reason(EXPIRED, text, advice)
    return Reason(EXPIRED, f"{text} " + _("The leader ends it as cancelled within seconds."))


def _unexpired(facts: WhyFacts, blockers: Sequence[Blocker]) -> Reason:
    if facts.state == JobState.LIMITED:
        found = _limited(facts, blockers)
    else:
        found = _running(facts) if facts.state == JobState.RUNNING else _held(facts)
    if not facts.ending:
        return found
    words = {"callback": _CALLBACKS.get(facts.ending, "on_abandon"), "state": _(facts.ending)}
    left = _("Only its end is left: %(callback)s, if it has one; then it is %(state)s.") % words
    return Reason("callback", f"{left} {found.text}", found.advice)


# Claimed


def _running(facts: WhyFacts) -> Reason:
    worker = facts.worker_name or _("that is not known")
    words = {"worker": worker, "ago": since(facts, facts.claimed_at), "tries": tries(facts)}
    if facts.lease_expires_at is None or facts.lease_expires_at <= facts.now:
        return _lost(facts, worker)
    text = _("Worker %(worker)s claimed it %(ago)s ago, %(tries)s.") % words
    beat = {"beat": since(facts, facts.worker_beat_at), "lease": clock_time(facts.lease_expires_at)}
    if facts.cancel_requested_at is not None:
        text += " " + _cancelling(facts)
    if facts.release_requested_at is not None:
        text += " " + _("It was asked to release the job.")
    if facts.worker_status not in LIVE:
        silent = _(
            "It was last heard from %(beat)s ago; unless it renews its lease, another worker rescues the job at "
            "%(lease)s."
        )
        return Reason("silent", f"{text} {silent % beat}", _help(facts))
    if facts.cancel_requested_at is not None:
        return Reason("cancelling", text, _stronger(facts))
    if facts.release_requested_at is not None:
        return Reason("releasing", text)
    if facts.suspect is not None and facts.suspects_since is not None:
        return _suspect(facts, worker)
    if facts.overdue_at is not None and facts.overdue_at <= facts.now:
        late = _("Its time ran out %(late)s ago, and its worker is stopping it.")
        return Reason("overdue", f"{text} " + late % {"late": since(facts, facts.overdue_at)})
    lease = _("It was last heard from %(beat)s ago, and its lease runs until %(lease)s.")
    return Reason("running", f"{text} {lease % beat}")


def _suspect(facts: WhyFacts, worker: str) -> Reason:
    """An executor died with it. Its time counts from its new start, which the row does not know."""
    words = {"worker": worker, "at": clock_time(facts.suspects_since or facts.now), "tries": tries(facts)}
    if facts.suspect == "pending":
        text = _(
            "It has not started again: an executor of worker %(worker)s died with it, %(tries)s, and may have died of "
            "it. The worker runs such suspects alone since %(at)s, one group after the other; it waits for its turn."
        )
    else:
        text = _(
            "It runs again, apart from other jobs: an executor of worker %(worker)s died with it, %(tries)s, and may "
            "have died of it. The worker runs such suspects alone since %(at)s; others start beside it after a while."
        )
    return Reason("suspect", text % words)


def _lost(facts: WhyFacts, worker: str) -> Reason:
    if facts.lease_expires_at is None:
        text = _("It is claimed, but no claim names it: the leader finds such jobs, and a worker rescues them.")
        return Reason("lost", text, _help(facts))
    words = {"worker": worker, "ago": since(facts, facts.lease_expires_at)}
    text = _("Worker %(worker)s claimed it and lost it: its lease ran out %(ago)s ago.") % words
    return Reason("lost", text, _help(facts))


def _help(facts: WhyFacts) -> str:
    """Say which worker rescues the job, if one lives."""
    others = facts.live - (facts.worker_status in LIVE)
    if others > 0:
        return _("A worker rescues it within seconds of that, unless a transaction holds the row's lock.")
    return _("No other worker that could rescue it was heard from lately: manage.py runjobs")


def _cancelling(facts: WhyFacts) -> str:
    words = {
        "ago": since(facts, facts.cancel_requested_at),
        "mode": facts.cancel_mode or "ask",
        "by": by_whom(facts.cancel_by),
        "why": quoted(facts.cancel_reason),
    }
    return _("Its cancel (%(mode)s) was requested %(ago)s ago%(by)s%(why)s.") % words


def _stronger(facts: WhyFacts) -> str:
    stronger = {"ask": "interrupt", "interrupt": "kill"}.get(facts.cancel_mode or "ask")
    return _("If it does not stop: ") + f"manage.py pgjobs cancel {facts.id} --mode {stronger}" if stronger else ""


# Held, or not claimed yet


def _held(facts: WhyFacts) -> Reason:
    return _HELD.get(facts.state, _other)(facts) if facts.state != "ready" else of_ready(facts)


def _other(facts: WhyFacts) -> Reason:
    words = {"state": facts.state, "why": quoted(facts.hold_reason)}
    return Reason(
        "held", _("It is held (%(state)s)%(why)s.") % words, _("Newer code held it; look for the reason there.")
    )


def _waiting(facts: WhyFacts, needs: Needs | None = None) -> Reason:
    if needs is None:
        return Reason("blocked", _("It waits for another job%(why)s.") % {"why": quoted(facts.hold_reason)})
    words = {"pending": needs.pending, "total": needs.total}
    if needs.eager:
        ids = ", ".join(f"#{job_id}" for job_id in needs.first) + (", …" if needs.pending > len(needs.first) else "")
        text = _("It waits for %(pending)d of the %(total)d jobs that it needs: %(ids)s.")
        advice = _("To run it all the same: ") + f"manage.py pgjobs unblock {facts.id}"
        return Reason("blocked_by_jobs", text % {**words, "ids": ids}, advice)
    text = _("It waits for %(pending)d of its %(total)d members.") % words
    if facts.cancel_requested_at is not None:
        return Reason("blocked_by_members", text + " " + _cancelling(facts))
    if needs.is_open:
        text += " " + _("It is open for more.")
        advice = _("If no more are added: ") + f"manage.py pgjobs close-batch {facts.id}"
        return Reason("blocked_by_members", text, advice)
    advice = _("To end it by its figures so far: ") + f"manage.py pgjobs unblock {facts.id}"
    return Reason("blocked_by_members", text, advice)


def _out_of_turn(facts: WhyFacts, turn: OutOfTurn) -> Reason:
    most = turn.waiting == turns.MOST_COUNTED
    words = {
        "sequence": turn.sequence,
        "ids": ", ".join(f"#{job_id}" for job_id in turn.front),
        "waiting": f"{turn.waiting}+" if most else str(turn.waiting),
        "first": turn.first,
    }
    text, advice = _("It waits for its turn in the sequence %(sequence)s."), ""
    if any(turn.abandoned):
        text += " " + _("The sequence waits for what becomes of an abandoned job: %(ids)s.")
        advice = _("Retry that, or let the next one pass it: ") + f"manage.py pgjobs unblock {turn.first or facts.id}"
    elif turn.front:
        text += " " + _("It is the turn of %(ids)s, which has not ended.")
    if turn.waiting:
        text += " " + _("Before it %(waiting)s more wait, first #%(first)s.")
    return Reason("out_of_turn", text % words, advice)


def _parked(facts: WhyFacts) -> Reason:
    if facts.hold_reason.startswith(HELD_IN_A_COPY):
        text = _("It is parked since its database, a copy, was adopted%(why)s.")
        return Reason("parked", text % {"why": quoted(facts.hold_reason)}, _("Retry or cancel the job."))
    text = _("It is parked because the code of the worker that claimed it cannot run it%(why)s.")
    if _NOT_DECLARED.match(facts.hold_reason):
        advice = _(
            "Workers import jobs.py of each app and the modules of MODULES, and find tasks if TASKS names "
            "PgJobsBackend: declare the job there, or add this name to the aliases of another job, and deploy that; "
            "workers check every 30 s. Or cancel it."
        )
    else:
        advice = _("Deploy code that can; workers check every 30 s. Or retry or cancel the job.")
    return Reason("parked", text % {"why": quoted(facts.hold_reason)}, advice)


def _limited(facts: WhyFacts, blockers: Sequence[Blocker]) -> Reason:
    if facts.run_at > facts.now:
        return not_due(facts)
    if facts.pauses:
        return paused(facts)
    key = _(" for the key %(key)s") % {"key": facts.limit_key} if facts.limit_key else ""
    text = _("A limit of %(name)s%(key)s holds it%(why)s.")
    text = text % {"name": facts.name, "key": key, "why": quoted(facts.hold_reason)}
    for blocker in blockers:
        ids = ", ".join(f"#{job_id}" for job_id in blocker.job_ids)
        text += f" {blocker.words[:1].upper()}{blocker.words[1:]}" + (f" ({ids})." if ids else ".")
    return Reason("limited", text, _served(facts))


def _served(facts: WhyFacts) -> str:
    if not (facts.live or sleeps()):
        return _("No worker that could admit it was heard from lately: manage.py runjobs")
    return _("A worker admits it when there is room and its turn comes.")


def _paused(facts: WhyFacts) -> Reason:
    if facts.pauses:
        return paused(facts)
    return Reason("paused", _("A pause that is over still holds it."), _served(facts))


def _moving(facts: WhyFacts) -> Reason:
    text = _("It is in the middle of a move between two databases: %(what)s")
    advice = _("If no move is under way, run the same manage.py pgjobs move again: it completes this one.")
    return Reason("moving", text % {"what": facts.hold_reason}, advice)


_HELD: dict[str, Callable[[WhyFacts], Reason]] = {
    "blocked": _waiting,
    "parked": _parked,
    "paused": _paused,
    "moving": _moving,
}
