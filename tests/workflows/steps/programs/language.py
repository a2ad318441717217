"""The language of random programs: operations of a flow, and the code around them, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

__all__ = [
    "FOREVER",
    "Block",
    "Branches",
    "Call",
    "CancelTask",
    "Completed",
    "Cut",
    "First",
    "ForEach",
    "Gather",
    "GroupFails",
    "Iterate",
    "Node",
    "Program",
    "Raise",
    "Raw",
    "Sleep",
    "Step",
    "Tasks",
    "Try",
    "Wait",
    "blocks_of",
    "nodes_of",
    "with_blocks",
]

#: A step with this many failures never succeeds.
FOREVER = 99


@dataclass(frozen=True)
class Node:
    """One statement of a program. `label`: unique in it."""

    label: str


Block = tuple[Node, ...]


@dataclass(frozen=True)
class Step(Node):
    """`flow.step`. `fails`: so many calls fail. `caught`, `wrap`: how the code treats the failure."""

    name: str
    with_key: bool = False
    how: str = "call"  # the function: call, acall, other
    tries: int = 1
    fails: int = 0
    undo: bool = False
    caught: bool = False
    wrap: str = ""  # "", from, context, group
    changing: bool = False


@dataclass(frozen=True)
class Sleep(Node):
    with_key: bool = False
    duration: str = "1h"


@dataclass(frozen=True)
class Wait(Node):
    """`flow.wait_for`. `when` its signal is sent: early, late, never (a timeout), race (with a timeout)."""

    name: str
    when: str = "late"


@dataclass(frozen=True)
class First(Node):
    """`flow.first` of a signal and a timer, and what follows each. `when`: early, late, after (the timer)."""

    name: str
    when: str
    signalled: Block
    timed: Block


@dataclass(frozen=True)
class Gather(Node):
    """`flow.gather`. `given`: its jobs have given ids. `fails`: one of them does, and it is caught."""

    size: int
    with_key: bool = False
    given: bool = False
    fails: bool = False


@dataclass(frozen=True)
class ForEach(Node):
    """A plain loop; `shuffled`: in another order in each run, with keys."""

    items: int
    body: Block
    shuffled: bool = False
    stop_at: int | None = None


@dataclass(frozen=True)
class Iterate(Node):
    """`flow.iterate`. `rows`: from a function of the cursor, whose list grows between runs."""

    name: str
    items: int
    body: Block
    rows: bool = False
    every: int | str = 0
    stop_at: int | None = None
    with_key: bool = False


@dataclass(frozen=True)
class Branches(Node):
    """`flow.branches`."""

    blocks: tuple[Block, ...]
    caught: bool = False


@dataclass(frozen=True)
class Tasks(Node):
    """Branches by asyncio: gather, group (TaskGroup). Identities in them are distinct."""

    style: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Raw(Node):
    """Operations as they are in `asyncio.gather`."""

    operations: Block


@dataclass(frozen=True)
class Completed(Node):
    """`asyncio.as_completed` over steps and sleeps, and a with_key step for each that has completed."""

    size: int


@dataclass(frozen=True)
class Call(Node):
    """A call of a helper, an async function of the program."""

    helper: int


@dataclass(frozen=True)
class Cut(Node):
    """A step that hangs until `asyncio.timeout` cuts it off."""

    name: str
    with_key: bool = False


@dataclass(frozen=True)
class CancelTask(Node):
    """A task whose step hangs until the code cancels it."""


@dataclass(frozen=True)
class GroupFails(Node):
    """A TaskGroup with a step that hangs and one that fails."""


@dataclass(frozen=True)
class Try(Node):
    """Code that catches what fails in it, and what it does then."""

    body: Block
    handler: Block


@dataclass(frozen=True)
class Raise(Node):
    kind: str  # Discard, Cancel, SystemExit, CancelledError, GeneratorExit


@dataclass(frozen=True)
class Program:
    """A task's function. `sync`: in a thread."""

    body: Block
    helpers: tuple[Block, ...] = ()
    sync: bool = False
    version: str | None = None
    most: int = 6  # attempts


def blocks_of(node: Node) -> Iterator[tuple[str, int | None, Block]]:
    """The blocks inside a statement: field, number in the field, block."""
    for field in fields(node):
        value: Any = getattr(node, field.name)
        if field.name in ("body", "handler", "signalled", "timed", "operations"):
            yield field.name, None, value
        elif field.name == "blocks":
            for n, block in enumerate(value):
                yield field.name, n, block


def with_blocks(node: Node, name: str, n: int | None, block: Block) -> Node:
    """The statement with another block in this place."""
    if n is None:
        return replace(node, **{name: block})  # type: ignore[arg-type]
    blocks = list(getattr(node, name))
    blocks[n] = block
    return replace(node, **{name: tuple(blocks)})  # type: ignore[arg-type]


def nodes_of(block: Iterable[Node]) -> Iterator[Node]:
    """All statements of a block, at any depth."""
    for node in block:
        yield node
        for _, _, inner in blocks_of(node):
            yield from nodes_of(inner)
