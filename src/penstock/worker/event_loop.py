"""The event loop of a process that runs workers or serves requests."""

from __future__ import annotations

import asyncio

__all__ = ["loop_runner"]


def loop_runner() -> asyncio.Runner:
    """A runner with uvloop's event loop; with asyncio's own if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
