"""`penstock config`: each setting, its value, and where that came from."""

from __future__ import annotations

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, table

__all__ = ["command"]


@click.command("config", cls=Command)
@click.option("--why", is_flag=True, help="Also what each setting is for.")
@click.option("--changed", is_flag=True, help="Only what is not at its default.")
def command(why: bool, changed: bool) -> None:
    """Each setting, its value, and where that came from. Secrets are masked."""
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
    table(heads, rows, empty="everything is at its default")
