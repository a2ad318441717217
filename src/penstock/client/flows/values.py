"""The values of nodes: results of jobs, lists of them for joins, and their places in arguments of a job."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import Undecodable
from penstock.core.flow import USED, FlowNode
from penstock.core.formats import size_text
from penstock.core.job import Job, Ref
from penstock.core.relations import FlowMember
from penstock.encryption import why_not_here
from penstock.stores.contract import FLOW_STEP, Store

#: A plan: yields numbers of nodes to read, at most `FLOW_STEP` at a time, and is sent the nodes.
Reading = Generator[list[int], list[FlowNode | None], dict[int, FlowNode]]


#: How many nodes are read first, and how many bytes a step should read: results may be small or large.
_FIRST, _AT_ONCE = 64, 4 * 1024 * 1024


def needed(roots: Iterable[int], most: int | None = None) -> Reading:
    """Read these nodes, and through joins all that their values are made of.

    Raises Undecodable if a result is gone, or if the results have more than `most` bytes.
    """
    found: dict[int, FlowNode] = {}
    seen = set(roots)
    wanted, at, fitting = sorted(seen), 0, _FIRST
    size = results = 0
    while at < len(wanted):  # what was read stays in the list: to remove it would copy the rest at each step
        if results:  # at most twice as many as before: those that come may be larger
            fitting = max(1, min(FLOW_STEP, 2 * fitting, _AT_ONCE * results // max(1, size)))
        part = wanted[at : at + fitting]
        at += len(part)
        for index, node in zip(part, (yield part), strict=True):
            if node is None:
                raise Undecodable(f"node {index} of the flow is gone")
            if node.result == USED and node.job is not None:
                raise Undecodable(
                    f"the result of node {index} of the flow was removed after its use: run the flow again "
                    f"from node {index}"
                )
            found[index] = node
            if node.job is not None:
                results, size = results + 1, size + len(node.result or b"")
            if most is not None and size > most:
                raise Undecodable(
                    f"the results that the job takes have more than {size_text(most)}, which is the limit: "
                    "let the nodes before it store large data elsewhere, and return its path or key"
                )
            if node.job is None:
                more = [one for one in node.inputs if one not in seen]
                seen.update(more)
                wanted += more
    return found


def encoded(root: int, nodes: dict[int, FlowNode]) -> bytes:
    """The value of a node as JSON; a result that does not exist is null."""
    found: bytes = _value(root, nodes, lambda node: node.result or b"null", _as_list)
    return found


def _as_list(values: list[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"]"


def decoded(root: int, nodes: dict[int, FlowNode], decode: Callable[[FlowNode], Any]) -> Any:
    """The value of a node, with results decoded by this function."""
    return _value(root, nodes, decode, list)


def _value(
    root: int,
    nodes: dict[int, FlowNode],
    of_job: Callable[[FlowNode], Any],
    of_join: Callable[[list[Any]], Any],
) -> Any:
    """Compute a value bottom-up, without recursion: joins may be nested to any depth."""
    values: dict[int, Any] = {}
    stack = [root]
    while stack:
        node = nodes[stack[-1]]
        if node.job is not None:
            values[node.index] = of_job(node)
        elif any(one not in values for one in node.inputs):
            stack += [one for one in reversed(node.inputs) if one not in values]
            continue
        else:
            values[node.index] = of_join([values[one] for one in node.inputs])
        stack.pop()
    return values[root]


# ── the results that a node takes, as arguments of its job ───────────────────────────────────────


#: The most bytes of results that one job takes.
LARGEST_INPUTS = 64_000_000
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_write = msgspec.json.Encoder().encode


class InputUnreadable(Exception):
    """A result that a job takes is encrypted with a key that this process does not have; says which."""


async def with_inputs(store: Store, job: Job) -> Job:
    """The job with its complete arguments.

    Raises Undecodable if a result is gone, InputUnreadable if it cannot be decrypted here, or StoreError.
    """
    member = job.spec.flow
    if member is None or not member.inputs:
        return job
    ref = Ref(member.queue, member.id)
    reading = needed((one.node for one in member.inputs), LARGEST_INPUTS)
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send(await store.flow_nodes(ref, wanted))
    except StopIteration as end:
        nodes: dict[int, FlowNode] = end.value
    for node in nodes.values():
        why = None if node.result is None else why_not_here(node.result)
        if why is not None:
            raise InputUnreadable(f"the result of node {node.index} of its flow: {why}")
    return replace(job, spec=replace(job.spec, payload=_filled(job.spec.payload, member, nodes)))


def _filled(payload: bytes, member: FlowMember, nodes: dict[int, FlowNode]) -> bytes:
    try:
        arguments = _read(payload)
        for one in member.inputs:
            value = msgspec.Raw(encoded(one.node, nodes))
            if one.spread:
                rest = _read_list(arguments[one.name]) if one.name in arguments else []
                value = msgspec.Raw(_write([*rest, value]))
            arguments[one.name] = value
        return _write(arguments)
    except msgspec.DecodeError as error:
        raise Undecodable(f"the arguments of a node cannot be completed: {error}") from error
