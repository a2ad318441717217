"""One flow: its graph, what runs and waits in it, a table of its nodes; and what an operator does to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.responses import RedirectResponse, Response

from penstock.core.errors import ConfigError
from penstock.core.flow import OPEN, FlowInfo, NodeState
from penstock.core.job import State
from penstock.inspector import FlowGraphView, GraphNode, MembersView, WaitView
from penstock.web.dashboard.flow_drawing import boxes_of, drawn, says, state_of
from penstock.web.dashboard.pages.steps import typed_fields
from penstock.web.dashboard.rows import colour_of, flow_row
from penstock.web.dashboard.view import Card, DashboardAct, DashboardPage, NotFoundError, View, segment

#: Nodes of one page, and suspended ones among them whose waits are read.
_NODES, _WAITS = 200, 6
#: Reads of the store for a part of a graph: the flow, its nodes, what follows them, jobs.
_READS = 4
#: The task of a node in a queue that the visitor may not read.
_HIDDEN = "hidden"
_RAN = (NodeState.COMPLETED.value, NodeState.DEAD.value, NodeState.CANCELLED.value)


@dataclass(frozen=True)
class NodeRow:
    """A node in the table, as far as the visitor may see it."""

    node: GraphNode
    state: str
    shade: str
    says: str
    after: list[int]
    seen: bool


async def show(view: View) -> dict[str, Any] | Response:
    address = _address(view)
    first = _number(view.asked("first"))
    part = await view.read(
        ("graph", address, first),
        lambda: view.inspector.flows.graph(address, first=first, limit=_NODES),
        cost=_READS,
    )
    if part is None:
        return RedirectResponse(view.link(f"/jobs/{segment(view.queue)}/{segment(view.id)}/steps"), 303)
    part = _without_hidden(view, part)
    nodes = [*part.nodes, *part.behind]
    suspended = _suspended(view, nodes)
    waits = await view.card(
        ("waits", *suspended), lambda: view.inspector.flows.waits(suspended), cost=1 + 2 * len(suspended)
    )
    texts = {(one.queue, one.id): _wait_text(one) for one in reversed(waits.value or [])}

    def waits_of(node: GraphNode) -> str:
        return "" if node.job is None else texts.get((node.job.queue, node.job.id), "")

    graph = boxes_of(nodes, {_number(text) for text in view.all_asked("open")})
    row = flow_row(view, part.flow)
    return {
        "title": row.name,
        "flow": part.flow,
        "row": row,
        "picture": drawn(graph, lambda node: _link(view, node), lambda one: _unfold(view, one), waits_of),
        "unfolded": graph.opened,
        "nodes": _rows(view, part.nodes, nodes, waits_of),
        "waits": waits,
        "typed_fields": partial(typed_fields, view),
        "elsewhere": await _elsewhere(view, address, part),
        "first": first,
        "size": _NODES,
        "colour_of": colour_of,
        "may": view.may("flows.retry_flow", part.flow.spec.queue),
        "again": [node for node in part.nodes if node.state in _RAN] if row.over else [],
        "failed": row.failed + part.flow.counts.get(NodeState.SKIPPED, 0),
    }


def _without_hidden(view: View, part: FlowGraphView) -> FlowGraphView:
    """The part without the tasks and jobs of nodes in queues that the visitor may not read."""

    def shown(node: GraphNode) -> GraphNode:
        return node if _sees(view, node) else replace(node, task=_HIDDEN, stored=None)

    return replace(part, nodes=[*map(shown, part.nodes)], behind=[*map(shown, part.behind)])


def _address(view: View) -> str:
    return f"{view.queue}/{view.id}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def _link(view: View, node: GraphNode) -> str:
    """The job of a node, if it has one that the visitor may see; else its line in the table."""
    if node.job is None or not _sees(view, node):
        return f"#n{node.index}"
    return view.job_link(node.job.queue, node.job.id)


def _sees(view: View, node: GraphNode) -> bool:
    """Whether the visitor may read the queue of the node's job; joins have none."""
    return node.job is None or view.sees(node.job.queue)


