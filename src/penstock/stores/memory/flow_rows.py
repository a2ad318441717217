"""A flow with its nodes, as the memory store keeps it."""

from __future__ import annotations

import dataclasses

from penstock.core.flow_engine import LiveFlow, LiveNode

__all__ = ["MemoryFlow"]


@dataclasses.dataclass(slots=True)
class MemoryFlow:
    """A flow, and its nodes by number."""

    head: LiveFlow
    nodes: list[LiveNode] = dataclasses.field(default_factory=list[LiveNode])
