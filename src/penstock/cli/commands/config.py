"""`penstock config`: show all settings with their values and sources."""

from __future__ import annotations

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, table


@click.command("config", cls=Command)
@click.option("--why", is_flag=True, help="Also show the purpose of each setting.")
@click.option("--changed", is_flag=True, help="Show only settings that are not at their default.")
def command(why: bool, changed: bool) -> None:
    """Show all settings with their values and sources. Secrets are masked."""
    session = Session.current()
    settings = [s for s in session.load().settings if not changed or s.source != "default"]
    if session.json:
        emit({"settings": settings})
        return
    heads: tuple[str, ...] = ("SETTING", "VALUE", "SOURCE", "DEFAULT")
    rows: list[tuple[str, ...]] = [(s.name, s.value or '""', s.source, s.default or '""') for s in settings]
    if why:
        heads += ("WHY",)
        rows = [(*row, s.why) for row, s in zip(rows, settings, strict=True)]
    table(heads, rows, empty="all settings are at their defaults")
