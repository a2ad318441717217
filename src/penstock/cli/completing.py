"""What the shell offers when somebody presses TAB: no error, no long wait, and no import of an app that the
command line does not name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.core.errors import PenstockError

__all__ = ["complete_entry", "complete_queue"]


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """The names of queues, if the settings lead to a store that is there."""

    async def names(inspector: Any) -> list[str]:
        return [queue.name for queue in await inspector.queues()]

    return _offered(ctx, names, incomplete)


def complete_entry(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """The names of periodic entries, likewise."""

    async def names(inspector: Any) -> list[str]:
        return [entry.name for entry in await inspector.entries()]

    return _offered(ctx, names, incomplete)


def _offered(
    ctx: click.Context, names: Callable[[Any], Awaitable[list[str]]], incomplete: str
) -> list[CompletionItem | str]:
    from penstock.cli.session import Session

    session = ctx.find_root().ensure_object(Session)
    try:
        if session.uses_app() and "app" not in session.options:
            return []  # TAB in a stranger's directory must not run the file that its settings name
        found = session.run(names)
    except (PenstockError, click.ClickException, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]
