"""Judges what is left of jobs that consist of others, when all has ended: gathers, memos, undo, batches, flows.

Pure, as ``history``: ``audit.collect_compounds`` reads the facts, ``check`` compares them. What an operator touched is
judged less: whoever cancels a batch or lets it go on decides its end. What was counted, and what was undone, is judged
in any case.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_pgjobs.states import GATHERING, NOT_MET, NOT_NEEDED, UNDO, FlowFlag, MemoKind, Rule
from django_pgjobs.store.gates import is_met
from tests.chaos.history import OURS
from tests.chaos.witnesses import SKEW_SECONDS, Execution, Violation

UNDOABLE_MEMBERS = "compound.part"
ATOMIC_STEPS = "do-"
"""How the names of the steps begin whose effects stand in the database."""


@dataclass(frozen=True, slots=True)
class Part:
    """A job at the end, or when it was deleted. ``target``: the job and the step that it undoes."""

    job: int
    name: str
    key: str
    outcome: str | None
    flow: int = 0
    parent: int | None = None
    target_id: int | None = None
    target: tuple[int, str] | None = None
    cancel_by: str = ""
    gone: bool = False
    needed: bool = False
    """Whether something unfinished still needed it when it was deleted."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A memo. ``undoable``: something undoes it."""

    job: int
    name: str
    kind: str
    finished: float | None
    failed: bool = False
    undoable: bool = False
    result: Any = None


