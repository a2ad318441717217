"""`penstock flows`: list, show, cancel and retry flows, and send signals to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.completing import complete_flow
from penstock.cli.faults import not_found
from penstock.cli.formats import age
from penstock.cli.session import AuditedAct, Command, DefaultGroup, Session, limit_option
from penstock.cli.show import emit, facts, note, say, table
from penstock.cli.watching import Listing
from penstock.core.formats import instant, iso

if TYPE_CHECKING:
    from penstock.core.flow import FlowInfo, FlowNode
    from penstock.inspector import Inspector
    from penstock.stores.contract import KeptSignal

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
        [(_address(one), one.spec.name, one.state, age(one.created_at), _counts(one)) for one in page.flows],
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

    async def acting(inspector: Inspector) -> tuple[FlowInfo, list[FlowNode]]:
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
            ("flow", _address(flow)),
            ("name", flow.spec.name or None),
            ("state", flow.state),
            ("policy", flow.spec.policy),
            ("created", instant(flow.created_at)),
            ("ended", iso(flow.ended_at)),
            ("nodes", _counts(flow)),
        ]
    )
    table(
        ("NODE", "STATE", "TASK", "JOB", "NEXT"),
        [
            (
                f"{node.index}",
                node.state,
                node.task or "(join)",
                f"{node.job.queue}/{node.job.id}" if node.job else "",
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
@click.option("--replace", is_flag=True, help="Replace the stored signal of this name, key and flow.")
def signal(
    name: str, key: str | None, data: str | None, flow: str | None, keep: str | None, replace: bool
) -> None:
    """Send a signal to a job that waits for NAME, or store it.

    Data that does not fit what a waiting job takes is refused.
    """
    import msgspec

    from penstock.client.signals import sent, signal_of

    try:
        value = None if data is None else msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--data") from None
    one = signal_of(name, key, value, flow, keep, None, replace=replace)
    session = Session.current()
    given = {"name": name, "key": key, "data": data, "replace": "yes" if replace else None}
    audited = AuditedAct("flows.signal", [flow or ""], {what: text for what, text in given.items() if text})
    status = sent(one, session.run(lambda i: i.flows.send(one), audited=audited))
    if session.json:
        emit({"status": status.value})
    else:
        say(_SENT[status])


_SENT = {
    "received": "received: a job has waited for it",
    "stored": "stored: no job waits for it yet",
    "exists": "exists: this signal is stored already, and the first one stays (--replace replaces it)",
    "replaced": "replaced: the stored signal has the new data",
}


@command.group("signals", cls=DefaultGroup, default="list")
def signals() -> None:
    """List and drop stored signals, which no job has received.

    `penstock flows signals` lists them. `penstock flows signal --replace` replaces one.
    """


@signals.command("list", cls=Listing)
@click.option("--name", metavar="NAME", help="Only signals of this name.")
@click.option("--key", metavar="KEY", help="Only signals with this key.")
@limit_option("signals", most=10_000)
def list_signals(name: str | None, key: str | None, limit: int) -> None:
    """List stored signals by name, key and flow."""
    session = Session.current()
    found = session.run(lambda i: i.flows.signals(name=name, key=key, limit=limit + 1))
    shown = found[:limit]
    if session.json:
        emit({"signals": shown, "more": len(found) > limit})
        return
    table(
        ("NAME", "KEY", "FLOW", "SENT", "UNTIL", "BYTES"),
        [
            (one.name, one.key, one.flow or "", age(one.sent_at), age(one.keep_until), f"{len(one.data):,}")
            for one in shown
        ],
        empty="no stored signals",
    )
    if len(found) > limit:
        note("more signals are stored: raise --limit, or choose with --name and --key")


@signals.command("drop", cls=Command)
@click.argument("name")
@click.option("--key", metavar="KEY", default="", help="Key of the signal.  [default: none]")
@click.option("--flow", metavar="ID", help="Id of the job that it was sent to.  [default: any]")
def drop_signal(name: str, key: str, flow: str | None) -> None:
    """Drop a stored signal."""
    session = Session.current()

    async def acting(inspector: Inspector) -> bool:
        if await inspector.flows.drop_signal(name, key, flow):
            return True
        others = await inspector.flows.signals(name=name, limit=3)
        raise not_found(f"no such signal is stored{_similar(others)}; `penstock flows signals` lists all")

    given = {"name": name, "key": key or None}
    facts = {what: text for what, text in given.items() if text}
    session.run(acting, audited=AuditedAct("flows.drop-signal", [flow or ""], facts))
    if session.json:
        emit({"dropped": True})
    else:
        say("dropped")


def _similar(others: Sequence[KeptSignal]) -> str:
    """Stored signals of the same name, as options."""
    shown = [f"--key {one.key}" + (f" --flow {one.flow}" if one.flow else "") for one in others]
    return f" (stored of this name: {'; '.join(shown)})" if shown else ""


def _change(addresses: Sequence[str], what: str, node: int | None = None) -> None:
    session = Session.current()

    async def acting(inspector: Inspector) -> list[FlowInfo]:
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
        say(f"{_address(flow)}: {flow.state} ({_counts(flow)})")


def _found(flow: FlowInfo | None, address: str) -> FlowInfo:
    if flow is None:
        raise not_found(f"there is no flow {address!r}; `penstock flows list` lists all")
    return flow


def _address(flow: FlowInfo) -> str:
    return f"{flow.spec.queue}/{flow.spec.id}"


def _counts(flow: FlowInfo) -> str:
    return ", ".join(f"{n} {state}" for state, n in sorted(flow.counts.items()))


def _few(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes[:8])) + (" …" if len(nodes) > 8 else "")


def _mermaid(nodes: list[FlowNode]) -> list[str]:
    lines = ["flowchart TD"]
    for node in nodes:
        name = "".join(c if c.isalnum() or c in "._- " else "_" for c in node.task) or "join"
        lines.append(f'    n{node.index}["{name}: {node.state}"]')
    return [*lines, *(f"    n{node.index} --> n{next_node}" for node in nodes for next_node in node.next)]
