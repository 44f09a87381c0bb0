"""Run faults against the tests and list those that nobody notices.

    python -m tests.mutations --seed 7 --count 120              # choose, try, print survivors
    python -m tests.mutations --seed 7 --count 120 --list       # only show what would be tried
    python -m tests.mutations --retry report.jsonl              # the survivors of a report, once more

``--rounds near,workers`` leaves the long rounds out, ``--lanes 2`` is how many faults are tried at once, each with
a PostgreSQL server of its own. ``--report FILE`` gets a line of JSON a fault as soon as it is judged; a run that is
started again with the same file goes on where it was. Status 1 if anything survived. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from tests.mutations.faults import Fault, choose
from tests.mutations.trying import SECONDS, Lane, Verdict

ROUNDS = list(SECONDS)


def main() -> int:
    """Try faults; return the exit status."""
    options = _options()
    if options.retry:
        faults = [verdict.fault for verdict in _told(options.retry).values() if verdict.survived]
    else:
        faults = choose(options.seed, options.count)
    say(f"{len(faults)} faults, seed {options.seed}")
    if options.list:
        say("\n".join(map(str, faults)))
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    told = _told(options.report) if options.report else {}
    for round_ in options.rounds:
        left = [fault for fault in faults if fault not in told or _goes_on(told[fault], round_)]
        say(f"round {round_}: {len(left)} faults")
        told.update({verdict.fault: verdict for verdict in _judge_all(left, round_, options.lanes, options.report)})
    judged = [told[fault] for fault in faults if fault in told]
    survivors = [verdict.fault for verdict in judged if verdict.survived]
    say(f"\n{len(judged) - len(survivors)} of {len(judged)} faults were noticed (seed {options.seed}); the others:")
    for fault in survivors:
        say(str(fault))
    return 1 if survivors else 0


def _goes_on(verdict: Verdict, round_: str) -> bool:
    """Whether a fault that was judged before is still to be tried in this round."""
    return verdict.survived and ROUNDS.index(verdict.round) < ROUNDS.index(round_)


def _judge_all(faults: list[Fault], round_: str, lanes: int, report: Path | None) -> list[Verdict]:
    waiting: queue.SimpleQueue[Fault] = queue.SimpleQueue()
    for fault in faults:
        waiting.put(fault)
    verdicts: list[Verdict] = []
    writing = threading.Lock()
    stopping = threading.Event()
    open_lanes: list[Lane] = []

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="pgjobs-faults-") as place, Lane(Path(place) / "tree") as lane:
            open_lanes.append(lane)
            while not stopping.is_set():
                try:
                    fault = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    verdict = lane.judge(fault, round_)
                except ValueError as error:
                    say(f"left out: {error}")
                    continue
                if stopping.is_set():
                    return
                with writing:
                    verdicts.append(verdict)
                    _tell(verdict, f"{len(verdicts)}/{len(faults)}")
                    if report:
                        with report.open("a", encoding="utf-8") as lines:
                            lines.write(json.dumps(_line(verdict)) + "\n")

    threads = [threading.Thread(target=work) for _ in range(min(lanes, len(faults)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stopping.set()
        while any(thread.is_alive() for thread in threads):
            for lane in open_lanes:
                lane.sweep()
            time.sleep(0.2)
        raise
    return verdicts


def _tell(verdict: Verdict, place: str) -> None:
    how = f"SURVIVED {verdict.round}" if verdict.survived else f"noticed {verdict.round} by {verdict.noticed_by}"
    say(f"[{place}] {verdict.seconds:.0f} s {how}\n  {verdict.fault}")


def _line(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict.fault), "noticed_by": verdict.noticed_by, "round": verdict.round,
            "seconds": round(verdict.seconds, 1)}  # fmt: skip


def _told(report: Path) -> dict[Fault, Verdict]:
    """Return the last that a report says of each fault."""
    if not report.exists():
        return {}
    found = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        fault = Fault(told["file"], told["line"], told["before"], told["after"])
        found[fault] = Verdict(fault, told["noticed_by"], told["round"], told["seconds"])
    return found


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--rounds", type=lambda text: text.split(","), default=ROUNDS, help=",".join(ROUNDS))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--retry", type=Path, help="a report whose survivors are tried again")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.rounds) - set(ROUNDS):
        parser.error(f"--rounds knows {', '.join(ROUNDS)}, not {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
