"""Read the values of nodes: results of jobs, and lists of them for joins."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from penstock.core.errors import Undecodable
from penstock.core.flow import USED, FlowNode
from penstock.stores.contract import FLOW_STEP

__all__ = ["Reading", "decoded", "encoded", "needed"]

#: A plan: yields numbers of nodes to read, at most `FLOW_STEP` at a time, and is sent the nodes.
Reading = Generator[list[int], list[FlowNode | None], dict[int, FlowNode]]


def needed(roots: Iterable[int]) -> Reading:
    """Read these nodes, and through joins all that their values are made of."""
    found: dict[int, FlowNode] = {}
    seen = set(roots)
    wanted, at = sorted(seen), 0
    while at < len(wanted):  # what was read stays in the list: to remove it would copy the rest at each step
        part = wanted[at : at + FLOW_STEP]
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
