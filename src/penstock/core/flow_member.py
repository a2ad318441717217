"""What a job knows of the flow that it is a node of."""

from __future__ import annotations

import msgspec

__all__ = ["FlowMember", "Input"]


class Input(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A result that becomes an argument: the value of `node` goes into the parameter `name`.

    `spread`: `name` is a variable parameter (`*args`), and the value becomes its last element.
    """

    node: int
    name: str
    spread: bool = False


class FlowMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a job in a flow: the flow's queue and id, the number of its node, and its inputs."""

    queue: str
    id: str
    node: int
    inputs: tuple[Input, ...] = ()
