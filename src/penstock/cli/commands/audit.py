"""`penstock audit`: show who did what as an operator or administrator."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from penstock.cli.session import Session, limit_option
from penstock.cli.show import emit, note, say, table
from penstock.cli.watching import Listing
from penstock.cli.watching import follow as follow_store
from penstock.core.formats import instant

if TYPE_CHECKING:
    from penstock.inspector.audit import ShownEntry
    from penstock.stores.contract import Store


@click.command("audit", cls=Listing, short_help="Show who did what as an operator or administrator.")
@limit_option("entries", most=10_000)
@click.option("--who", metavar="TEXT", default="", help="Filter by the start of WHO, e.g. token:deploy.")
@click.option("--act", metavar="TEXT", default="", help="Filter by the start of ACT, e.g. tokens.")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print acts as they are done, until Ctrl-C. With --json: one JSON document per line.",
)
def command(limit: int, who: str, act: str, follow: bool) -> None:
    """Show the audit log, newest first: acts of operators by commands and over HTTP.

    The store keeps the newest 10,000 entries.
    """
    session = Session.current()
    if follow:
        follow_store(lambda store: _NewEntries(store, who, act, json=session.json).look)
        return
    found = session.run_on_store(lambda store: _read(store, limit + 1, who, act))
    shown, more = found[:limit], len(found) > limit
    if session.json:
        emit({"entries": [entry.to_dict() for entry in shown], "more": more})
        return
    table(
        ("AT", "WHO", "ADDRESS", "ACT", "TO", "STATUS", "FACTS"),
        [_line(one) for one in shown],
        empty="no entries",
        spare=("ADDRESS", "STATUS", "FACTS"),
    )
    if more:
        note(f"there are more than {limit:,} entries: raise -n")


class _NewEntries:
    """Prints the entries that were written since the last look; in the beginning, none."""

    def __init__(self, store: Store, who: str, act: str, *, json: bool) -> None:
        from penstock.inspector.audit import AuditFilter, AuditLog

        self._log = AuditLog(store)
        self._filter = AuditFilter(who=who, act=act)
        self._json = json
        self._last: int | None = None

    async def look(self) -> bool:
        """Print them; returns True, because more may come."""
        new: list[ShownEntry] = []
        newest = 0
        async with aclosing(self._log.newest_first()) as entries:
            async for entry in entries:
                newest = max(newest, entry.number)
                if self._last is None or entry.number <= self._last:
                    break
                new.append(entry)
        self._last = newest
        for entry in reversed(new):
            if self._filter.matches(entry.entry):
                self._print(entry)
        return True

    def _print(self, entry: ShownEntry) -> None:
        if self._json:
            emit(entry.to_dict(), on_one_line=True)
        else:
            say("  ".join(part for part in _line(entry) if part not in ("", "-")))


async def _read(store: Store, most: int, who: str, act: str) -> list[ShownEntry]:
    from penstock.inspector.audit import AuditFilter, AuditLog

    found: list[ShownEntry] = []
    async with aclosing(AuditLog(store).newest_first(AuditFilter(who=who, act=act))) as entries:
        async for entry in entries:
            found.append(entry)
            if len(found) >= most:
                break
    return found


def _line(one: ShownEntry) -> tuple[str, ...]:
    entry = one.entry
    status = "-" if entry.status is None else str(entry.status)
    facts = " ".join(f"{name}={text}" for name, text in entry.facts.items())
    return (instant(one.at), entry.who, entry.address or "-", entry.act, entry.to, status, facts)
