"""Random programs by a seed and a size."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.workflows.steps.programs.language import (
    FOREVER,
    Block,
    Branches,
    Call,
    CancelTask,
    Completed,
    Cut,
    First,
    ForEach,
    Gather,
    GroupFails,
    Iterate,
    Node,
    Program,
    Raise,
    Raw,
    Sleep,
    Step,
    Tasks,
    Try,
    Wait,
    blocks_of,
    nodes_of,
    with_blocks,
)

__all__ = ["OLDER", "Releases", "generated", "releases", "with_sleep"]

#: What the API has had before operations had keys.
OLDER = frozenset(
    ["step", "sleep", "wait", "gather", "each", "iterate", "tasks", "raw", "call", "try", "raise"]
)
_ALL = OLDER | frozenset(
    ["with_key", "first", "branches", "cut", "cancel", "group", "completed", "given", "shuffled", "changing"]
)
#: What a thread has.
_IN_THREADS = frozenset(
    [
        "step",
        "sleep",
        "wait",
        "gather",
        "each",
        "iterate",
        "call",
        "try",
        "raise",
        "with_key",
        "branches",
        "given",
        "shuffled",
        "changing",
    ]
)
_NAMES = "abc"
_ENDS = ["Discard", "Discard", "Cancel", "SystemExit", "CancelledError", "GeneratorExit"]


@dataclass(frozen=True)
class _Place:
    """Where code stands. `distinct`: its operations need keys, or names of their own."""

    depth: int = 0
    distinct: bool = False
    task: bool = False  # run by an asyncio task of the program
    caught: bool = False
    repeated: bool = False  # it runs several times in one run
    together: bool = False  # other code runs at the same time


class _Generator:
    def __init__(self, seed: int, size: int, features: frozenset[str], sync: bool) -> None:
        self.dice = random.Random(seed)
        self.left = size
        self.features = features & _IN_THREADS if sync else features
        self.sync = sync
        self.labels = 0
        self.fails = 2  # steps that end an attempt
        self.helpers: list[Block] = []

    def program(self) -> Program:
        dice = self.dice
        if "call" in self.features and dice.random() < 0.3:
            self.helpers.append(self.block(_Place(depth=1, repeated=True), dice.randint(1, 2)))
        body: list[Node] = []
        while self.left > 0:
            body.append(self.node(_Place()))
        if self.helpers and dice.random() < 0.8:
            calls = [Call(self.label(), 0) for _ in range(2)]
            for call in calls:
                body.insert(dice.randrange(len(body) + 1), call)
        ends = dice.random()
        if "raise" in self.features and ends < 0.25:
            kind = dice.choice(_ENDS)
            if kind == "CancelledError" and any(
                isinstance(one, (CancelTask, GroupFails))
                for block in (body, *self.helpers)
                for one in nodes_of(block)
            ):
                kind = "SystemExit"  # nobody can tell whether it is that of the task that was cancelled
            body.append(Raise(self.label(), kind))
        return Program(tuple(body), tuple(self.helpers), sync=self.sync, most=6)

    def label(self) -> str:
        self.labels += 1
        return f"o{self.labels}"

    def block(self, place: _Place, size: int) -> Block:
        return tuple(self.node(place) for _ in range(size))

    def node(self, place: _Place) -> Node:
        self.left -= 1
        kinds = [kind for kind in self._kinds(place) if kind in self.features]
        node: Node = getattr(self, f"_{self.dice.choice(kinds)}")(place, self.label())
        return node

    def _kinds(self, place: _Place) -> list[str]:
        kinds = ["step"] * 6 + ["sleep"] * 2 + ["wait"] * 2 + ["gather"]
        if place.depth < 3:
            kinds += ["each", "iterate", "iterate"]
        if place.depth < 2:
            kinds += ["branches", "branches", "tasks", "try"]
        if not place.distinct and place.depth < 3:
            kinds += ["first"] + (["raw"] if "with_key" in self.features or not place.repeated else [])
        if self.helpers and not place.task and not place.distinct:
            kinds += ["call"]
        return [*kinds, "cut", "cancel", "group", "completed"]

    def _name(self, place: _Place, label: str) -> tuple[str, bool]:
        """A name, and whether it goes with a key."""
        if place.distinct:
            return (self.dice.choice(_NAMES), True) if "with_key" in self.features else (label, False)
        return self.dice.choice(_NAMES), "with_key" in self.features and self.dice.random() < 0.15

    def _inner(self, place: _Place, **changes: bool) -> _Place:
        return replace(place, depth=place.depth + 1, **changes)

    # ── operations ──

    def _step(self, place: _Place, label: str) -> Step:
        dice = self.dice
        name, with_key = self._name(place, label)
        step = Step(
            label, name, with_key, dice.choice(["call", "call", "acall"]) if not self.sync else "call"
        )
        if dice.random() < 0.25:
            step = replace(step, undo=True)
        if "changing" in self.features and dice.random() < 0.1:
            step = replace(step, changing=True)
        chance = dice.random()
        if chance < 0.12:
            return replace(step, tries=2, fails=1)
        if chance < 0.3:
            wrap = dice.choice(["", "", "from", "context", "group"])
            return replace(
                step, fails=dice.choice([1, 2, FOREVER]), tries=dice.choice([1, 1, 2]), caught=True, wrap=wrap
            )
        if chance < 0.38 and self.fails and not place.task and not place.repeated:
            self.fails -= 1
            wraps = ["", "", "from"] + ([] if place.caught else ["group"])
            wrap = dice.choice(wraps if place.together else [*wraps, "context"])
            return replace(step, fails=dice.choice([1, 1, 2]), wrap=wrap)
        return step

    def _sleep(self, place: _Place, label: str) -> Sleep:
        wanted = place.distinct or self.dice.random() < 0.15
        return Sleep(label, wanted and "with_key" in self.features)

    def _wait(self, place: _Place, label: str) -> Wait:
        alike = not place.distinct or self.features & {"with_key", "alike"}
        name = self.dice.choice("xy") if alike else label
        return Wait(label, name, self.dice.choice(["late", "late", "early", "never", "race"]))

    def _gather(self, place: _Place, label: str) -> Node:
        if place.distinct and not self.features & {"with_key", "alike"}:
            return self._step(place, label)
        with_key = place.distinct and "with_key" in self.features
        given = "given" in self.features and self.dice.random() < 0.2
        return Gather(
            label, self.dice.choice([1, 2, 3]), with_key, given=given, fails=self.dice.random() < 0.15
        )

    def _first(self, place: _Place, label: str) -> First:
        inner = self._inner(place)
        when = self.dice.choice(["early", "late", "late", "after", "never"])
        return First(label, self.dice.choice("xy"), when, self.block(inner, 1), self.block(inner, 1))

    def _each(self, place: _Place, label: str) -> Node:
        if place.distinct and "with_key" not in self.features:
            return self._step(place, label)
        shuffled = "shuffled" in self.features and self.dice.random() < 0.4
        inner = self._inner(place, distinct=place.distinct or shuffled, repeated=True)
        body = self.block(inner, self.dice.choice([1, 1, 2]))
        return ForEach(label, self.dice.choice([2, 3]), body, shuffled, self._stop(not shuffled))

    def _iterate(self, place: _Place, label: str) -> Node:
        if place.distinct and "with_key" not in self.features:
            return self._step(place, label)
        dice = self.dice
        name = label if place.distinct else dice.choice("rs")
        body = self.block(self._inner(place, repeated=True), dice.choice([1, 1, 2]))
        every: int | str = 0 if dice.random() < 0.7 else "5s"
        stop = self._stop("with_key" in self.features)
        rows, items = dice.random() < 0.5, dice.choice([2, 3])
        return Iterate(label, name, items, body, rows, every, stop, with_key=place.distinct)

    def _stop(self, may: bool) -> int | None:
        return 1 if may and self.dice.random() < 0.2 else None

    # ── several at a time ──

    def _branches(self, place: _Place, label: str) -> Node:
        if place.distinct:
            return self._step(place, label)
        caught = self.dice.random() < 0.3
        inner = self._inner(place, caught=place.caught or caught, together=True)
        return Branches(label, tuple(self.block(inner, self.dice.choice([1, 2])) for _ in "ab"), caught)

    def _tasks(self, place: _Place, label: str) -> Tasks:
        inner = self._inner(place, distinct=True, task=True, together=True)
        blocks = tuple(self.block(inner, self.dice.choice([1, 2])) for _ in range(2))
        return Tasks(label, self.dice.choice(["gather", "group"]), blocks)

    def _raw(self, place: _Place, label: str) -> Raw:
        found: list[Node] = []
        for kind in self.dice.sample(["step", "step", "sleep", "wait"], self.dice.choice([2, 3])):
            own = self.label()
            if kind == "step":
                found.append(Step(own, own, place.repeated, self.dice.choice(["call", "acall"])))
            elif kind == "sleep":
                found.append(Sleep(own, with_key="with_key" in self.features))
            else:
                found.append(Wait(own, own, self.dice.choice(["late", "never"])))
        return Raw(label, tuple(found))

    def _completed(self, place: _Place, label: str) -> Completed:
        return Completed(label, self.dice.choice([2, 3]))

    def _call(self, place: _Place, label: str) -> Call:
        return Call(label, 0)

    # ── what goes wrong ──

    def _cut(self, place: _Place, label: str) -> Cut:
        return Cut(label, *self._name(place, label))

    def _cancel(self, place: _Place, label: str) -> CancelTask:
        return CancelTask(label)

    def _group(self, place: _Place, label: str) -> GroupFails:
        return GroupFails(label)

    def _try(self, place: _Place, label: str) -> Try:
        inner = self._inner(place, caught=True)
        body = list(self.block(inner, self.dice.choice([1, 2])))
        name, with_key = self._name(place, own := self.label())
        fails = Step(own, name, with_key, "call", fails=FOREVER, wrap=self.dice.choice(["", "from"]))
        body.insert(self.dice.randrange(len(body) + 1), fails)
        return Try(label, tuple(body), self.block(self._inner(place), 1))


def generated(seed: int, size: int, features: frozenset[str] = _ALL, *, sync: bool = False) -> Program:
    """The program with this seed."""
    return _Generator(seed, size, features, sync).program()


def with_sleep(program: Program, place: int) -> Program | None:
    """The program with one more sleep, at this place of it; None if it has no such place.

    So it is suspended there.
    """
    counter = [place]
    body = _with_sleep(program.body, counter, distinct=False)
    return replace(program, body=body) if counter[0] < 0 else None


def _with_sleep(block: Block, counter: list[int], distinct: bool) -> Block:
    found: list[Node] = []
    for node in block:
        if counter[0] == 0:
            found.append(Sleep("pause", with_key=True))
        counter[0] -= 1
        for name, n, inner in list(blocks_of(node)):
            if name != "operations" and counter[0] >= 0:
                node = with_blocks(node, name, n, _with_sleep(inner, counter, distinct))
        found.append(node)
    return tuple(found)


@dataclass(frozen=True)
class Releases:
    """Two releases of a program: the later one takes over at the gate.

    `parks`: why the flow must be parked then. `dropped`: steps that the later one does not have any more.
    """

    first: Program
    later: Program
    gate: str
    parks: str
    dropped: frozenset[str]


def releases(seed: int, size: int) -> Releases:
    """Two releases. Steps have names of their own, as all code may be moved then."""
    dice = random.Random(seed)
    program = generated(seed, size, _ALL - {"raise", "call", "raw"})
    named = (Step("asked", "asked"), *_with_own_names(program.body))
    at = dice.randrange(1, len(named) + 1)
    before, behind = list(named[:at]), list(named[at:])
    moved = dice.random() < 0.25
    gate: Node = Wait("gate", "x") if moved else Sleep("gate", with_key=True)
    later_gate = Branches("moved", ((gate,), (Step("beside", "beside"),))) if moved else gate
    version = dice.choice([None, None, "1"])
    first = replace(program, body=(*before, gate, *behind), version=version)
    dice.shuffle(behind)
    behind = [node for node in behind if dice.random() < 0.7]
    for n in range(dice.randint(0, 3)):
        added: Node = dice.choice(
            [
                Step(f"new{n}", f"new{n}"),
                Sleep(f"new{n}", True),
                Gather(f"new{n}", 2, True),
                Wait(f"new{n}", "x"),
            ]
        )
        behind.insert(dice.randrange(len(behind) + 1), added)
    dropped: set[str] = set()
    parks = ""
    plain = [
        n for n, node in enumerate(before) if isinstance(node, Step) and not node.fails and not node.undo
    ]
    if dice.random() < 0.5:
        n = dice.choice(plain)
        if dice.random() < 0.6:
            parks = "no longer asks what is stored"
            before[n] = replace(before[n], how="other")  # type: ignore[call-arg]
        else:
            dropped.add(before[n].label)
            del before[n]
    if dice.random() < 0.15:
        parks = f"began with version {version!r}" if version else "began without a version"
        version = "2"
    later = replace(program, body=(*before, later_gate, *behind), version=version)
    return Releases(first, later, "gate", parks, frozenset(dropped))


def _with_own_names(block: Block) -> Block:
    """The block with keys, so that what is in it may be moved."""
    found: list[Node] = []
    for node in block:
        if isinstance(node, (Step, Cut)):
            node = replace(node, name=node.label)
        elif isinstance(node, (Sleep, Gather)):
            node = replace(node, with_key=True)
        elif isinstance(node, Iterate):
            node = replace(node, name=node.label)
        elif isinstance(node, First):
            node = Step(node.label, node.label)
        for name, n, inner in list(blocks_of(node)):
            node = with_blocks(node, name, n, _with_own_names(inner))
        found.append(node)
    return tuple(found)


def operations_of(program: Program) -> set[str]:
    """The kinds of statements in a program."""
    blocks = (program.body, *program.helpers)
    return {type(node).__name__ for block in blocks for node in nodes_of(block)}
