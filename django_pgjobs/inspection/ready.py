"""Reasons of jobs that are ready and do not run: not due, paused, without a worker, or behind others. Pure."""

from __future__ import annotations

import shlex

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.inspection.liveness import sleeps
from django_pgjobs.inspection.words import Reason, by_whom, clock_time, quoted, since, span, tries
from django_pgjobs.store import explaining
from django_pgjobs.store.explaining import Paused, WhyFacts

SOON_SECONDS = 10.0
"""A worker with free slots claims the next due job within this time, or something is wrong."""


def of_ready(facts: WhyFacts) -> Reason:
    """Return what a ready job waits for."""
    if facts.run_at > facts.now:
        return not_due(facts)
    if facts.pauses:
        return paused(facts)
    if not facts.serving:
        return _unserved(facts)
    words = {
        "ago": since(facts, facts.ready_since),
        "running": facts.running,
        "slots": facts.slots,
        "queue": facts.queue,
    }
    if facts.benched == facts.serving and facts.benched_since is not None:
        text = _(
            "It has been due for %(ago)s, but an executor died, and the workers of queue %(queue)s have only one: they "
            "run suspects alone since %(at)s."
        )
        advice = _("Others start beside them after a while; more workers or --processes would run it sooner.")
        return Reason("bench", text % {**words, "at": clock_time(facts.benched_since)}, advice)
    if facts.crowded and facts.crowded == facts.serving:
        text = _(
            "It has been due for %(ago)s, but the workers of queue %(queue)s run as many jobs at once as its places "
            "allow: %(places)d. %(ahead)s"
        )
        words |= {"places": facts.places, "ahead": _ahead(facts)}
        advice = _("It runs when its turn comes; more places (--places, PLACES) or workers would run it sooner.")
        return Reason("places", text % words, advice)
    if facts.running >= facts.slots:
        text = _(
            "It has been due for %(ago)s, but the workers of queue %(queue)s are busy: at their last heartbeats they "
            "ran %(running)d jobs in %(slots)d threads. %(ahead)s"
        )
        words["ahead"] = _ahead(facts)
        return Reason("busy", text % words, _("It runs when its turn comes; more workers would run it sooner."))
    if facts.ahead:
        return Reason("behind", _("It has been due for %(ago)s.") % words + " " + _ahead(facts))
    text = _("It has been due for %(ago)s and is the next to be claimed.") % words
    late = (facts.now - facts.ready_since).total_seconds() > SOON_SECONDS
    advice = _("If it stays due, find out who holds its row's lock, and read the workers' logs.") if late else ""
    return Reason("next", f"{text} {_last_beat(facts)}", advice)


def _ahead(facts: WhyFacts) -> str:
    if facts.ahead > explaining.MOST_COUNTED:
        return _("More than %(most)d due jobs of its queue go first.") % {"most": explaining.MOST_COUNTED}
    text = ngettext(
        "%(jobs)d due job of its queue goes first.", "%(jobs)d due jobs of its queue go first.", facts.ahead
    )
    return text % {"jobs": facts.ahead}


def _last_beat(facts: WhyFacts) -> str:
    """Say which workers serve its queue, and when one was last heard from."""
    text = ngettext(
        "%(serving)d worker of queue %(queue)s was heard from lately, %(beat)s ago.",
        "%(serving)d workers of queue %(queue)s were heard from lately, the last %(beat)s ago.",
        facts.serving,
    )
    return text % {"serving": facts.serving, "queue": facts.queue, "beat": since(facts, facts.served_beat_at)}


def not_due(facts: WhyFacts) -> Reason:
    """Say when it is due, and what it waits for until then."""
    words = {
        "at": clock_time(facts.run_at),
        "time": span((facts.run_at - facts.now).total_seconds()),
        "tries": tries(facts),
    }
    advice = _("To run it now: ") + f"manage.py pgjobs reschedule {facts.id} --delay 0"
    if facts.attempt:
        words["why"] = quoted(facts.error)
        return Reason("retrying", _("After %(tries)s it is tried again at %(at)s, in %(time)s%(why)s.") % words, advice)
    return Reason("scheduled", _("It is not due: it runs at %(at)s, in %(time)s.") % words, advice)


def paused(facts: WhyFacts) -> Reason:
    """Say what is paused: its queue, its name, or both."""
    pauses = [_of_pause(facts, pause) for pause in facts.pauses]
    advice = " && ".join(command for _text, command in pauses)
    return Reason("paused", " ".join(text for text, _command in pauses), _("When that is over: ") + advice)


def _of_pause(facts: WhyFacts, pause: Paused) -> tuple[str, str]:
    what = _("Its queue %(name)s") if pause.kind == "queue" else _("Its name %(name)s")
    name = facts.queue if pause.kind == "queue" else facts.name
    words = {
        "what": what % {"name": name},
        "ago": since(facts, pause.paused_at),
        "by": by_whom(pause.by),
        "until": " " + _("until %(at)s") % {"at": clock_time(pause.until)} if pause.until else "",
        "why": quoted(pause.reason),
    }
    text = _("%(what)s was paused %(ago)s ago%(by)s%(until)s%(why)s.") % words
    # A name may be anything, and people paste what they read into a shell.
    option = shlex.quote(name) if pause.kind == "queue" else f"--job {shlex.quote(name)}"
    return text, f"manage.py pgjobs resume {option}"


def _unserved(facts: WhyFacts) -> Reason:
    words = {"ago": since(facts, facts.ready_since), "queue": facts.queue, "live": facts.live}
    if facts.quiet:
        text = (
            _(
                "It has been due for %(ago)s, but every worker of queue %(queue)s that was heard from lately is "
                "draining, or quiet because an operator asked for that."
            )
            if facts.draining
            else _(
                "It has been due for %(ago)s, but every worker of queue %(queue)s that was heard from lately is "
                "quiet: an operator asked it to claim nothing."
            )
        )
        return Reason("quiet", text % words, _("When that is over: ") + "manage.py pgjobs workers resume NAME")
    if facts.draining:
        text = _(
            "It has been due for %(ago)s, but every worker of queue %(queue)s that was heard from lately is draining."
        )
        return Reason("draining", text % words, _("Start another: manage.py runjobs"))
    if facts.live:
        text = ngettext(
            "It has been due for %(ago)s, but the only worker that was heard from lately does not serve queue "
            "%(queue)s.",
            "It has been due for %(ago)s, but none of the %(live)d workers that were heard from lately serves queue "
            "%(queue)s.",
            facts.live,
        )
        advice = _("Start one that does, or move the job: ")
        return Reason("not_served", text % words, f"{advice}manage.py pgjobs reschedule {facts.id} --to-queue NAME")
    beat = ""
    if facts.last_beat_at is not None:
        beat = " " + _("(the last %(ago)s ago)") % {"ago": since(facts, facts.last_beat_at)}
    text = _("It has been due for %(ago)s, but no worker was heard from lately") % words
    advice = _("Start one: manage.py runjobs")
    if sleeps():
        advice = _("A worker for many schemas comes to this one within seconds. Does none run? manage.py runjobs")
    return Reason("no_worker", f"{text}{beat}.", advice)