@dataclass(frozen=True, slots=True)
class Counted:
    """A gate."""

    job: int
    pending: int
    total: int
    succeeded: int
    abandoned: int
    cancelled: int
    due: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a step whose effect no transaction holds, and what it returned."""

    job: int
    claim: str
    token: str


@dataclass
class Compounds:
    """All that is known of them."""

    parts: list[Part] = field(default_factory=list)
    memos: list[Remembered] = field(default_factory=list)
    effects: list[tuple[int, str, str]] = field(default_factory=list)
    """(job, key, note); the note of a compensation is *undo*."""
    links: list[tuple[int, int, str]] = field(default_factory=list)
    """(needed job, job, rule)"""
    gates: list[Counted] = field(default_factory=list)
    called: list[Called] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    wrong: list[tuple[str, int, str]] = field(default_factory=list)
    """What bodies have noted: (key, job, words)"""
    touched: frozenset[int] = frozenset()
    forged: frozenset[int] = frozenset()
    owners: Collection[str] = ()
    """The names of the durable functions whose effects and memos agree."""


def check(known: Compounds) -> list[Violation]:
    """Compare, and return what must not be."""
    return list(_Judge(known).violations())


class _Judge:
    def __init__(self, known: Compounds) -> None:
        self.known = known
        self.parts: Mapping[int, Part] = {part.job: part for part in known.parts}
        self.members: dict[int, list[Part]] = defaultdict(list)
        for part in known.parts:
            if part.parent is not None and part.flow & FlowFlag.MEMBER:
                self.members[part.parent].append(part)
        self.memos: dict[int, list[Remembered]] = defaultdict(list)
        for memo in known.memos:
            self.memos[memo.job].append(memo)

    def violations(self) -> Iterator[Violation]:
        for judge in (
            self.asleep, self.wrong, self.pruned, self.effects, self.steps, self.undone, self.counts, self.ends,
            self.callbacks,
        ):  # fmt: skip
            yield from judge()

    def asleep(self) -> Iterator[Violation]:
        """Nothing waits or sleeps for ever, the package's own jobs included; nothing is to be undone any more."""
        for part in self.known.parts:
            if part.outcome is None and not part.gone:
                yield Violation("asleep", part.key, part.job, f"{part.name} has not ended")
            if part.flow & FlowFlag.UNDOING and not part.gone:
                yield Violation("asleep", part.key, part.job, f"{part.name} is to be undone, and has not been")

    def wrong(self) -> Iterator[Violation]:
        """Each gather and each node gets its own results."""
        for key, job, words in self.known.wrong:
            yield Violation("wrong result", key, job, words)

    def pruned(self) -> Iterator[Violation]:
        """Nothing is pruned that something unfinished needs."""
        for part in self.known.parts:
            if part.gone and part.needed and part.job not in self.known.forged:
                yield Violation("pruned too early", part.key, part.job, f"{part.name} was needed when it was pruned")

    def effects(self) -> Iterator[Violation]:
        """What an atomic step or an atomic compensation does is done once, and not without its memo or its end."""
        done = Counter((job, note) for job, _, note in self.known.effects)
        for (job, note), count in done.items():
            if count > 1:
                yield Violation("twice in effect", self._key(job), job, f"{note} was done {count} times")
        for part in self.known.parts:
            if part.name in self.known.owners:
                memos = {memo.name for memo in self.memos[part.job] if memo.finished and not memo.failed}
                remembered = {name for name in memos if name.startswith(ATOMIC_STEPS)}
                found = {note for job, note in done if job == part.job}
                if remembered != found and not part.gone:
                    words = f"remembers {sorted(remembered)} and has done {sorted(found)}"
                    yield Violation("effect without memo", part.key, part.job, words)
            elif part.target is not None and (part.outcome == "succeeded") != bool(done[part.job, "undo"]):
                words = f"ended as {part.outcome}, and has undone {done[part.job, 'undo']} times"
                yield Violation("effect without memo", part.key, part.job, words)

    def steps(self) -> Iterator[Violation]:
        """A step is not called again by a run that began when its memo was there."""
        begun = {(run.job, run.claim): run.started for run in reversed(self.known.executions)}
        for call in self.known.called:
            for memo in self.memos[call.job]:
                if memo.name != "token" or memo.finished is None or memo.result == call.token:
                    continue
                if begun.get((call.job, call.claim), 0.0) > memo.finished + SKEW_SECONDS:
                    words = f"was called again under claim {call.claim}, though it was remembered"
                    yield Violation("memo forgotten", self._key(call.job), call.job, words)

    def undone(self) -> Iterator[Violation]:
        """Of a job whose undo has begun each part is undone once, of others none; no undo is missing."""
        found = Counter(
            part.target for part in self.known.parts if part.target is not None and part.outcome == "succeeded"
        )
        undos = {part.target_id for part in self.known.parts if part.name == UNDO}
        for target, count in found.items():
            if count > 1:
                yield Violation("undone twice", self._key(target[0]), target[0], f"{target} was undone {count} times")
        for part in self.known.parts:
            wanted = self._undoable(part)
            if not wanted or part.gone:
                continue
            missing = [each for each in wanted if not found[each]]
            begun = bool(part.flow & FlowFlag.UNDONE)
            if begun and missing:
                yield Violation("not undone", part.key, part.job, f"{missing} of {sorted(wanted)} were not undone")
            if not begun and len(missing) < len(wanted):
                yield Violation("undone unasked", part.key, part.job, f"all but {missing} was undone, never begun")
            failed = part.outcome in ("abandoned", "cancelled") and part.flow & FlowFlag.UNDOABLE
            if failed and not begun and part.job not in undos:
                yield Violation("not undone", part.key, part.job, f"it was {part.outcome}, and nothing undoes it")

    def _undoable(self, part: Part) -> set[tuple[int, str]]:
        found = {(part.job, memo.name) for memo in self.memos[part.job] if memo.undoable and memo.finished}
        if part.name in GATHERING and part.flow & FlowFlag.UNDOABLE and not self._is_touched(part.job):
            members = self.members[part.job]
            found |= {(one.job, "") for one in members if one.name == UNDOABLE_MEMBERS and one.outcome == "succeeded"}
        return found

    def counts(self) -> Iterator[Violation]:
        """Each gate counts what the rows say, unless somebody has deleted a row by hand."""
        inputs: dict[int, list[Part | None]] = defaultdict(list)
        for job, members in self.members.items():
            inputs[job] += members
        for needed, job, _ in self.known.links:
            inputs[job].append(self.parts.get(needed))
        for gate in self.known.gates:
            known = inputs[gate.job]
            jobs = {gate.job, *(each.job for each in known if each is not None)}
            if None in known or jobs & self.known.forged:
                continue
            outcomes = Counter(each.outcome for each in known if each is not None)
            wanted = Counted(
                gate.job, 0, len(known), outcomes["succeeded"], outcomes["abandoned"], outcomes["cancelled"]
            )
            if gate != wanted:
                yield Violation("gate is off", self._key(gate.job), gate.job, f"{gate} instead of {wanted}")

    def ends(self) -> Iterator[Violation]:
        """A batch succeeds if all of its members do, and is abandoned if one does not."""
        for part in self.known.parts:
            if part.name == GATHERING[0] and not self._is_touched(part.job):
                well = all(member.outcome == "succeeded" for member in self.members[part.job])
                if part.outcome != ("succeeded" if well else "abandoned"):
                    outcomes = dict(Counter(member.outcome for member in self.members[part.job]))
                    yield Violation("wrong end", part.key, part.job, f"ended as {part.outcome}, its members {outcomes}")

    def callbacks(self) -> Iterator[Violation]:
        """What comes after a batch or a node runs if the rule says so, and is cancelled if not."""
        rules: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for needed, job, rule in self.known.links:
            rules[job].append((needed, rule))
        for job, needs in rules.items():
            part = self.parts.get(job)
            inputs = [(self.parts.get(needed), rule) for needed, rule in needs]
            if part is None or any(needed is None for needed, _ in inputs):
                continue
            if self._is_touched(job) or any(self._is_touched(needed) for needed, _ in needs):
                continue
            met = all(is_met(Rule(rule), needed.outcome or "") for needed, rule in inputs if needed is not None)
            kept = part.outcome == "cancelled" and part.cancel_by in (NOT_MET, NOT_NEEDED)
            if met == kept:
                outcomes = [(needed.outcome, rule) for needed, rule in inputs if needed is not None]
                words = f"ended as {part.outcome} ({part.cancel_by}) behind {outcomes}"
                yield Violation("wrong callback", part.key, part.job, words)

    def _is_touched(self, job: int) -> bool:
        """Whether an operator or a forger has had a hand in it, or in a member of it."""
        hands = self.known.touched | self.known.forged
        return job in hands or any(member.job in hands for member in self.members[job])

    def _key(self, job: int) -> str:
        return self.parts[job].key if job in self.parts else ""


def counts(known: Compounds) -> dict[str, int]:
    """Return what there was of each kind, for people to see."""
    found: Counter[str] = Counter()
    for part in known.parts:
        if part.name.startswith((OURS, "compound.")):
            found[f"{part.name}:{part.outcome or ('gone' if part.gone else 'open')}"] += 1
    for memo in known.memos:
        found[f"memo:{memo.kind}"] += 1
    found["gathers_read"] = sum(memo.kind == MemoKind.GATHER and memo.finished is not None for memo in known.memos)
    found["undone_parts"] = sum(note == "undo" for _, _, note in known.effects)
    found["pruned"] = sum(part.gone and part.job not in known.forged for part in known.parts)
    return dict(sorted(found.items()))
