"""A program as Python text. This text is what runs, in the worker and in the direct run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tests.workflows.steps.programs.language import (
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
)

__all__ = ["compiled", "text_of_program"]

_INDENT = "    "


def text_of_program(program: Program) -> str:
    """The program as a Python function of its flow, its world and the place where it is called."""
    lines: list[str] = []
    for n, helper in enumerate(program.helpers):
        lines += [f"async def helper{n}(flow, w, at):", *_block(helper, "at"), "", ""]
    lines += ['async def program(flow, w, at=""):', *_block(program.body, "at")]
    text = "\n".join(lines) + "\n"
    return _plain(text) if program.sync else text


@cache
def compiled(program: Program) -> Callable[..., Any]:
    """The function of the program."""
    scope: dict[str, Any] = {}
    exec(compile(_HEAD + text_of_program(program), "<program>", "exec"), scope)
    found: Callable[..., Any] = scope["program"]
    return found


_HEAD = """
import asyncio
from penstock.errors import Cancel, Discard, MemberFailed
from tests.workflows.steps.programs.world import Planned, Wrapped
"""


def _plain(text: str) -> str:
    """The text for a thread."""
    return re.sub(r"\basync (def|for)", r"\1", text.replace("await ", ""))


def _block(block: Block, place: str) -> list[str]:
    """The lines of a block. `place`: the variable with the place where it is called."""
    lines = [line for node in block for line in _lines(node, place)] or ["pass"]
    return [_INDENT + line for line in lines]


def _lines(node: Node, place: str) -> Iterator[str]:
    o = node.label
    own = f'f"{{{place}}}{o}"'
    at = f"w.at({own})"
    match node:
        case Step():
            yield f"{o} = {at}"
            yield from _step(node)
        case Sleep():
            yield f"{o} = {at}"
            yield f"w.saw({o}, await {_operation(node)})"
        case Wait():
            yield f"{o} = {at}"
            yield f"w.saw({o}, await {_operation(node)})"
        case Gather():
            yield f"{o} = {at}"
            yield "try:"
            yield f"{_INDENT}w.saw({o}, await {_operation(node)})"
            yield "except MemberFailed:"
            yield f"{_INDENT}w.saw({o}, 'failed')"
        case First():
            yield f"{o} = {at}"
            yield "name, value = await flow.first("
            yield f"{_INDENT}packed={_waits(node)}, of=str),"
            yield f'{_INDENT}late=flow.sleep("1h"),'
            yield ")"
            yield f"w.saw({o}, [name, value])"
            yield "if name == 'packed':"
            yield from _block(node.signalled, place)
            yield "else:"
            yield from _block(node.timed, place)
        case ForEach():
            source = (
                f"w.shuffled(f'{{{place}}}{o}', {node.items})" if node.shuffled else f"range({node.items})"
            )
            yield f"for item_{o} in {source}:"
            yield from _item(o, place, node.stop_at, node.body)
        case Iterate():
            source = f"w.rows(f'{{{place}}}{o}', {node.items})" if node.rows else str(list(range(node.items)))
            key = f", key={own}" if node.with_key else ""
            yield f'async for item_{o} in flow.iterate("{node.name}", {source}, every={node.every!r}{key}):'
            yield from _item(o, place, node.stop_at, node.body)
        case Branches():
            lines = list(_branches(node, place))
            yield from _caught(lines, own) if node.caught else lines
        case Tasks():
            names = [f"{o}_{n}" for n in range(len(node.blocks))]
            for name, block in zip(names, node.blocks, strict=True):
                yield f"async def {name}():"
                yield from _block(block, place)
            if node.style == "gather":
                yield f"await asyncio.gather({', '.join(f'{name}()' for name in names)})"
            else:
                yield "async with asyncio.TaskGroup() as group:"
                yield from (f"{_INDENT}group.create_task({name}())" for name in names)
        case Raw():
            for one in node.operations:
                yield f'{one.label} = f"{{{place}}}{one.label}"'
            yield f"{o} = await asyncio.gather("
            yield from (f"{_INDENT}{_operation(one)}," for one in node.operations)
            yield ")"
            labels = ", ".join(one.label for one in node.operations)
            yield f"for one, value in zip([{labels}], {o}):"
            yield f"{_INDENT}w.saw(one, value)"
        case Completed():
            yield f"async def {o}_one(at):"
            yield f'{_INDENT}return await flow.step("{o}", w.acall, w.at(at), key=at)'
            yield f"{o} = [{o}_one(f'{{{place}}}{o}.{{n}}') for n in range({node.size})]"
            yield f"for one in asyncio.as_completed({o}):"
            yield f"{_INDENT}value = await one"
            yield f"{_INDENT}w.saw(value, value)"
            yield f'{_INDENT}after = w.at(f"{{value}}/after")'
            yield f'{_INDENT}w.saw(after, await flow.step("{o}-after", w.call, after, key=value))'
        case Call():
            yield f'await helper{node.helper}(flow, w, f"{{{place}}}{o}/")'
        case Cut():
            key = f", key={o}" if node.with_key else ""
            yield f"{o} = {at}"
            yield "try:"
            yield f"{_INDENT}async with w.timeout({o}):  # asyncio.timeout: over when the function hangs"
            yield f'{_INDENT * 2}w.saw({o}, await flow.step("{node.name}", w.hang, {o}{key}))'
            yield "except TimeoutError:"
            yield f"{_INDENT}w.saw({o}, 'cut')"
        case CancelTask():
            yield f"async def {o}_task(at):"
            yield f'{_INDENT}return await flow.step("{o}", w.hang, w.at(at), key=at)'
            yield f'{o} = asyncio.create_task({o}_task(f"{{{place}}}{o}"))'
            yield f'await w.hangs(f"{{{place}}}{o}", {o})'
            yield f"{o}.cancel()"
            yield "try:"
            yield f"{_INDENT}await {o}"
            yield "except asyncio.CancelledError:"
            yield f"{_INDENT}w.saw(f'{{{place}}}{o}', 'cut')"
        case GroupFails():
            yield f"async def {o}_hangs(at):"
            yield f'{_INDENT}await flow.step("{o}-a", w.hang, w.at(at + "a"), key=at)'
            yield f"async def {o}_fails(at, other):"
            yield f'{_INDENT}await w.hangs(at + "a", other)'
            yield f'{_INDENT}await flow.step("{o}-b", w.call, w.fails(at + "b", {FAILS}), key=at)'
            yield "try:"
            yield f"{_INDENT}async with asyncio.TaskGroup() as group:"
            yield f'{_INDENT * 2}{o} = group.create_task({o}_hangs(f"{{{place}}}{o}"))'
            yield f'{_INDENT * 2}group.create_task({o}_fails(f"{{{place}}}{o}", {o}))'
            yield "except* Planned:"
            yield f"{_INDENT}w.saw(f'{{{place}}}{o}', 'failed')"
        case Try():
            yield "try:"
            yield from _block(node.body, place)
            yield "except (Planned, Wrapped):"
            yield f"{_INDENT}w.saw(f'{{{place}}}{o}', 'caught')"
            yield from _block(node.handler, place)
        case Raise():
            kind = f"asyncio.{node.kind}" if node.kind == "CancelledError" else node.kind
            yield f'raise {kind}("planned")'


#: A step that fails at each call.
FAILS = 99


def _item(o: str, place: str, stop_at: int | None, body: Block) -> Iterator[str]:
    item = f"item_{o}"
    yield f'{_INDENT}at_{o} = f"{{{place}}}{o}.{{{item}}}/"'
    yield from _block(body, f"at_{o}")
    if stop_at is not None:
        yield f"{_INDENT}if {item} == {stop_at}:"
        yield f"{_INDENT * 2}break"


def _branches(node: Branches, place: str) -> Iterator[str]:
    names = "abcdef"[: len(node.blocks)]
    for name, block in zip(names, node.blocks, strict=True):
        yield f"async def {node.label}_{name}():"
        yield from _block(block, place)
    yield f"await flow.branches({', '.join(f'{name}={node.label}_{name}' for name in names)})"


def _caught(lines: list[str], own: str) -> Iterator[str]:
    yield "try:"
    yield from (_INDENT + line for line in lines)
    yield "except* (Planned, Wrapped):"
    yield f"{_INDENT}w.saw({own}, 'caught')"


def _step(node: Step) -> Iterator[str]:
    o = node.label
    inner = [f"w.saw({o}, await {_operation(node)})"]
    if node.wrap:
        inner = ["try:", *(_INDENT + line for line in inner), "except Planned as error:"]
        inner += [
            _INDENT
            + {
                "from": "raise Wrapped('wrapped') from error",
                "context": "raise Wrapped('wrapped')",
                "group": "raise ExceptionGroup('both', [error, ValueError()])",
            }[node.wrap]
        ]
    if not node.caught:
        yield from inner
        return
    yield "try:"
    yield from (_INDENT + line for line in inner)
    yield {"": "except Planned:", "group": "except ExceptionGroup:"}.get(node.wrap, "except Wrapped:")
    yield f"{_INDENT}w.saw({o}, 'failed')"


def _waits(node: Wait | First) -> str:
    """The begin of a wait for a signal."""
    return f'flow.wait_for("{node.name}", key=w.signal("{node.name}", {node.label}, "{node.when}")'


def _operation(node: Node) -> str:
    o = node.label
    match node:
        case Step():
            argument = f"w.fails({o}, {node.fails})" if node.fails else o
            options = "".join(
                option
                for given, option in (
                    (node.with_key, f", key={o}"),
                    (node.tries > 1, f', attempts={node.tries}, retry_delay="1h"'),
                    (node.undo, ", undo=w.undo"),
                    (node.changing, ", changing=True"),
                )
                if given
            )
            if node.changing:
                argument = f"{argument}, w.random()"
            return f'flow.step("{node.name}", w.{node.how}, {argument}{options})'
        case Sleep():
            return f'flow.sleep("{node.duration}"{f", key={o}" if node.with_key else ""})'
        case Wait():
            timeout = ', timeout="1d"' if node.when in ("never", "race") else ""
            return f"{_waits(node)}{timeout}, of=str)"
        case Gather():
            given = f", given={node.given}" if node.given else ""
            fails = ", fails=True" if node.fails else ""
            key = f", key={o}" if node.with_key else ""
            return f"flow.gather(w.jobs({o}, {node.size}{given}{fails}){key})"
    raise AssertionError(node)
