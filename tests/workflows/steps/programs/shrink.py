"""The smallest program that still fails: statements are taken out as long as it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from tests.workflows.steps.programs.language import Block, Node, Program, Try, blocks_of, with_blocks

__all__ = ["shrunk"]

#: Fields that are left out if the program still fails, and what they are then.
_PLAIN: dict[str, Any] = {
    "tries": 1,
    "undo": False,
    "wrap": "",
    "changing": False,
    "given": False,
    "rows": False,
    "every": 0,
    "stop_at": None,
    "size": 1,
    "items": 2,
    "caught": False,
    "shuffled": False,
}


async def shrunk(
    program: Program, fails: Callable[[Program], Awaitable[bool]], *, most: int = 300
) -> tuple[Program, int]:
    """The smallest program found, and how many were tried."""
    tried = 0
    while True:
        for smaller in _smaller(program):
            if tried == most:
                return program, tried
            tried += 1
            if await fails(smaller):
                program = smaller
                break
        else:
            return program, tried


def _smaller(program: Program) -> Iterator[Program]:
    for body in _shorter(program.body):
        yield replace(program, body=body)
    for n, helper in enumerate(program.helpers):
        for body in _shorter(helper):
            helpers = (*program.helpers[:n], body, *program.helpers[n + 1 :])
            yield replace(program, helpers=helpers)


def _shorter(block: Block) -> Iterator[Block]:
    for n in range(len(block)):
        yield (*block[:n], *block[n + 1 :])
    for n, node in enumerate(block):
        for _, _, inner in () if isinstance(node, Try) else blocks_of(node):
            yield (*block[:n], *inner, *block[n + 1 :])
    for n, node in enumerate(block):
        for other in _plainer(node):
            yield (*block[:n], other, *block[n + 1 :])


def _plainer(node: Node) -> Iterator[Node]:
    for name, m, inner in blocks_of(node):
        for body in _shorter(inner):
            yield with_blocks(node, name, m, body)
    for field in fields(node):
        if field.name in ("caught", "tries") and getattr(node, "fails", 0):
            continue  # another program: one whose attempts fail
        if field.name in _PLAIN and getattr(node, field.name) != _PLAIN[field.name]:
            yield replace(node, **{field.name: _PLAIN[field.name]})  # type: ignore[arg-type]
