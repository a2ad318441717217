"""Calls an app's hooks: on_startup, on_drain, on_shutdown."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.app.app import App

__all__ = ["call_hook", "call_last_hooks"]

_log = logging.getLogger("penstock.worker")


async def call_hook(hook: Callable[..., Any], app: App) -> None:
    """Call one hook, with the app if it takes an argument."""
    returned = hook(app) if inspect.signature(hook).parameters else hook()
    if inspect.isawaitable(returned):
        await returned


async def call_last_hooks(hooks: Sequence[Callable[..., Any]], app: App) -> None:
    """Call the hooks of a worker's end. A hook that fails is logged, and the next one is called."""
    for hook in hooks:
        try:
            await call_hook(hook, app)
        except Exception:  # noqa: BLE001  # boundary: user code
            _log.exception("the hook %r failed", hook)
