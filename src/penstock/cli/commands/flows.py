"""`penstock flows`: list, show, cancel and retry flows, and send signals to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.audited_acts import AuditedAct
from penstock.cli.completing import complete_flow
from penstock.cli.faults import not_found
from penstock.cli.options import limit_option
from penstock.cli.session import Command, Session
from penstock.cli.short_forms import age
from penstock.cli.show import emit, facts, say, table
from penstock.cli.watching import Listing

if TYPE_CHECKING:
    from penstock.inspector import FlowView, Inspector, NodeView

__all__ = ["command"]

_FLOW = click.argument("address", metavar="FLOW", shell_complete=complete_flow)
_FLOWS = click.argument("addresses", metavar="FLOW...", nargs=-1, required=True, shell_complete=complete_flow)


@click.group("flows")
def command() -> None:
    """List, show, cancel and retry flows, and send signals.

    A flow is a graph of jobs that depend on each other. FLOW is its queue/id.
    """


@command.command("list", cls=Listing)
@limit_option("flows")
@click.option("--after", metavar="CURSOR", help="Continue at the cursor that the previous list printed.")
def list_(limit: int, after: str | None) -> None:
    """List flows, newest first."""
    session = Session.current()
    page = session.run(lambda i: i.flows.flows(after=after, limit=limit))
    if session.json:
        emit({"flows": page.flows, "next": page.next})
        return
    table(
        ("FLOW", "NAME", "STATE", "CREATED", "NODES"),
        [
            (f"{one.queue}/{one.id}", one.name, one.state, age(one.created_at), _counts(one))
            for one in page.flows
        ],
        empty="no flows",
    )
    if page.next:
        say(f"more: --after {page.next}")


@command.command("show", cls=Command)
@_FLOW
@click.option("--mermaid", is_flag=True, help="Print the graph as a Mermaid diagram.")
def show(address: str, mermaid: bool) -> None:
    """Show a flow and its first 1000 nodes."""
    session = Session.current()

    async def acting(inspector: Inspector) -> tuple[FlowView, list[NodeView]]:
        flow = _found(await inspector.flows.flow(address), address)
        return flow, await inspector.flows.flow_nodes(address)

    flow, nodes = session.run(acting)
    if session.json:
        emit({"flow": flow, "nodes": nodes})
        return
    if mermaid:
        say("\n".join(_mermaid(nodes)))
        return
    facts(
        [
            ("flow", f"{flow.queue}/{flow.id}"),
            ("name", flow.name or None),
            ("state", flow.state),
            ("policy", flow.policy),
            ("created", flow.created_at),
            ("ended", flow.ended_at),
            ("nodes", _counts(flow)),
        ]
    )
    table(
        ("NODE", "STATE", "TASK", "JOB", "NEXT"),
        [
            (
                f"{node.node}",
                node.state,
                node.task or "(join)",
                f"{node.queue}/{node.job}" if node.job else "",
                _few(node.next),
            )
            for node in nodes
        ],
        empty="no nodes",
    )


@command.command("cancel", cls=Command)
@_FLOWS
def cancel(addresses: Sequence[str]) -> None:
    """Cancel all jobs of flows; running jobs are asked to stop."""
    _change(addresses, "cancel")


@command.command("retry", cls=Command)
@_FLOWS
@click.option(
    "--from", "node", type=int, metavar="NODE", help="Number of a node to run again, with all that follow it."
)
def retry(addresses: Sequence[str], node: int | None) -> None:
    """Run the failed and skipped jobs of flows again."""
    _change(addresses, "retry", node)


@command.command("signal", cls=Command)
@click.argument("name")
@click.option("--key", metavar="KEY", help="Key of the signal, such as the number of an order.")
@click.option("--data", metavar="JSON", help="Data of the signal.  [default: null]")
@click.option("--flow", metavar="ID", help="Id of the job that receives it.  [default: any job that waits]")
@click.option(
    "--keep", metavar="TIME", help="Time to store the signal while no job waits for it.  [default: 7d]"
)
def signal(name: str, key: str | None, data: str | None, flow: str | None, keep: str | None) -> None:
    """Send a signal to a job that waits for NAME, or store it."""
    import msgspec

    from penstock.client.signals import sent, signal_of

    try:
        value = None if data is None else msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--data") from None
    one = signal_of(name, key, value, flow, keep, None)
    session = Session.current()
    given = {"name": name, "key": key, "data": data}
    audited = AuditedAct("flows.signal", [flow or ""], {what: text for what, text in given.items() if text})
    status = sent(one, session.run(lambda i: i.flows.send(one), audited=audited))
    if session.json:
        emit({"status": status.value})
    else:
        say(_SENT[status])


_SENT = {
    "received": "received: a job has waited for it",
    "stored": "stored: no job waits for it yet",
    "exists": "exists: this signal is stored already, and the first one stays",
}


def _change(addresses: Sequence[str], what: str, node: int | None = None) -> None:
    session = Session.current()

    async def acting(inspector: Inspector) -> list[FlowView]:
        flows = inspector.flows
        for address in addresses:
            _found(await flows.flow(address), address)
        if what == "cancel":
            return [_found(await flows.cancel_flow(address), address) for address in addresses]
        return [_found(await flows.retry_flow(address, node=node), address) for address in addresses]

    again = {} if node is None else {"node": node}
    audited = AuditedAct("flows.rerun" if again else f"flows.{what}", addresses, again)
    flows = session.run(acting, audited=audited)
    if session.json:
        emit({"flows": flows})
        return
    for flow in flows:
        say(f"{flow.queue}/{flow.id}: {flow.state} ({_counts(flow)})")


def _found(flow: FlowView | None, address: str) -> FlowView:
    if flow is None:
        raise not_found(f"there is no flow {address!r}; `penstock flows list` lists all")
    return flow


def _counts(flow: FlowView) -> str:
    return ", ".join(f"{n} {state}" for state, n in sorted(flow.counts.items()))


def _few(nodes: list[int]) -> str:
    return " ".join(map(str, nodes[:8])) + (" …" if len(nodes) > 8 else "")


def _mermaid(nodes: list[NodeView]) -> list[str]:
    lines = ["flowchart TD"]
    for node in nodes:
        name = "".join(c if c.isalnum() or c in "._- " else "_" for c in node.task) or "join"
        lines.append(f'    n{node.node}["{name}: {node.state}"]')
    return [*lines, *(f"    n{node.node} --> n{next_node}" for node in nodes for next_node in node.next)]
