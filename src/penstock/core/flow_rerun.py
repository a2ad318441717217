"""Whether a flow can run again from a node: what follows it, and whether the results it needs exist."""

from __future__ import annotations

from collections.abc import Generator

from penstock.core.errors import ConfigError
from penstock.core.flow import FlowNode, NodeState
from penstock.core.job import Ref

__all__ = ["Reads", "nodes_to_rerun", "refuse_gone"]

#: A plan: yields numbers of nodes to read, at most `STEP` at a time, and is sent the nodes.
Reads = Generator[list[int], list[FlowNode | None], list[FlowNode]]
STEP = 1_000
#: States of nodes whose jobs have run, and would run again.
_HAVE_RUN = (NodeState.COMPLETED, NodeState.DEAD, NodeState.CANCELLED)


def nodes_to_rerun(first: int) -> Reads:
    """Read the node and all that follow it; returns those whose jobs have run.

    Raises ConfigError if one of them takes a result that was removed after its use.
    """
    found = yield from _read([first])
    at = [first]
    while at:
        nodes = [found[one] for one in at if one in found]
        at = list(dict.fromkeys(one for node in nodes for one in node.next if one not in found))
        found |= yield from _read(at)
    wanted = {one: node.index for node in found.values() for one in node.inputs if one not in found}
    for index, node in (yield from _read(sorted(wanted))).items():
        if node.uses == 0:
            raise ConfigError(
                f"node {wanted[index]} takes the result of node {index}, which was removed after its use: "
                f"run the flow again from node {index}, or enqueue flows with keep_nodes="
            )
    return [node for node in found.values() if node.job is not None and node.state in _HAVE_RUN]


def refuse_gone(nodes: list[FlowNode], gone: set[Ref]) -> None:
    """Raise ConfigError if the job of one of these nodes is gone."""
    for node in nodes:
        if node.job in gone:
            raise ConfigError(
                f"node {node.index}, {node.task}, cannot run again: its job is not kept any more. Give its "
                "task a longer retention=, or enqueue flows with keep_nodes="
            )


def _read(wanted: list[int]) -> Generator[list[int], list[FlowNode | None], dict[int, FlowNode]]:
    found: dict[int, FlowNode] = {}
    for at in range(0, len(wanted), STEP):
        part = wanted[at : at + STEP]
        found |= {node.index: node for node in (yield part) if node is not None}
    return found
