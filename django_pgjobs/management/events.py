"""``manage.py pgjobs send-event`` and ``withdraw-event``: send an event for which jobs wait, and take it back."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.inspection import why
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job
from django_pgjobs.presentation.memos import awaited
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.steering import events
from django_pgjobs.steering.events import Sent, Withdrawn

WORDS = {
    Sent.SENT: "sent {event}",
    Sent.BEFORE: "{event} was sent before: the first one counts",
    Sent.BUSY: "{event} is locked by another transaction: try again",
}

WITHDRAWN_WORDS = {
    Withdrawn.WITHDRAWN: "withdrawn {event}",
    Withdrawn.KEPT: "{event} was not sent, or a job has read it",
    Withdrawn.BUSY: WORDS[Sent.BUSY],
}


def add_subcommands(subcommands: object) -> None:
    """Declare them."""
    text = "Send an event: jobs that wait for it continue, now or once they begin to wait. The first one counts."
    parser = filters.declare(subcommands, "send-event", databases.on_one(send_event, steers=True), text)
    name = "The event with its key, as in order.approval:7; an event of job 4711 alone is job:4711:NAME."
    parser.add_argument("event", metavar="EVENT", nargs="?", help=name)
    parser.add_argument("--job", metavar="ID", type=filters.row_id, help="Instead: the event that this job waits for.")
    payload = "The payload that jobs get, such as '{\"approved\": true}' (default: null)."
    parser.add_argument("--payload", metavar="JSON", default="", help=payload)
    filters.add_author(parser)
    filters.add_output(parser)

    text = "Take back an event that was sent, as long as no job has read it: jobs that wait for it continue to wait."
    parser = filters.declare(subcommands, "withdraw-event", databases.on_one(withdraw_event, steers=True), text)
    parser.add_argument("event", metavar="EVENT", help="The event with its key, as in order.approval:7.")
    filters.add_author(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept in the record of actions.")
    filters.add_output(parser)


def send_event(command: BaseCommand, options: Options) -> None:
    """Send it; exit with 1 if it was sent before, or if the job waits for none."""
    using = filters.database_of(options)
    if (options["event"] is None) == (options["job"] is None):
        raise CommandError("Name the event, or with --job the job that waits for it.", returncode=output.WRONG)
    try:
        payload = events.payload_of(options["payload"])
    except ValueError as error:
        raise CommandError(f"--payload is no JSON: {output.plain(one_line(error))}", returncode=output.WRONG) from None
    event = options["event"] if options["job"] is None else _awaited(command, options["job"], using)
    with output.refused(InvalidJob):
        sent = events.send_by_operator(using, event, payload, by=options["by"])
    _answer(command, options, event, "sent", WORDS[sent], done=sent is Sent.SENT)


def withdraw_event(command: BaseCommand, options: Options) -> None:
    """Take it back; exit with 1 if it was not sent, or if a job has read it."""
    using, event = filters.database_of(options), options["event"]
    with output.refused(InvalidJob):
        done = events.withdraw_by_operator(using, event, by=options["by"], reason=options["reason"])
    _answer(command, options, event, "withdrawn", WITHDRAWN_WORDS[done], done=done is Withdrawn.WITHDRAWN)


def _answer(command: BaseCommand, options: Options, event: str, key: str, words: str, *, done: bool) -> None:
    if options["format"] == "json":
        output.write_line(command, output.json_of({"event": event, key: done}))
    if options["format"] != "json" or not done:
        output.write_line(command, output.plain(words.format(event=one_line(event))), to_stderr=not done)
    output.exit_if(not done)


def _awaited(command: BaseCommand, job_id: int, using: str) -> str:
    event = awaited(job_id, using)
    if event is not None:
        return event
    there = Job.objects.using(using).filter(pk=job_id).exists()
    words = f"job {job_id} waits for no event" if there else str(why.unknown(job_id))
    output.fail(command, words)