def _unfold(view: View, one: int) -> str:
    return view.here(open=[*dict.fromkeys([*view.all_asked("open"), str(one)])]) + "#graph"


def _rows(view: View, shown: list[GraphNode], known: list[GraphNode], waits_of: Any) -> list[NodeRow]:
    after: dict[int, list[int]] = {}
    for node in known:
        for one in node.next:
            after.setdefault(one, []).append(node.index)
    rows = []
    for node in shown:
        seen = _sees(view, node)
        state = state_of(node)
        text = says(node, waits_of(node)) if seen else ""
        rows.append(
            NodeRow(
                node, state, colour_of(state), "" if text == state else text, after.get(node.index, []), seen
            )
        )
    return rows


def _suspended(view: View, nodes: list[GraphNode]) -> list[str]:
    """The addresses of the first suspended jobs among these nodes."""
    found = [
        f"{node.job.queue}/{node.job.id}"
        for node in nodes
        if node.job is not None and state_of(node) == State.SUSPENDED and _sees(view, node)
    ]
    return found[:_WAITS]


def _wait_text(wait: WaitView) -> str:
    if wait.kind == "signal":
        return f"waits for {wait.signal}" + (f" {wait.key}" if wait.key else "")
    return "waits for its jobs" if wait.kind == "gather" else "waits for a timer"


async def _elsewhere(view: View, address: str, part: FlowGraphView) -> list[tuple[str, Card[MembersView]]]:
    """Running and dead jobs of a flow, if some of them are not among the nodes shown."""
    found = []
    for title, state, of in (
        ("Running now", State.RUNNING, NodeState.ACTIVE),
        ("Dead", State.DEAD, NodeState.DEAD),
    ):
        shown = sum(node.state == of.value for node in (*part.nodes, *part.behind))
        if part.flow.counts.get(of, 0) > shown:
            read = await view.card(
                ("members", address, state), partial(_members, view, address, state), cost=2
            )
            found.append((title, _seen(view, read)))
    return found


async def _members(view: View, address: str, state: State) -> MembersView:
    return await view.inspector.flows.members(address, [state], limit=10)


def _seen(view: View, read: Card[MembersView]) -> Card[MembersView]:
    """Without jobs of queues that the visitor may not read."""
    if read.value is None:
        return read
    members = [one for one in read.value.members if view.sees(one.queue)]
    return Card(MembersView(members, read.value.complete))


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────


async def act_on_flow(view: View) -> Response:
    """Cancel or retry the flow, or run it again from a node."""
    act, address = view.part("act"), _address(view)
    path = f"/flows/{segment(view.queue)}/{segment(view.id)}"
    if act not in ("cancel", "retry", "rerun"):
        raise NotFoundError(f"There is no act {act:.20} on a flow.")
    within = view.queues_for("flows.cancel_flow" if act == "cancel" else "flows.retry_flow")
    if within is not None and await view.inspector.flows.leaves(address, within):
        return view.done("This flow has jobs in queues on which you have no right.", path, failed=True)
    changed: FlowInfo | None
    facts = {}
    if act == "cancel":
        changed = await view.inspector.flows.cancel_flow(address)
    elif act == "retry":
        changed = await view.inspector.flows.retry_flow(address)
    else:
        node = view.form.get("node")
        if not node.isascii() or not node.isdigit() or len(node) > 8:
            raise ConfigError("Give the number of the node from which the flow runs again.")
        facts = {"node": node}
        changed = await view.inspector.flows.retry_flow(address, node=int(node))
    if changed is None:
        return view.done(f"There is no flow {view.id} in the queue {view.queue}.", "/flows", failed=True)
    await view.audit(f"flows.{act}", address, facts)
    open_ = sum(changed.counts.get(state, 0) for state in OPEN)
    return view.done(f"The flow is {changed.state}; {open_:,} of {changed.total:,} nodes are open.", path)


PAGE = DashboardPage(name="flow", path="/flows/{queue}/{id}", title="Flow", show=show, refresh="always")
ACTS = (DashboardAct(path="/flows/{queue}/{id}/act/{act}", do=act_on_flow, act="flows.cancel_flow"),)
