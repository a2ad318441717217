"""Shell completion of the names of queues, periodic entries, workers, flows and bulk acts.

It prints no errors, waits for the store for a second at most, and imports only an app that the command line
names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.core.errors import PenstockError

if TYPE_CHECKING:  # click imports it to complete
    from click.shell_completion import CompletionItem

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem | str]]

#: Seconds that a key may take: a shell does nothing else meanwhile.
_PATIENCE = 1.0


def _completing(names: Callable[[Any], Awaitable[list[str]]]) -> Complete:
    """A completion of the names that an inspector finds; of none if the store cannot be read."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem | str]:
        return _offered(ctx, names, incomplete)

    return complete


async def _queues(inspector: Any) -> list[str]:
    return [queue.name for queue in await inspector.queues()]


async def _entries(inspector: Any) -> list[str]:
    return [entry.name for entry in await inspector.entries()]


async def _workers(inspector: Any) -> list[str]:
    return [worker.id for worker in await inspector.workers(jobs=1)]


async def _flows(inspector: Any) -> list[str]:
    return [f"{flow.queue}/{flow.id}" for flow in (await inspector.flows.flows()).flows]


async def _bulk_acts(inspector: Any) -> list[str]:
    return [bulk.id for bulk in await inspector.bulk.all()]


complete_queue = _completing(_queues)
complete_entry = _completing(_entries)
complete_worker = _completing(_workers)
complete_flow = _completing(_flows)
complete_bulk = _completing(_bulk_acts)


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _offered(
    ctx: click.Context, names: Callable[[Any], Awaitable[list[str]]], incomplete: str
) -> list[CompletionItem | str]:
    from penstock.cli.session import Session

    async def soon(inspector: Any) -> list[str]:
        async with asyncio.timeout(_PATIENCE):
            return await names(inspector)

    session = ctx.find_root().ensure_object(Session)
    try:
        if session.uses_app() and "app" not in session.options:
            return []  # TAB must not run a file that only the settings of the working directory name
        found = session.run(soon)
    except (PenstockError, click.ClickException, OSError):  # TimeoutError is an OSError
        return []
    return [name for name in found if name.startswith(incomplete)]
