"""The drawings of the documentation. Each is made from what the code says where the code says it: states, rungs, times.

``python docs/_ext/drawings.py`` writes the one that the README shows; a test compares it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))

from drawing import Picture  # noqa: E402

from django_pgjobs.conf import LADDER_SECONDS  # noqa: E402
from django_pgjobs.maintenance.leader import ASK_SECONDS, TERM_SECONDS  # noqa: E402
from django_pgjobs.worker.shared import ladders  # noqa: E402

WIDTH = 760


def states() -> Picture:
    """Every state and every transition. What leads from or to a frame leads from or to each state in it."""
    drawn = Picture(WIDTH, 500, "The states of a job and what may follow each, as in the table on the page of states")
    lanes = ((6, 162, "held back"), (206, 162, "waits its turn"), (440, 142, "claimed"), (604, 150, "ended"))
    for x, width, name in lanes:
        drawn.box(x, 8, width, 460, kind="lane")
        drawn.text(x + width / 2, 28, name, bold=True)
    drawn.box(18, 114, 138, 202, kind="frame")
    drawn.box(26, 122, 122, 126, kind="frame")
    drawn.box(38, 134, 98, 40, "parked", kind="strong")
    drawn.box(38, 196, 98, 40, "paused", kind="strong")
    drawn.box(38, 264, 98, 40, "blocked", kind="strong")
    drawn.box(38, 404, 98, 40, "moving", kind="strong")
    drawn.box(226, 122, 122, 166, kind="frame")
    drawn.box(238, 146, 98, 40, "ready", kind="strong")
    drawn.box(238, 236, 98, 40, "limited", kind="strong")
    drawn.box(462, 146, 98, 40, "running", kind="strong")
    drawn.box(618, 122, 122, 126, kind="frame")
    drawn.box(630, 134, 98, 40, "cancelled", kind="strong")
    drawn.box(630, 196, 98, 40, "abandoned", kind="strong")
    drawn.box(630, 296, 98, 40, "succeeded", kind="strong")

    stopped, queued, given_up = ("parked", "paused"), ("ready", "limited"), ("cancelled", "abandoned")
    held = (*stopped, "blocked")
    drawn.line((156, 210), (226, 210), of=product(held, queued))
    drawn.line((156, 140), (187, 140), (187, 62), (700, 62), (700, 122), of=product(held, given_up))
    drawn.line((262, 122), (262, 62), tip=False, of=product(queued, given_up))
    drawn.text(372, 54, "cancelled, given up, or its deadline has passed")
    drawn.line((656, 122), (656, 98), (310, 98), (310, 122), of=product(given_up, queued))
    drawn.text(478, 92, "an operator retries it")
    drawn.line((148, 236), (164, 236), (164, 412), (136, 412), of=product(stopped, ["moving"]))
    drawn.line((38, 424), (12, 424), (12, 186), (26, 186), of=product(["moving"], stopped))
    drawn.line((226, 260), (186, 260), (186, 424), (136, 424), of=product(queued, ["moving"]))
    drawn.line((136, 436), (200, 436), (200, 276), (226, 276), of=product(["moving"], queued))
    drawn.text(310, 440, "a move to another database")
    drawn.line((336, 158), (462, 158), of=[("ready", "running")])
    drawn.text(406, 150, "claim")
    drawn.line((462, 176), (348, 176), of=product(["running"], queued))
    drawn.text(405, 193, "retry,", "snooze,", "release")
    drawn.line((268, 186), (268, 236), of=[("ready", "limited")])
    drawn.line((306, 236), (306, 186), of=[("limited", "ready")])
    drawn.line((490, 186), (490, 312), (176, 312), (176, 228), (148, 228), of=product(["running"], stopped))
    drawn.text(322, 328, "cannot be run, or its name is paused")
    drawn.line((560, 158), (618, 158), of=product(["running"], given_up))
    drawn.line((530, 186), (530, 316), (630, 316), of=[("running", "succeeded")])
    drawn.line((740, 210), (750, 210), (750, 372), (87, 372), (87, 304), of=product(given_up, ["blocked"]))
    drawn.text(420, 390, "an operator retries what it waits for")
    note = "A line at a frame stands for each state in it: a job is limited, not ready, where a limit holds for it."
    drawn.text(8, 488, note, anchor="start")
    return drawn


THREADS = {
    "claim": "takes jobs",
    "finalise": "ends jobs",
    "keep": "renews leases",
    "maintenance": "rescue, cron",
    "listen": "hears NOTIFY",
    "admit": "applies limits",
}
"""The threads of a supervisor that have a connection of their own."""

WITHOUT_CONNECTION = {"main": "dispatches, stops", "log": "writes log records"}

TABLES = (
    ("jobs", ("pgjobs_job", "pgjobs_claim", "pgjobs_attempt", "pgjobs_stack", "pgjobs_step", "pgjobs_memo")),
    (
        "keys, limits, needs",
        ("pgjobs_key_window", "pgjobs_stored_result", "pgjobs_admission", "pgjobs_gate", "pgjobs_link"),
    ),
    (
        "cron, operators",
        ("pgjobs_cron_entry", "pgjobs_queue_state", "pgjobs_limit", "pgjobs_action", "pgjobs_action_part"),
    ),
    (
        "workers, events",
        (
            *("pgjobs_heartbeat", "pgjobs_known_job", "pgjobs_leader_term", "pgjobs_statistic", "pgjobs_event"),
            "pgjobs_log_line",
        ),
    ),
    (
        "numbers, notices",
        ("pgjobs_minute", "pgjobs_total", "pgjobs_depth", "pgjobs_notice", "pgjobs_installation", "pgjobs_import"),
    ),
)


def architecture() -> Picture:
    """Processes, threads, connections and tables."""
    drawn = Picture(WIDTH, 662, "Processes, threads, connections and tables: everything meets in PostgreSQL")
    drawn.box(8, 8, 300, 58, "your web processes", "register() in your transaction; the admin")
    drawn.box(322, 8, 264, 58, "manage.py pgjobs", "list, why, cancel, retry, pause, check")
    drawn.box(600, 8, 152, 58, "more workers", "on any host", kind="ghost")
    for x in (158, 454, 676):
        drawn.line((x, 66), (x, 108), both=True)

    drawn.box(8, 108, 744, 146, kind="frame")
    drawn.text(20, 129, "PostgreSQL", anchor="start", size=13, bold=True)
    drawn.text(740, 129, "the tables of this package, beside your own", anchor="end")
    for number, (name, tables) in enumerate(TABLES):
        x = 15 + number * 147
        drawn.box(x, 138, 142, 108)
        drawn.text(x + 71, 154, name, bold=True)
        drawn.text(x + 71, 170, *tables, mono=True, size=11)

    drawn.box(8, 296, 744, 358, kind="lane")
    drawn.box(18, 310, 628, 178, kind="frame")
    for number, (thread, does) in enumerate(THREADS.items()):
        x = 24 + number * 103
        drawn.line((x + 49, 330), (x + 49, 254), both=True)
        drawn.box(x, 330, 101, 46, thread, does)
    for number, (thread, does) in enumerate(WITHOUT_CONNECTION.items()):
        drawn.box(24 + number * 174, 428, 164, 46, thread, does)
    drawn.text(26, 402, "supervisor", anchor="start", bold=True, size=13)
    drawn.text(112, 402, "talks to the database, on a connection for each of these, and runs no job", anchor="start")
    drawn.box(666, 330, 80, 144, "watchdog", "ends the", "executors", "of a dead", "or frozen", "supervisor")

    for number, x in enumerate((18, 338)):
        drawn.box(x, 540, 310, 106, kind="frame")
        drawn.text(x + 302, 560, f"executor {number + 1}", anchor="end", bold=True, size=13)
        drawn.box(x + 8, 586, 94, 50, "control", "reads frames")
        drawn.box(x + 108, 586, 94, 50, "job threads", "your code")
        drawn.box(x + 208, 586, 94, 50, "event loop", "async jobs")
    drawn.line((73, 474), (73, 586), both=True)
    drawn.line((73, 522), (393, 522), (393, 586))
    drawn.text(86, 504, "a socket pair and a board in shared memory for each executor", anchor="start")
    drawn.line((706, 474), (706, 606), (648, 606), kind="faint")
    drawn.line((648, 566), (659, 566), (659, 246), both=True)
    drawn.text(667, 268, "connections", "of your jobs", anchor="start")
    drawn.text(742, 640, "a worker:", "runjobs", anchor="end", bold=True)
    return drawn


def life_of_a_claim() -> Picture:
    """From the registration to the end that counts, and what happens without renewals."""
    drawn = Picture(WIDTH, 576, "The life of a claim, from registering a job to its fenced end")
    code, database, supervisor, executor = 84, 290, 500, 690
    for x, name in ((code, "your code"), (database, "PostgreSQL"), (supervisor, "supervisor"), (executor, "executor")):
        drawn.box(x - 60, 8, 120, 32, name, kind="strong")
        drawn.line((x, 40), (x, 480), kind="grid", tip=False)
    steps: tuple[tuple[int, int, int, tuple[str, ...]], ...] = (
        (code, database, 84, ("INSERT the job, in", "your transaction")),
        (database, supervisor, 112, ("NOTIFY, behind the commit",)),
        (supervisor, database, 156, ("claim: a new claim_id,", "attempt + 1, a lease")),
        (supervisor, executor, 184, ("RUN",)),
        (supervisor, database, 244, ("renew the lease,", "again and again")),
        (executor, supervisor, 308, ("SUCCEEDED", "or DONE")),
        (supervisor, database, 352, ("finalise: id, claim_id", "match, no outcome yet")),
        (database, supervisor, 396, ("1 row: it has ended;", "0 rows: read how it stands")),
        (database, code, 424, ("NOTIFY those who wait",)),
        (supervisor, database, 468, ("delete the claim's row,", "after its last job")),
    )
    for start, end, y, rows in steps:
        drawn.line((start, y), (end, y))
        drawn.text((start + end) / 2, y - 6 - 15 * (len(rows) - 1), *rows)
    drawn.box(executor - 62, 206, 124, 62, "body", "the board shows", "that it runs")
    drawn.box(
        8, 492, 744, 76,
        "And if the worker dies, or is cut off?",
        "Nobody renews, so the lease runs out. Any other worker then rescues the job: it is ready again,",
        "or ends if it has no attempts left. A late write of the old claim matches no row.",
        kind="ghost",
    )  # fmt: skip
    return drawn


RUNGS = {ladders.FLAG: "flag", ladders.INTERRUPT: "interrupt", ladders.TERM: "SIGTERM", ladders.KILL: "SIGKILL"}
REASONS = {
    ladders.TIMEOUT: "its time is over",
    ladders.MEMORY: "too much memory",
    "ask": "cancelled, ask",
    "interrupt": "cancelled, interrupt",
    "kill": "cancelled, kill",
    ladders.RELEASED: "released",
    ladders.LOST: "lost to another claim",
}


def rungs_of(reason: str) -> list[tuple[float, str]]:
    """(seconds, rung) of a reason. At the end of its time ``remaining()`` is the flag, which needs no message."""
    own = list(ladders.LADDERS[reason])
    return [(0.0, ladders.FLAG), *own] if reason == ladders.TIMEOUT else own


def stopping() -> Picture:
    """Which rung comes when, by why a job is stopped."""
    left, scale, top, row = 206, 98, 52, 42
    last, bottom = int(LADDER_SECONDS), top + row * len(REASONS)
    drawn = Picture(WIDTH, bottom + 14, "The ladder of stopping: seconds from the reason to each rung")
    drawn.text(8, 26, "seconds", anchor="start", bold=True)
    for second in range(last + 1):
        x = left + second * scale
        drawn.text(x, 26, str(second), bold=True)
        drawn.line((x, 34), (x, bottom), kind="grid", tip=False)
    for number, (reason, said) in enumerate(REASONS.items()):
        y = top + number * row
        drawn.text(8, y + 19, said, anchor="start", size=13)
        for seconds, rung in rungs_of(reason):
            kind = {ladders.FLAG: "box", ladders.KILL: "alarm"}.get(rung, "strong")
            drawn.box(left + seconds * scale - 38, y, 76, 28, RUNGS[rung], kind=kind)
    return drawn


def leader_terms() -> Picture:
    """A leader that dies, and how the next one comes."""
    left, scale = 158, 37.0
    killed, ticks = 5.0, 16
    asks = [1.0 + ASK_SECONDS * number for number in range(int(ticks / ASK_SECONDS))]
    renewals = [ASK_SECONDS * number for number in range(int(killed // ASK_SECONDS) + 1)]
    ends = renewals[-1] + TERM_SECONDS
    taken = next(ask for ask in asks if ask >= ends)
    drawn = Picture(WIDTH, 262, "A leader renews its term until it dies; once that has run out another takes the next")

    def at(seconds: float) -> float:
        return left + seconds * scale

    def row(y: float, name: str, does: str) -> None:
        drawn.text(8, y, name, anchor="start", size=13, bold=True)
        drawn.text(8, y + 16, does, anchor="start")

    row(32, "worker A", "leads in term 7")
    row(112, "the row", "LeaderTerm")
    row(196, "worker B", "asks, then leads")
    drawn.box(at(0), 16, killed * scale, 28, "leads", kind="strong")
    drawn.text(at(killed) + 8, 35, "kill -9", anchor="start", bold=True)
    drawn.box(at(0), 98, ends * scale, 30, f"term 7, until {TERM_SECONDS:g} s after its last renewal")
    drawn.box(at(taken), 98, at(ticks) - at(taken), 30, "term 8")
    drawn.box(at(taken), 182, at(ticks) - at(taken), 28, "leads", kind="strong")
    for second in renewals:
        drawn.line((at(second) + 6, 44), (at(second) + 6, 98))
    drawn.text(at(renewals[-1]) + 14, 76, f"renews every {ASK_SECONDS:g} s", anchor="start")
    for ask in asks:
        if ask < taken:
            drawn.line((at(ask), 196), (at(ask), 128), kind="faint")
    drawn.line((at(taken) + 6, 182), (at(taken) + 6, 128))
    drawn.text(at(0), 214, f"asks every {ASK_SECONDS:g} s, a plain read: another leads", anchor="start")
    most = f"the next leads {TERM_SECONDS:g} + {ASK_SECONDS:g} s after the last renewal, or a moment later"
    drawn.text(at(0), 246, most, anchor="start")
    return drawn


def lock_order() -> Picture:
    """Who locks what, in which order, when a job that others wait for ends."""
    drawn = Picture(WIDTH, 348, "The order of locks: jobs, then gates by their ids, then the jobs that a gate unblocks")
    columns = ((24, "1  jobs", "in any order"), (284, "2  gates", "in the order of their ids"))
    for x, name, how in (*columns, (544, "3  unblocked jobs", "without waiting")):
        drawn.box(x - 16, 8, 232, 208, kind="lane")
        drawn.text(x + 100, 30, name, bold=True)
        drawn.text(x + 100, 48, how)
    for number, job in enumerate((17, 18)):
        y = 66 + number * 76
        drawn.box(24, y, 200, 52, f"job {job}", "its end is written, fenced", kind="strong")
        drawn.line((224, y + 26), (284, y + 26))
    drawn.box(284, 66, 200, 52, "gate of job 30", "pending 3 → 2", kind="strong")
    drawn.box(284, 142, 200, 52, "gate of job 31", "pending 1 → 0: it opens", kind="strong")
    drawn.line((484, 168), (544, 168))
    drawn.box(544, 142, 200, 52, "job 31", "its hold is lifted", kind="strong")
    rows = (
        ("job 17 is locked elsewhere", "its end is set aside and tried again; the others are written"),
        (
            "gate 30 is locked elsewhere",
            "after 100 ms the ends that count in it are set aside; the others are written",
        ),
        (
            "job 31 is locked elsewhere",
            "no one waits: its gate stays due, and a worker opens it within a second",
        ),
    )
    for number, (when, then) in enumerate(rows):
        y = 246 + number * 38
        drawn.text(8, y, f"{number + 1}", anchor="start", bold=True)
        drawn.text(26, y, when, anchor="start", bold=True)
        drawn.text(26, y + 16, then, anchor="start")
    return drawn


PICTURES = {each.__name__: each for each in (states, architecture, life_of_a_claim, stopping, leader_terms, lock_order)}


README_PICTURE = DOCS / "_static" / "architecture.svg"


def classes_of(style: str) -> str:
    """The rules of the documentation's style sheet that are for pictures, without their page."""
    return "\n".join(
        line.replace(".pgjobs-diagram ", "") for line in style.splitlines() if line.startswith(".pgjobs-diagram .pj-")
    )


def standalone(picture: Picture) -> str:
    """A picture as a file of its own, with the classes of the documentation's style sheet."""
    return picture.standalone(classes_of((DOCS / "_static" / "pgjobs.css").read_text(encoding="utf-8")))


def write(names: Iterable[str] = ("architecture",)) -> None:
    """Write pictures beside the style sheet, for pages that the documentation's build does not make."""
    for name in names:
        (DOCS / "_static" / f"{name}.svg").write_text(standalone(PICTURES[name]()), encoding="utf-8")


if __name__ == "__main__":
    write()
