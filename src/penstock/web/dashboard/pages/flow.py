"""One flow: its graph, what runs and waits in it, a table of its nodes; and what an operator does to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.responses import RedirectResponse, Response

from penstock.core.errors import ConfigError
from penstock.core.flow import OPEN, NodeState
from penstock.core.job import State
from penstock.inspector import FlowGraphView, FlowView, GraphNodeView, MembersView, WaitView
from penstock.web.access_tokens import Right
from penstock.web.dashboard.cards import Card
from penstock.web.dashboard.flow_drawing import drawn, says
from penstock.web.dashboard.flow_rows import flow_row, shade_of
from penstock.web.dashboard.graph_groups import folded, state_of
from penstock.web.dashboard.page import DashboardAct, DashboardPage
from penstock.web.dashboard.view import NotFoundError, View, segment

__all__ = ["ACTS", "PAGE"]

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

    node: GraphNodeView
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

    def waits_of(node: GraphNodeView) -> str:
        return texts.get((node.queue or "", node.id or ""), "")

    graph = folded(nodes, {_number(text) for text in view.all_asked("open")})
    row = flow_row(view, part.flow)
    return {
        "title": row.name,
        "flow": part.flow,
        "row": row,
        "picture": drawn(graph, lambda node: _link(view, node), lambda one: _unfold(view, one), waits_of),
        "unfolded": graph.opened,
        "nodes": _rows(view, part.nodes, nodes, waits_of),
        "waits": waits,
        "elsewhere": await _elsewhere(view, address, part),
        "first": first,
        "size": _NODES,
        "shade_of": shade_of,
        "may": view.may("operate", part.flow.queue),
        "again": [node for node in part.nodes if node.state in _RAN] if row.over else [],
        "failed": row.failed + part.flow.counts.get(NodeState.SKIPPED.value, 0),
    }


def _without_hidden(view: View, part: FlowGraphView) -> FlowGraphView:
    """The part without the tasks and jobs of nodes in queues that the visitor may not read."""

    def shown(node: GraphNodeView) -> GraphNodeView:
        hidden = node.queue is not None and not view.sees(node.queue)
        return replace(node, task=_HIDDEN, job=None) if hidden else node

    return replace(part, nodes=[*map(shown, part.nodes)], behind=[*map(shown, part.behind)])


def _address(view: View) -> str:
    return f"{view.queue}/{view.id}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def _link(view: View, node: GraphNodeView) -> str:
    """The job of a node, if it has one that the visitor may see; else its line in the table."""
    if node.queue is None or node.id is None or not view.sees(node.queue):
        return f"#n{node.node}"
    return view.job_link(node.queue, node.id)


def _unfold(view: View, one: int) -> str:
    return view.here(open=[*dict.fromkeys([*view.all_asked("open"), str(one)])]) + "#graph"


def _rows(view: View, shown: list[GraphNodeView], known: list[GraphNodeView], waits_of: Any) -> list[NodeRow]:
    after: dict[int, list[int]] = {}
    for node in known:
        for one in node.next:
            after.setdefault(one, []).append(node.node)
    rows = []
    for node in shown:
        seen = node.queue is None or view.sees(node.queue)
        state = state_of(node)
        text = says(node, waits_of(node)) if seen else ""
        rows.append(
            NodeRow(
                node, state, shade_of(state), "" if text == state else text, after.get(node.node, []), seen
            )
        )
    return rows


def _suspended(view: View, nodes: list[GraphNodeView]) -> list[str]:
    """The addresses of the first suspended jobs among these nodes."""
    found = [
        f"{node.queue}/{node.id}"
        for node in nodes
        if state_of(node) == State.SUSPENDED.value and view.sees(node.queue or "")
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
        if part.flow.counts.get(of.value, 0) > shown:
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
    members = [one for one in read.value.members if view.sees(one.job.queue)]
    return Card(MembersView(members, read.value.complete))


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────


async def act_on_flow(view: View) -> Response:
    """Cancel or retry the flow, or run it again from a node."""
    act, address = view.part("act"), _address(view)
    path = f"/flows/{segment(view.queue)}/{segment(view.id)}"
    if act not in ("cancel", "retry", "rerun"):
        raise NotFoundError(f"There is no act {act:.20} on a flow.")
    if not view.may("operate"):  # its jobs may be in other queues
        hidden = sorted(
            one for one in await view.inspector.flows.queues(address) if not view.may("operate", one)
        )
        if hidden:
            return view.done("This flow has jobs in queues on which you have no right.", path, failed=True)
    changed: FlowView | None
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
    open_ = sum(changed.counts.get(state.value, 0) for state in OPEN)
    return view.done(f"The flow is {changed.state}; {open_:,} of {changed.nodes:,} nodes are open.", path)


PAGE = DashboardPage(name="flow", path="/flows/{queue}/{id}", title="Flow", show=show, refresh="always")
ACTS = (DashboardAct(path="/flows/{queue}/{id}/act/{act}", do=act_on_flow, right=Right.OPERATE),)
