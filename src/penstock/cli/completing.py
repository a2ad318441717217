"""Shell completion of queue and entry names. It prints no errors, and imports only an app that the command
line names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.core.errors import PenstockError

if TYPE_CHECKING:  # click imports it to complete
    from click.shell_completion import CompletionItem

__all__ = ["complete_entry", "complete_queue"]


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """Names of queues; none if the store cannot be read."""

    async def names(inspector: Any) -> list[str]:
        return [queue.name for queue in await inspector.queues()]

    return _offered(ctx, names, incomplete)


def complete_entry(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
    """Names of periodic entries; none if the store cannot be read."""

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
            return []  # TAB must not run a file that only the settings of the working directory name
        found = session.run(names)
    except (PenstockError, click.ClickException, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]
