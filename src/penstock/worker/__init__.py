"""Takes jobs from a store and runs them.

`Queue` and `Worker` are imported when they are first used: a supervisor needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.worker.queues import Queue as Queue
    from penstock.worker.worker import Worker as Worker

_HOMES = {"Queue": "penstock.worker.queues", "Worker": "penstock.worker.worker"}

__all__ = ["Queue", "Worker"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
